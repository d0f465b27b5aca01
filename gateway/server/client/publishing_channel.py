"""The channel on which one session publishes, and when its client is held for it."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from functools import partial
from typing import Any, Final

from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import CONNECTION_FORCED, NOT_FOUND, LinkDownError, UpstreamError
from gateway.server.broker.channel import CLOSED_WITHIN, LinkChannel, ignore_delivery
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import BULK
from gateway.server.broker.queue_watch import PROMPT, QueueState
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.bulk_sender import BulkSender
from gateway.server.client.session_queues import SessionQueues
from gateway.server.fault_boundary import guarded
from gateway.session import ops
from gateway.session.context import Hold
from gateway.session.queues import QueueSpec

# Of a COMMIT so many bytes are written at once. Its session asks for no operation meanwhile, which would overtake the
# rest.
_PIECE: Final = 64 << 10

# How often it looks whether everything is answered before the channel is replaced, and the seconds between two looks.
_LOOKS: Final = 50
_BETWEEN_LOOKS: Final = 0.01

# For so many seconds a channel is not replaced again: a full queue rejects everything, on whatever channel.
_REPLACED_FOR: Final = 5.0


class PublishingChannel:
    """Opened when the session first publishes, and replaced when it is lost, or when the broker takes nothing on it.

    Also replaced when the session begins or ceases to send much: meanwhile it is on a bulk link.
    """

    __slots__ = (
        "_asked", "_awaited", "_bulk_sender", "_channel", "_context", "_has_rest", "_is_bulk", "_is_scheduled",
        "_is_window_full", "_queues", "_replaced_at", "_session", "_told",
    )  # fmt: skip

    def __init__(self, context: BridgeContext, queues: SessionQueues) -> None:
        self._context = context
        self._session = context.session
        self._queues = queues
        self._channel: LinkChannel | None = None
        # Whether it is, or is to be, on a bulk link.
        self._is_bulk = False
        self._bulk_sender: BulkSender | None = None
        self._is_window_full = False
        # Not everything that the session publishes was written.
        self._has_rest = self._is_scheduled = False
        self._replaced_at = float("-inf")
        # How many of the session's declarations it has asked the broker about.
        self._asked = 0
        # The last refusal that the session knows of.
        self._told: UpstreamError | None = None
        # Ends when a queue that was away is back.
        self._awaited: asyncio.Future[QueueState] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is one."""
        return self._channel is not None

    def take(self) -> LinkChannel | None:
        """Hand out the channel, with all that was published on it; afterwards there is none."""
        self.write_rest()
        channel, self._channel = self._channel, None
        return channel

    def write_rest(self) -> None:
        """Write what `flush` has left, now."""
        if self._channel is not None and self._has_rest:
            self._has_rest = False
            self._channel.write(*self._session.take_publishes())

    def flush(self) -> None:
        """Write what the session publishes. HOT: once per batch."""
        channel = self._channel
        if channel is None or (self._has_rest and (self._is_window_full or channel.link.paused)):
            return
        session = self._session
        # Taken before the write, because a full link may lead back here.
        publishes = session.take_publishes(_PIECE)
        if publishes:
            self._has_rest = session.has_publishes
            channel.write(*publishes)
            if session.context.declared_queues.last_sent != self._asked:
                # RabbitMQ answers them only if it refuses one: that saves it half of its time for each.
                self._do_not_await(channel.ask(), channel)
            window = channel.link.window
            if window is not None:
                window.published(self._context.bridge, sum(map(len, publishes)))
            if self._has_rest and not self._is_scheduled and not self._is_window_full and not channel.link.paused:
                # Others write between the pieces.
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._write_more)

    def _write_more(self) -> None:
        self._is_scheduled = False
        guarded(self._context.bridge, self._context.bridge.advance)

    async def prepare(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared:
        """Open the channel if there is none, declare a queue, switch confirms on."""
        if operation.is_fresh:
            await self._replace()
        channel = self._channel
        is_new = channel is None
        if channel is None:
            channel = await self._context.links.publishing_channel(is_bulk=self._is_bulk)
            self._use(channel)
        # Not one after the other: each answer would cost a round trip.
        needs_confirms = operation.confirms and not channel.has_confirms
        last = channel.select_confirms() if needs_confirms else channel.ask() if is_new else None
        if operation.queue is not None:
            await self._queues.declare_for_publishing(operation.queue, channel)
        if last is not None:
            await last
        if channel is not self._channel:
            # Its link was lost while a queue was declared on another one.
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection to the broker was lost")
        # The channel may have confirms already, from a recovery in between.
        return ops.PublisherPrepared(channel.number, channel.link.tuning.frame_max, channel.has_confirms, is_new)

    def prepare_at_once(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared | None:
        """The same if a link is open: a channel takes messages behind methods that are not answered yet."""
        channel = self._channel
        if operation.is_fresh or operation.queue is not None or (channel is None and self._is_bulk):
            return None
        is_new = channel is None
        if channel is None:
            channel = self._context.links.publishing_channel_at_once()
            if channel is None:
                return None
            self._use(channel)
        if operation.confirms and not channel.has_confirms:
            self._do_not_await(channel.select_confirms(), channel)
        elif is_new:
            self._do_not_await(channel.ask(), channel)
        return ops.PublisherPrepared(channel.number, channel.link.tuning.frame_max, channel.has_confirms, is_new)

    def _do_not_await(self, answer: asyncio.Future[Any], channel: LinkChannel) -> None:
        self._session.unanswered += 1
        self._asked = self._session.context.declared_queues.last_sent
        answer.add_done_callback(partial(self._answer, channel, self._asked))

    def _answer(self, channel: LinkChannel, declarations: int, answer: asyncio.Future[Any]) -> None:
        """The answer to a method that stands among messages, and behind so many declarations.

        If it is a refusal, of this method or one before it, the messages behind that fail with it.
        """
        if channel is not self._channel or answer.cancelled():
            return
        self._session.unanswered -= 1
        refusal = answer.exception()
        if refusal is None:
            if self._session.declarations_answered(declarations):
                self._context.bridge.advance()
        elif (
            isinstance(refusal, UpstreamError) and not isinstance(refusal, LinkDownError) and refusal is not self._told
        ):
            self._told = refusal
            guarded(self._context.bridge, partial(self._context.bridge.channel_closed, refusal, publishing=True))

    def _use(self, channel: LinkChannel) -> None:
        self._is_bulk = channel.link.purpose == BULK
        bridge, session = self._context.bridge, self._session
        channel.set_owner(bridge)
        channel.set_sink(Sink(ignore_delivery, session.confirm, bridge, session.message_returned))
        channel.on_closed = partial(bridge.channel_closed, publishing=True)
        self._channel = channel
        self._session.unanswered = 0
        self._is_window_full = False
        self._follow(channel.link)

    async def restore(self, operation: ops.Recover) -> ops.PublisherPrepared:
        """Open a channel again, and declare the queues of the messages that will be published again."""
        if operation.has_refused:
            await self._answered()
        if self._session.unanswered:
            # The broker may not answer before a queue is back.
            channel = self.take()
            if channel is not None:
                channel.abandon(self._context.bridge)
        else:
            await self._drop()
        self._refuse_while_away({queue.name for queue in operation.queues})
        try:
            prepared = await self.prepare(ops.PreparePublisher(confirms=True, queue=None))
            for queue in operation.queues:
                prepared = await self._prepare_promptly(queue)
        except BaseException:
            # Nothing was published on it. Its end is not waited for, since it may take as long as a queue is away.
            channel = self.take()
            if channel is not None:
                channel.abandon(self._context.bridge)
            raise
        return prepared

    async def _prepare_promptly(self, queue: QueueSpec) -> ops.PublisherPrepared:
        """Declare a queue, or begin to wait for it if it is away. Other sessions come back meanwhile."""
        if not self._context.links.queue_watch.is_away(queue.name):
            try:
                async with asyncio.timeout(PROMPT):
                    return await self.prepare(ops.PreparePublisher(confirms=True, queue=queue))
            except TimeoutError:
                pass
            except UpstreamError as refusal:
                if refusal.code != NOT_FOUND:
                    raise
        self.wait_for(queue.name)
        raise _away(queue.name)

    def wait_for(self, queue: str) -> None:
        """Open no channel for messages before a queue that is away is back."""
        if self._awaited is None or self._awaited.done():
            self._session.awaited_for_sends = (queue,)
            self._awaited = asyncio.ensure_future(self._context.links.queue_watch.settled(queue))

    def _refuse_while_away(self, wanted: Container[str]) -> None:
        """Refuse while the queue that was waited for last is away, and there are messages for it."""
        if self._awaited is not None and not self._awaited.done():
            [awaited] = self._session.awaited_for_sends
            if awaited in wanted:
                raise _away(awaited)
        self.give_up()

    def give_up(self) -> None:
        """Wait for no queue any more."""
        awaited, self._awaited = self._awaited, None
        self._session.awaited_for_sends = ()
        if awaited is not None and not awaited.cancel() and not awaited.cancelled():
            # If the broker has refused to tell, a declaration will tell why.
            awaited.exception()

    async def _replace(self) -> None:
        """Close the channel, unless the broker does not soon confirm what was published on it.

        Raises:
            UpstreamError: the broker has refused something that was published on it.
        """
        channel, now = self._channel, asyncio.get_running_loop().time()
        is_on_bulk = channel is not None and channel.link.purpose == BULK
        moves = channel is not None and (channel.link.is_draining or is_on_bulk is not self._is_bulk)
        if moves or now - self._replaced_at >= _REPLACED_FOR:
            self._replaced_at = now
            if await self._answered() and not self._session.confirms.has_refused:
                # Everything is answered: the end of the channel adds nothing, and a broker that hangs never tells it.
                await self._drop(within=CLOSED_WITHIN)
                if channel is not None and channel.closed is not None:
                    raise channel.closed
            else:
                self._is_bulk = is_on_bulk

    async def _answered(self) -> bool:
        """Wait for the broker's answers to what was published, but not for long; whether they came."""
        for _ in range(_LOOKS):
            if self._session.confirms.is_answered:
                return True
            await asyncio.sleep(_BETWEEN_LOOKS)
        return False

    async def _drop(self, *, within: float | None = None) -> None:
        channel = self.take()
        if channel is not None:
            await channel.close_for(self._context.bridge, within=within)

    async def close(self, channel: LinkChannel | None) -> None:
        """Close the channel that was taken: when this returns, the broker has handled all publishes.

        Raises:
            UpstreamError: the link or the channel is lost, and perhaps publishes too.
        """
        if channel is None:
            return
        await channel.close_for(self._context.bridge)
        failure = channel.link.closed or channel.closed
        if failure is not None:
            raise failure

    # What happens on its link.

    def channels_on(self, link: Link) -> list[LinkChannel]:
        """The channel, if it is on this link."""
        return [self._channel] if self._channel is not None and self._channel.link is link else []

    def lose(self, link: Link) -> bool:
        """A link is gone; whether the channel went with it."""
        is_lost = bool(self.channels_on(link))
        if is_lost:
            self._channel = None
            self._has_rest = False
            self._session.holds.discard(Hold.LINK_WRITE)
        return is_lost

    def keep_to_window(self) -> None:
        """Much is about to be published: not while too much is on its way over the link."""
        window = None if self._channel is None or self._is_window_full else self._channel.link.window
        if window is not None:
            window.enter(self._context.bridge)

    def window_full(self) -> None:
        """Too much is on its way over the link: others have their turn."""
        self._is_window_full = True
        self._session.holds.add(Hold.LINK_WRITE)
        settings = self._session.settings
        if self._channel is None or not (settings.bulk_links and settings.upstream.ride_through):
            return
        if not self._session.has_confirms:
            # If a link went in the middle of the move, nobody would know of what was on its way.
            return
        sender = self._bulk_sender = self._bulk_sender or BulkSender(self._session.traffic)
        if self._is_bulk:
            sender.window_full_again()
        elif len(self._channel.link.users) > 1 and sender.window_full(asyncio.get_running_loop().time()):
            _ = self._context.spawn(self._move(is_bulk=True), "move")

    def window_open(self) -> Link | None:
        """There is room again, and it is this session's turn; the link, if there is one."""
        self._is_window_full = False
        if self._bulk_sender is not None:
            self._bulk_sender.window_open(asyncio.get_running_loop().time())
        return None if self._channel is None else self._channel.link

    def time_passed(self) -> None:
        """Leave the bulk link if the session sends little by now. Called about once a second."""
        if not self._is_bulk or self._bulk_sender is None:
            return
        if self._bulk_sender.is_calm() and self._session.confirms.is_answered:
            _ = self._context.spawn(self._move(is_bulk=False), "move")

    async def _move(self, *, is_bulk: bool) -> None:
        """Have the session ask for a channel on a link of the other kind, unless it does something else."""
        if not await self._context.links.has_publishing_link(is_bulk=is_bulk) or self._channel is None:
            return
        if self._is_bulk is not is_bulk and self._session.renew_publisher():
            self._is_bulk = is_bulk
            self._context.bridge.advance()

    def renew(self) -> bool:
        """Have the session ask for another channel, since this link drains; False if it does something else."""
        is_asked = self._session.renew_publisher()
        if is_asked:
            self._context.bridge.advance()
        return is_asked

    def follow(self, link: Link) -> bool:
        """Hold or release the client as its publishing link needs; whether that is this link."""
        is_here = bool(self.channels_on(link))
        if is_here:
            self._follow(link)
        return is_here

    def _follow(self, link: Link) -> None:
        self._session.set_blocked(link.blocked)
        if link.paused or self._is_window_full:
            self._session.holds.add(Hold.LINK_WRITE)
        else:
            self._session.holds.discard(Hold.LINK_WRITE)


def _away(queue: str) -> UpstreamError:
    return UpstreamError(NOT_FOUND, f"NOT_FOUND - queue '{queue}' is away, and so is its node")
