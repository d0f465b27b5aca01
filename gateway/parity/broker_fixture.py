"""The steps of a transcript that act on the broker or look at it, and the clean-up of what the transcript made."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from gateway.parity.amqp_broker import (
    Broker,
    BrokerLostError,
    BrokerMessage,
    BrokerRefusalError,
    poll,
    subscription_queue,
)
from gateway.parity.play_state import PlayState
from gateway.parity.recording import RecordedEvent
from gateway.parity.rendering import PlaceholderError, render, unambiguous
from gateway.parity.steps import BrokerAction, ExpectInBroker, FrameTemplate
from gateway.parity.stomp_peer import ServerFrame

_RETRY_INTERVAL = 0.025  # seconds
_SERVER_DELAYS = (0.3, 1.0)  # seconds, one after the other
_DELETE_ATTEMPTS = 5
_ESCAPES = {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class CleanupLog:
    """The queues that were deleted, whether they existed or not, and what could not be deleted: `queue NAME`."""

    deleted_queues: set[str] = field(default_factory=set)
    leftovers: set[str] = field(default_factory=set)


class BrokerFixture:
    """The broker's part in a transcript; `broker` is None if it cannot be reached."""

    def __init__(self, state: PlayState, broker: Broker | None, log: CleanupLog) -> None:
        self._state = state
        self._broker_or_none = broker
        self._log = log
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()

    @property
    def _broker(self) -> Broker:
        if self._broker_or_none is None:
            raise BrokerLostError("the broker cannot be reached over AMQP")
        return self._broker_or_none

    # Steps.

    async def run(self, step: BrokerAction) -> None:
        """Carry out an action. Raises MismatchError if there is no such action, BrokerRefusalError, BrokerLostError."""
        sentence = render(step.sentence, self._state.scope).decode("utf-8")
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
            self._state.scope |= {match[1]: queue.encode("ascii")}
        else:
            raise self._state.mismatch(f"not something to do at the broker: {sentence}", is_answer=False)

    async def check(self, step: ExpectInBroker) -> None:
        """Look at the broker until it is as expected.

        Raises MismatchError if it does not become so or there is no such check, BrokerRefusalError if the queue was
        declared with other properties, and BrokerLostError.
        """
        sentence = render(step.sentence, self._state.scope).decode("utf-8")
        if match := re.fullmatch(r"queue (\S+) (is gone|exists|is exclusive|holds (\d+) messages?)", sentence):
            await self._check_queue(match[1], f"holds {match[3]}" if match[3] else match[2])
        elif match := re.fullmatch(r"queue (\S+) was declared(.*)", sentence):
            await self._check_queue(match[1], "exists")
            await self._declare_queue(match[1], match[2])
            self._record("B<", sentence)
        elif match := re.fullmatch(r"message from (\S+)", sentence):
            await self._check_message(match[1], step.message)
        else:
            raise self._state.mismatch(f"not something to see at the broker: {sentence}", is_answer=False)

    async def _declare_queue(self, name: str, options: str) -> None:
        words = options.split()
        arguments = dict(word.split("=", 1) for word in words if "=" in word)
        await self._broker.declare_queue(
            name,
            durable="durable" in words,
            auto_delete="auto-delete" in words,
            arguments={key: int(value) if value.isdigit() else value for key, value in arguments.items()},
        )

    async def _check_queue(self, queue: str, expected: str) -> None:
        found = await poll(lambda: self._queue_state(queue, expected), lambda found: found == expected)
        self._record("B<", f"queue {queue} {found}")
        if found != expected:
            raise self._state.mismatch(f"expected queue {queue} {expected}, got", found)

    async def _queue_state(self, queue: str, expected: str) -> str:
        try:
            count = await self._broker.count(queue)
        except BrokerRefusalError as refusal:
            if "RESOURCE_LOCKED" not in str(refusal):
                raise
            return "is exclusive"
        return "is gone" if count is None else "exists" if expected == "exists" else f"holds {count}"

    async def _check_message(self, queue: str, expected: FrameTemplate) -> None:
        message = await poll(lambda: self._broker.take(queue), lambda message: message is not None)
        if message is None:
            self._record("B<", f"no message in {queue}")
            raise self._state.mismatch(f"there is no message in {queue}")
        self._record("B<", f"message from {queue}", message)
        length = (b"content-length:%d" % len(message.body),) if message.body else ()
        self._state.scope |= self._state.match(expected, ServerFrame(b"", (*message.lines, *length), message.body))

    def _message(self, template: FrameTemplate) -> BrokerMessage:
        lines = tuple(render(line, self._state.scope) for line in template.headers)
        return BrokerMessage.from_lines(lines, render(template.body, self._state.scope))

    def _record(self, source: str, sentence: str, message: BrokerMessage | None = None) -> None:
        event = RecordedEvent(source, sentence)
        if message is not None:
            event = RecordedEvent(source, sentence, tuple(map(unambiguous, message.lines)), unambiguous(message.body))
        self._state.recording.add(event)

    # Clean-up.

    def note_queues(self, data: bytes) -> None:
        """Remember the queues that these bytes of a client may create."""
        self._queues |= created_queues(data, self._state.run)

    async def clean_up(self, *, server_may_be_busy: bool) -> None:
        """Delete what the transcript made, and log it.

        `server_may_be_busy` means that it may not have handled all frames yet, for example after a mismatch.
        """
        if self._broker_or_none is None:  # only transcripts that leave nothing behind are played then
            return
        queues = self._queues | set(self._listed_queues())
        await self._delete(queues)
        if queues and server_may_be_busy:
            # A server handles what it has read before it notices that the client is gone. It may declare a queue that
            # was just deleted, and nothing tells when it has finished.
            for delay in _SERVER_DELAYS:
                await asyncio.sleep(delay)
                await self._delete(queues)

    def _listed_queues(self) -> Iterator[str]:
        for name in self._state.transcript.cleanup:
            with suppress(PlaceholderError):  # the transcript ended before the name had a value
                yield render(name, self._state.scope).decode()

    async def _delete(self, queues: set[str]) -> None:
        self._log.deleted_queues.update(queues)
        for queue in queues:
            await self._delete_one(f"queue {queue}", self._broker.delete_queue, queue)
        for exchange in self._exchanges:
            await self._delete_one(f"exchange {exchange}", self._broker.delete_exchange, exchange)

    async def _delete_one(self, what: str, delete: Callable[[str], Awaitable[None]], name: str) -> None:
        self._log.leftovers.discard(what)
        for _ in range(_DELETE_ATTEMPTS):
            try:
                await delete(name)
            except BrokerRefusalError as refusal:
                if "ACCESS_REFUSED" not in str(refusal):  # RESOURCE_LOCKED: deleted with its connection
                    return
                break
            except (BrokerLostError, OSError):  # perhaps another transcript broke the connection that both share
                await asyncio.sleep(_RETRY_INTERVAL)
            else:
                return
        self._log.leftovers.add(what)


def created_queues(data: bytes, run: bytes) -> set[str]:
    """Return the names of the queues that a client may create with these frames.

    All of them start with `run`, except those of durable subscriptions.
    """
    names = re.findall(rb"(?:queue/|x-queue-name:)(" + re.escape(run) + rb"[^\s]*)", data)
    named = {name.replace(b"%2F", b"/").decode("utf-8", "replace") for name in names}
    return named | {name for frame in data.split(b"\0") for name in _durable_subscription_queues(frame)}


def _durable_subscription_queues(frame: bytes) -> Iterator[str]:
    """Yield the names that a durable SUBSCRIBE may get, depending on what the server unescapes."""
    command, *headers = frame.decode("utf-8", "replace").lstrip("\r\n").partition("\n\n")[0].split("\n")
    values = {name: value.strip() for name, _, value in (line.partition(":") for line in reversed(headers))}
    topic = re.fullmatch(r"/(?:topic|exchange/[^/]+)(?:/(.*))?", values.get("destination", ""))
    if command.strip() == "SUBSCRIBE" and topic and {"durable", "persistent"} & values.keys():
        key, identifier = topic[1] or "", values.get("id", "")
        for each in {key, unquote(key), _unescaped(key), unquote(_unescaped(key))}:
            for identity in {identifier, _unescaped(identifier)}:
                yield subscription_queue(each, identity)


def _unescaped(value: str) -> str:
    return re.sub(r"\\([nrc\\])", lambda match: _ESCAPES[match[1]], value)
