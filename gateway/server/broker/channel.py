"""A channel of a link, as one session uses it: AMQP's methods, their answers, and data.

The methods that prepare a channel do not wait for each other: each is sent at once, and its answer is awaited later
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
"""The longest wait for the end of a channel, in seconds. While a queue is away, the broker may not answer."""

# Since this release, quorum queues count messages that return with the end of a channel toward the delivery-limit, but
# not those that return with basic.nack. Older releases count both.
_CLOSING_COUNTS: Final = (4, 3)

# For `may_consume`: a priority must be a number.
_REFUSED_ARGUMENT: Final = {"x-priority": "none"}

# For `may_declare`: a length cannot be negative.
_IMPOSSIBLE_QUEUE: Final = {"x-max-length": -1}

# For `may_bind`: no binding has this argument.
_NO_BINDING: Final = {"x-stomp-gateway-asks": "may this be bound"}


class _Call(NamedTuple):
    """An unanswered method, by its number, and the future for the answer.

    ``implied``: the answer to a method with nowait, which the broker answers only if it refuses it. The answer to a
    later method shows that this one was carried out.
    """

    method: int
    answer: asyncio.Future[str | None] | None
    implied: str | None = None

    def carried_out(self, result: str | None) -> None:
        """Resolve the answer: the broker has carried the method out."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: UpstreamError) -> None:
        """Fail the answer."""
        if self.answer is not None and not self.answer.done():
            _set_error(self.answer, error)


class LinkChannel:
    """A channel of a link, for one purpose of one session: publishing, one subscription, or declarations.

    The functions for AMQP's methods send them at once, and return an awaitable for the answer. Awaiting it may raise:

    Raises:
        UpstreamError: the broker refused this method or an earlier one, and closed the channel.
        LinkDownError: the link is lost.
    """

    __slots__ = (
        "_closing", "_consumes", "_owner", "_unanswered", "closed", "has_confirms", "link", "number", "on_cancelled",
        "on_closed", "write",
    )  # fmt: skip

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = link.add_channel(self)
        self.write = link.write
        # The broker's refusal, if it closed the channel.
        self.closed: UpstreamError | None = None
        self.on_closed: Callable[[UpstreamError], None] | None = None
        self.on_cancelled: Callable[[], None] | None = None
        # Whether confirm.select was sent.
        self.has_confirms = False
        self._owner: LinkUser | None = None
        # In the order in which the methods were sent.
        self._unanswered: list[_Call] = []
        self._consumes = False
        # The answer to channel.close, once that is sent.
        self._closing: asyncio.Future[str | None] | None = None

    @classmethod
    def begun(cls, link: Link) -> LinkChannel:
        """Begin to open a channel (channel.open), without waiting for the broker's answer.

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
        """Open a channel for the block, such as for a request that the broker may refuse by closing the channel."""
        channel = cls.begun(link)
        try:
            yield channel
        except asyncio.CancelledError:
            # Do not wait for the end: the broker may not be answering.
            _ = channel.start_closing()
            raise
        except BaseException:
            await channel.close()
            raise
        await channel.close()

    @classmethod
    async def refusal(cls, link: Link, ask: Callable[[LinkChannel], Awaitable[object]]) -> UpstreamError | None:
        """Send a request on a channel of its own. Returns the broker's refusal; None if it does not refuse.

        This does not wait for the end of the channel, which may take as long as the answer.

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
        """Set the session that uses the channel. The link calls it for events."""
        self._owner = owner
        self.link.add_user(owner)

    def remove_owner(self) -> None:
        """Note that the session no longer uses the channel."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.link.remove_user(owner)

    def set_sink(self, sink: Sink, *, is_paced: bool = False) -> None:
        """Send the channel's data to a sink. ``is_paced``: as paced work, because a delivery may take long."""
        self.link.register_sink(self, sink, is_paced=is_paced)

    def discard(self, owner: object) -> None:
        """Drop further deliveries. The broker requeues them when the channel closes."""
        self.on_closed = self.on_cancelled = None
        self.set_sink(Sink(ignore_delivery, ignore_confirm, owner))

    async def close_for(self, owner: object, *, within: float | None = None) -> None:
        """Drop further deliveries, close the channel, and wait for that, for at most ``within`` seconds."""
        self.abandon(owner)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.close()

    def abandon(self, owner: object) -> None:
        """Drop further deliveries, and close the channel without waiting: a queue may be away, and the answer late."""
        self.remove_owner()
        self.discard(owner)
        _ = self.start_closing()

    def declare(self, queue: QueueSpec, *, nowait: bool = False) -> asyncio.Future[str]:
        """Declare a queue (queue.declare). The answer is its name, which the broker chooses if ``queue`` has none.

        With ``nowait``, for a queue with a name, the answer to a later method also completes this one.
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
        """Ask whether a queue exists (queue.declare, passive). The broker refuses if it does not."""
        return self._call(methods.declare(queue, {}, passive=True))

    def bind(self, queue: str, exchange: str, routing_key: str) -> Awaitable[object]:
        """Bind a queue to an exchange (queue.bind)."""
        return self._call(methods.bind(queue, exchange, routing_key))

    def limit(self, prefetch: int) -> None:
        """Set the prefetch of a consumer that starts afterwards (basic.qos)."""
        if prefetch:
            self._send(methods.qos(prefetch))

    def consume(
        self, queue: str, arguments: Mapping[str, Argument], binding: tuple[str, str] | None = None
    ) -> Awaitable[object]:
        """Start a consumer (basic.consume), and bind the queue to exchange and routing key (queue.bind), if given."""
        self._consumes = True
        if binding is None:
            return self._call(methods.consume(queue, self._consumer_tag, arguments))
        # The answer to the second method shows that the first one was carried out.
        self._send(methods.consume(queue, self._consumer_tag, arguments, nowait=True), implied=queue)
        return self.bind(queue, *binding)

    def may_consume(self, queue: str) -> Awaitable[object]:
        """Ask whether the user may consume a queue, without doing it (basic.consume). The broker always refuses.

        It refuses the argument (406) if the queue exists and the user has the permissions. A real consumer could get a
        message, and its end would delete an auto-delete queue.
        """
        return self._call(methods.consume(queue, "", _REFUSED_ARGUMENT))

    def may_declare(self, queue: str) -> Awaitable[object]:
        """Ask whether the user may declare a queue, without doing it (queue.declare). The broker always refuses.

        It refuses the argument (406), unless permissions are missing (403) or the queue's node is away (404).
        """
        return self._call(methods.declare(queue, _IMPOSSIBLE_QUEUE, durable=True))

    def may_bind(self, queue: str, exchange: str, routing_key: str) -> Awaitable[object]:
        """Ask whether the user may bind a queue, without doing it (queue.unbind, of a binding that does not exist).

        RabbitMQ checks the same permissions as for queue.bind: to write the queue, and to read exchange and topic.
        """
        return self._call(methods.unbind(queue, exchange, routing_key, _NO_BINDING))

    def cancel(self) -> Awaitable[object]:
        """Stop the consumer (basic.cancel)."""
        return self._call(methods.cancel(self._consumer_tag))

    def give_back(self) -> None:
        """Requeue all unsettled messages (basic.nack) before the channel closes, if only the closing would count.

        "Count" means toward the delivery-limit. The consumer ends first, so that the messages do not come back here.
        """
        if self._consumes and self.link.tuning.broker_version >= _CLOSING_COUNTS:
            self._send(methods.cancel(self._consumer_tag))
            self.write(encode_nack(self.number, 0, multiple=True, requeue=True))

    def select_confirms(self) -> asyncio.Future[str | None]:
        """Switch confirms on (confirm.select)."""
        self.has_confirms = True
        return self._call(methods.SELECT_CONFIRMS)

    def ask(self) -> asyncio.Future[str | None]:
        """Ask for an answer only (basic.qos): it shows that the broker has read everything sent before."""
        return self._call(methods.qos(0))

    def delete_queue(self, queue: str, *, if_idle: bool = False) -> Awaitable[object]:
        """Delete a queue (queue.delete). It need not exist.

        With ``if_idle`` the broker refuses if the queue has a consumer or a message.
        """
        return self._call(methods.delete(queue, if_unused=if_idle, if_empty=if_idle))

    async def close(self) -> None:
        """Close the channel, and wait for that. The broker first handles all earlier frames on it."""
        try:
            # Shielded, because several callers may wait for this answer.
            await asyncio.shield(self.start_closing())
        except UpstreamError:
            # The link is lost, or the broker refused an earlier method. In both cases the channel is closed.
            pass

    def start_closing(self) -> Awaitable[object]:
        """Begin to close the channel (channel.close)."""
        self.on_closed = self.on_cancelled = None
        self.write = _discard
        if self._closing is None:
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
        """Send a method. Without ``answer``, the answer to a later one shows whether it was refused."""
        if not (self.link.closed or self.closed):
            self._unanswered.append(_Call(method.number, answer, implied))
            self._write(method)

    def _call(self, method: Method, implied: str | None = None) -> asyncio.Future[str | None]:
        """Send a method. Returns the future for its answer."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        gone = self.link.closed or self.closed
        if gone is not None:
            _set_error(answer, gone)
        self._send(method, answer, implied)
        return answer

    # Called by the link.

    def receive(self, method: int, content: Close | str | None) -> None:
        """Take a method that the broker sent on the channel. ``content``: the result of `read_method`."""
        if isinstance(content, Close):
            self._broker_closed(UpstreamError(*content))
        elif method == CANCEL:
            # After channel.close, a cancel-ok would be a connection error.
            if self.link.tuning.wants_cancel_ok and self._closing is None:
                self._write(methods.cancel_ok(self._consumer_tag))
            if self.on_cancelled is not None:
                self.on_cancelled()
        else:
            self._answered(method, content)

    def _answered(self, method: int, result: str | None) -> None:
        """Give an answer to the first call of its method. A consume-ok may arrive after answers to later methods."""
        for position, call in enumerate(self._unanswered):
            # The number of an answer is that of the method plus 1.
            if call.method == method - 1 and call.implied is None:
                del self._unanswered[position]
                call.carried_out(result)
                if position:
                    self._carried_out_before(position)
                break
        if method == CHANNEL_CLOSE_OK:
            # The channel number must not be used again before this.
            self.link.remove_channel(self)

    def _carried_out_before(self, position: int) -> None:
        """Complete methods with nowait before this position, because the broker has answered a later method."""
        for call in [call for call in self._unanswered[:position] if call.implied is not None]:
            self._unanswered.remove(call)
            call.carried_out(call.implied)

    def _broker_closed(self, refusal: UpstreamError) -> None:
        """Pass a refusal that closed the channel to the calls that wait for an answer; without any, to the owner."""
        self.closed = refusal
        self._write(methods.CLOSE_OK)
        # The number may soon belong to another channel.
        self.write = _discard
        awaits_answer = any(call.answer is not None for call in self._unanswered)
        refused_at = (at for at, call in enumerate(self._unanswered) if call.method == refusal.method)
        self._carried_out_before(next(refused_at, 0))
        if self._closing is not None:
            # The broker still answers channel.close. Until then the number must not be used again.
            *refused, closing = self._unanswered
            self._unanswered = [closing]
        else:
            refused, self._unanswered = self._unanswered, []
            self.link.remove_channel(self)
        _fail(refused, refusal)
        if not awaits_answer and self.on_closed is not None:
            self.on_closed(refusal)

    def link_lost(self, error: LinkDownError) -> None:
        """Fail all calls, because the link is closed. The AMQP library may keep the link for some seconds."""
        self.link.remove_channel(self)
        unanswered, self._unanswered = self._unanswered, []
        _fail(unanswered, error)

    def failed(self, error: Exception) -> None:
        """Pass a fault of the gateway in one of the calls above to the owner; raise it without one."""
        if self._owner is None:
            raise error
        self._owner.failed(error)


def _set_error(answer: asyncio.Future[str | None], error: UpstreamError) -> None:
    answer.set_exception(error)
    # The caller awaits only the first answer that fails. asyncio would log that the others were not retrieved.
    answer.exception()


def _fail(calls: Iterable[_Call], error: UpstreamError) -> None:
    for call in calls:
        call.fail(error)


def _discard(*pieces: Piece) -> None:
    """Replaces ``write`` after the channel is closed."""


def ignore_delivery(tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
    """For a sink that drops deliveries or gets none."""


def ignore_confirm(sequence: int, multiple: bool, accepted: bool) -> None:
    """For a sink that drops confirms or gets none."""
