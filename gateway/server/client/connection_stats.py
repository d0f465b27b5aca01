"""The observation of one connection: the one place where the journal and the figures learn what its session does.

Everything here happens once per batch of bytes or less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.journal.codes import code_of
from gateway.server.stats import NOT_LOGGED_IN, GatewayStats
from gateway.session.context import Hold

if TYPE_CHECKING:
    from gateway.config import Listener
    from gateway.errors import CloseReason, StompError
    from gateway.journal.journal import Journal
    from gateway.journal.recorder import Recorder
    from gateway.server.listen.accepted_connection import Peer
    from gateway.session.session import Session

_NOBODY: Final = ""
_CONNECT: Final = frozenset((b"CONNECT", b"STOMP"))


class ConnectionStats:
    """What is known of one connection, besides its session.

    Args:
        figures: of the gateway.
        journal: of the gateway.
        session: that is looked at.
        listener: where the client came in.
    """

    __slots__ = (
        "_clock",
        "_figures",
        "_held",
        "_host",
        "_journal",
        "_timed",
        "_timed_at",
        "born",
        "bytes_in",
        "bytes_out",
        "connected_at",
        "is_greeted",
        "is_started",
        "label",
        "listener",
        "peer",
        "recorder",
        "session",
    )  # fmt: skip

    def __init__(self, stats: GatewayStats, journal: Journal, session: Session, listener: Listener) -> None:
        self.session = session
        self.listener = listener
        self.peer = self._host = _NOBODY
        self.bytes_in = self.bytes_out = 0
        self.recorder: Recorder | None = None
        self.label = NOT_LOGGED_IN
        self.is_started = self.is_greeted = False
        self._figures = stats
        self._journal = journal
        self._held: frozenset[Hold] | set[Hold] = frozenset()
        # A message that waits for the broker's confirm, by its sequence number, and since when; 0 for none.
        self._timed = self._timed_at = 0
        self._clock = journal.clock
        self._clock.tick()
        # When the client connected, on the journal's clock and in microseconds since the epoch.
        self.born, self.connected_at = self._clock.now, self._clock.time

    @property
    def transport(self) -> str:
        """How the client came: ``tcp`` or ``websocket``."""
        return "tcp" if self.listener.websocket is None else "websocket"

    @property
    def is_encrypted(self) -> bool:
        """Whether its connection speaks TLS."""
        return self.listener.tls is not None

    @property
    def journal_name(self) -> str | None:
        """Where the session is in the journal: the boot and its number there."""
        return None if self.recorder is None else f"{self.recorder.writer.boot} {self.recorder.number}"

    def arrived(self, peer: Peer) -> None:
        """It is known who the client is."""
        self.peer, self._host = str(peer), peer.host

    def started(self) -> Recorder | None:
        """The client has logged in.

        Returns:
            The journal's witness, if there is a journal.
        """
        session = self.session
        self.is_started = True
        # Who was let in without one of these is not told CONNECTED, whatever comes later.
        self.is_greeted = not session.traffic.commands.keys().isdisjoint(_CONNECT)
        self.label = self._figures.label(session.settings.name)
        self._figures.host(self.label).started[session.version.decode(), self.transport] += 1
        self.recorder = self._journal.recorder(session, self.born, self._host, tls=self.is_encrypted)
        return self.recorder

    def batch_done(self) -> None:
        """Look at the session's holds, and at what the broker confirmed. HOT: once per read, on either side."""
        session = self.session
        holds = session.holds
        if holds or self._held:
            self._look(holds)
        if self._timed:
            if self._timed not in session.confirms:
                self._figures.host(self.label).latencies.add(self._clock.now - self._timed_at)
                self._timed = 0
        elif session.confirms.last_sequence in session.confirms:
            self._timed, self._timed_at = session.confirms.last_sequence, self._clock.now

    def _look(self, holds: set[Hold]) -> None:
        if self.recorder is not None:
            self.recorder.look(holds)
        if holds != self._held:
            begun = self._figures.host(self.label).holds
            for hold in holds - self._held:
                begun[hold.value] += 1
            self._held = holds.copy()

    def time_passed(self) -> None:
        """Called about once a second."""
        if self.recorder is not None:
            self.recorder.time_passed()

    def failed(self, error: StompError) -> None:
        """The client got an ERROR."""
        self._figures.host(self.label).errors[code_of(error)] += 1
        if self.recorder is not None:
            self.recorder.failed(error)
        else:
            self._journal.refused(error, self._host)

    def ended(self, reason: CloseReason | None) -> None:
        """The session is over."""
        host = self._figures.host(self.label)
        host.totals.add(self)
        host.ended[reason.value if reason else "unknown"] += 1
        if self.recorder is not None:
            self.recorder.ended(reason, self.bytes_in, self.bytes_out)
            self.recorder = None
