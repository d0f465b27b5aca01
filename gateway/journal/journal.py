"""The traffic journal of a gateway: one writer for each directory, one book for each virtual host."""

from __future__ import annotations

import os
import re
import socket
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import structlog

from gateway import __version__
from gateway.config import PASS_THROUGH, GatewayConfig, VirtualHost, default_journal_directory
from gateway.errors import JournalError, StompError
from gateway.journal import schema
from gateway.journal.book import Book
from gateway.journal.clock import Clock
from gateway.journal.codes import code_of
from gateway.journal.privacy import Destinations, Users, peer_name, users_key
from gateway.journal.recorder import Recorder
from gateway.journal.writer import Writer, WriterSettings

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.session.session import Session

log = structlog.get_logger("gateway.journal")

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def node_name(configured: str | None) -> str:
    """What this gateway is called: as configured, or after its machine.

    Args:
        configured: ``journal.node``.
    """
    return configured or _NOT_IN_NAMES.sub("-", socket.gethostname()) or "gateway"


class Journal:
    """All journals of a gateway.

    Args:
        config: of the gateway.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.clock = Clock()
        self._config = config
        self._writers: dict[Path, Writer] = {}
        self._books: dict[str, Book] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is journalled at all."""
        return bool(self._books)

    @property
    def lines(self) -> int:
        """Lines of all writers so far."""
        return sum(writer.lines for writer in self._writers.values())

    @property
    def dropped(self) -> int:
        """Events that were not written, because the disk did not take them."""
        return sum(writer.dropped for writer in self._writers.values())

    def start(self) -> None:
        """Open the journal of every virtual host that has one.

        Raises:
            JournalError: when a directory that the configuration names cannot be used.
        """
        for virtual_host in self._config.resolved_virtual_hosts():
            if virtual_host.journal.level != "off":
                self._open(virtual_host)

    def announce(self) -> None:
        """Say in the log where the journal is."""
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
            # Nobody asked for this very place, so nobody should be kept from working by it.
            log.warning(
                "no journal", directory=str(directory), reason=error.strerror,
                hint="name a directory under journal in the configuration, or set its level to off",
            )  # fmt: skip
            return
        self._books[virtual_host.name] = Book(
            writer=writer,
            users=Users(key),
            destinations=Destinations(settings.destinations, settings.max_destinations),
            detailed=settings.level == "message",
            share=settings.sample,
            peers=settings.peers,
            header_values=settings.header_values,
        )

    def _writer(self, virtual_host: VirtualHost, directory: Path) -> Writer:
        settings = virtual_host.journal
        node = node_name(settings.node)
        writer = Writer(
            WriterSettings(
                directory,
                node,
                settings.rotate_bytes,
                settings.rotate_after,
                settings.retain,
                __version__,
                sha256(self._config.model_dump_json().encode()).hexdigest()[:16],
            ),
            self.clock,
            os.getpid(),
        )
        writer.start()
        self._writers[directory] = writer
        return writer

    def _book(self, virtual_host: str | None) -> Book | None:
        name = virtual_host if virtual_host in self._config.virtual_hosts else PASS_THROUGH
        return self._books.get(name or PASS_THROUGH)

    def recorder(self, session: Session, born: int, host: str, *, tls: bool) -> Recorder | None:
        """Begin to journal a session that has logged in.

        Args:
            session: it.
            born: when the client connected, on the journal's clock.
            host: the client's address.
            tls: whether the connection is encrypted.

        Returns:
            Its witness; None where its virtual host has no journal.
        """
        virtual_host = session.settings.name
        book = self._book(virtual_host)
        if book is None:
            return None
        return Recorder(book, session, virtual_host, born, peer=peer_name(host, book.peers), tls=tls)

    def refused(self, error: StompError, host: str) -> None:
        """A client that has not logged in got an ERROR; the journal of the default virtual host tells of it.

        Args:
            error: it.
            host: the client's address.
        """
        virtual_host = self._config.virtual_host(None)
        book = self._book(None if virtual_host is None else virtual_host.name)
        if book is not None:
            self.clock.tick()
            book.writer.put(schema.Err(self.clock.time, 0, code_of(error), ip=peer_name(host, book.peers)))

    def flush(self) -> None:
        """Write what has collected. Called a few times a second."""
        self.clock.adjust()
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Write everything, and say so in the last line."""
        for directory, writer in self._writers.items():
            if not writer.close():
                log.error(
                    "journal not finished", directory=str(directory), lines=writer.pending, dropped=writer.dropped
                )
        self._writers.clear()
        self._books.clear()
