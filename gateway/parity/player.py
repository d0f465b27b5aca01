"""Plays a transcript against a server, and reports the first answer that differs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway.parity import steps
from gateway.parity.amqp_broker import Broker, BrokerLostError, BrokerRefusalError, finish
from gateway.parity.broker_fixture import BrokerFixture, CleanupLog
from gateway.parity.play_state import Identity, MismatchError, PlayState
from gateway.parity.recording import EventOrder, RecordedEvent, Recording
from gateway.parity.rendering import (
    FrameMatch,
    PlaceholderError,
    Scope,
    format_expected,
    format_received,
    render,
    render_raw,
    unambiguous,
)
from gateway.parity.steps import FrameTemplate, Side, Step
from gateway.parity.stomp_peer import (
    Closed,
    HeartBeat,
    Received,
    ServerFrame,
    ServerFrameError,
    SilenceError,
    StompPeer,
)
from gateway.parity.transcript import Transcript

_CONNECT = "CONNECT\naccept-version:{version}\nhost:{host}\nlogin:{login}\npasscode:{passcode}"
_CONNECTED = ("version:{version}", "session:{client_session}", "heart-beat:0,0")
# The answers to BEGIN, and to ABORT.
_PROBE_ANSWER = FrameTemplate("RECEIPT", ("receipt-id:{probe}",), "")
_NOT_LOGGED_IN = FrameTemplate("ERROR", ("message:Illegal command", "..."), "{*:lines}")
_NO_DEFAULT_USER = FrameTemplate("ERROR", ("message:Bad CONNECT", "..."), "{*:lines}")


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The recording, and the mismatch that ended it; None if the server did what the transcript says."""

    recording: Recording
    mismatch: MismatchError | None

    def raise_for_mismatch(self) -> None:
        """Raise the MismatchError, if there is one."""
        if self.mismatch:
            raise self.mismatch


async def play(
    transcript: Transcript,
    peer: StompPeer,
    broker: Broker | None,
    side: Side,
    identity: Identity | None = None,
    cleanup_log: CleanupLog | None = None,
) -> PlayResult:
    """Play a transcript, close the peer, and remove from the broker what the transcript made.

    At the end every client that is still connected must get one more answer, so that a surplus frame is noticed.
    Cancellation ends the transcript, but not the clean-up. The transcript must not depend on the release, see
    `Transcript.for_release`. `broker` is None if it cannot be reached. Without an identity the clients log in as guest.
    """
    state = PlayState(transcript, side, identity or Identity())
    fixture = BrokerFixture(state, broker, cleanup_log or CleanupLog())
    # A server whose client hangs up may still handle its last frames when the transcript has ended.
    server_may_be_busy = True
    try:
        await _Player(state, peer, fixture).play()
        server_may_be_busy = any(isinstance(step, steps.HangUp) for step in transcript.steps)
    except MismatchError as mismatch:
        return PlayResult(state.recording, mismatch)
    finally:
        await finish(_close(peer, fixture, server_may_be_busy=server_may_be_busy))
    return PlayResult(state.recording, None)


async def _close(peer: StompPeer, fixture: BrokerFixture, *, server_may_be_busy: bool) -> None:
    try:
        await peer.close()
    finally:
        await fixture.clean_up(server_may_be_busy=server_may_be_busy)


class _Player:
    def __init__(self, state: PlayState, peer: StompPeer, fixture: BrokerFixture) -> None:
        self._state = state
        self._peer = peer
        self._fixture = fixture
        self._pushed_back: dict[str, Received] = {}  # by client: what ended `any number of` frames, for its next step
        self._logged_in: dict[str, bool] = {}  # of each client whose connection is open
        self._heart_beating: set[str] = set()  # clients whose server announced heart-beats
        self._probes = 0  # in this step: a step for one server only must not change the receipt ids of later steps
        self._header_scope = state.identity.header_scope
        self._passcode = unambiguous(self._header_scope["passcode"])
        self._handlers: dict[type[Step], Callable[[Any], Awaitable[None]]] = {
            steps.SendFrame: self._send_frame,
            steps.SendRaw: self._send_raw,
            steps.LogIn: self._log_in,
            steps.HangUp: self._hang_up,
            steps.ExpectFrame: self._expect_frame,
            steps.ExpectFramesInAnyOrder: self._expect_in_any_order,
            steps.ExpectHeartBeat: self._expect_heart_beat,
            steps.ExpectClosed: self._expect_closed,
            steps.ExpectOpen: lambda step: self._probe(step.client),
            steps.BrokerAction: fixture.run,
            steps.ExpectInBroker: fixture.check,
        }

    async def play(self) -> None:
        for step in self._state.transcript.steps:
            if step.side in (None, self._state.side):
                self._state.begin(step)
                self._probes = 0
                await self._play_step(step)
        self._state.recording.line = 0
        for client, logged_in in list(self._logged_in.items()):
            await (self._probe(client) if logged_in else self._probe_not_logged_in(client))

    async def _play_step(self, step: Step) -> None:
        try:
            await self._handlers[type(step)](step)
        except BrokerRefusalError as refusal:
            self._state.recording.add(RecordedEvent("B<", f"(refused: {refusal})"))
            raise self._state.mismatch(str(refusal), is_answer=isinstance(step, steps.ExpectInBroker)) from None
        except (PlaceholderError, BrokerLostError, OSError) as error:
            raise self._state.mismatch(str(error), is_answer=False) from None

    # What the client does.

    async def _send_frame(self, step: steps.SendFrame) -> None:
        head = "\n".join([step.frame.command, *step.frame.headers])
        await self._send_text(step.client, head, render(step.frame.body, self._state.scope))

    async def _send_text(self, client: str, head: str, body: bytes = b"") -> None:
        head_bytes = render(head, self._state.scope | self._header_scope)
        await self._send(client, head_bytes + b"\n\n" + body + b"\0")

    async def _send_raw(self, step: steps.SendRaw) -> None:
        await self._send(step.client, render_raw(step.text, self._state.scope | self._header_scope))

    async def _send(self, client: str, data: bytes) -> None:
        self._logged_in.setdefault(client, False)
        self._state.recording.add(RecordedEvent.from_client(client, data, self._passcode))
        self._fixture.note_queues(data)
        await self._peer.send(client, data)

    async def _log_in(self, step: steps.LogIn) -> None:
        self._state.scope |= {"version": step.version.encode("ascii")}
        await self._send_text(step.client, _CONNECT)
        hides_server = self._state.transcript.setup == "configured"
        headers = _CONNECTED if hides_server else (*_CONNECTED, "server:{*}")
        values = await self._receive_frame(step.client, FrameTemplate("CONNECTED", headers, ""))
        self._state.scope |= {f"{step.client}.session": values["client_session"]}

    async def _hang_up(self, step: steps.HangUp) -> None:
        self._state.recording.add(RecordedEvent(f"{step.client}>", "(hangs up)"))
        del self._logged_in[step.client]
        await self._peer.hang_up(step.client)

    # What the server does.

    async def _expect_frame(self, step: steps.ExpectFrame) -> None:
        if not step.any_number:
            self._state.scope |= await self._receive_frame(step.client, step.frame)
            return
        with self._state.recording.group(EventOrder.ANY_NUMBER):
            while True:
                received = await self._receive(step.client)
                if (
                    not isinstance(received, ServerFrame)
                    or FrameMatch(step.frame, received, self._state.scope).differences
                ):
                    self._pushed_back[step.client] = received
                    return
                self._record(step.client, received)

    async def _expect_in_any_order(self, step: steps.ExpectFramesInAnyOrder) -> None:
        missing = [expect for expect in step.expected if expect.side in (None, self._state.side)]
        with self._state.recording.group(EventOrder.ANY):
            while missing:
                client = missing[0].client
                frame = await self._next_frame(client, missing[0].frame)
                missing.remove(self._matching(frame, client, missing))

    def _matching(self, frame: ServerFrame, client: str, missing: list[steps.ExpectFrame]) -> steps.ExpectFrame:
        for expect in missing:
            match = FrameMatch(expect.frame, frame, self._state.scope)
            if expect.client == client and not match.differences:
                self._state.scope |= match.values
                return expect
        expected = [format_expected(expect.frame, self._state.scope) for expect in missing]
        raise self._state.mismatch("expected, in any order", *expected, "got", format_received(frame))

    async def _expect_heart_beat(self, step: steps.ExpectHeartBeat) -> None:
        received = await self._receive(step.client, skip_heart_beats=False)
        self._record(step.client, received)
        if not isinstance(received, HeartBeat):
            raise self._state.mismatch("expected a heart-beat, got", format_received(received))

    async def _expect_closed(self, step: steps.ExpectClosed) -> None:
        received = await self._receive(step.client)
        self._record(step.client, received)
        if not isinstance(received, Closed):
            raise self._state.mismatch("expected the connection to be closed, got", format_received(received))

    async def _receive_frame(self, client: str, expected: FrameTemplate) -> Scope:
        return self._state.match(expected, await self._next_frame(client, expected))

    async def _next_frame(self, client: str, expected: FrameTemplate) -> ServerFrame:
        received = await self._receive(client)
        self._record(client, received)
        if not isinstance(received, ServerFrame):
            wanted = format_expected(expected, self._state.scope)
            raise self._state.mismatch("expected", wanted, "got", format_received(received))
        return received

    async def _receive(self, client: str, *, skip_heart_beats: bool = True) -> Received:
        """Return what the server sends next. If it announced heart-beats, they may come at any time."""
        if client in self._pushed_back:
            return self._pushed_back.pop(client)
        try:
            while True:
                received = await self._peer.receive(client)
                if not (skip_heart_beats and client in self._heart_beating and isinstance(received, HeartBeat)):
                    return received
        except (SilenceError, ServerFrameError) as error:
            kind = "(nothing)" if isinstance(error, SilenceError) else "(what is no frame)"
            self._state.recording.add(RecordedEvent(f"S{client[1:]}<", kind))
            raise self._state.mismatch(str(error)) from None

    def _record(self, client: str, received: Received) -> None:
        self._state.recording.add(RecordedEvent.from_server(client, received))
        if isinstance(received, Closed):
            del self._logged_in[client]
        elif isinstance(received, ServerFrame) and received.command == b"CONNECTED":
            self._logged_in[client] = True
            if any(line.startswith(b"heart-beat:") and line[11:12] != b"0" for line in received.headers):
                self._heart_beating.add(client)

    # Whether the connection still answers.

    async def _probe(self, client: str) -> None:
        for command in ("BEGIN", "ABORT"):
            self._probes += 1
            self._state.scope |= {"probe": b"probe-%d-%d" % (self._state.recording.line, self._probes)}
            await self._send_text(client, command + "\ntransaction:probe\nreceipt:{probe}")
            await self._receive_frame(client, _PROBE_ANSWER)

    async def _probe_not_logged_in(self, client: str) -> None:
        setup = self._state.transcript.setup
        if setup == "configured":  # with implicit connect the first frame logs the client in
            await self._probe(client)
        else:
            await self._send_text(client, "BEGIN\ntransaction:probe")
            await self._receive_frame(client, _NO_DEFAULT_USER if setup == "no-default-user" else _NOT_LOGGED_IN)
