"""A channel of a link, as one session uses it: AMQP's methods and their answers, and the data through the tap.

The methods that prepare a channel need not wait for each other: each is sent at once, and its answer is awaited later
(docs/adr/0018-channels-of-the-gateways-own.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame

from gateway.amqp.codec import Piece
from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.link import Link, LinkUser
from gateway.session.queues import Argument, QueueSpec

_CLOSE: Final = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)

# The priority of a consumer has to be a number.
_REFUSED_ARGUMENT: Final = {"x-priority": "none"}


class LinkChannel:
    """A channel of a link, for one purpose of one session: publishing, one subscription, or declarations.

    A method of AMQP is sent at the call. What the call returns is to be awaited, for the answer:

    Raises:
        UpstreamError: the broker refused this method or one before it, and closed the channel.
        LinkDownError: the link is lost.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = link.add_channel(self)
        self.write = link.write
        # The broker's reason, if it closed the channel.
        self.closed: UpstreamError | None = None
        self.on_closed: Callable[[UpstreamError], None] | None = None
        self.on_cancelled: Callable[[], None] | None = None
        # Whether the broker was asked to confirm what is published here.
        self.has_confirms = False
        self._owner: LinkUser | None = None
        self._consumer_tag = f"s{self.number}"
        # The methods that the broker has not answered, in their order, and how their answers are read.
        self._unanswered: deque[tuple[asyncio.Future[Any], Frame, Callable[[Any], object]]] = deque()
        self._is_closing = False
        self._closing: asyncio.Future[Any]

    @classmethod
    def begun(cls, link: Link) -> LinkChannel:
        """A channel whose opening the broker has not answered (channel.open).

        Raises:
            LinkDownError: the link is lost.
            UpstreamError: the link has no room for another channel.
        """
        channel = cls(link)
        _ = channel._call(commands.Channel.Open())
        return channel

    @classmethod
    @asynccontextmanager
    async def opened(cls, link: Link) -> AsyncIterator[LinkChannel]:
        """A channel that is closed at the end of the block: the broker closes one with each refusal."""
        channel = cls.begun(link)
        try:
            yield channel
        finally:
            await channel.close()

    def set_owner(self, owner: LinkUser) -> None:
        """Note the session that uses the channel; the link tells it what happens."""
        self._owner = owner
        self.link.add_user(owner)

    def leave_owner(self) -> None:
        """The session uses the channel no longer."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.link.remove_user(owner)

    def set_sink(self, sink: Sink) -> None:
        """Send the channel's deliveries and confirms to a sink."""
        self.link.register_sink(self, sink)

    def discard(self, owner: object) -> None:
        """Drop further deliveries; the broker requeues them when the channel closes."""
        self.on_closed = self.on_cancelled = None
        self.set_sink(Sink(ignore_delivery, ignore_confirm, owner))

    async def close_for(self, owner: object) -> None:
        """Close the channel of a session that uses it no longer; what is still delivered returns to its queue."""
        self.leave_owner()
        self.discard(owner)
        await self.close()

    def declare(self, queue: QueueSpec) -> Awaitable[str]:
        """Declare a queue (queue.declare); its name, which the broker chooses if ``queue`` has none."""
        method = _QueueDeclare(
            queue=queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments=dict[str, Any](queue.arguments),
        )
        return self._call(method, lambda answer: str(answer.queue))

    def declare_passive(self, queue: str) -> Awaitable[object]:
        """Ask whether a queue exists (queue.declare, passive); the broker refuses if it does not."""
        return self._call(_QueueDeclare(queue=queue, passive=True))

    def bind(self, queue: str, exchange: str, routing_key: str) -> Awaitable[object]:
        """Bind a queue to an exchange (queue.bind)."""
        return self._call(_QueueBind(queue=queue, exchange=exchange, routing_key=routing_key))

    def consume(
        self,
        queue: str,
        prefetch: int,
        arguments: Mapping[str, Argument],
        binding: tuple[str, str] | None = None,
    ) -> Awaitable[object]:
        """Start a consumer (basic.qos, basic.consume), and bind the queue to exchange and routing key (queue.bind).

        The messages go to the sink of the channel.
        """
        if prefetch:
            _ = self._call(commands.Basic.Qos(prefetch_count=prefetch))
        table = dict[str, Any](arguments)
        consuming = self._call(_BasicConsume(queue=queue, consumer_tag=self._consumer_tag, arguments=table))
        if binding is None:
            return consuming
        both = asyncio.gather(consuming, self.bind(queue, *binding))
        both.add_done_callback(_retrieve)
        return both

    def may_consume(self, queue: str) -> Awaitable[object]:
        """Ask whether a queue may be consumed, without doing it (basic.consume); the broker always refuses.

        If permissions and the queue are there, it refuses the argument (406): no consumer begins, which would take a
        message, and with which an auto-delete queue would end.
        """
        return self._call(_BasicConsume(queue=queue, arguments=dict[str, Any](_REFUSED_ARGUMENT)))

    def cancel(self) -> Awaitable[object]:
        """Stop the consumer (basic.cancel)."""
        return self._call(commands.Basic.Cancel(consumer_tag=self._consumer_tag))

    def select_confirms(self) -> Awaitable[object]:
        """Ask the broker to confirm publishes from now on (confirm.select)."""
        self.has_confirms = True
        return self._call(commands.Confirm.Select())

    def ask(self) -> asyncio.Future[object]:
        """Ask for an answer and for nothing else (basic.qos): it comes when the broker has read all that was sent."""
        return self._call(commands.Basic.Qos())

    def delete_queue(self, queue: str, *, if_idle: bool = False) -> Awaitable[object]:
        """Delete a queue (queue.delete); one that does not exist is no error.

        With ``if_idle`` the broker refuses if the queue has a consumer or a message.
        """
        return self._call(_QueueDelete(queue=queue, if_unused=if_idle, if_empty=if_idle))

    async def close(self) -> None:
        """Close the channel; the broker first handles all earlier frames on it."""
        try:
            # A caller that gives up must not take the answer from another one.
            await asyncio.shield(self.start_closing())
        except UpstreamError:
            # The link is lost, or the broker refused a method before: the channel is closed either way.
            pass

    def start_closing(self) -> Awaitable[object]:
        """Tell the broker that the channel is closed (channel.close)."""
        self.on_closed = self.on_cancelled = None
        self.write = _discard
        if not self._is_closing:
            self._is_closing = True
            self._closing = self._call(_CLOSE)
        return self._closing

    def _call(self, method: Frame, read: Callable[[Any], object] = lambda answer: answer) -> asyncio.Future[Any]:
        """Send a method; its answer, as ``read`` reads it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # The first method that is refused raises; the answers of those behind it are awaited by nobody.
        answer.add_done_callback(_retrieve)
        gone = self.link.closed or self.closed
        if gone is not None:
            answer.set_exception(gone)
        else:
            self._unanswered.append((answer, method, read))
            self.link.write_method(pamqp.frame.marshal(method, self.number))
        return answer

    # Called by the link.

    def receive(self, method: Frame) -> None:
        """The broker sent a method on the channel."""
        if isinstance(method, commands.Channel.Close):
            refused = (method.class_id or 0) << 16 | (method.method_id or 0)
            self._broker_closed(UpstreamError(int(method.reply_code or 0), str(method.reply_text or ""), refused))
        elif isinstance(method, commands.Basic.Cancel):
            if self.link.tuning.wants_cancel_ok:
                self.link.write_method(pamqp.frame.marshal(commands.Basic.CancelOk(self._consumer_tag), self.number))
            if self.on_cancelled is not None:
                self.on_cancelled()
        else:
            self._answered(method)

    def _answered(self, frame: Frame) -> None:
        """Give an answer to the first call that waits for one of its kind: a consume-ok may come behind later ones."""
        for position, (answer, method, read) in enumerate(self._unanswered):
            if frame.name in method.valid_responses:
                del self._unanswered[position]
                if not answer.done():
                    answer.set_result(read(frame))
                break
        if isinstance(frame, commands.Channel.CloseOk):
            # Only now may the number be used again.
            self.link.remove_channel(self)

    def _broker_closed(self, refusal: UpstreamError) -> None:
        """The broker closed the channel: the refusal goes to the calls that wait for an answer, or to the owner."""
        self.closed = refusal
        self.link.write_method(pamqp.frame.marshal(commands.Channel.CloseOk(), self.number))
        # The number may soon belong to another session.
        self.write = _discard
        awaits_answer = bool(self._unanswered)
        if self._is_closing:
            # The broker still answers channel.close, and until then the number must not be reused.
            *refused, closing = self._unanswered
            self._unanswered = deque([closing])
        else:
            refused, self._unanswered = list(self._unanswered), deque()
            self.link.remove_channel(self)
        _fail(refused, refusal)
        if not awaits_answer and self.on_closed is not None:
            self.on_closed(refusal)

    def link_lost(self, error: LinkDownError) -> None:
        """The link is closed; the AMQP library may keep it for some seconds, and must not keep the channel."""
        self.link.remove_channel(self)
        unanswered, self._unanswered = list(self._unanswered), deque()
        _fail(unanswered, error)

    def failed(self, error: Exception) -> None:
        """A fault of the gateway in one of the calls above: it is the owner's."""
        if self._owner is None:
            raise error
        self._owner.failed(error)


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Without this, asyncio would log an error that nobody awaits."""
    if not answer.cancelled():
        answer.exception()


def _fail(calls: Iterable[tuple[asyncio.Future[Any], Frame, Callable[[Any], object]]], error: UpstreamError) -> None:
    for answer, _, _ in calls:
        if not answer.done():
            answer.set_exception(error)


# pamqp refuses every name outside the narrow alphabet of AMQP 0-9-1. RabbitMQ takes any UTF-8, and real queues have
# names with spaces, percent signs and umlauts. So the broker judges names
# (docs/adr/0009-names-are-for-the-broker-to-judge.md).


class _AnyName:
    def validate(self) -> None:
        """Check nothing."""


class _QueueDeclare(_AnyName, commands.Queue.Declare):
    pass


class _QueueBind(_AnyName, commands.Queue.Bind):
    pass


class _QueueDelete(_AnyName, commands.Queue.Delete):
    pass


class _BasicConsume(_AnyName, commands.Basic.Consume):
    pass


def _discard(*pieces: Piece) -> None:
    """Write nothing: the channel is closed."""


def ignore_delivery(tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
    """For a sink that drops deliveries or gets none."""


def ignore_confirm(sequence: int, multiple: bool, accepted: bool) -> None:
    """For a sink that drops confirms or gets none."""
