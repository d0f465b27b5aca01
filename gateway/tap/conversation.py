"""One client and its server, as the tap sees them: it reads the frames of both sides after they were passed on.

So it can delay or change nothing. If one side is not readable, its part ends there: the connection continues, and the
journal has what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.journal.privacy import shown
from gateway.journal.session_recorder import SessionRecorder
from gateway.stomp.frame_scanner import FrameScanner, ScannedFrame, UnreadableStreamError
from gateway.stomp.headers import trim_values
from gateway.tap import departures
from gateway.tap.tapped_session import TapJournal, TappedSession

_CONNECTS: Final = (b"CONNECT", b"STOMP")

# Bounds of the frames that a client sends before CONNECTED, which are read after it: their number, and the bytes of
# their headers.
_MAX_EARLY: Final = 1_000
_MAX_EARLY_BYTES: Final = 65_536
_FRAMES_AT_ONCE: Final = 8


@dataclass(slots=True)
class _Side:
    """What came from the client, or from the server. ``scanner`` is None once it is not readable."""

    scanner: FrameScanner | None
    frames: int = 0
    size: int = 0


class Conversation:
    """One connection. ``note`` is called for a side that is not readable, with its name and the reason."""

    def __init__(self, journal: TapJournal, host: str, *, tls: bool, note: Callable[[str, str], None]) -> None:
        self._journal = journal
        self._host = host
        self._tls = tls
        self._note = note
        self._clock = journal.virtual_host.writer.clock
        self._clock.tick()
        self._connected_at = self._clock.now
        self._client = _Side(FrameScanner(from_client=True))
        self._server = _Side(FrameScanner(from_client=False))
        self._trims = False
        # Of CONNECT, without the passcode, and the rules that it relies on.
        self._connect: dict[bytes, bytes] = {}
        self._connect_rules: set[str] = set()
        # The client's frames before CONNECTED, with their times.
        self._early: list[tuple[int, ScannedFrame]] = []
        self._early_bytes = 0
        self._session: TappedSession | None = None

    def heard(self, data: bytes, *, from_client: bool) -> Iterator[None]:
        """Note that bytes have passed. Each step of the iterator reads some frames. HOT: once per read."""
        self._clock.tick()
        return self._hear(data, from_client, self._clock.now)

    def _hear(self, data: bytes, from_client: bool, at: int) -> Iterator[None]:
        """Read the frames in bytes that passed at the time ``at``."""
        side = self._client if from_client else self._server
        side.size += len(data)
        scanner = side.scanner
        if scanner is None:
            return
        take, clock = self._from_client if from_client else self._from_server, self._clock
        clock.now = at
        try:
            for frame in scanner.scan(data):
                side.frames += 1
                if self._trims:
                    frame = frame._replace(headers=trim_values(frame.headers))  # noqa: PLW2901
                take(frame)
                if not side.frames % _FRAMES_AT_ONCE:
                    yield
                    # Bytes of other connections were read meanwhile.
                    if side.scanner is not scanner:
                        return
                    clock.now = at
        except UnreadableStreamError as error:
            self.give_up(from_client=from_client, reason=str(error))

    def give_up(self, *, from_client: bool, reason: str) -> None:
        """Read no more of one side."""
        (self._client if from_client else self._server).scanner = None
        if from_client and self._session is not None:
            self._session.used(departures.MALFORMED)
        self._note("client" if from_client else "server", reason)

    def time_passed(self) -> None:
        """Write counts every ten seconds. Called about once a second."""
        if self._session is not None:
            self._session.recorder.time_passed()

    def ended(self, *, by_client: bool, is_stopping: bool = False) -> Iterator[None]:
        """Note the end of the connection, in several steps. ``by_client``: the client closed first."""
        session, self._session = self._session, None
        if session is not None:
            client, server = self._client, self._server
            yield from session.end(by_client, is_stopping, (client.frames, server.frames), (client.size, server.size))

    def _from_client(self, frame: ScannedFrame) -> None:
        if frame.command in _CONNECTS:
            self._client_connects(frame.headers)
        elif self._session is not None:
            self._session.client_frame(frame)
        else:
            self._early_bytes += sum(len(name) + len(value) for name, value in frame.headers.items())
            if len(self._early) < _MAX_EARLY and self._early_bytes <= _MAX_EARLY_BYTES:
                self._early.append((self._clock.now, frame))

    def _client_connects(self, headers: Mapping[bytes, bytes]) -> None:
        if self._session is not None:
            self._session.used(departures.SECOND_CONNECT)
            return
        versions = headers.get(b"accept-version", b"1.0").split(b",")
        self._trims = versions == [b"1.0"]
        headers = trim_values(headers) if self._trims else headers
        self._connect = {name: headers[name] for name in (b"login", b"host") if name in headers}
        # A CONNECT that the server refuses counts, too.
        self._connect_rules.update(departures.of_connect(self._connect))

    def _from_server(self, frame: ScannedFrame) -> None:
        if self._session is not None:
            self._session.server_frame(frame)
        elif frame.command == b"CONNECTED":
            self._begin_session(frame.headers)
        elif frame.command != b"ERROR" and self._early:
            # The server demands no CONNECT.
            session = self._begin_session({})
            session.recorder.used("implicit-connect")
            session.server_frame(frame)

    def _begin_session(self, headers: Mapping[bytes, bytes]) -> TappedSession:
        version = headers.get(b"version", b"1.0")
        self._trims = version == b"1.0"
        host, journal = self._connect.get(b"host", b"/"), self._journal.virtual_host
        recorder = SessionRecorder(journal, shown(host), self._connect.get(b"login", b""), shown(version))
        heart_beat = shown(headers.get(b"heart-beat", b"0,0"))
        recorder.begin(self._connected_at, journal.peer(self._host), heart_beat, tls=self._tls)
        session = self._session = TappedSession(self._journal, recorder, headers.get(b"session", b""))
        for rule in self._connect_rules:
            session.used(rule)
        early, self._early = self._early, []
        now = self._clock.now
        for at, frame in early:
            self._clock.now = at
            session.client_frame(frame)
        self._clock.now = now
        return session
