"""Counters and facts of one connection, besides those of its session.

This module reports a session's beginning, holds, ERRORs and end to the journal and to the gateway's counters. Its
functions run at most once per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.config.listener_settings import Listener
from gateway.errors import CloseReason, StompError
from gateway.journal.journal import Journal
from gateway.journal.recorder import Recorder
from gateway.journal.schema import error_code
from gateway.server.listen.accepted_connection import Peer
from gateway.server.stats import NOT_LOGGED_IN, GatewayStats, Stats
from gateway.session.context import Hold
from gateway.session.session import Session

_CONNECT: Final = frozenset((b"CONNECT", b"STOMP"))

# Shared, because an empty set takes 216 bytes.
_NO_HOLDS: Final = frozenset[Hold]()


class ConnectionStats:
    """Counts the bytes of one connection, and reports its session."""

    __slots__ = (
        "_connected", "_held", "_journal", "_stats", "_timed", "bytes_in", "bytes_out", "connected_at", "host",
        "is_greeted", "label", "listener", "peer", "recorder", "session",
    )  # fmt: skip

    def __init__(self, stats: GatewayStats, journal: Journal, session: Session, listener: Listener) -> None:
        self.session = session
        self.listener = listener
        self.bytes_in = self.bytes_out = 0
        self.recorder: Recorder | None = None
        self.label = NOT_LOGGED_IN
        self.is_greeted = False
        # The client's address with port, and `Peer.host`; empty if unknown.
        self.peer = self.host = ""
        self._stats = stats
        self._journal = journal
        self._held: frozenset[Hold] | set[Hold] = _NO_HOLDS
        # An unconfirmed message, whose latency is measured: sequence number and time.
        self._timed: tuple[int, int] | None = None
        journal.clock.tick()
        # When the client connected, in microseconds: on the journal's monotonic clock, and since the epoch.
        self._connected, self.connected_at = journal.clock.now, journal.clock.time

    @property
    def transport(self) -> str:
        """``tcp``, ``websocket`` or ``unix``."""
        if self.listener.websocket is not None:
            return "websocket"
        return "tcp" if self.listener.unix is None else "unix"

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.listener.tls is not None

    @property
    def journal_name(self) -> str | None:
        """The session's name in the journal: the boot, and the session's number. None without a journal."""
        return None if self.recorder is None else f"{self.recorder.writer.boot} {self.recorder.number}"

    def arrived(self, peer: Peer) -> None:
        """Note the client's address."""
        self.peer, self.host = str(peer), peer.host

    def started(self) -> Recorder | None:
        """Note the login. Returns the session's recorder if its virtual host has a journal."""
        session = self.session
        # A client that omits CONNECT never gets CONNECTED, even if it sends a CONNECT later.
        self.is_greeted = not session.traffic.commands.keys().isdisjoint(_CONNECT)
        self.label = self._stats.label(session.settings.name)
        self._stats.hosts[self.label].started[session.version.decode(), self.transport] += 1
        self.recorder = self._journal.recorder(session, self._connected, self.host, tls=self.is_encrypted)
        return self.recorder

    def batch_done(self) -> None:
        """Record changes of the session's holds, and measure the latency of one confirm. HOT: once per read."""
        session = self.session
        holds = session.holds
        if holds or self._held:
            self._look(holds)
        confirms = session.confirms
        if self._timed is not None:
            sequence, sent_at = self._timed
            if sequence not in confirms:
                self._stats.hosts[self.label].latencies.add(self._journal.clock.now - sent_at)
                self._timed = None
        elif confirms.last_sequence in confirms:
            self._timed = (confirms.last_sequence, self._journal.clock.now)

    def _look(self, holds: set[Hold]) -> None:
        if self.recorder is not None:
            self.recorder.look(holds)
        if holds != self._held:
            begun = self._stats.hosts[self.label].holds
            for hold in holds - self._held:
                begun[hold.value] += 1
            self._held = holds.copy()

    def time_passed(self) -> None:
        """Let the journal write records that are due. Call it about once a second."""
        if self.recorder is not None:
            self.recorder.time_passed()

    def failed(self, error: StompError) -> None:
        """Count an ERROR frame."""
        self._stats.hosts[self.label].errors[error_code(error)] += 1
        if self.recorder is not None:
            self.recorder.failed(error)
        else:
            self._journal.refused(error, self.host)

    def add_to(self, stats: Stats) -> None:
        """Add the counters of this connection and its session to the sums of a virtual host."""
        stats.connected += self.is_greeted
        stats.bytes_in += self.bytes_in
        stats.bytes_out += self.bytes_out
        stats.add(self.session)

    def count_end(self, reason: CloseReason | None) -> None:
        """Add the counters to the virtual host's, at the end of the session."""
        host = self._stats.hosts[self.label]
        self.add_to(host.totals)
        host.ended[reason.value if reason else "unknown"] += 1

    def journal_end(self, reason: CloseReason | None) -> Iterator[None]:
        """Write the session's end into the journal, one part per step of the iterator."""
        recorder, self.recorder = self.recorder, None
        return iter(()) if recorder is None else recorder.ended(reason, self.bytes_in, self.bytes_out)
