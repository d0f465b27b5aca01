"""The bridge of one session: carries out its operations on links, and carries bytes both ways.

Operations run one at a time, each as a task; bytes never wait. The broker's actions on the session's channels become
events of the session here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from gateway.amqp.codec import PUBLISH
from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    NOT_FOUND,
    LinkDownError,
    UpstreamError,
    is_cancelled,
)
from gateway.server.broker.channel import LinkChannel, ignore_confirm, ignore_delivery
from gateway.server.broker.link import CLOSING_AT_ONCE, Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.broker.pausable_link import PausableLink
from gateway.server.broker.queue_declare import Declare, ExclusiveQueues, declare_or_accept
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.recovery import Recovery
from gateway.session import ops
from gateway.session.context import Hold, State
from gateway.session.queues import QueueSpec
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# How long RabbitMQ may take from deleting a virtual host's first queue to closing its connections, in seconds.
_VHOST_DELETION: Final = 30.0

# How often a session that is to leave a draining link looks for a quiet moment, and the seconds between two looks.
_LOOKS: Final = 50
_BETWEEN_LOOKS: Final = 0.01


class _BridgeCallbacks(Protocol):
    """The client's connection."""

    def advance(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Bridge:
    """Connects one session to the broker; ``client`` names it in the broker's list of connections."""

    def __init__(
        self,
        session: Session,
        callbacks: _BridgeCallbacks,
        pool: LinkPool,
        login: LoginHandler,
        client: str,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._session = session
        self._callbacks = callbacks
        self._pool = pool
        self._login = login
        self._client = client
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._publishing: LinkChannel | None = None
        self._consuming: dict[Subscription, LinkChannel] = {}
        # For declarations on a link for subscriptions.
        self._control: LinkChannel | None = None
        self._pausable = PausableLink(client, session.identity.decode(), self._consuming.values())
        self._exclusive = ExclusiveQueues()
        # Exclusive queues that were lost with their link, and that no subscription declares again.
        self._lost_queues: list[QueueSpec] = []
        self._recovery = Recovery(self)
        # Subscriptions that the broker has cancelled, until it is known whether their virtual host goes with them.
        self._cancelled: dict[Subscription, asyncio.Event] = {}
        # Each moves the session away from a draining link.
        self._leaving: dict[Link, asyncio.Task[None]] = {}
        self._is_dropping = self._is_window_full = False
        self._is_released = False

    # Bytes.

    def flush(self) -> None:
        """Send the session's publishes and settlements, and start its next operation. HOT: once per batch."""
        session = self._session
        if self._publishing is not None:
            # Taken before the write, because a full link may lead back here.
            publishes = session.take_publishes()
            if publishes:
                self._publishing.write(publishes)
                window = self._publishing.link.window
                if window is not None:
                    window.published(self, len(publishes))
        # All taken before the first write: only the publishing link leads back here when it is full.
        for subscription, settlements in session.take_settlements():
            channel = self._consuming.get(subscription)
            if channel is not None:
                channel.write(settlements)
        operation = session.take_operation()
        if operation is not None:
            if isinstance(operation, ops.CloseUpstream):
                # Perhaps it replaces a recovery.
                self._recovery.stop()
            self._task = self._spawn(self._carry_out(operation, self._task), name=f"stomp-operation {self._client}")

    def flush_batch(self) -> None:
        """The session got the data of one read from the broker."""
        self._callbacks.advance()

    def client_writable(self, writable: bool) -> None:
        """Whether the client takes bytes; a link that serves only this client pauses with it."""
        self._pausable.set_client_writable(writable)
        if writable and self._is_dropping:
            self._resume_deliveries()

    def client_gone(self) -> None:
        """Drop deliveries from now on, so that the broker's answers do not wait behind them."""
        for channel in self._consuming.values():
            channel.set_sink(Sink(ignore_delivery, ignore_confirm, self))
        self._pausable.set_client_gone()

    def time_passed(self) -> None:
        """Called about once a second."""
        self._pausable.time_passed()

    def must_wait(self, operation: ops.Operation) -> bool:
        """Whether the broker, or the client itself, rightly keeps an operation waiting for as long as it wants."""
        if isinstance(operation, ops.PreparePublisher):
            # During an alarm the broker does not read a link that publishes.
            return any(link.blocked for link in self.links.all)
        # On a paused link the broker's answer waits behind messages that the client does not take.
        return isinstance(operation, ops.RenewToken) and not self._session.client_writable

    def drop_deliveries(self) -> None:
        """Far too much waits for the client: until it is writable, keep only the delivery tags of further messages."""
        self._is_dropping = True
        for subscription, channel in self._consuming.items():
            if not self._pausable.has(channel):
                channel.set_sink(Sink(subscription.drop_for_requeue, ignore_confirm, self))

    def _resume_deliveries(self) -> None:
        """Requeue the dropped messages, and take deliveries again."""
        self._is_dropping = False
        for subscription, channel in self._consuming.items():
            if not self._pausable.has(channel):
                channel.set_sink(Sink(subscription.deliver, ignore_confirm, self))
                subscription.ledger.requeue_dropped()
                channel.write(subscription.ledger.take_frames())

    # Operations.

    async def _carry_out(self, operation: ops.Operation, earlier: asyncio.Task[None] | None) -> None:
        try:
            if isinstance(operation, ops.CloseUpstream) and earlier is not None and not earlier.done():
                await asyncio.wait([earlier])
            event = await self._outcome(operation)
            if event is None:
                return
            self._session.handle(event)
            if self._session.state is State.CONNECTING:
                self._login.log_out()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self._callbacks.failed(error)
            return
        self._callbacks.advance()

    async def _outcome(self, operation: ops.Operation) -> ops.Event | None:
        try:
            if isinstance(operation, ops.Recover):
                return await self._recovery.run(operation, self._session.settings.upstream.ride_through)
            return await self._perform(operation)
        except LinkDownError as down:
            return ops.OperationInterrupted(down.code, down.text)
        except UpstreamError as refusal:
            return ops.OperationFailed(refusal.code, refusal.text, of_publish=refusal.method == PUBLISH)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return ops.OperationInterrupted(CONNECTION_FORCED, "CONNECTION_FORCED - the broker did not answer")

    async def _perform(self, operation: ops.Operation) -> ops.Event:
        if isinstance(operation, ops.Login):
            return await self._login.log_in(operation)
        if isinstance(operation, ops.PreparePublisher):
            return await self._prepare_publisher(operation)
        if isinstance(operation, ops.Subscribe):
            return await self._subscribe(operation)
        if isinstance(operation, ops.Unsubscribe):
            return await self._unsubscribe(operation)
        if isinstance(operation, ops.RenewToken):
            return await self._renew_token(operation)
        await self._close_channels()
        return ops.UpstreamClosed()

    async def _prepare_publisher(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared:
        if operation.is_fresh:
            await self._discard_publishing()
        channel = self._publishing
        is_new = channel is None
        if channel is None:
            channel = await self.links.publishing_channel()
            channel.set_owner(self)
            channel.set_sink(Sink(ignore_delivery, self._session.confirm, self, self._session.message_returned))
            channel.on_closed = partial(self._channel_closed, publishing=True)
            self._publishing = channel
            self._is_window_full = False
            self._follow(channel.link)
        if operation.queue is not None:
            await self._declare(operation.queue, channel)
        if operation.confirms and not channel.has_confirms:
            await channel.select_confirms()
        if channel is not self._publishing:
            # Its link was lost while a queue was declared on another one.
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection to the broker was lost")
        return ops.PublisherPrepared(channel.number, channel.link.tuning.frame_max, operation.confirms, is_new)

    async def _discard_publishing(self) -> None:
        """Close the publishing channel, unless the broker does not soon confirm what was published on it."""
        for _ in range(_LOOKS):
            if not self._session.confirms:
                channel, self._publishing = self._publishing, None
                if channel is not None:
                    await self._close_channel(channel)
                return
            await asyncio.sleep(_BETWEEN_LOOKS)

    async def _declare(
        self, queue: QueueSpec, channel: LinkChannel, declare: Declare | None = None
    ) -> tuple[str, QueueSpec | None]:
        """Declare a queue; an exclusive one where this session consumes, since AMQP binds it to the connection.

        ``declare`` sends the declaration and what belongs behind it, where that need not wait for the answer.

        Returns:
            The queue's name, and ``queue``, or None if it exists with other properties.
        """
        if queue.exclusive and channel is self._publishing:
            channel = await self._control_channel()
        if not self._takes_existing(queue):
            return await self._declare_on(channel, queue, declare or channel.declare), queue
        conflict = await declare_or_accept(queue, channel.link, partial(self._declare_on, queue=queue))
        if conflict is None:
            return queue.name, queue
        self._pool.queue_conflicts.write(self._session.settings.name, queue.name, conflict.text)
        return queue.name, None

    def _takes_existing(self, queue: QueueSpec) -> bool:
        return bool(queue.name) and self._session.settings.takes_existing_queues

    async def _declare_on(self, channel: LinkChannel, queue: QueueSpec, declare: Declare | None = None) -> str:
        declare = declare or channel.declare
        if queue.exclusive:
            return await self._exclusive.declare(queue, channel.link, self._vhost, declare)
        return await declare(queue)

    async def _control_channel(self) -> LinkChannel:
        if self._control is not None and self._control.closed is not None:
            # The broker closes the channel of a declaration that it refuses.
            self._control.leave_owner()
            self._control = None
        if self._control is None:
            self._control = await self.links.consuming_channel()
            self._control.set_owner(self)
            self._control.on_closed = partial(self._channel_closed, publishing=False)
        return self._control

    async def _subscribe(self, operation: ops.Subscribe) -> ops.Subscribed:
        subscription = operation.subscription
        channel = await self._consuming_channel(operation)
        channel.set_owner(self)
        channel.set_sink(Sink(subscription.deliver, ignore_confirm, self))
        self._consuming[subscription] = channel
        subscription.set_channel(channel.number)
        declared = None
        cancelled: list[bool] = []
        channel.on_cancelled = lambda: cancelled.append(True)
        try:
            queue_name = operation.queue_name
            consumer = operation.prefetch, operation.arguments, operation.binding
            consuming: Awaitable[object] | None = None

            def declare(queue: QueueSpec) -> Awaitable[str]:
                # All in one write: the broker works in order, and ignores what stands behind a refused method.
                nonlocal consuming
                name = channel.declare(queue)
                consuming = channel.consume(queue.name, *consumer)
                return name

            if operation.queue is not None:
                is_named = bool(operation.queue.name)
                queue_name, declared = await self._declare(operation.queue, channel, declare if is_named else None)
            if consuming is None:
                await self._exclusive.check(queue_name, channel.link, self._vhost)
                consuming = channel.consume(queue_name, *consumer)
            await consuming
            if channel.closed is not None:
                raise channel.closed
            if cancelled:
                raise UpstreamError(NOT_FOUND, f"NOT_FOUND - queue '{queue_name}' was deleted")
        except UpstreamError as refusal:
            self._consuming.pop(subscription, None)
            await self._undo_subscribe(channel, declared, refusal)
            raise
        self._exclusive.consumed(subscription, queue_name)
        channel.on_closed = partial(self._channel_closed, publishing=False)
        channel.on_cancelled = partial(self._consumer_cancelled, subscription)
        self._pausable.read_or_pause()
        return ops.Subscribed(subscription, queue_name)

    async def _undo_subscribe(self, channel: LinkChannel, declared: QueueSpec | None, refusal: UpstreamError) -> None:
        """A SUBSCRIBE failed half-way: delete its new queue, unless the queue is in use."""
        await self._close_channel(channel)
        if declared is None or isinstance(refusal, LinkDownError) or declared.durable or not declared.auto_delete:
            return
        cleaner = await self.links.consuming_channel()
        try:
            await cleaner.delete_queue(declared.name, if_idle=True)
        except UpstreamError:
            pass
        finally:
            await cleaner.close()

    async def _consuming_channel(self, operation: ops.Subscribe) -> LinkChannel:
        owner = self._exclusive.link_of(operation.queue_name)
        if owner is not None and owner.closed is None:
            return LinkChannel.begun(owner)
        if operation.needs_pausable_link:
            return LinkChannel.begun(await self._pausable.opened(self.links))
        return await self.links.consuming_channel()

    async def _unsubscribe(self, operation: ops.Unsubscribe) -> ops.Event:
        channel = self._consuming.pop(operation.subscription, None)
        if channel is not None:
            # Closing the channel requeues all unsettled messages and cancels the consumer. The channel is needed longer
            # only to delete a queue.
            channel.discard(self)
            try:
                if operation.delete_queue is not None:
                    await self._exclusive.check(operation.delete_queue, channel.link, self._vhost)
                    await channel.cancel()
                    await channel.delete_queue(operation.delete_queue)
                    self._exclusive.forget(operation.delete_queue)
            finally:
                await self._close_channel(channel)
        elif operation.delete_queue is not None:
            # The channel went with its link, and the consumer with the channel.
            async with LinkChannel.opened(await self.links.consuming_link()) as channel:
                await self._exclusive.check(operation.delete_queue, channel.link, self._vhost)
                await channel.delete_queue(operation.delete_queue)
        self._exclusive.consumer_closed(operation.subscription)
        return ops.Unsubscribed()

    async def _renew_token(self, operation: ops.RenewToken) -> ops.Event:
        """Try a token on a new connection first.

        On a link the broker accepts an expired token without an error, and closes the link if it refuses a token.
        """
        try:
            token = operation.token.decode()
            await self._login.check_token(token)
        except UnicodeDecodeError:
            return ops.TokenRefused("it is no text")
        except LinkDownError:
            return ops.TokenRefused("the broker cannot be reached")
        except UpstreamError as refusal:
            return ops.TokenRefused(refusal.text)
        except TooManyFailedLoginsError as failed:
            return ops.TokenRefused(
                f"too many logins from this address have failed; try again in {failed.seconds} seconds."
            )
        await asyncio.gather(self.links.update_secret(token), self._pausable.update_secret(token))
        return ops.TokenRenewed()

    # Events of the broker.

    def _channel_closed(self, refusal: UpstreamError, *, publishing: bool) -> None:
        self._handle(ops.ChannelClosed(refusal.code, refusal.text, publishing=publishing))

    def _consumer_cancelled(self, subscription: Subscription) -> None:
        channel = self._consuming.pop(subscription, None)
        self._exclusive.consumer_cancelled(subscription)
        if channel is None:
            self._handle(ops.ConsumerCancelled(subscription))
            return
        channel.discard(self)
        if self._session.settings.upstream.ride_through:
            self._cancelled[subscription] = asyncio.Event()
        else:
            self._handle(ops.ConsumerCancelled(subscription))
        _ = self._spawn(
            self._guarded(self._after_cancel(subscription, channel)), name=f"stomp-cancelled {self._client}"
        )

    async def _after_cancel(self, subscription: Subscription, channel: LinkChannel) -> None:
        """The queue is gone. If its virtual host goes with it, the link does, too, and the session rides through."""
        link_is_lost = self._cancelled.get(subscription)
        try:
            if link_is_lost is not None:
                await self._until_lost(channel.link, subscription, link_is_lost)
                if self._cancelled.pop(subscription, None) is not None:
                    self._handle(ops.ConsumerCancelled(subscription))
        finally:
            await self._close_channel(channel)

    @staticmethod
    async def _until_lost(link: Link, subscription: Subscription, link_is_lost: asyncio.Event) -> None:
        """Wait for the loss of the link if the virtual host goes: permissions go first, connections last."""
        try:
            async with LinkChannel.opened(link) as channel:
                await channel.consume(subscription.queue, 1, {})
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED or isinstance(refusal, LinkDownError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(link_is_lost.wait(), _VHOST_DELETION)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do background work of the session; a fault in it ends the session."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self._callbacks.failed(error)

    def _handle(self, event: ops.Event) -> None:
        self._session.handle(event)
        self._callbacks.advance()

    def link_lost(self, link: Link) -> None:
        """A link of the session is closed, and all the session's channels on it. Those on other links live on."""
        if link.closed is None:
            return
        self._lose(link, link.closed)

    def _lose(self, link: Link, reason: UpstreamError) -> None:
        """The session's channels on a link are gone."""
        lost = tuple(subscription for subscription, channel in self._consuming.items() if channel.link is link)
        for subscription in lost:
            del self._consuming[subscription]
            self._exclusive.consumer_closed(subscription)
        # They were on this link or on another one of the same virtual host.
        lost += tuple(self._cancelled)
        for link_is_lost in self._cancelled.values():
            link_is_lost.set()
        self._cancelled.clear()
        if self._control is not None and self._control.link is link:
            self._control = None
        self._lost_queues += self._exclusive.link_lost(link)
        publishing = self._publishing is not None and self._publishing.link is link
        if publishing:
            self._publishing = None
            self._session.release(Hold.LINK_WRITE)
        self._handle(ops.LinkLost(reason.code, reason.text, lost, publishing))

    def leave(self, link: Link) -> None:
        """A link drains: move the session's channels elsewhere, if nothing can be lost by it. Asked again and again."""
        if link not in self._leaving:
            self._leaving[link] = task = self._spawn(
                self._guarded(self._leave(link)), name=f"stomp-leave {self._client}"
            )
            task.add_done_callback(lambda _: self._leaving.pop(link))

    async def _leave(self, link: Link) -> None:
        consuming = [subscription for subscription, channel in self._consuming.items() if channel.link is link]
        if self._exclusive.has_any(link) or not self._session.can_leave(consuming):
            return
        if not self.links.is_replaced(link):
            # Nobody leaves a link before a broker has accepted the login again.
            await self.links.replace(link)
            return
        if not consuming:
            # Nothing more is published, so all that was is confirmed soon. A consumer needs its client's ACKs.
            self._session.hold(Hold.LINK_LOST)
        try:
            for _ in range(_LOOKS):
                if self._session.is_quiet(consuming):
                    await self._leave_now(link)
                    return
                if self._session.is_recovering:
                    return
                await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            if not consuming and not self._session.is_recovering:
                self._session.release(Hold.LINK_LOST)
                self._callbacks.advance()

    async def _leave_now(self, link: Link) -> None:
        """To the session this is the loss of a link. Messages on their way from the broker return to their queue."""
        channels = [*self._consuming.values(), self._control, self._publishing]
        left = [channel for channel in channels if channel is not None and channel.link is link]
        for channel in left:
            channel.discard(self)
        self._lose(link, UpstreamError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection is replaced"))
        await asyncio.gather(*map(self._close_channel, left))

    # What `Recovery` asks for.

    def what_is_lost(self) -> ops.Recover:
        """What is to be brought back now."""
        return self._session.what_is_lost()

    def lacks_consumer(self, subscription: Subscription) -> bool:
        """Whether a subscription has no channel, and has not ended meanwhile."""
        return subscription not in self._consuming and self._session.subscriptions.is_current(subscription)

    @property
    def lacks_publisher(self) -> bool:
        """Whether the session has no publishing channel."""
        return self._publishing is None

    async def restore_queues(self, operation: ops.Recover) -> None:
        """Take the exclusive queues of the session again that were lost, apart from those that subscriptions declare.

        Those have to be on the link of their subscription. What the session has left must be closed first: only then
        are all messages back in their queues, in order.
        """
        if self._leaving:
            await asyncio.wait(self._leaving.values())
        declared = {request.queue.name for request in operation.subscriptions if request.queue is not None}
        while self._lost_queues:
            # Taken before the wait, in which others may be lost.
            queue = self._lost_queues.pop()
            if queue.name in declared:
                continue
            try:
                await self._declare_on(await self._control_channel(), queue)
            except BaseException:
                self._lost_queues.append(queue)
                raise

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed:
        """Subscribe again."""
        try:
            return await self._subscribe(operation)
        except UpstreamError:
            # It has no channel again, and what one delivered that was not good enough will be delivered again.
            operation.subscription.lost()
            raise

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared:
        """Open a publishing channel, and declare the queues of the messages that will be published again."""
        try:
            prepared = await self._prepare_publisher(ops.PreparePublisher(confirms=True, queue=None))
            for queue in operation.queues:
                prepared = await self._prepare_publisher(ops.PreparePublisher(confirms=True, queue=queue))
        except UpstreamError:
            # The broker has closed the channel, or will close it.
            channel, self._publishing = self._publishing, None
            if channel is not None:
                await self._close_channel(channel)
            raise
        return prepared

    def failed(self, error: Exception) -> None:
        """A fault of the gateway in what the link has called of this session."""
        self._callbacks.failed(error)

    def link_changed(self, link: Link) -> None:
        """The broker's alarm began or ended, or the link's write buffer is full or has room again."""
        if self._publishing is not None and self._publishing.link is link:
            self._follow(link)
            self._callbacks.advance()

    def window_full(self) -> None:
        """Too much is on its way over the publishing link: others have their turn."""
        self._is_window_full = True
        self._session.hold(Hold.LINK_WRITE)

    def window_open(self) -> None:
        """There is room again, and it is this session's turn."""
        self._is_window_full = False
        if self._publishing is not None:
            self.link_changed(self._publishing.link)

    def _follow(self, link: Link) -> None:
        """Hold or release the client as its publishing link needs."""
        self._session.set_blocked(link.blocked)
        if link.paused or self._is_window_full:
            self._session.hold(Hold.LINK_WRITE)
        else:
            self._session.release(Hold.LINK_WRITE)

    # Links and the end.

    @property
    def links(self) -> LoginLinks:
        """The session's links."""
        return self._login.links

    @property
    def _vhost(self) -> str:
        return self.links.virtual_host.amqp_vhost

    async def _close_channel(self, channel: LinkChannel) -> None:
        channel.leave_owner()
        channel.discard(self)
        if self._pausable.has(channel):
            # The answer to channel.close must be read; deliveries before it are dropped.
            channel.link.resume_reading()
        await channel.close()
        if self._pausable.has(channel):
            self._pausable.read_or_pause()

    async def _close_channels(self) -> None:
        """Close all channels in order. When this returns, the broker has handled all publishes.

        Few channels of subscriptions at a time: with each the broker ends a consumer and perhaps a queue, and the
        frames of other sessions wait meanwhile. A session whose client is gone waits for others of its kind, too.

        Raises:
            UpstreamError: the link or the channel is lost, and perhaps publishes too.
        """
        self._exclusive.start_closing()
        channels = list(self._consuming.values())
        if self._control is not None:
            channels.append(self._control)
        publishing, self._publishing, self._control = self._publishing, None, None
        self._consuming.clear()
        try:
            slots = asyncio.Semaphore(CLOSING_AT_ONCE)
            remaining = iter(channels)

            async def close_remaining() -> None:
                for channel in remaining:
                    async with channel.link.closing if self._is_released else slots:
                        await self._close_channel(channel)

            await asyncio.gather(*(close_remaining() for _ in channels[:CLOSING_AT_ONCE]))
        finally:
            await self._exclusive.delete()
        # Last, because during an alarm the broker does not answer here.
        if publishing is not None:
            await self._close_channel(publishing)
            failure = publishing.link.closed or publishing.closed
            if failure is not None:
                raise failure

    def release(self) -> None:
        """The session is over: close its channels and give its links back, in the background."""
        if self._is_released:
            return
        self._is_released = True
        # First of all, so that no fault keeps the links for ever. The task begins after this function.
        _ = self._spawn(self._release(), name=f"stomp-release {self._client}")
        # At once: the client may connect again before its channels are closed.
        self._login.close()
        self._recovery.stop()
        for link_is_lost in self._cancelled.values():
            link_is_lost.set()
        self.client_gone()

    async def _release(self) -> None:
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task])
        try:
            await self._close_channels()
        except UpstreamError:
            pass
        finally:
            await self._pausable.close()
            self._login.release_links()
