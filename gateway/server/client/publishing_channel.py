"""The channel on which one session publishes, and for which its client may be held."""

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

# The bytes of a COMMIT, or of a recovery, that are written at once. Until all are written, the session asks for no
# operation, because that would overtake the rest.
_PIECE: Final = 64 << 10

# Before the channel is replaced: how often to check whether all messages are confirmed, and the pauses in seconds.
_LOOKS: Final = 50
_BETWEEN_LOOKS: Final = 0.01

# The least seconds between two replacements: a full queue rejects everything, on every channel.
_REPLACED_FOR: Final = 5.0


class PublishingChannel:
    """Opened when the session first publishes, and replaced if it is lost or the broker rejects messages on it.

    It moves to a bulk link while the session sends much.
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
        # Whether it is on a bulk link. During a move, and while there is none: whether the next one is to be.
        self._is_bulk = False
        self._bulk_sender: BulkSender | None = None
        self._is_window_full = False
        # Whether a rest of the session's messages is not written yet, and whether writing it is scheduled.
        self._has_rest = self._is_scheduled = False
        self._replaced_at = float("-inf")
        # The number of the last declaration about which it has asked the broker.
        self._asked = 0
        # The last refusal that it has reported to the session.
        self._told: UpstreamError | None = None
        # Done when a queue is no longer away.
        self._awaited: asyncio.Future[QueueState] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is one."""
        return self._channel is not None

    def take(self) -> LinkChannel | None:
        """Remove and return the channel, after writing the rest of the messages."""
        self.write_rest()
        channel, self._channel = self._channel, None
        return channel

    def write_rest(self) -> None:
        """Write the rest that ``flush`` has left."""
        if self._channel is not None and self._has_rest:
            self._has_rest = False
            self._channel.write(*self._session.publisher.output.take())

    def flush(self) -> None:
        """Write the session's messages, of a COMMIT or a recovery only a part. HOT: once per batch."""
        channel = self._channel
        if channel is None or (self._has_rest and (self._is_window_full or channel.link.is_writing_paused)):
            return
        session = self._session
        # Taken before the write, because a full link calls this function again.
        publishes = session.publisher.output.take(_PIECE)
        if publishes:
            self._has_rest = bool(session.publisher.output)
            channel.write(*publishes)
            if session.context.declared_queues.last_sent != self._asked:
                # RabbitMQ answers a declaration with nowait only if it refuses it, and needs half the time for it. So
                # the gateway asks for one answer after all of them.
                self._do_not_await(channel.ask(), channel)
            window = channel.link.window
            if window is not None:
                window.published(self._context.bridge, sum(map(len, publishes)))
            if (
                self._has_rest
                and not self._is_scheduled
                and not self._is_window_full
                and not channel.link.is_writing_paused
            ):
                # Other sessions write between the pieces.
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._write_more)

    def _write_more(self) -> None:
        self._is_scheduled = False
        guarded(self._context.bridge, self._context.bridge.advance)

    async def prepare(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared:
        """Carry out a `PreparePublisher`.

        Raises:
            UpstreamError: the broker refuses, or the link is lost.
        """
        if operation.is_fresh:
            await self._replace()
        channel = self._channel
        is_new = channel is None
        if channel is None:
            channel = await self._context.links.publishing_channel(is_bulk=self._is_bulk)
            self._use(channel)
        # The answer is awaited below, after the next method is sent: this saves a round trip.
        needs_confirms = operation.confirms and not channel.has_confirms
        last = channel.select_confirms() if needs_confirms else channel.ask() if is_new else None
        if operation.queue is not None:
            await self._queues.declare_for_publishing(operation.queue, channel)
        if last is not None:
            await last
        if channel is not self._channel:
            # The link was lost while a queue was declared on another one.
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection to the broker was lost")
        # The channel may have confirms from a recovery meanwhile.
        return ops.PublisherPrepared(channel.number, channel.link.tuning.frame_max, channel.has_confirms, is_new)

    def prepare_at_once(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared | None:
        """Do the same without waiting for answers, if a link is open; otherwise return None.

        Messages may follow methods that are not answered yet. `_answer` handles a refusal.
        """
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
        """Take the answer to a method that precedes messages, and follows this many declarations.

        After a refusal, of this method or an earlier one, all later messages fail, too.
        """
        if channel is not self._channel or answer.cancelled():
            return
        self._session.unanswered -= 1
        refusal = answer.exception()
        if refusal is None:
            if self._session.publisher.declarations_answered(declarations):
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
        """Open a channel, and declare the queues of the messages that will be published again.

        Raises:
            UpstreamError: the broker refuses, a queue is away, or the link is lost.
        """
        if operation.has_refused:
            await self._answered()
        if self._session.unanswered:
            # While a queue is away, the broker may not answer on this channel.
            self._abandon()
        else:
            await self._drop()
        self._refuse_while_away({queue.name for queue in operation.queues})
        try:
            prepared = await self.prepare(ops.PreparePublisher(confirms=True, queue=None))
            for queue in operation.queues:
                prepared = await self._prepare_promptly(queue)
        except BaseException:
            # Nothing was published on it. Do not wait for its end, which may take as long as a queue is away.
            self._abandon()
            raise
        return prepared

    def _abandon(self) -> None:
        channel = self.take()
        if channel is not None:
            channel.abandon(self._context.bridge)

    async def _prepare_promptly(self, queue: QueueSpec) -> ops.PublisherPrepared:
        """Declare a queue; if it is away, begin to wait for it and raise, so that other sessions can recover."""
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
        """Let ``restore`` refuse to open a channel until this queue is no longer away."""
        if self._awaited is None or self._awaited.done():
            self._session.awaited_for_sends = (queue,)
            self._awaited = asyncio.ensure_future(self._context.links.queue_watch.settled(queue))

    def _refuse_while_away(self, wanted: Container[str]) -> None:
        """Raise UpstreamError if the awaited queue is away and there are messages for it; else stop waiting for it."""
        if self._awaited is not None and not self._awaited.done():
            [awaited] = self._session.awaited_for_sends
            if awaited in wanted:
                raise _away(awaited)
        self.give_up()

    def give_up(self) -> None:
        """Stop waiting for a queue."""
        awaited, self._awaited = self._awaited, None
        self._session.awaited_for_sends = ()
        if awaited is not None and not awaited.cancel() and not awaited.cancelled():
            # Mark an exception as retrieved. A declaration will raise it again.
            awaited.exception()

    async def _replace(self) -> None:
        """Close the channel, if the broker soon confirms everything on it.

        Raises:
            UpstreamError: the broker closed it because it refused a message.
        """
        channel, now = self._channel, asyncio.get_running_loop().time()
        is_on_bulk = channel is not None and channel.link.purpose == BULK
        moves = channel is not None and (channel.link.is_draining or is_on_bulk is not self._is_bulk)
        if moves or now - self._replaced_at >= _REPLACED_FOR:
            self._replaced_at = now
            if await self._answered() and not self._session.confirms.has_refused:
                # Everything is confirmed, so the answer does not matter, and a broker that hangs never gives it.
                await self._drop(within=CLOSED_WITHIN)
                if channel is not None and channel.closed is not None:
                    raise channel.closed
            else:
                self._is_bulk = is_on_bulk

    async def _answered(self) -> bool:
        """Wait for half a second at most for all confirms. Returns whether they have arrived."""
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
        """Close a channel from ``take``. Afterwards the broker has handled all publishes.

        Raises:
            UpstreamError: the link or the channel is lost, and perhaps also publishes.
        """
        if channel is None:
            return
        await channel.close_for(self._context.bridge)
        failure = channel.link.closed or channel.closed
        if failure is not None:
            raise failure

    # Events of its link.

    def is_on(self, link: Link) -> bool:
        """Whether the channel is on this link."""
        return self._channel is not None and self._channel.link is link

    def lose(self, link: Link) -> bool:
        """Note that a link is lost. Returns whether the channel was on it."""
        is_lost = self.is_on(link)
        if is_lost:
            self._channel = None
            self._has_rest = False
            self._session.holds.discard(Hold.LINK_WRITE)
        return is_lost

    def keep_to_window(self) -> None:
        """Join the publish window, before much is published. This may hold the session."""
        window = None if self._channel is None or self._is_window_full else self._channel.link.window
        if window is not None:
            window.hold_if_full(self._context.bridge)

    def window_full(self) -> None:
        """Hold the session because the publish window is full, and perhaps move it to a bulk link."""
        self._is_window_full = True
        self._session.holds.add(Hold.LINK_WRITE)
        settings = self._session.settings
        if self._channel is None or not (settings.bulk_links and settings.upstream.ride_through):
            return
        if not self._session.publisher.has_confirms:
            # Without confirms, the session cannot move: it does not know when its messages have arrived.
            return
        sender = self._bulk_sender = self._bulk_sender or BulkSender(self._session.traffic)
        if self._is_bulk:
            sender.window_full_again()
        elif len(self._channel.link.users) > 1 and sender.window_full(asyncio.get_running_loop().time()):
            _ = self._context.spawn(self._move(is_bulk=True), "move")

    def window_open(self) -> Link | None:
        """Note that the publish window has room for this session. Returns the channel's link, or None."""
        self._is_window_full = False
        if self._bulk_sender is not None:
            self._bulk_sender.window_open(asyncio.get_running_loop().time())
        return None if self._channel is None else self._channel.link

    def time_passed(self) -> None:
        """Leave the bulk link if the session sends little by now. Call it about once a second."""
        if not self._is_bulk or self._bulk_sender is None:
            return
        if self._bulk_sender.is_calm() and self._session.confirms.is_answered:
            _ = self._context.spawn(self._move(is_bulk=False), "move")

    async def _move(self, *, is_bulk: bool) -> None:
        """Let the session ask for a channel on the other kind of link, unless something is under way."""
        if not await self._context.links.has_publishing_link(is_bulk=is_bulk) or self._channel is None:
            return
        if self._is_bulk is not is_bulk and self._session.renew_publisher():
            self._is_bulk = is_bulk
            self._context.bridge.advance()

    def renew(self) -> bool:
        """Let the session ask for another channel, since this link drains. Returns False if something is under way."""
        is_asked = self._session.renew_publisher()
        if is_asked:
            self._context.bridge.advance()
        return is_asked

    def follow(self, link: Link) -> bool:
        """Hold or release the client by the state of a link. Returns whether the channel is on that link."""
        is_here = self.is_on(link)
        if is_here:
            self._follow(link)
        return is_here

    def _follow(self, link: Link) -> None:
        self._session.publisher.set_blocked(link.blocked)
        if link.is_writing_paused or self._is_window_full:
            self._session.holds.add(Hold.LINK_WRITE)
        else:
            self._session.holds.discard(Hold.LINK_WRITE)


def _away(queue: str) -> UpstreamError:
    return UpstreamError(NOT_FOUND, f"NOT_FOUND - queue '{queue}' is away, and so is its node")
