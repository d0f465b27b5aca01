"""What a conversation does to the broker behind the server's back, what it sees there, and the cleaning up."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from urllib.parse import unquote

from gateway.parity.broker import Broker, BrokerLostError, BrokerMessage, BrokerRefusalError, subscription_queue
from gateway.parity.course import Course
from gateway.parity.matcher import compare, pictured, pictured_expectation
from gateway.parity.recording import Entry
from gateway.parity.script import BrokerDeed, BrokerState, FrameText
from gateway.parity.text import PlaceholderError, recorded, render
from gateway.parity.wire import ServerFrame

_ATTEMPTS = 200
_PAUSE = 0.025  # seconds
_WORKS_OFF = (0.3, 1.0)  # seconds, one after the other
_TRIES = 5  # to delete something


class Backstage:
    """The broker's part in a conversation.

    Args:
        course: the conversation as far as it has come.
        broker: the server's broker; None where it cannot be reached.
        leftovers: gets what could not be removed, in words.
        deleted: gets the names of the queues that were.
    """

    def __init__(self, course: Course, broker: Broker | None, leftovers: set[str], deleted: set[str]) -> None:
        self._course = course
        self._reached = broker
        self._leftovers = leftovers
        self._deleted = deleted
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()

    def watch(self, octets: bytes) -> None:
        """Remember the queues that a client's octets may create: all bear the run's name, or are made of it."""
        self._queues |= queues_of(octets, self._course.run)

    @property
    def _broker(self) -> Broker:
        if self._reached is None:
            raise BrokerLostError("the broker cannot be reached over AMQP")
        return self._reached

    async def clean_up(self, *, may_go_on: bool) -> None:
        """Delete what the conversation made. What the broker does not let go is left to whoever holds it.

        Args:
            may_go_on: the conversation broke off, so the server may still be at what it was asked last.
        """
        if self._reached is None:  # then only what leaves nothing behind is played
            return
        queues = self._queues | set(self._cleanup())
        await self._delete(queues)
        if queues and may_go_on:
            # A server works off what it has read before it notices that the client is gone, and may declare a queue
            # that was deleted just now. Nothing tells when it is done.
            for pause in _WORKS_OFF:
                await asyncio.sleep(pause)
                await self._delete(queues)

    async def _delete(self, queues: set[str]) -> None:
        self._deleted |= queues
        for queue in queues:
            await self._away(f"queue {queue}", self._broker.delete_queue, queue)
        for exchange in self._exchanges:
            await self._away(f"exchange {exchange}", self._broker.delete_exchange, exchange)

    async def _away(self, what: str, delete: Callable[[str], Awaitable[None]], name: str) -> None:
        """Delete something. The connection is shared: it may be lost for what another conversation did to it."""
        self._leftovers.discard(what)
        for _ in range(_TRIES):
            try:
                await delete(name)
            except BrokerRefusalError as refusal:
                # An exclusive queue goes with the connection that is just closing.
                if "ACCESS_REFUSED" not in str(refusal):
                    return
                break
            except (BrokerLostError, OSError):
                await asyncio.sleep(_PAUSE)
            else:
                return
        self._leftovers.add(what)

    def _cleanup(self) -> Iterator[str]:
        for name in self._course.conversation.cleanup:
            with suppress(PlaceholderError):  # the conversation ended before it knew
                yield render(name, self._course.scope).decode()

    async def do(self, step: BrokerDeed) -> None:
        """Do something to the broker.

        Raises:
            MismatchError: the sentence means nothing.
            BrokerRefusalError: the broker does not let it happen.
            BrokerLostError: there is no way to the broker any more.
        """
        sentence = render(step.sentence, self._course.scope).decode("utf-8")
        message = self._message(step.message)
        self._record("B>", sentence, message if step.message.headers or message.body else None)
        if match := re.fullmatch(r"declare queue (\S+)(.*)", sentence):
            self._queues.add(match[1])
            await self._declare_queue(match[1], match[2])
        elif match := re.fullmatch(r"delete queue (\S+)", sentence):
            await self._broker.delete_queue(match[1])
        elif match := re.fullmatch(r"declare exchange (\S+) ([\w-]+)( internal)?", sentence):
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
            self._course.learn({match[1]: queue.encode("ascii")})
        else:
            raise self._course.mismatch(f"not something to do at the broker: {sentence}", is_answer=False)

    async def see(self, step: BrokerState) -> None:
        """Look at the broker, again and again until it is as expected.

        Raises:
            MismatchError: it does not become so, or the sentence means nothing.
            BrokerRefusalError: the queue was declared otherwise.
            BrokerLostError: there is no way to the broker any more.
        """
        sentence = render(step.sentence, self._course.scope).decode("utf-8")
        if match := re.fullmatch(r"queue (\S+) (is gone|exists|is exclusive|holds (\d+) messages?)", sentence):
            await self._queue_becomes(match[1], f"holds {match[3]}" if match[3] else match[2])
        elif match := re.fullmatch(r"queue (\S+) was declared(.*)", sentence):
            await self._queue_becomes(match[1], "exists")
            await self._declare_queue(match[1], match[2])
            self._record("B<", sentence)
        elif match := re.fullmatch(r"message from (\S+)", sentence):
            await self._message_fits(match[1], step.message)
        else:
            raise self._course.mismatch(f"not something to see at the broker: {sentence}", is_answer=False)

    async def _message_fits(self, queue: str, expected: FrameText) -> None:
        taken = await self._taken(queue)
        self._record("B<", f"message from {queue}", taken)
        length = (b"content-length:%d" % len(taken.body),) if taken.body else ()
        frame = ServerFrame(b"", (*taken.lines, *length), taken.body)
        comparison = compare(expected, frame, self._course.scope)
        if comparison.differences:
            wanted = pictured_expectation(expected, self._course.scope)
            raise self._course.mismatch("expected", wanted, "got", pictured(frame), "which", *comparison.differences)
        self._course.learn(comparison.found)

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
            seen = await self._seen(queue, expected)
            if seen == expected:
                break
            await asyncio.sleep(_PAUSE)
        self._record("B<", f"queue {queue} {seen}")
        if seen != expected:
            raise self._course.mismatch(f"expected queue {queue} {expected}, got", seen)

    async def _seen(self, queue: str, expected: str) -> str:
        try:
            count = await self._broker.count(queue)
        except BrokerRefusalError as refusal:
            if "RESOURCE_LOCKED" not in str(refusal):
                raise
            return "is exclusive"
        return "is gone" if count is None else "exists" if expected == "exists" else f"holds {count}"

    async def _taken(self, queue: str) -> BrokerMessage:
        for _ in range(_ATTEMPTS):
            message = await self._broker.take(queue)
            if message is not None:
                return message
            await asyncio.sleep(_PAUSE)
        self._record("B<", f"no message in {queue}")
        raise self._course.mismatch(f"there is no message in {queue}")

    def _message(self, message: FrameText) -> BrokerMessage:
        lines = tuple(render(line, self._course.scope) for line in message.headers)
        return BrokerMessage.from_lines(lines, render(message.body, self._course.scope))

    def _record(self, speaker: str, sentence: str, message: BrokerMessage | None = None) -> None:
        entry = Entry(speaker, sentence)
        if message is not None:
            entry = Entry(speaker, sentence, tuple(map(recorded, message.lines)), recorded(message.body))
        self._course.recording.add(entry)


_ESCAPES = {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}


def queues_of(octets: bytes, run: bytes) -> set[str]:
    """The queues that a client's octets may create.

    Args:
        octets: frames, each whole.
        run: how the names of all queues begin that are not made of other texts.
    """
    names = re.findall(rb"(?:queue/|x-queue-name:)(" + re.escape(run) + rb"[^\s]*)", octets)
    named = {name.replace(b"%2F", b"/").decode("utf-8", "replace") for name in names}
    return named | {name for frame in octets.split(b"\0") for name in _durable_subscription(frame)}


def _durable_subscription(frame: bytes) -> Iterator[str]:
    """Yield the queue that a SUBSCRIBE to a topic keeps for its client, whatever the server makes of escapes."""
    command, *headers = frame.decode("utf-8", "replace").lstrip("\r\n").partition("\n\n")[0].split("\n")
    values = {name: value.strip() for name, _, value in (line.partition(":") for line in reversed(headers))}
    topic = re.fullmatch(r"/(?:topic|exchange/[^/]+)(?:/(.*))?", values.get("destination", ""))
    if command.strip() == "SUBSCRIBE" and topic and {"durable", "persistent"} & values.keys():
        key, identifier = topic[1] or "", values.get("id", "")
        for each in {key, unquote(key), _unescaped(key), unquote(_unescaped(key))}:
            for identity in {identifier, _unescaped(identifier)}:
                yield subscription_queue(each, identity)


def _unescaped(value: str) -> str:
    """A header's value as STOMP means it."""
    return re.sub(r"\\([nrc\\])", lambda match: _ESCAPES[match[1]], value)
