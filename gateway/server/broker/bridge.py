"""The bridge of one session: carries out its operations on links, and carries bytes both ways.

Operations run one at a time, each as a task; bytes never wait. Everything that the broker does to the session's
channels comes back through here as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.exclusive_queues import ExclusiveQueues
from gateway.server.broker.login_handler import LoginHandler
from gateway.server.broker.pausable_link import PausableLink
from gateway.server.broker.queue_declare import declared_or_found
from gateway.session import ops
from gateway.session.context import Hold
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.session.transitions import State

if TYPE_CHECKING:
    from gateway.config import VirtualHost
    from gateway.server.broker.link import Link
    from gateway.server.broker.link_pool import LinkPool, LoginLinks
    from gateway.server.client.session_limits import SessionSlot
    from gateway.session.queues import QueueSpec

_NOT_FOUND = 404


class Owner(Protocol):
    """The client's connection, as the bridge sees it."""

    def broker_batch_done(self) -> None:
        """Data or an event reached the session: go on reading if it may, and write out."""

    def failed(self, error: BaseException) -> None:
        """A fault of the gateway itself."""


class Bridge:
    """Between one session and the broker.

    Args:
        session: whose operations are carried out.
        owner: the client's connection.
        pool: where links come from.
        find_virtual_host: the virtual host of a name that the session resolved.
        client: names the client in the broker's list of connections.
        spawn: starts a background task and keeps hold of it.
        entrance: where the client's place among all sessions is.
    """

    def __init__(
        self,
        session: Session,
        owner: Owner,
        pool: LinkPool,
        find_virtual_host: Callable[[str], VirtualHost | None],
        client: str,
        spawn: Callable[..., asyncio.Task[None]],
        slot: SessionSlot,
    ) -> None:
        self._session = session
        self._owner = owner
        self._pool = pool
        self._client = client
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._publishing: LinkChannel | None = None
        self._consuming: dict[Subscription, LinkChannel] = {}
        identity = session.identity.decode()
        self._reception = LoginHandler(pool, find_virtual_host, slot, client, identity)
        self._own = PausableLink(client, identity)
        # Queues that this session alone may use, and which of its subscriptions consume them.
        self._exclusive = ExclusiveQueues()
        self._exclusive_consumers: dict[Subscription, str] = {}
        self._control: dict[Link, LinkChannel] = {}
        self._released = False

    # Bytes.

    def flush(self) -> None:
        """Put what the session has for the broker on the wire, and start the operation it asks for."""
        session = self._session
        if self._publishing is not None:
            # Taken before the write, which may find the link full and lead back here.
            publishes = session.take_publishes()
            if publishes:
                self._publishing.write(publishes)
        for subscription, settlements in session.take_settlements():
            channel = self._consuming.get(subscription)
            if channel is not None:
                channel.write(settlements)
        operation = session.take_operation()
        if operation is not None:
            self._task = self._spawn(self._carry_out(operation), name=f"stomp-operation {self._client}")

    def flush_batch(self) -> None:
        """The tap has handed over a read's worth of data."""
        self._owner.broker_batch_done()

    def client_writable(self, writable: bool) -> None:
        """Whether the client takes bytes; a link that serves it alone pauses with it."""
        self._own.client_writable = writable
        self._match_own_link()

    def _match_own_link(self) -> None:
        self._own.match(self._consuming.values())

    def client_gone(self) -> None:
        """Nobody takes messages any more: throw them away, and let no answer of the broker's wait behind them."""
        self._own.client_gone = True
        for channel in self._consuming.values():
            channel.tap(Sink(_no_deliveries, _no_confirms, self))
        self._match_own_link()

    def time_passed(self) -> None:
        """Called about once a second: the AMQP library must not take a paused link for dead."""
        self._own.time_passed()

    def drop_deliveries(self) -> None:
        """The client has far too much waiting: keep only the tags of what else arrives for it."""
        for subscription, channel in self._consuming.items():
            if not self._own.has(channel):
                channel.tap(Sink(subscription.drop_for_requeue, _no_confirms, self))

    def resume_deliveries(self) -> None:
        """The client has caught up: return what was shed to the queues, and take deliveries again."""
        for subscription, channel in self._consuming.items():
            if not self._own.has(channel):
                channel.tap(Sink(subscription.deliver, _no_confirms, self))
                subscription.ledger.requeue_dropped()
                channel.write(subscription.ledger.take_frames())

    # Operations.

    async def _carry_out(self, operation: ops.Operation) -> None:
        try:
            self._session.handle(await self._outcome(operation))
            if self._session.state is State.CONNECTING:
                self._reception.leave()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self._owner.failed(error)
            return
        self._owner.broker_batch_done()

    async def _outcome(self, operation: ops.Operation) -> ops.Event:
        try:
            return await self._perform(operation)
        except LinkDownError as down:
            return ops.LinkLost(down.code, down.text)
        except UpstreamError as refusal:
            return ops.OperationFailed(refusal.code, refusal.text)

    async def _perform(self, operation: ops.Operation) -> ops.Event:
        if isinstance(operation, ops.Login):
            return await self._reception.log_in(operation)
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

    async def _prepare_publisher(self, operation: ops.PreparePublisher) -> ops.Event:
        channel = self._publishing
        if channel is None:
            channel = await self._links.publishing_channel()
            self._adopt(channel.link)
            channel.tap(Sink(_no_deliveries, self._session.confirm, self, self._session.message_returned))
            channel.on_closed = self._publishing_closed
            self._publishing = channel
            self._session.set_blocked(channel.link.blocked)
            if channel.link.paused:
                self._session.hold(Hold.LINK_WRITE)
        if operation.queue is not None:
            await self._declare(operation.queue, channel)
        if operation.confirms and not self._session.has_confirms:
            await channel.select_confirms()
        return ops.PublisherPrepared(channel.number, channel.link.frame_max, operation.confirms)

    async def _declare(self, queue: QueueSpec, channel: LinkChannel) -> tuple[str, QueueSpec | None]:
        """Declare a queue; an exclusive one where this session consumes, since AMQP binds it to the connection.

        Returns:
            Its name, and what it is; None where it was there and is something else.
        """
        if queue.exclusive and channel is self._publishing:
            channel = await self._control_channel()
        if not queue.name or not self._session.settings.takes_existing_queues:
            return await self._declare_on(queue, channel), queue
        conflict = await declared_or_found(queue, channel.link, lambda other: self._declare_on(queue, other))
        if conflict is None:
            return queue.name, queue
        self._pool.taken_queues.note(self._session.settings.virtual_host, queue.name, conflict.text)
        return queue.name, None

    async def _declare_on(self, queue: QueueSpec, channel: LinkChannel) -> str:
        if queue.exclusive:
            return await self._exclusive.declare(queue, channel, self._vhost)
        return await channel.declare(queue)

    async def _control_channel(self) -> LinkChannel:
        """A channel for declarations on a link for subscriptions."""
        for channel in self._control.values():
            return channel
        channel = await self._links.consuming_channel()
        self._adopt(channel.link)
        channel.on_closed = self._subscription_closed
        self._control[channel.link] = channel
        return channel

    async def _subscribe(self, operation: ops.Subscribe) -> ops.Event:
        subscription = operation.subscription
        channel = await self._consuming_channel(operation)
        self._adopt(channel.link)
        channel.tap(Sink(subscription.deliver, _no_confirms, self))
        self._consuming[subscription] = channel
        subscription.set_channel(channel.number)
        made = None
        try:
            queue_name = operation.queue_name
            if operation.queue is not None:
                queue_name, made = await self._declare(operation.queue, channel)
            await self._exclusive.check(queue_name, channel.link, self._vhost)
            gone: list[bool] = []
            channel.on_cancelled = lambda: gone.append(True)
            await channel.consume(queue_name, operation.prefetch, operation.arguments)
            if operation.binding is not None:
                await channel.bind(queue_name, *operation.binding)
            if gone:
                raise UpstreamError(_NOT_FOUND, f"NOT_FOUND - queue '{queue_name}' was deleted")
        except UpstreamError as refusal:
            self._consuming.pop(subscription, None)
            await self._withdraw(channel, made, refusal)
            raise
        if queue_name in self._exclusive:
            self._exclusive_consumers[subscription] = queue_name
        channel.on_closed = self._subscription_closed
        channel.on_cancelled = lambda: self._cancelled(subscription)
        self._match_own_link()
        return ops.Subscribed(subscription, channel.number, queue_name)

    async def _withdraw(self, channel: LinkChannel, made: QueueSpec | None, refusal: UpstreamError) -> None:
        """A SUBSCRIBE failed half-way: leave no queue behind that it made, and touch none that somebody uses."""
        await self._close_channel(channel)
        if made is None or isinstance(refusal, LinkDownError) or made.durable or not made.auto_delete:
            return
        cleaner = await self._links.consuming_channel()
        try:
            await cleaner.delete_queue(made.name, if_idle=True)
        except UpstreamError:
            pass
        finally:
            await cleaner.close()

    async def _consuming_channel(self, operation: ops.Subscribe) -> LinkChannel:
        owner = self._exclusive.link_of(operation.queue_name)
        if owner is not None and owner.end is None:
            link = owner
        elif not operation.needs_pausable_link:
            return await self._links.consuming_channel()
        else:
            link = await self._own.opened(self._links)
        link.reserve()
        return await link.channel()

    async def _unsubscribe(self, operation: ops.Unsubscribe) -> ops.Event:
        channel = self._consuming.pop(operation.subscription, None)
        if channel is not None:
            # What is still on its way goes back to the queue with everything unsettled when the channel closes. The
            # consumer is cancelled by that, too; only a queue to delete needs the channel a moment longer.
            channel.silence(self)
            try:
                if operation.delete_queue is not None:
                    await self._exclusive.check(operation.delete_queue, channel.link, self._vhost)
                    await channel.cancel()
                    await channel.delete_queue(operation.delete_queue)
                    self._exclusive.forget(operation.delete_queue)
            finally:
                await self._close_channel(channel)
        queue = self._exclusive_consumers.pop(operation.subscription, None)
        if queue is not None and queue not in self._exclusive_consumers.values():
            self._exclusive.unused(queue)
        return ops.Unsubscribed(operation.subscription)

    async def _renew_token(self, operation: ops.RenewToken) -> ops.Event:
        """Try a token on a connection of its own first: the broker closes a link over one that it does not take.

        It also takes an expired one there, without a word.
        """
        try:
            token = operation.token.decode()
            await self._links.ask_about(token)
        except UnicodeDecodeError:
            return ops.TokenRefused("it is no text")
        except LinkDownError:
            return ops.TokenRefused("the broker cannot be reached")
        except UpstreamError as refusal:
            return ops.TokenRefused(refusal.text)
        await asyncio.gather(self._links.renew(token), self._own.update_secret(token))
        return ops.TokenRenewed()

    # What happens at the broker.

    def _publishing_closed(self, refusal: UpstreamError) -> None:
        self._happened(ops.ChannelClosed(refusal.code, refusal.text, publishing=True))

    def _subscription_closed(self, refusal: UpstreamError) -> None:
        self._happened(ops.ChannelClosed(refusal.code, refusal.text, publishing=False))

    def _cancelled(self, subscription: Subscription) -> None:
        channel = self._consuming.pop(subscription, None)
        queue = self._exclusive_consumers.pop(subscription, None)
        if queue is not None:
            self._exclusive.forget(queue)
        self._happened(ops.ConsumerCancelled(subscription))
        if channel is not None:
            channel.silence(self)
            _ = self._spawn(self._close_channel(channel), name=f"stomp-cancelled {self._client}")

    def _happened(self, event: ops.Event) -> None:
        self._session.handle(event)
        self._owner.broker_batch_done()

    def link_lost(self, link: Link) -> None:
        """A link of the session is gone."""
        end = link.end
        if end is not None:
            self._happened(ops.LinkLost(end.code, end.text))

    def link_paused(self, link: Link) -> None:
        """The link takes no more bytes for now: hold the client if it publishes there."""
        if self._publishing is not None and self._publishing.link is link:
            self._session.hold(Hold.LINK_WRITE)
            self._owner.broker_batch_done()

    def link_resumed(self, link: Link) -> None:
        """The link takes bytes again."""
        if self._publishing is not None and self._publishing.link is link and not link.paused:
            self._session.release(Hold.LINK_WRITE)
            self._owner.broker_batch_done()

    def link_blocked(self, link: Link) -> None:
        """The broker's alarm began or ended."""
        if self._publishing is not None and self._publishing.link is link:
            self._session.set_blocked(link.blocked)
            self._owner.broker_batch_done()

    # LoginLinks and the end.

    @property
    def _links(self) -> LoginLinks:
        return self._reception.links

    @property
    def _vhost(self) -> str:
        return self._links.virtual_host.amqp_vhost

    def _adopt(self, link: Link) -> None:
        link.users[self] = link.users.get(self, 0) + 1

    def _leave(self, link: Link) -> None:
        count = link.users.get(self, 0) - 1
        if count > 0:
            link.users[self] = count
        else:
            link.users.pop(self, None)

    async def _close_channel(self, channel: LinkChannel) -> None:
        self._leave(channel.link)
        channel.silence(self)
        if self._own.has(channel):
            # The answer must be read, and what else arrives costs nothing any more.
            channel.link.resume_reading()
        await channel.close()
        if self._own.has(channel):
            self._match_own_link()

    async def _close_channels(self) -> None:
        """Close everything in order; the broker has handled all that was published when this returns.

        Raises:
            UpstreamError: when it has not, because the link or the channel is gone.
        """
        self._exclusive.end()
        channels = [*self._consuming.values(), *self._control.values()]
        publishing, self._publishing = self._publishing, None
        self._consuming.clear()
        self._control.clear()
        try:
            await asyncio.gather(*(self._close_channel(channel) for channel in channels))
        finally:
            for queue in self._exclusive_consumers.values():
                self._exclusive.unused(queue)
            await self._exclusive.delete()
        # Last, because it takes until its end while the broker has an alarm.
        if publishing is not None:
            await self._close_channel(publishing)
            failure = publishing.link.end or publishing.closed
            if failure is not None:
                raise failure

    def release(self) -> None:
        """The session is over: give back what it holds, in the background."""
        if self._released:
            return
        self._released = True
        # At once: the client may be back before its channels are closed.
        self._reception.close()
        self.client_gone()
        _ = self._spawn(self._release(), name=f"stomp-release {self._client}")

    async def _release(self) -> None:
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task])
        try:
            await self._close_channels()
        except UpstreamError:
            pass
        finally:
            await self._own.close()
            self._reception.return_lease()


def _no_deliveries(tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
    """A publishing channel has no consumers, and a client that is gone takes nothing."""


def _no_confirms(sequence: int, multiple: bool, accepted: bool) -> None:
    """A subscription's channel publishes nothing."""
