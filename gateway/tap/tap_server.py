"""Runs a tap: its listener, the connections to its server, and its journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from gateway.config.addresses import SocketAddress
from gateway.config.journal_settings import JournalSettings
from gateway.errors import JournalError, ListenError
from gateway.journal.journal import node_name
from gateway.journal.privacy import DestinationNames, UserNames, users_key
from gateway.journal.session_recorder import VirtualHostJournal
from gateway.journal.writer import Clock, Writer, WriterSettings
from gateway.server.descriptors import raise_limit
from gateway.server.listen.listening_sockets import bound_to_tcp
from gateway.server.log_limits import LogRateLimiter
from gateway.server.paced_work import PacedWork, PeriodicTimer
from gateway.tap.conversation import Conversation
from gateway.tap.proxy import Ending, TappedConnection
from gateway.tap.tapped_session import TapJournal

log = structlog.get_logger("gateway.tap")

_BACKLOG: Final = 1024
# Seconds.
_FLUSH_INTERVAL: Final = 0.25
_STAT_INTERVAL: Final = 1.0
_CONNECT_WITHIN: Final = 10.0
_STOP_WITHIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class TapSettings:
    """The settings of a tap, from its command line. ``listen_tls`` and ``upstream_tls`` are None without TLS there."""

    listen: SocketAddress
    upstream: SocketAddress
    directory: Path
    impl: str
    journal: JournalSettings
    listen_tls: ssl.SSLContext | None = field(default=None, repr=False)
    upstream_tls: ssl.SSLContext | None = field(default=None, repr=False)


def open_journal(settings: TapSettings) -> TapJournal:
    """Open the journal's directory.

    Raises:
        JournalError: it cannot be used.
        JournalKeyError: the key to hash logins with cannot be used.
    """
    node = node_name(settings.journal.node)
    writer_settings = WriterSettings(settings.directory, node, settings.journal, impl=settings.impl)
    writer = Writer(writer_settings, Clock(), os.getpid())
    try:
        writer.files.probe()
        key = users_key(settings.directory, None) if settings.journal.users == "hashed" else None
    except OSError as error:
        raise JournalError(str(settings.directory), error.strerror or str(error)) from error
    writer.files.start()
    journal = VirtualHostJournal(writer, settings.journal, UserNames(key), DestinationNames())
    return TapJournal(journal, is_plugin=settings.impl == "plugin")


class TapServer:
    """All connections of one tap."""

    def __init__(self, settings: TapSettings, journal: TapJournal) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.connections = 0
        self.unreadable = 0
        self.turns = PacedWork()
        self._settings = settings
        self._journal = journal
        self._writer = journal.virtual_host.writer
        self._loop = asyncio.get_running_loop()
        self._log_limiter = LogRateLimiter(self._loop.time)
        self._open: set[TappedConnection] = set()
        self._all_ended = asyncio.Event()
        self._dialling: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._timers: list[PeriodicTimer] = []

    async def start(self) -> None:
        """Accept clients. Raises ListenError if the address cannot be taken."""
        settings = self._settings
        try:
            sockets = await bound_to_tcp(settings.listen, _BACKLOG)
        except OSError as error:
            raise ListenError(str(settings.listen), error, "--listen") from error
        self.addresses = [each.getsockname()[:2] for each in sockets]
        self._servers = [
            await self._loop.create_server(self._accepted, sock=each, ssl=settings.listen_tls, backlog=_BACKLOG)
            for each in sockets
        ]
        self._timers = [PeriodicTimer(_FLUSH_INTERVAL, self._flush), PeriodicTimer(_STAT_INTERVAL, self._time_passed)]
        for address in self.addresses:
            log.info("tap listening", address=str(SocketAddress(*address)), upstream=str(settings.upstream))
        log.info("journal opened", directory=str(settings.directory), boot=self._writer.boot)

    def _accepted(self) -> Ending:
        return TappedConnection(self).client

    def begin(self, connection: TappedConnection, host: str) -> Conversation:
        """See `TapContext`."""
        self.connections += 1
        self._open.add(connection)
        self._all_ended.clear()
        task = self._loop.create_task(self._dial(connection), name=f"server of {connection.peer}")
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

        def note(whose: str, reason: str) -> None:
            self.unreadable += 1
            self._log_limiter.warning("stream not readable", peer=connection.peer, whose=whose, reason=reason)

        return Conversation(self._journal, host, tls=self._settings.listen_tls is not None, note=note)

    async def _dial(self, connection: TappedConnection) -> None:
        upstream, tls = self._settings.upstream, self._settings.upstream_tls
        name = None if tls is None else upstream.host
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await self._loop.create_connection(
                    lambda: Ending(connection, is_client=False), upstream.host, upstream.port, ssl=tls,
                    server_hostname=name,
                )  # fmt: skip
        except (OSError, ValueError) as error:  # ValueError: the name is malformed
            reason = str(error) or "no answer in time"
            self._log_limiter.warning("server unreachable", upstream=str(upstream), reason=reason)
            connection.abort()

    def ended(self, connection: TappedConnection) -> None:
        """See `TapContext`."""
        self._open.discard(connection)
        if not self._open:
            self._all_ended.set()

    def _flush(self) -> None:
        self._writer.clock.adjust()
        self._writer.flush()

    def _time_passed(self) -> None:
        self.turns.do_each((connection, connection.time_passed) for connection in tuple(self._open))

    async def stop(self) -> None:
        """Close everything, and finish the journal."""
        for timer in self._timers:
            timer.stop()
        for server in self._servers:
            server.close()
        for task in self._dialling:
            task.cancel()
        for connection in tuple(self._open):
            connection.stop()
        await self._end_all()
        if not self._writer.close():
            log.error("journal not finished", lines=self._writer.files.pending, dropped=self._writer.dropped)
        log.info(
            "tap stopped", connections=self.connections, unreadable=self.unreadable, lines=self._writer.lines,
            dropped=self._writer.dropped,
        )  # fmt: skip

    async def _end_all(self) -> None:
        """Wait for the connections, which are closing. Cut those that take too long."""
        if not self._open:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), _STOP_WITHIN)
        for connection in tuple(self._open):
            connection.abort()
        await self._all_ended.wait()


async def run_tap(settings: TapSettings) -> None:
    """Run a tap until SIGTERM or SIGINT.

    Raises:
        GatewayError: the address cannot be taken, or the journal's directory cannot be used.
    """
    raise_limit()
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    tap = TapServer(settings, open_journal(settings))
    try:
        await tap.start()
        await stopping.wait()
    finally:
        await tap.stop()
