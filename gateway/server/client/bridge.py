"""The bridge of one session: carries out its operations on channels, and carries bytes both ways.

Each operation runs as a task, except a login that the broker need not be asked about; bytes never wait. The broker's
actions on the session's channels become events of the session here. How each is done stands in the files of its
parts::

    Bridge ── BridgeParts ─┬─ PublishingChannel   the channel for publishing
                           ├─ ConsumingChannels   one for each subscription, and one for declarations ── PausableLink
                           ├─ SessionQueues       declares ── ExclusiveQueues
                           ├─ Consumers           SUBSCRIBE, UNSUBSCRIBE
                           ├─ LostConsumers       their queue is deleted, or its node is away
                           ├─ LeavingLinks        links that drain
                           └─ Recovery            the loss of a link ── Restorer
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from gateway.amqp.codec import CONSUME, PUBLISH, QUEUE_BIND, QUEUE_DECLARE
from gateway.server.broker.broker_errors import (
    CONNECTION_FORCED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    LinkDownError,
    UpstreamError,
    is_cancelled,
)
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool, SharedLinksError
from gateway.server.broker.queue_watch import QueueState
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.bridge_parts import BridgeParts
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.client.login_handler import LoginHandler
from gateway.session import ops
from gateway.session.context import State
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# Seconds after a change of the brokers in which an exchange that is not found may belong to one that still starts, and
# after its first refusal a stream that has no replica on the node.
_STARTS_WITHIN: Final = 10.0

# How long the end of a session waits for operations under way, in seconds: for a queue that is away there is no answer.
_LAST_ANSWERS: Final = 10.0

# RabbitMQ says this while the replica starts, because the stream's leader has moved, and also if there never is one.
_NO_REPLICA: Final = "replica on the local node"


class _BridgeCallbacks(Protocol):
    """The client's connection."""

    def advance(self) -> None: ...

    def flush_batch(self) -> None: ...

    def advance_paced(self) -> None: ...

    def advance_rest(self) -> None: ...

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
        # A link calls the connection itself, once per read: the bridge has no part in that.
        self.flush_batch = callbacks.flush_batch
        self._pool = pool
        self._login = login
        self._client = client
        self._spawn = spawn
        # The operations under way, and other work. Dictionaries, since an empty set takes three times their memory.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._background: dict[asyncio.Task[None], None] = {}
        self._is_released = self._is_forgotten = False
        # Since when the broker refuses a stream because it has no replica.
        self._no_replica_since: float | None = None
        # None until the session needs a channel, or has to remember something for that.
        self._parts: BridgeParts | None = None
        session.context.is_unsettled = pool.is_unsettled

    @property
    def parts(self) -> BridgeParts:
        """What works on channels."""
        parts = self._parts
        if parts is None:
            background = self._do_in_background
            context = BridgeContext(self._session, self, self._login, self._pool, self._client, background)
            parts = self._parts = BridgeParts(context)
        return parts

    # Bytes.

    def flush(self) -> bool:
        """Send the session's publishes and settlements, and start its operations. HOT: once per batch.

        Whether an operation is done already, so that the session may go on.
        """
        session, parts = self._session, self._parts
        if parts is not None:
            parts.publishing.flush()
            # All taken before the first write: only the publishing link leads back here when it is full.
            for subscription, settlements in session.subscriptions.take_settlements():
                channel = parts.channels.get(subscription)
                if channel is not None:
                    channel.write(settlements)
        is_any_done = False
        while (operation := session.take_operation()) is not None:
            is_any_done |= self._begin(operation)
            if self._is_forgotten:
                return False
        parts = self._parts
        if parts is not None and parts.leaving.moments:
            parts.leaving.look()
        return is_any_done

    def _begin(self, operation: ops.Operation) -> bool:
        if isinstance(operation, ops.Login):
            if (event := self._login.log_in_at_once(operation)) is not None:
                self._answer(operation, event)
                self._callbacks.advance_rest()
                return False
        elif isinstance(operation, ops.PreparePublisher):
            publishing = self.parts.publishing
            may_begin = publishing.is_open or self._pool.starts.take_turn()
            if may_begin and (prepared := publishing.prepare_at_once(operation)) is not None:
                self._answer(operation, prepared)
                return True
        elif not isinstance(operation, ops.CloseUpstream):
            # Here, since the session may be over before the task begins.
            _ = self.parts
        elif self._parts is not None:
            # Perhaps it replaces a recovery.
            self._parts.recovery.stop()
        task = self._spawn(self._carry_out(operation, tuple(self._tasks)), name=f"stomp-operation {self._client}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return False

    @property
    def has_parts(self) -> bool:
        """Whether the session has needed a channel."""
        return self._parts is not None

    def advance(self) -> None:
        """The session may go on."""
        if not self._is_forgotten:
            self._callbacks.advance()

    # The client.

    def client_writable(self, writable: bool) -> None:
        """Whether the client takes bytes."""
        if self._parts is not None or not writable:
            self.parts.channels.client_writable(writable)

    def client_gone(self) -> None:
        """Drop deliveries from now on, so that the broker's answers do not wait behind them."""
        self.parts.channels.client_gone()

    def drop_deliveries(self) -> None:
        """Far too much waits for the client: until it is writable, keep only the delivery tags of further messages."""
        self.parts.channels.drop_deliveries()

    def time_passed(self) -> None:
        """Called about once a second."""
        if self._parts is not None:
            self._parts.channels.pausable.time_passed()
            self._parts.publishing.time_passed()

    def must_wait(self, operation: ops.Operation | None) -> bool:
        """Whether an operation, or a confirm (None), may wait as it does, because of the broker, client or gateway."""
        if operation is None or isinstance(operation, ops.PreparePublisher):
            # During an alarm the broker does not read a link that publishes. What a full write buffer holds back it has
            # not seen.
            return any(link.blocked or (operation is None and link.paused) for link in self._login.links.all)
        # The gateway keeps the refusal of a token back, or on a paused link the broker's answer waits behind messages
        # that the client does not take.
        is_slow = not self._session.context.client_writable
        return isinstance(operation, ops.RenewToken) and (self._login.is_kept_back or is_slow)

    # Operations.

    async def _carry_out(self, operation: ops.Operation, earlier: Collection[asyncio.Task[None]]) -> None:
        try:
            if isinstance(operation, ops.CloseUpstream) and earlier:
                await asyncio.wait(earlier)
            elif isinstance(operation, ops.Subscribe | ops.PreparePublisher):
                await self._pool.starts.turn()
            event = await self._outcome(operation)
            if event is None:
                return
            self._answer(operation, event)
            self._callbacks.advance_paced()
            if isinstance(operation, ops.Recover):
                await self.parts.recovery.prove(self._session)
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self._callbacks.failed(error)

    def _answer(self, operation: ops.Operation, event: ops.Event) -> None:
        self._session.handle(event, operation)
        if self._session.state is State.CONNECTING:
            self._login.log_out()

    async def _outcome(self, operation: ops.Operation) -> ops.Event | None:
        try:
            if isinstance(operation, ops.Recover):
                return await self.parts.recovery.run(operation, self._session.settings.upstream.ride_through)
            return await self._perform(operation)
        except LinkDownError as down:
            # It lives as long as its link, and its traceback would keep the session.
            down.__traceback__ = None
            return ops.OperationInterrupted(down.code, down.text)
        except UpstreamError as refusal:
            may_pass = refusal.code == NOT_FOUND and await self._may_pass(operation, refusal)
            may_pass = may_pass or self._may_get_replica(refusal)
            return ops.OperationFailed(refusal.code, refusal.text, refusal.method == PUBLISH, may_pass)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return ops.OperationInterrupted(CONNECTION_FORCED, "CONNECTION_FORCED - the broker did not answer")

    def _may_get_replica(self, refusal: UpstreamError) -> bool:
        """Whether a stream that is refused for the lack of a replica is refused since a few seconds only."""
        is_lack = refusal.code == PRECONDITION_FAILED and refusal.method == CONSUME and _NO_REPLICA in refusal.text
        if not is_lack:
            self._no_replica_since = None
            return False
        now = asyncio.get_running_loop().time()
        since = self._no_replica_since = self._no_replica_since or now
        return now - since < _STARTS_WITHIN

    async def _may_pass(self, operation: ops.Operation, refusal: UpstreamError) -> bool:
        """Whether what was not found belongs to a node that is away, or that still starts.

        A declaration makes a queue that does not exist, so 404 can only mean that.
        """
        is_asked = isinstance(operation, ops.Subscribe | ops.PreparePublisher)
        if not is_asked or refusal.method == PUBLISH or not self._session.settings.upstream.ride_through:
            return False
        state = QueueState.AWAY if refusal.method == QUEUE_DECLARE else QueueState.DELETED
        is_starting = refusal.method == QUEUE_BIND
        if refusal.method == CONSUME and isinstance(operation, ops.Subscribe):
            # It was declared just now, and went with those of a lost node, which RabbitMQ deletes by name.
            is_starting = operation.queue is not None
            try:
                state = await self._login.links.queue_watch.state(operation.queue_name)
            except UpstreamError:
                return False
        if state is QueueState.AWAY:
            self._note_away(refusal)
        if state is not QueueState.DELETED:
            return True
        return is_starting and self._pool.is_unsettled(self._session.settings, _STARTS_WITHIN)

    def _note_away(self, refusal: UpstreamError) -> None:
        self._pool.queue_away(self._session.settings)
        self.parts.context.log_wait(refusal.text)

    async def _find(self, operation: ops.FindQueues) -> ops.QueuesFound:
        """See whether the broker rejects messages because their queue is away, or was deleted."""
        watch = self._login.links.queue_watch
        states = await asyncio.gather(*map(watch.state, operation.queues), return_exceptions=True)
        is_any_away = QueueState.AWAY in states
        if is_any_away:
            self._pool.queue_away(self._session.settings)
        # One that was deleted is declared again.
        return ops.QueuesFound(is_any_away or QueueState.DELETED in states)

    async def _perform(self, operation: ops.Operation) -> ops.Event:
        """Carry out what is answered once."""
        parts = self._parts
        if isinstance(operation, ops.Login):
            return await self._login.log_in(operation)
        if parts is None:
            return ops.UpstreamClosed()
        match operation:
            case ops.PreparePublisher():
                event: ops.Event = await parts.publishing.prepare(operation)
            case ops.Subscribe():
                event = await parts.consumers.start(operation)
                self._no_replica_since = None
            case ops.Unsubscribe():
                event = await parts.consumers.end(operation)
            case ops.RenewToken():
                event = await self._renew_token(operation)
            case ops.FindQueues():
                event = await self._find(operation)
            case _:
                await parts.close_channels(counts=self._session.is_left_by_client)
                event = ops.UpstreamClosed()
        return event

    async def _renew_token(self, operation: ops.RenewToken) -> ops.Event:
        """Try a token on a new connection first.

        On a link the broker accepts an expired token without an error, and closes the link if it refuses a token.
        """
        try:
            token = operation.token.decode()
            links = await self._login.renew(token)
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
        except SharedLinksError:
            return ops.TokenRefused(
                "it grants something else than the one before, and other sessions share its connections to the broker; "
                "connect again with it."
            )
        pausable = self.parts.channels.pausable
        await asyncio.gather(*(link.update_secret(token) for link in links), pausable.update_secret(token))
        return ops.TokenRenewed()

    def _do_in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do work of the session that is no operation; a fault in it ends the session."""
        task = self._spawn(self._guarded(work), name=f"stomp-{name} {self._client}")
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)

    # Events of the broker.

    def handle(self, event: ops.Event) -> None:
        """Something happened at the broker that the session has not asked for."""
        self._session.handle(event)
        self._callbacks.advance()

    def channel_closed(self, refusal: UpstreamError, *, publishing: bool) -> None:
        """The broker closed a channel without being asked, perhaps because it refused to declare a message's queue."""
        if self._is_forgotten:
            return
        of_declaration = publishing and refusal.method == QUEUE_DECLARE
        is_away = of_declaration and refusal.code == NOT_FOUND
        if is_away:
            # A declaration makes a queue that does not exist.
            self._note_away(refusal)
        self.handle(ops.ChannelClosed(refusal.code, refusal.text, publishing, of_declaration, is_away))

    @property
    def subscriptions(self) -> Collection[Subscription]:
        """What the session consumes, or is about to consume again."""
        return () if self._is_forgotten else self._session.subscriptions.all

    def revoke(self, text: str, subscription: Subscription | None = None) -> None:
        """The broker would refuse the login now, or a subscription to this; ``text`` says how. What is refused ends."""
        if self._is_forgotten:
            return
        if subscription is not None and self._session.subscriptions.is_current(subscription):
            _ = self._do_in_background(self._end_consumer(subscription), "revoke")
        self.handle(ops.AccessRevoked(text, subscription))

    async def _end_consumer(self, subscription: Subscription) -> None:
        await self.parts.consumers.end(ops.Unsubscribe(subscription, None))

    def failed(self, error: Exception) -> None:
        """A fault of the gateway in what the link has called of this session."""
        if not self._is_forgotten:
            self._callbacks.failed(error)

    def link_lost(self, link: Link) -> None:
        """A link of the session is closed, and all the session's channels on it. Those on other links live on."""
        if link.closed is not None and not self._is_forgotten:
            self.lose(link, link.closed)

    def lose(self, link: Link, reason: UpstreamError) -> None:
        """The session's channels on a link are gone."""
        parts = self.parts
        lost = parts.channels.lose(link)
        for subscription in lost:
            parts.queues.exclusive.consumer_closed(subscription)
        parts.lost.hand_over(lost)
        if link.closed is not None:
            lost += parts.lost.lose()
        parts.queues.lose(link)
        publishing = parts.publishing.lose(link)
        turn = parts.recovery.turn
        if turn.is_to_blame(reason.code):
            self.handle(ops.RecoveryFailed(reason.code, reason.text))
            return
        turn.lost(reason.code)
        self.handle(ops.LinkLost(reason.code, reason.text, lost, publishing))

    async def leave(self, link: Link) -> None:
        """A link drains. Asked again and again."""
        if not self._is_forgotten:
            await self._guarded(self.parts.leaving.leave(link))

    def link_changed(self, link: Link) -> None:
        """The broker's alarm began or ended, or the link's write buffer is full or has room again."""
        if self.parts.publishing.follow(link):
            self._callbacks.advance()

    def window_full(self) -> None:
        """Too much is on its way over the publishing link: others have their turn."""
        self.parts.publishing.window_full()

    def keep_to_window(self) -> None:
        """The session is about to send much: it waits while too much is on its way over the publishing link."""
        if self._parts is not None:
            self._parts.publishing.keep_to_window()

    def window_open(self) -> None:
        """There is room again, and it is this session's turn."""
        link = self.parts.publishing.window_open()
        if link is not None:
            self.link_changed(link)

    # The end.

    def release(self) -> None:
        """The session is over: close its channels and give its links back, in the background."""
        if self._is_released:
            return
        self._is_released, parts = True, self._parts
        if parts is not None:
            parts.channels.is_released = True
        is_idle = not (self._tasks or self._background or (parts is not None and parts.use_links))
        if not is_idle:
            # First of all, so that no fault keeps the links for ever. The task begins after this function.
            _ = self._spawn(self._release(), name=f"stomp-release {self._client}")
        try:
            if parts is not None:
                parts.publishing.write_rest()
            # At once: the client may connect again before its channels are closed.
            self._login.close()
            if parts is not None:
                parts.give_up()
                parts.channels.client_gone()
        finally:
            if is_idle:
                self._login.release_links()
                self._forget()

    async def _release(self) -> None:
        if self._tasks:
            _, unanswered = await asyncio.wait(tuple(self._tasks), timeout=_LAST_ANSWERS)
            for task in unanswered:
                _ = task.cancel()
            if unanswered:
                await asyncio.wait(unanswered)
        parts = self._parts
        try:
            if parts is not None:
                await parts.close_channels(counts=self._session.is_left_by_client)
        except UpstreamError:
            pass
        finally:
            if parts is not None:
                await parts.channels.pausable.close()
            self._login.release_links()
            if self._background:
                await asyncio.wait(tuple(self._background))
            self._forget()

    def _forget(self) -> None:
        """Keep nothing: the parts refer back to this, and Python frees such circles only when it searches all objects.

        That stops the event loop. A link may still call what it had on its list, or flush this for a late frame.
        """
        vars(self).clear()
        self._is_forgotten = True
        self.flush_batch = _nothing


def _nothing() -> None:
    """What a link calls for a session that is over."""
