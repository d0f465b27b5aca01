"""Plays a conversation against a peer, and says in full where the server answers otherwise."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from textwrap import indent
from typing import Any

from tests.support.transcript.broker import Broker, BrokerMessage, BrokerRefusalError, subscription_queue
from tests.support.transcript.matcher import compare, pictured, pictured_expectation
from tests.support.transcript.script import (
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
from tests.support.transcript.text import PlaceholderError, Scope, readable, render, render_raw
from tests.support.transcript.wire import (
    Closed,
    HeartBeat,
    Peer,
    Received,
    ServerFrame,
    SilenceError,
    WireError,
)

_SERVER_NAMES: dict[Side, bytes] = {"plugin": b"RabbitMQ", "gateway": b"stomp-gateway"}
_PROBE = FrameText("RECEIPT", ("receipt-id:{probe}",), "")
_ILLEGAL = FrameText("ERROR", ("message:Illegal command", "..."), "{*:lines}")
_CONNECTED = FrameText(
    "CONNECTED",
    ("version:{version}", "session:{client_session}", "server:{server-name}/{*}", "heart-beat:0,0"),
    "",
)


class MismatchError(AssertionError):
    """The server did otherwise than the transcript says; the text shows what, where and after which words."""


async def play(conversation: Conversation, peer: Peer, broker: Broker, side: Side) -> None:
    """Play a conversation to its end, close the peer, and remove from the broker what the conversation made.

    In the end every client that was not closed is asked for one more answer: nothing may have come before it.

    Args:
        conversation: the parsed file.
        peer: the server; closed afterwards.
        broker: the server's broker.
        side: whose expectations hold where a departure tells the two apart.

    Raises:
        MismatchError: the server did otherwise.
    """
    player = _Player(conversation, peer, broker, side)
    try:
        await player.play()
    finally:
        await peer.close()
        await player.clean_up()


class _Player:
    def __init__(self, conversation: Conversation, peer: Peer, broker: Broker, side: Side) -> None:
        self._conversation = conversation
        self._peer = peer
        self._broker = broker
        self._side: Side = side
        self._scope: Scope = {
            "run": b"t-" + secrets.token_hex(6).encode("ascii"),
            "server-name": _SERVER_NAMES[side],
        }
        self._so_far: list[str] = []
        self._held: dict[str, Received] = {}  # read in search of one frame more, and not of that kind
        self._logged_in: dict[str, bool] = {}  # of each client whose connection is open
        self._probes = 0
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()
        self._step: Step = conversation.steps[0]
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
            BrokerDeed: self._broker_deed,
            BrokerState: self._broker_state,
        }

    async def play(self) -> None:
        for step in self._conversation.steps:
            if step.side in (None, self._side):
                self._step = step
                try:
                    await self._handlers[type(step)](step)
                except (PlaceholderError, BrokerRefusalError) as error:
                    raise self._mismatch(str(error)) from None
        for client, logged_in in self._logged_in.items():
            await (self._probe(client) if logged_in else self._probe_stranger(client))

    async def clean_up(self) -> None:
        for queue in self._queues | {render(name, self._scope).decode() for name in self._conversation.cleanup}:
            with suppress(BrokerRefusalError):  # an exclusive queue goes with the connection that is just closing
                await self._broker.delete_queue(queue)
        for exchange in self._exchanges:
            await self._broker.delete_exchange(exchange)

    # What the client does.

    async def _send(self, step: Send) -> None:
        frame = step.frame
        octets = render("\n".join([frame.command, *frame.headers, "", frame.body]), self._scope) + b"\0"
        await self._say(step.client, octets)

    async def _send_raw(self, step: SendRaw) -> None:
        await self._say(step.client, render_raw(step.text, self._scope))

    async def _say(self, client: str, octets: bytes) -> None:
        self._logged_in.setdefault(client, False)
        self._note(f"{client}>", readable(octets))
        self._queues |= _queues_named_in(octets, self._scope["run"])
        await self._peer.send(client, octets)

    async def _connect(self, step: Connect) -> None:
        text = f"CONNECT\naccept-version:{step.version}\nhost:/\nlogin:guest\npasscode:guest\n\n"
        await self._say(step.client, text.encode("ascii") + b"\0")
        self._scope["version"] = step.version.encode("ascii")
        found = await self._match(step.client, _CONNECTED)
        self._scope[f"{step.client}.session"] = found["client_session"]

    async def _hang_up(self, step: HangUp) -> None:
        self._note(f"{step.client}>", "(hangs up)")
        del self._logged_in[step.client]
        await self._peer.hang_up(step.client)

    # What the server does.

    async def _expect(self, step: Expect) -> None:
        if not step.many:
            self._scope |= await self._match(step.client, step.frame)
            return
        while True:
            received = await self._receive(step.client)
            if not isinstance(received, ServerFrame) or compare(step.frame, received, self._scope).differences:
                self._held[step.client] = received
                return
            self._heard(step.client, received)

    async def _any_order(self, step: AnyOrder) -> None:
        waiting = [expect for expect in step.expected if expect.side in (None, self._side)]
        while waiting:
            client = waiting[0].client
            frame = await self._next_frame(client, waiting[0].frame)
            for expect in waiting:
                comparison = compare(expect.frame, frame, self._scope)
                if expect.client == client and not comparison.differences:
                    self._scope |= comparison.found
                    waiting.remove(expect)
                    break
            else:
                pictures = [pictured_expectation(expect.frame, self._scope) for expect in waiting]
                raise self._mismatch("expected, in any order", *pictures, "got", pictured(frame))

    async def _expect_beat(self, step: ExpectBeat) -> None:
        received = await self._receive(step.client, skip_beats=False)
        if not isinstance(received, HeartBeat):
            raise self._mismatch("expected a heart-beat, got", _name(received))
        self._note(_server(step.client), "(heart-beat)")

    async def _expect_closed(self, step: ExpectClosed) -> None:
        received = await self._receive(step.client)
        if not isinstance(received, Closed):
            raise self._mismatch("expected the connection to be closed, got", _name(received))
        self._heard(step.client, received)

    async def _match(self, client: str, expected: FrameText) -> Scope:
        frame = await self._next_frame(client, expected)
        comparison = compare(expected, frame, self._scope)
        if comparison.differences:
            wanted = pictured_expectation(expected, self._scope)
            raise self._mismatch("expected", wanted, "got", pictured(frame), "which", *comparison.differences)
        return comparison.found

    async def _next_frame(self, client: str, expected: FrameText) -> ServerFrame:
        received = await self._receive(client)
        if not isinstance(received, ServerFrame):
            raise self._mismatch("expected", pictured_expectation(expected, self._scope), "got", _name(received))
        self._heard(client, received)
        return received

    async def _receive(self, client: str, *, skip_beats: bool = True) -> Received:
        if client in self._held:
            return self._held.pop(client)
        try:
            while True:
                received = await self._peer.receive(client)
                if not (skip_beats and isinstance(received, HeartBeat)):
                    return received
        except (SilenceError, WireError) as error:
            raise self._mismatch(str(error)) from None

    def _heard(self, client: str, received: Received) -> None:
        self._note(_server(client), _name(received))
        if isinstance(received, Closed):
            del self._logged_in[client]
        elif isinstance(received, ServerFrame) and received.command == b"CONNECTED":
            self._logged_in[client] = True

    # What can be asked of a connection.

    async def _is_open(self, step: IsOpen) -> None:
        await self._probe(step.client)

    async def _probe(self, client: str) -> None:
        for command in ("BEGIN", "ABORT"):
            self._probes += 1
            self._scope["probe"] = b"probe-%d" % self._probes
            await self._say(client, render(command + "\ntransaction:probe\nreceipt:{probe}\n\n", self._scope) + b"\0")
            await self._match(client, _PROBE)

    async def _probe_stranger(self, client: str) -> None:
        await self._say(client, b"BEGIN\ntransaction:probe\n\n\0")
        await self._match(client, _ILLEGAL)

    # What happens at the broker.

    async def _broker_deed(self, step: BrokerDeed) -> None:
        sentence = self._broker_sentence("B>", step.sentence, step.message)
        message = self._message(step.message)
        if match := re.fullmatch(r"declare queue (\S+)(.*)", sentence):
            self._queues.add(match[1])
            await self._declare_queue(match[1], match[2])
        elif match := re.fullmatch(r"delete queue (\S+)", sentence):
            await self._broker.delete_queue(match[1])
        elif match := re.fullmatch(r"declare exchange (\S+) (\w+)( internal)?", sentence):
            self._exchanges.add(match[1])
            await self._broker.declare_exchange(match[1], match[2], internal=bool(match[3]))
        elif match := re.fullmatch(r"bind queue (\S+) to (\S+) with (\S+)", sentence):
            await self._broker.bind_queue(match[1], match[2], match[3])
        elif match := re.fullmatch(r"publish to queue (\S+)", sentence):
            await self._broker.publish("", match[1], message)
        elif match := re.fullmatch(r"publish to exchange (\S+) with (\S+)", sentence):
            await self._broker.publish(match[1], match[2], message)
        elif match := re.fullmatch(r"name (\w+) the queue of durable subscription (\S*) (\S+)", sentence):
            queue = subscription_queue(match[2], match[3])
            self._queues.add(queue)
            self._scope[match[1]] = queue.encode("ascii")
        else:
            raise self._mismatch(f"not something to do at the broker: {sentence}")

    async def _broker_state(self, step: BrokerState) -> None:
        sentence = self._broker_sentence("B<", step.sentence, step.message)
        if match := re.fullmatch(r"queue (\S+) (is gone|exists|holds (\d+) messages?)", sentence):
            expected = f"holds {match[3]}" if match[3] else match[2]
            await self._queue_becomes(match[1], expected)
        elif match := re.fullmatch(r"queue (\S+) was declared(.*)", sentence):
            await self._queue_becomes(match[1], "exists")
            await self._declare_queue(match[1], match[2])
        elif match := re.fullmatch(r"message from (\S+)", sentence):
            taken = await self._taken(match[1])
            length = (b"content-length:%d" % len(taken.body),) if taken.body else ()
            frame = ServerFrame(b"", (*taken.lines, *length), taken.body)
            comparison = compare(step.message, frame, self._scope)
            if comparison.differences:
                wanted = pictured_expectation(step.message, self._scope)
                raise self._mismatch("expected", wanted, "got", pictured(frame), "which", *comparison.differences)
            self._scope |= comparison.found
        else:
            raise self._mismatch(f"not something to see at the broker: {sentence}")

    def _broker_sentence(self, sign: str, text: str, message: FrameText) -> str:
        sentence = render(text, self._scope).decode("utf-8")
        self._note(sign, "\n".join([sentence, *message.headers, *([message.body] if message.body else [])]))
        return sentence

    def _message(self, message: FrameText) -> BrokerMessage:
        lines = tuple(render(line, self._scope) for line in message.headers)
        return BrokerMessage.from_lines(lines, render(message.body, self._scope))

    async def _declare_queue(self, name: str, options: str) -> None:
        words = options.split()
        arguments = dict(word.split("=", 1) for word in words if "=" in word)
        await self._broker.declare_queue(
            name,
            durable="durable" in words,
            auto_delete="auto-delete" in words,
            arguments={key: int(value) if value.isdigit() else value for key, value in arguments.items()},
        )

    async def _queue_becomes(self, queue: str, expected: str) -> None:
        """Ask until it is so: the broker may act a moment after its answer to the client."""
        seen = ""
        for _ in range(_ATTEMPTS):
            count = await self._broker.count(queue)
            seen = "is gone" if count is None else "exists" if expected == "exists" else f"holds {count}"
            if seen == expected:
                return
            await asyncio.sleep(_PAUSE)
        raise self._mismatch(f"expected queue {queue} {expected}, got", seen)

    async def _taken(self, queue: str) -> BrokerMessage:
        for _ in range(_ATTEMPTS):
            message = await self._broker.take(queue)
            if message is not None:
                return message
            await asyncio.sleep(_PAUSE)
        raise self._mismatch(f"there is no message in {queue}")

    # What is told of it.

    def _note(self, sign: str, text: str) -> None:
        self._so_far.append(indent(text.rstrip("\n"), " " * 4).replace("    ", f"{sign:<4}", 1))

    def _mismatch(self, *paragraphs: str) -> MismatchError:
        where = f"{self._conversation.path}:{self._step.line}: {self._conversation.title}"
        lines = [where, f"(played against the {self._side})", ""]
        for paragraph in paragraphs:
            alone = paragraph in _HEADINGS
            lines += [paragraph if alone else indent(paragraph, "    ")]
        return MismatchError("\n".join([*lines, "", "the conversation so far", *self._so_far]))


_HEADINGS = {"expected", "expected, in any order", "got", "which"}
_ATTEMPTS = 200
_PAUSE = 0.025  # seconds


def _server(client: str) -> str:
    return f"S{client[1:]}<"


def _name(received: Received) -> str:
    if isinstance(received, ServerFrame):
        return pictured(received)
    return "(closed)" if isinstance(received, Closed) else "(heart-beat)"


def _queues_named_in(octets: bytes, run: bytes) -> set[str]:
    """Return the queues that a frame may create: all bear the run's name."""
    names = re.findall(rb"(?:queue/|x-queue-name:)(" + re.escape(run) + rb"[^\s]*)", octets)
    return {name.replace(b"%2F", b"/").decode("utf-8", "replace") for name in names}
