"""Plays a conversation against a server, and says in full where the server answers otherwise."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway.parity.backstage import Backstage
from gateway.parity.broker import Broker, BrokerLostError, BrokerRefusalError
from gateway.parity.course import Course, MismatchError
from gateway.parity.identity import Identity
from gateway.parity.matcher import compare, pictured, pictured_expectation
from gateway.parity.recording import Entry, Order, Recording
from gateway.parity.script import (
    AnyOrder,
    BrokerDeed,
    BrokerState,
    Connect,
    Conversation,
    Expect,
    ExpectBeat,
    ExpectClosed,
    FrameText,
    HangUp,
    IsOpen,
    Send,
    SendRaw,
    Side,
    Step,
)
from gateway.parity.shelter import to_the_end
from gateway.parity.text import PlaceholderError, Scope, recorded, render, render_raw
from gateway.parity.wire import Closed, HeartBeat, Peer, Received, ServerFrame, SilenceError, WireError

_PROBE = FrameText("RECEIPT", ("receipt-id:{probe}",), "")
_ILLEGAL = FrameText("ERROR", ("message:Illegal command", "..."), "{*:lines}")
_NOBODY = FrameText("ERROR", ("message:Bad CONNECT", "..."), "{*:lines}")
_CONNECTED = ("version:{version}", "session:{client_session}", "heart-beat:0,0")
_CONNECT = "CONNECT\naccept-version:{version}\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n\n"


@dataclass(frozen=True, slots=True)
class Performance:
    """What came of playing a conversation; `mismatch` is None where the server did as written."""

    recording: Recording
    mismatch: MismatchError | None


async def play(
    conversation: Conversation, peer: Peer, broker: Broker | None, side: Side, identity: Identity | None = None
) -> None:
    """Do what `perform` does, and raise MismatchError where the server did otherwise than written."""
    performance = await perform(conversation, peer, broker, side, identity or Identity())
    if performance.mismatch:
        raise performance.mismatch


async def perform(
    conversation: Conversation,
    peer: Peer,
    broker: Broker | None,
    side: Side,
    identity: Identity,
    leftovers: set[str] | None = None,
    deleted: set[str] | None = None,
) -> Performance:
    """Play a conversation to its end, close the peer, and remove from the broker what the conversation made.

    In the end every client that was not closed is asked for one more answer: nothing may have come before it.
    Cancelling it ends the conversation, and what it made is removed all the same.

    Args:
        conversation: as it goes with the release of the server's broker, see `Conversation.on`.
        peer: the server; closed afterwards.
        broker: the server's broker; None where it cannot be reached.
        side: whose expectations hold where a departure tells the two apart.
        identity: who the clients are.
        leftovers: gets what could not be removed, in words.
        deleted: gets the names of the queues that were removed, or never made.
    """
    course = Course(conversation, side, identity)
    backstage = Backstage(
        course, broker, set() if leftovers is None else leftovers, set() if deleted is None else deleted
    )
    # A server whose client hangs up may still be at its last frames when the conversation is over.
    may_go_on = True
    try:
        await _Player(course, peer, backstage).play()
        may_go_on = any(isinstance(step, HangUp) for step in conversation.steps)
    except MismatchError as mismatch:
        return Performance(course.recording, mismatch)
    finally:
        await to_the_end(_leave(peer, backstage, may_go_on=may_go_on))
    return Performance(course.recording, None)


async def _leave(peer: Peer, backstage: Backstage, *, may_go_on: bool) -> None:
    try:
        await peer.close()
    finally:
        await backstage.clean_up(may_go_on=may_go_on)


class _Player:
    def __init__(self, course: Course, peer: Peer, backstage: Backstage) -> None:
        self._course = course
        self._peer = peer
        self._backstage = backstage
        self._held: dict[str, Received] = {}  # read in search of one frame more, and not of that kind
        self._logged_in: dict[str, bool] = {}  # of each client whose connection is open
        self._beating: set[str] = set()  # clients whose server said that it sends heart-beats
        self._probes = 0  # in this step
        self._passcode = recorded(course.identity.header_scope["passcode"])
        self._handlers: dict[type[Step], Callable[[Any], Awaitable[None]]] = {
            Send: self._send,
            SendRaw: self._send_raw,
            Expect: self._expect,
            ExpectBeat: self._expect_beat,
            ExpectClosed: self._expect_closed,
            AnyOrder: self._any_order,
            Connect: self._connect,
            HangUp: self._hang_up,
            IsOpen: self._is_open,
            BrokerDeed: backstage.do,
            BrokerState: backstage.see,
        }

    async def play(self) -> None:
        for step in self._course.conversation.steps:
            if step.side in (None, self._course.side):
                self._course.begin(step)
                self._probes = 0
                await self._take(step)
        self._course.recording.line = 0
        for client, logged_in in list(self._logged_in.items()):
            await (self._probe(client) if logged_in else self._probe_stranger(client))

    async def _take(self, step: Step) -> None:
        try:
            await self._handlers[type(step)](step)
        except BrokerRefusalError as refusal:
            self._course.recording.add(Entry("B<", f"(refused: {refusal})"))
            raise self._course.mismatch(str(refusal), is_answer=isinstance(step, BrokerState)) from None
        except (PlaceholderError, BrokerLostError, OSError) as error:
            raise self._course.mismatch(str(error), is_answer=False) from None

    # What the client does.

    async def _send(self, step: Send) -> None:
        frame, scope = step.frame, self._course.scope
        head = render("\n".join([frame.command, *frame.headers]), scope | self._course.identity.header_scope)
        await self._say(step.client, head + b"\n\n" + render(frame.body, scope) + b"\0")

    async def _send_raw(self, step: SendRaw) -> None:
        await self._say(step.client, render_raw(step.text, self._course.scope | self._course.identity.header_scope))

    async def _say(self, client: str, octets: bytes) -> None:
        self._logged_in.setdefault(client, False)
        self._course.recording.add(Entry.of_client(client, octets, self._passcode))
        self._backstage.watch(octets)
        await self._peer.send(client, octets)

    async def _connect(self, step: Connect) -> None:
        self._course.learn({"version": step.version.encode("ascii")})
        head = render(_CONNECT, self._course.scope | self._course.identity.header_scope)
        await self._say(step.client, head + b"\0")
        hides_server = self._course.conversation.setup == "configured"
        headers = _CONNECTED if hides_server else (*_CONNECTED, "server:{server-name}/{*}")
        found = await self._match(step.client, FrameText("CONNECTED", headers, ""))
        self._course.learn({f"{step.client}.session": found["client_session"]})

    async def _hang_up(self, step: HangUp) -> None:
        self._course.recording.add(Entry(f"{step.client}>", "(hangs up)"))
        del self._logged_in[step.client]
        await self._peer.hang_up(step.client)

    # What the server does.

    async def _expect(self, step: Expect) -> None:
        if not step.many:
            self._course.learn(await self._match(step.client, step.frame))
            return
        with self._course.recording.within(Order.REPEATED):
            while True:
                received = await self._receive(step.client)
                if not isinstance(received, ServerFrame) or self._differs(step.frame, received):
                    self._held[step.client] = received
                    return
                self._heard(step.client, received)

    def _differs(self, expected: FrameText, frame: ServerFrame) -> bool:
        return bool(compare(expected, frame, self._course.scope).differences)

    async def _any_order(self, step: AnyOrder) -> None:
        waiting = [expect for expect in step.expected if expect.side in (None, self._course.side)]
        with self._course.recording.within(Order.FREE):
            while waiting:
                client = waiting[0].client
                frame = await self._next_frame(client, waiting[0].frame)
                waiting.remove(self._expectation(frame, client, waiting))

    def _expectation(self, frame: ServerFrame, client: str, waiting: list[Expect]) -> Expect:
        for expect in waiting:
            comparison = compare(expect.frame, frame, self._course.scope)
            if expect.client == client and not comparison.differences:
                self._course.learn(comparison.found)
                return expect
        pictures = [pictured_expectation(expect.frame, self._course.scope) for expect in waiting]
        raise self._course.mismatch("expected, in any order", *pictures, "got", pictured(frame))

    async def _expect_beat(self, step: ExpectBeat) -> None:
        received = await self._receive(step.client, skip_beats=False)
        self._heard(step.client, received)
        if not isinstance(received, HeartBeat):
            raise self._course.mismatch("expected a heart-beat, got", _name(received))

    async def _expect_closed(self, step: ExpectClosed) -> None:
        received = await self._receive(step.client)
        self._heard(step.client, received)
        if not isinstance(received, Closed):
            raise self._course.mismatch("expected the connection to be closed, got", _name(received))

    async def _match(self, client: str, expected: FrameText) -> Scope:
        frame = await self._next_frame(client, expected)
        comparison = compare(expected, frame, self._course.scope)
        if comparison.differences:
            wanted = pictured_expectation(expected, self._course.scope)
            raise self._course.mismatch("expected", wanted, "got", pictured(frame), "which", *comparison.differences)
        return comparison.found

    async def _next_frame(self, client: str, expected: FrameText) -> ServerFrame:
        received = await self._receive(client)
        self._heard(client, received)
        if not isinstance(received, ServerFrame):
            wanted = pictured_expectation(expected, self._course.scope)
            raise self._course.mismatch("expected", wanted, "got", _name(received))
        return received

    async def _receive(self, client: str, *, skip_beats: bool = True) -> Received:
        """Return what comes next; of a server that announced heart-beats, they are expected at any time."""
        if client in self._held:
            return self._held.pop(client)
        try:
            while True:
                received = await self._peer.receive(client)
                if not (skip_beats and client in self._beating and isinstance(received, HeartBeat)):
                    return received
        except (SilenceError, WireError) as error:
            kind = "(nothing)" if isinstance(error, SilenceError) else "(what is no frame)"
            self._course.recording.add(Entry(f"S{client[1:]}<", kind))
            raise self._course.mismatch(str(error)) from None

    def _heard(self, client: str, received: Received) -> None:
        self._course.recording.add(Entry.of_server(client, received))
        if isinstance(received, Closed):
            del self._logged_in[client]
        elif isinstance(received, ServerFrame) and received.command == b"CONNECTED":
            self._logged_in[client] = True
            if any(line.startswith(b"heart-beat:") and line[11:12] != b"0" for line in received.headers):
                self._beating.add(client)

    # What can be asked of a connection.

    async def _is_open(self, step: IsOpen) -> None:
        await self._probe(step.client)

    async def _probe(self, client: str) -> None:
        for command in ("BEGIN", "ABORT"):
            self._probes += 1
            self._course.learn({"probe": b"probe-%d-%d" % (self._course.recording.line, self._probes)})
            frame = render(command + "\ntransaction:probe\nreceipt:{probe}\n\n", self._course.scope)
            await self._say(client, frame + b"\0")
            await self._match(client, _PROBE)

    async def _probe_stranger(self, client: str) -> None:
        setup = self._course.conversation.setup
        if setup == "configured":  # whoever did not log in is logged in with the first frame
            await self._probe(client)
            return
        await self._say(client, b"BEGIN\ntransaction:probe\n\n\0")
        await self._match(client, _NOBODY if setup == "no-default-user" else _ILLEGAL)


def _name(received: Received) -> str:
    if isinstance(received, ServerFrame):
        return pictured(received)
    return "(closed)" if isinstance(received, Closed) else "(heart-beat)"
