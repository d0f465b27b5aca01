"""The traffic journal of a gateway: one writer for each directory, and how each virtual host is journalled."""

from __future__ import annotations

import os
import re
import socket
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from gateway import __version__
from gateway.config.config_files import default_journal_directory
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.errors import JournalError, StompError
from gateway.journal import schema
from gateway.journal.privacy import DestinationNames, UserNames, peer_name, users_key
from gateway.journal.recorder import Recorder, VirtualHostJournal
from gateway.journal.writer import Clock, Writer, WriterSettings
from gateway.session.session import Session

log = structlog.get_logger("gateway.journal")

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def node_name(configured: str | None) -> str:
    """The node name of this gateway: the configured one, or else the host name."""
    return configured or _NOT_IN_NAMES.sub("-", socket.gethostname()) or "gateway"


class Journal:
    """All journals of a gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        self.clock = Clock()
        self._config = config
        self._writers: dict[Path, Writer] = {}
        self._by_host: dict[str, VirtualHostJournal] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is journalled at all."""
        return bool(self._by_host)

    @property
    def lines(self) -> int:
        """Lines of all writers so far."""
        return sum(writer.lines for writer in self._writers.values())

    @property
    def dropped(self) -> int:
        """Events that were not written, because the disk did not take them."""
        return sum(writer.dropped for writer in self._writers.values())

    def start(self) -> None:
        """Open every virtual host's journal. Raises `JournalError` if a configured directory cannot be used."""
        for virtual_host in self._config.resolved_virtual_hosts():
            if virtual_host.journal.level != "off":
                self._open(virtual_host)

    def announce(self) -> None:
        """Log where the journal is."""
        for directory, writer in self._writers.items():
            log.info("journal opened", directory=str(directory), boot=writer.boot)

    def _open(self, virtual_host: VirtualHost) -> None:
        settings = virtual_host.journal
        directory = settings.directory or default_journal_directory()
        try:
            writer = self._writers.get(directory) or self._writer(virtual_host, directory)
            key = users_key(directory, settings.users_key_file) if settings.users == "hashed" else None
        except OSError as error:
            if settings.directory is not None:
                raise JournalError(str(directory), error.strerror or str(error)) from error
            # The default directory was not asked for, so the gateway starts without a journal.
            log.warning(
                "no journal", directory=str(directory), reason=error.strerror,
                hint="name a directory under journal in the configuration, or set its level to off",
            )  # fmt: skip
            return
        self._by_host[virtual_host.name] = VirtualHostJournal(
            writer=writer,
            users=UserNames(key),
            destinations=DestinationNames(settings.destinations, settings.max_destinations),
            by_message=settings.level == "message",
            share=settings.sample,
            peers=settings.peers,
            header_values=settings.header_values,
        )

    def _writer(self, virtual_host: VirtualHost, directory: Path) -> Writer:
        settings = virtual_host.journal
        configuration = sha256(self._config.model_dump_json().encode()).hexdigest()[:16]
        writer_settings = WriterSettings(
            directory, node_name(settings.node), settings.rotate_bytes, settings.rotate_after, settings.retain,
            __version__, configuration,
        )  # fmt: skip
        writer = Writer(writer_settings, self.clock, os.getpid())
        writer.start()
        self._writers[directory] = writer
        return writer

    def _of(self, virtual_host: str | None) -> VirtualHostJournal | None:
        name = virtual_host if virtual_host in self._config.virtual_hosts else PASS_THROUGH
        return self._by_host.get(name or PASS_THROUGH)

    def recorder(self, session: Session, connected: int, host: str, *, tls: bool) -> Recorder | None:
        """Begin to journal a session that has logged in; None if its virtual host has no journal.

        ``connected`` is when the client connected, on the journal's clock; ``host`` is the client's address.
        """
        virtual_host = session.settings.name
        journal = self._of(virtual_host)
        if journal is None:
            return None
        return Recorder(journal, session, virtual_host, connected, peer=peer_name(host, journal.peers), tls=tls)

    def refused(self, error: StompError, host: str) -> None:
        """Write an ERROR to a client that has not logged in, by its address, to the default virtual host's journal."""
        virtual_host = self._config.virtual_host(None)
        journal = self._of(None if virtual_host is None else virtual_host.name)
        if journal is not None:
            self.clock.tick()
            line = schema.ErrorLine(self.clock.time, 0, schema.error_code(error), ip=peer_name(host, journal.peers))
            journal.writer.put(line)

    def flush(self) -> None:
        """Write what has collected. Called a few times a second."""
        self.clock.adjust()
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Write everything, and a last line that says so."""
        for directory, writer in self._writers.items():
            if not writer.close():
                log.error(
                    "journal not finished", directory=str(directory), lines=writer.pending, dropped=writer.dropped
                )
        self._writers.clear()
        self._by_host.clear()
