"""A channel of a link, as one session uses it: AMQP's methods and their answers, and the data through the tap.

The methods that prepare a channel need not wait for each other: each is sent at once, and its answer is awaited later
(docs/adr/0018-channels-of-the-gateways-own.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from gateway.amqp import methods
from gateway.amqp.codec import CANCEL, encode_nack
from gateway.amqp.methods import CHANNEL_CLOSE_OK, Close, Method
from gateway.amqp.splitter import Sink
from gateway.pieces import Body, Piece
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.link import Link, LinkUser
from gateway.session.queues import Argument, QueueSpec

CLOSED_WITHIN: Final = 10.0
"""How long the end of a channel is waited for, in seconds: the broker does not answer while a queue is away."""

# From this release on a quorum queue counts what returns with the end of a channel toward its delivery-limit, and not
# what basic.nack returns. Older ones count both.
_CLOSING_COUNTS: Final = (4, 3)

# The priority of a consumer has to be a number.
_REFUSED_ARGUMENT: Final = {"x-priority": "none"}

# No queue may be that long.
_IMPOSSIBLE_QUEUE: Final = {"x-max-length": -1}

# No binding has it.
_NO_BINDING: Final = {"x-stomp-gateway-asks": "may this be bound"}


class _Call(NamedTuple):
    """A method that the broker has not answered, by its number, and who awaits the answer.

    ``implied`` is the answer to a method with nowait, which the broker answers only if it refuses it: that it has come
    to a later one says that it has carried this one out.
    """

    method: int
    answer: asyncio.Future[str | None] | None
    implied: str | None = None

    def carried_out(self, result: str | None) -> None:
        """The broker has done it."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: UpstreamError) -> None:
        """The broker has not done it."""
        if self.answer is not None and not self.answer.done():
            _set_error(self.answer, error)


class LinkChannel:
    """A channel of a link, for one purpose of one session: publishing, one subscription, or declarations.

    A method of AMQP is sent at the call. What the call returns is to be awaited, for the answer:

    Raises:
        UpstreamError: the broker refused this method or one before it, and closed the channel.
        LinkDownError: the link is lost.
    """

    __slots__ = (
        "_closing", "_consumes", "_is_closing", "_owner", "_unanswered", "closed", "has_confirms", "link", "number",
        "on_cancelled", "on_closed", "write",
    )  # fmt: skip

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
        # In the order of the methods.
        self._unanswered: list[_Call] = []
        self._consumes = self._is_closing = False
        self._closing: asyncio.Future[str | None]

    @classmethod
    def begun(cls, link: Link) -> LinkChannel:
        """A channel whose opening the broker has not answered (channel.open).

        Raises:
            LinkDownError: the link is lost.
            UpstreamError: the link has no room for another channel.
        """
        channel = cls(link)
        channel._send(methods.OPEN)
        return channel

    @classmethod
    @asynccontextmanager
    async def opened(cls, link: Link) -> AsyncIterator[LinkChannel]:
        """A channel that is closed at the end of the block: the broker closes one with each refusal."""
        channel = cls.begun(link)
        try:
            yield channel
        except asyncio.CancelledError:
            # Perhaps because the broker does not answer: then it does not answer this either.
            _ = channel.start_closing()
            raise
        except BaseException:
            await channel.close()
            raise
        await channel.close()

    @classmethod
    async def refusal(cls, link: Link, ask: Callable[[LinkChannel], Awaitable[object]]) -> UpstreamError | None:
        """What the broker refuses a question with, on a channel of its own; None if it does not refuse.

        The end of the channel is not waited for, since it may take as long as the answer.

        Raises:
            LinkDownError: the link is lost.
        """
        channel = cls.begun(link)
        try:
            await ask(channel)
        except LinkDownError:
            raise
        except UpstreamError as refusal:
            return refusal
        finally:
            _ = channel.start_closing()
        return None

    def set_owner(self, owner: LinkUser) -> None:
        """Note the session that uses the channel; the link tells it what happens."""
        self._owner = owner
        self.link.add_user(owner)

    def leave_owner(self) -> None:
        """The session uses the channel no longer."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.link.remove_user(owner)

    def set_sink(self, sink: Sink, *, is_paced: bool = False) -> None:
        """Send the channel's deliveries and confirms to a sink; ``is_paced``: a delivery may cost much."""
        self.link.register_sink(self, sink, is_paced=is_paced)

    def discard(self, owner: object) -> None:
        """Drop further deliveries; the broker requeues them when the channel closes."""
        self.on_closed = self.on_cancelled = None
        self.set_sink(Sink(ignore_delivery, ignore_confirm, owner))

    async def close_for(self, owner: object, *, within: float | None = None) -> None:
        """Close the channel of a session that uses it no longer; what is still delivered returns to its queue.

        The end is waited for, but for no longer than so many seconds.
        """
        self.abandon(owner)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.close()

    def abandon(self, owner: object) -> None:
        """The same without a wait for the broker's answer, which may take as long as a queue is away."""
        self.leave_owner()
        self.discard(owner)
        _ = self.start_closing()

    def declare(self, queue: QueueSpec, *, nowait: bool = False) -> asyncio.Future[str]:
        """Declare a queue (queue.declare); its name, which the broker chooses if ``queue`` has none.

        With ``nowait``, for a queue with a name, the answer to a later method is this one's, too.
        """
        method = methods.declare(
            queue.name,
            queue.arguments,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            nowait=nowait,
        )
        return self._call(method, queue.name if nowait else None)  # type: ignore[return-value]  # it has one

    def declare_passive(self, queue: str) -> Awaitable[object]:
        """Ask whether a queue exists (queue.declare, passive); the broker refuses if it does not."""
        return self._call(methods.declare(queue, {}, passive=True))

    def bind(self, queue: str, exchange: str, routing_key: str) -> Awaitable[object]:
        """Bind a queue to an exchange (queue.bind)."""
        return self._call(methods.bind(queue, exchange, routing_key))

    def limit(self, prefetch: int) -> None:
        """Bound what is delivered and not acknowledged, to a consumer that starts afterwards (basic.qos)."""
        if prefetch:
            self._send(methods.qos(prefetch))

    def consume(
        self, queue: str, arguments: Mapping[str, Argument], binding: tuple[str, str] | None = None
    ) -> Awaitable[object]:
        """Start a consumer (basic.consume), and bind the queue to exchange and routing key (queue.bind).

        The messages go to the sink of the channel.
        """
        self._consumes = True
        if binding is None:
            return self._call(methods.consume(queue, self._consumer_tag, arguments))
        # The answer to the second method says that the first one was carried out.
        self._send(methods.consume(queue, self._consumer_tag, arguments, nowait=True), implied=queue)
        return self.bind(queue, *binding)

    def may_consume(self, queue: str) -> Awaitable[object]:
        """Ask whether a queue may be consumed, without doing it (basic.consume); the broker always refuses.

        If permissions and the queue are there, it refuses the argument (406): no consumer begins, which would take a
        message, and with which an auto-delete queue would end.
        """
        return self._call(methods.consume(queue, "", _REFUSED_ARGUMENT))

    def may_declare(self, queue: str) -> Awaitable[object]:
        """Ask whether a queue may be declared, without doing it (queue.declare); the broker always refuses.

        It refuses the argument (406), unless permissions are missing (403) or the queue's node is away (404).
        """
        return self._call(methods.declare(queue, _IMPOSSIBLE_QUEUE, durable=True))

    def may_bind(self, queue: str, exchange: str, routing_key: str) -> Awaitable[object]:
        """Ask whether a queue may be bound, without doing it (queue.unbind, of a binding that is not there).

        RabbitMQ asks for the same permissions as for queue.bind: to write the queue, and to read exchange and topic.
        """
        return self._call(methods.unbind(queue, exchange, routing_key, _NO_BINDING))

    def cancel(self) -> Awaitable[object]:
        """Stop the consumer (basic.cancel)."""
        return self._call(methods.cancel(self._consumer_tag))

    def give_back(self) -> None:
        """Return what is not settled (basic.nack), where that counts less than the end of the channel.

        The consumer ends first: what is returned must not come back on this channel.
        """
        if self._consumes and self.link.tuning.broker_version >= _CLOSING_COUNTS:
            self._send(methods.cancel(self._consumer_tag))
            self.write(encode_nack(self.number, 0, multiple=True, requeue=True))

    def select_confirms(self) -> asyncio.Future[str | None]:
        """Ask the broker to confirm publishes from now on (confirm.select)."""
        self.has_confirms = True
        return self._call(methods.SELECT_CONFIRMS)

    def ask(self) -> asyncio.Future[str | None]:
        """Ask for an answer and for nothing else (basic.qos): it comes when the broker has read all that was sent."""
        return self._call(methods.qos(0))

    def delete_queue(self, queue: str, *, if_idle: bool = False) -> Awaitable[object]:
        """Delete a queue (queue.delete); one that does not exist is no error.

        With ``if_idle`` the broker refuses if the queue has a consumer or a message.
        """
        return self._call(methods.delete(queue, if_unused=if_idle, if_empty=if_idle))

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
            self._closing = self._call(methods.CLOSE)
        return self._closing

    @property
    def _consumer_tag(self) -> str:
        return f"s{self.number}"

    def _write(self, method: Method) -> None:
        self.link.write_method(method.frame(self.number))

    def _send(
        self, method: Method, answer: asyncio.Future[str | None] | None = None, implied: str | None = None
    ) -> None:
        """Send a method. If nobody awaits its answer, that of a later one tells whether it was refused."""
        if not (self.link.closed or self.closed):
            self._unanswered.append(_Call(method.number, answer, implied))
            self._write(method)

    def _call(self, method: Method, implied: str | None = None) -> asyncio.Future[str | None]:
        """Send a method; its answer."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        gone = self.link.closed or self.closed
        if gone is not None:
            _set_error(answer, gone)
        self._send(method, answer, implied)
        return answer

    # Called by the link.

    def receive(self, method: int, content: Close | str | None) -> None:
        """The broker sent a method on the channel; ``content`` is what `read_method` returns."""
        if isinstance(content, Close):
            self._broker_closed(UpstreamError(*content))
        elif method == CANCEL:
            # Behind channel.close it would be an error of the whole connection.
            if self.link.tuning.wants_cancel_ok and not self._is_closing:
                self._write(methods.cancel_ok(self._consumer_tag))
            if self.on_cancelled is not None:
                self.on_cancelled()
        else:
            self._answered(method, content)

    def _answered(self, method: int, result: str | None) -> None:
        """Give an answer to the first call that waits for one of its kind: a consume-ok may come behind later ones."""
        for position, call in enumerate(self._unanswered):
            # Each method has the number before that of its answer.
            if call.method == method - 1 and call.implied is None:
                del self._unanswered[position]
                call.carried_out(result)
                if position:
                    self._carried_out_before(position)
                break
        if method == CHANNEL_CLOSE_OK:
            # Only now may the number be used again.
            self.link.remove_channel(self)

    def _carried_out_before(self, position: int) -> None:
        """The broker has come to a method: it has done those before it that have nowait."""
        for call in [call for call in self._unanswered[:position] if call.implied is not None]:
            self._unanswered.remove(call)
            call.carried_out(call.implied)

    def _broker_closed(self, refusal: UpstreamError) -> None:
        """The broker closed the channel: the refusal goes to the calls that wait for an answer, or to the owner."""
        self.closed = refusal
        self._write(methods.CLOSE_OK)
        # The number may soon belong to another session.
        self.write = _discard
        awaits_answer = any(call.answer is not None for call in self._unanswered)
        refused_at = (at for at, call in enumerate(self._unanswered) if call.method == refusal.method)
        self._carried_out_before(next(refused_at, 0))
        if self._is_closing:
            # The broker still answers channel.close, and until then the number must not be reused.
            *refused, closing = self._unanswered
            self._unanswered = [closing]
        else:
            refused, self._unanswered = self._unanswered, []
            self.link.remove_channel(self)
        _fail(refused, refusal)
        if not awaits_answer and self.on_closed is not None:
            self.on_closed(refusal)

    def link_lost(self, error: LinkDownError) -> None:
        """The link is closed; the AMQP library may keep it for some seconds, and must not keep the channel."""
        self.link.remove_channel(self)
        unanswered, self._unanswered = self._unanswered, []
        _fail(unanswered, error)

    def failed(self, error: Exception) -> None:
        """A fault of the gateway in one of the calls above: it is the owner's."""
        if self._owner is None:
            raise error
        self._owner.failed(error)


def _set_error(answer: asyncio.Future[str | None], error: UpstreamError) -> None:
    answer.set_exception(error)
    # The first method that is refused raises; the answers of those behind it are awaited by nobody, and asyncio would
    # log the error.
    answer.exception()


def _fail(calls: Iterable[_Call], error: UpstreamError) -> None:
    for call in calls:
        call.fail(error)


def _discard(*pieces: Piece) -> None:
    """Write nothing: the channel is closed."""


def ignore_delivery(tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
    """For a sink that drops deliveries or gets none."""


def ignore_confirm(sequence: int, multiple: bool, accepted: bool) -> None:
    """For a sink that drops confirms or gets none."""
