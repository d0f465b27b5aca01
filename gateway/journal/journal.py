"""The traffic journal of a gateway: one writer for each directory, and how each virtual host is journalled."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from gateway.config.config_files import default_journal_directory
from gateway.config.journal_settings import AMQP
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.errors import GatewayError, JournalError, StompError
from gateway.journal import schema
from gateway.journal.privacy import KEY_NAME, DestinationNames, UserNames, users_key
from gateway.journal.recorder import Recorder
from gateway.journal.segments import worker_node
from gateway.journal.session_recorder import VirtualHostJournal
from gateway.journal.ship_targets import open_store
from gateway.journal.shipper import Shipper, ShipStats, ShipTarget
from gateway.journal.stream import StreamBroker, StreamTarget
from gateway.journal.writer import Clock, Writer, WriterSettings
from gateway.session.session import Session

log = structlog.get_logger("gateway.journal")

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def node_name(configured: str | None) -> str:
    """The node name of this gateway: the configured one, or else the host name."""
    return configured or _NOT_IN_NAMES.sub("-", socket.gethostname()) or "gateway"


# Keys of a directory's writer, which cannot change while it writes.
_OF_WRITERS: Final = ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship")


@dataclass(frozen=True, slots=True)
class PreparedJournals:
    """How each virtual host is journalled by a configuration, and its new writers."""

    config: GatewayConfig
    by_host: dict[str, VirtualHostJournal] = field(default_factory=dict)
    writers: dict[Path, Writer] = field(default_factory=dict)
    shippers: dict[Path, Shipper] = field(default_factory=dict)
    # Directories and keys that were made for it, in this order.
    made: list[Path] = field(default_factory=list)

    def discard(self) -> None:
        """It is not used: nothing of it shall be left."""
        for path in reversed(self.made):
            # Not if somebody else uses the directory by now.
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


class Journal:
    """All journals of a gateway, or of one of its workers, by number."""

    def __init__(self, config: GatewayConfig, worker: int | None = None) -> None:
        self.clock = Clock()
        self._worker = worker
        self._config = config
        self._writers: dict[Path, Writer] = {}
        self._shippers: dict[Path, Shipper] = {}
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

    @property
    def lost(self) -> int:
        """Segments that were deleted before they were shipped."""
        return sum(writer.files.retention.lost for writer in self._writers.values())

    @property
    def shipping(self) -> ShipStats:
        """The sum of what all directories have shipped, and of what they have still to ship."""
        return sum((shipper.stats for shipper in self._shippers.values()), ShipStats())

    def start(self) -> None:
        """Open every virtual host's journal.

        Raises `JournalError` or `JournalKeyError` if a configured directory, or the key of logins, cannot be used.
        """
        self.use(self.prepare(self._config))

    def prepare(self, config: GatewayConfig) -> PreparedJournals:
        """Try the directories of another configuration, for `use`. Raises as `start` does; then nothing has changed."""
        prepared = PreparedJournals(config)
        try:
            self._prepare(prepared)
        except GatewayError:
            prepared.discard()
            raise
        return prepared

    def _prepare(self, prepared: PreparedJournals) -> None:
        for virtual_host in prepared.config.resolved_virtual_hosts():
            settings = virtual_host.journal
            journal = self._by_host.get(virtual_host.name)
            if journal is None or journal.settings != settings:
                journal = None if settings.level == "off" else self._opened(virtual_host, prepared)
            if journal is not None:  # with the same settings the old one, which remembers destinations
                prepared.by_host[virtual_host.name] = journal

    def use(self, prepared: PreparedJournals) -> dict[str, str]:
        """Journal new sessions by another configuration. Sessions, and directories that are open, go on as before.

        Returns the keys that wait for a restart, each with the value that stays in use.
        """
        config, journals = prepared.config, prepared.by_host
        self._config, self._by_host = config, journals
        self._writers |= prepared.writers
        self._shippers |= prepared.shippers
        for writer in prepared.writers.values():
            writer.files.start()
        for shipper in prepared.shippers.values():
            shipper.start()
        in_use: dict[str, str] = {}
        for name, journal in journals.items():
            own = config.virtual_hosts[name].journal.model_fields_set
            for key in _OF_WRITERS:
                used, wanted = (getattr(each, key) for each in (journal.writer.settings.journal, journal.settings))
                if key == "node":
                    used, wanted = node_name(used), node_name(wanted)
                if used != wanted:
                    place = f"virtual_hosts.{name}" if key in own else "defaults"
                    in_use[f"{place}.journal.{key}"] = "null" if used is None else str(used)
        return in_use

    def announce(self) -> None:
        """Log where the journal is."""
        for directory, writer in self._writers.items():
            log.info("journal opened", directory=str(directory), boot=writer.boot)

    def _opened(self, virtual_host: VirtualHost, prepared: PreparedJournals) -> VirtualHostJournal | None:
        settings = virtual_host.journal
        directory = settings.directory or default_journal_directory()
        try:
            new = [path for path in (*reversed(directory.parents), directory) if not path.exists()]
            if new:
                # A key in a directory that was there may be another gateway's, too.
                prepared.made.extend((*new, directory / KEY_NAME))
            writer = self._writers.get(directory) or self._new_writer(virtual_host, directory, prepared)
            key = users_key(directory, settings.users_key_file) if settings.users == "hashed" else None
        except OSError as error:
            if settings.directory is not None:
                raise JournalError(str(directory), error.strerror or str(error)) from error
            # The default directory was not asked for, so the gateway starts without a journal.
            log.warning(
                "no journal", directory=str(directory), reason=error.strerror,
                hint="name a directory under journal in the configuration, or set its level to off",
            )  # fmt: skip
            return None
        destinations = DestinationNames(settings.destinations, settings.max_destinations)
        return VirtualHostJournal(writer, settings, UserNames(key), destinations)

    def _new_writer(self, virtual_host: VirtualHost, directory: Path, prepared: PreparedJournals) -> Writer:
        if directory in prepared.writers:
            return prepared.writers[directory]
        settings = virtual_host.journal
        node = node_name(settings.node)
        if self._worker is not None:
            node = worker_node(node, self._worker)
        configuration = sha256(prepared.config.model_dump_json().encode()).hexdigest()[:16]
        writer_settings = WriterSettings(directory, node, settings, configuration)
        shipper = None if settings.ship.to is None else Shipper(directory, _target(virtual_host))
        on_finished = (lambda: None) if shipper is None else shipper.wake
        writer = Writer(writer_settings, self.clock, os.getpid(), on_finished=on_finished)
        writer.files.probe()
        prepared.writers[directory] = writer
        if shipper is not None:
            prepared.shippers[directory] = shipper
        return writer

    def _of(self, virtual_host: str | None) -> VirtualHostJournal | None:
        name = virtual_host if virtual_host in self._config.virtual_hosts else PASS_THROUGH
        return self._by_host.get(name or PASS_THROUGH)

    def _of_default(self) -> VirtualHostJournal | None:
        virtual_host = self._config.virtual_host(None)
        return self._of(None if virtual_host is None else virtual_host.name)

    def recorder(self, session: Session, connected: int, host: str, *, tls: bool) -> Recorder | None:
        """Begin to journal a session that has logged in; None if its virtual host has no journal.

        ``connected`` is when the client connected, on the journal's clock; ``host`` is the client's address.
        """
        virtual_host = session.settings.name
        journal = self._of(virtual_host)
        if journal is None:
            return None
        return Recorder(journal, session, virtual_host, connected, peer=journal.peer(host), tls=tls)

    def refused(self, error: StompError, host: str) -> None:
        """Write an ERROR to a client that has not logged in, by its address, to the default virtual host's journal."""
        journal = self._of_default()
        if journal is not None:
            self.clock.tick()
            line = schema.ErrorLine(self.clock.time, 0, schema.error_code(error), ip=journal.peer(host))
            journal.writer.put(line)

    def audit(self, code: str, user: str | None, host: str | None) -> None:
        """Write what somebody asked for to the default virtual host's journal, or else to the first that there is.

        ``host`` is the address that it came from; None if it was a signal.
        """
        journal = self._of_default() or next(iter(self._by_host.values()), None)
        if journal is not None:
            self.clock.tick()
            name = None if user is None else journal.users.name(user.encode(errors="replace"))
            ip = None if host is None else journal.peer(host)
            journal.writer.put(schema.AuditLine(self.clock.time, 0, code, name, ip))

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
                    "journal not finished", directory=str(directory), lines=writer.files.pending, dropped=writer.dropped
                )
        self._writers.clear()
        self._by_host.clear()

    def close_shippers(self, within: float) -> None:
        """Ship what is finished by now within that many seconds. What is left waits for the next start. Blocks."""
        deadline = monotonic() + within
        for shipper in self._shippers.values():
            shipper.end()
        for directory, shipper in self._shippers.items():
            if not shipper.close(deadline - monotonic()):
                waiting = shipper.stats.waiting
                log.warning("journal not shipped", directory=str(directory), segments=waiting.segments)

    @property
    def ships(self) -> bool:
        """Whether segments are shipped anywhere."""
        return bool(self._shippers)


def _target(virtual_host: VirtualHost) -> ShipTarget:
    """Where a virtual host's journal is shipped."""
    ship = virtual_host.journal.ship
    if ship.to is None or ship.to != AMQP:
        return open_store(str(ship.to))
    user = ship.user or virtual_host.default_user
    if user is None:
        raise GatewayError("shipping to amqp needs a user")
    return StreamTarget(StreamBroker.of(virtual_host, user, ship.stream), ship.stream_max_bytes, ship.stream_max_age)
