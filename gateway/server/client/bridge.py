"""The bridge of one session: carries out its operations on channels, and moves bytes to and from channels.

Each operation runs as a task, except a login that is in the login cache, and a publishing channel on a link that is
open. Bytes never wait. What the broker does on the session's channels becomes an event of the session. The parts do the
work::

    Bridge ── BridgeParts ─┬─ PublishingChannel   the channel for publishing
                           ├─ ConsumingChannels   one for each subscription, and one for declarations ── PausableLink
                           ├─ SessionQueues       declares ── ExclusiveQueues
                           ├─ Consumers           SUBSCRIBE, UNSUBSCRIBE
                           ├─ LostConsumers       consumers whose queue is deleted or away
                           ├─ LeavingLinks        links that drain
                           ├─ PassingRefusals     refusals that may be temporary
                           └─ Recovery            the loss of a link ── Restorer
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from gateway.amqp.codec import PUBLISH, QUEUE_DECLARE
from gateway.server.broker.broker_errors import (
    CONNECTION_FORCED,
    NOT_FOUND,
    LinkDownError,
    UpstreamError,
    is_cancelled,
)
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool, SharedLinksError
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.bridge_parts import BridgeParts
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.client.login_handler import LoginHandler
from gateway.session import ops
from gateway.session.context import State
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# How long the end of a session waits for operations under way, in seconds. If a queue is away, no answer comes.
_LAST_ANSWERS: Final = 10.0


class _BridgeCallbacks(Protocol):
    """The client's connection."""

    def advance(self) -> None: ...

    def flush_batch(self) -> None: ...

    def advance_paced(self) -> None: ...

    def advance_rest(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Bridge:
    """Connects one session to the broker.

    Args:
        client: the session's name in the broker's list of connections.
        spawn: starts a task and keeps a reference to it.
    """

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
        # A link calls the client's connection directly, once per read.
        self.flush_batch = callbacks.flush_batch
        self._pool = pool
        self._login = login
        self._client = client
        self._spawn = spawn
        # The tasks of operations, and of other work. Dictionaries, since an empty set takes three times the memory.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._background: dict[asyncio.Task[None], None] = {}
        self._is_forgotten = False
        # Created when the session first needs a channel.
        self._parts: BridgeParts | None = None
        session.context.brokers_changed = pool.brokers_changed

    @property
    def parts(self) -> BridgeParts:
        """The parts, created at the first use."""
        parts = self._parts
        if parts is None:
            background = self._do_in_background
            context = BridgeContext(self._session, self, self._login, self._pool, self._client, background)
            parts = self._parts = BridgeParts(context)
        return parts

    # Bytes.

    def flush(self) -> bool:
        """Write the session's publishes and settlements, and start its operations. HOT: once per batch.

        Returns whether an operation is already done, so that the session can continue.
        """
        session, parts = self._session, self._parts
        if parts is not None:
            parts.publishing.flush()
            # All are taken before the first write, because a full publishing link calls this function again.
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
        """Start an operation. Returns whether it is already done, and the session can continue within this call."""
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
            # Created now, since the session may end before the task begins.
            _ = self.parts
        elif self._parts is not None:
            # The operation may replace a recovery.
            self._parts.recovery.stop()
        task = self._spawn(self._carry_out(operation, tuple(self._tasks)), name=f"stomp-operation {self._client}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return False

    @property
    def has_parts(self) -> bool:
        """Whether the session has needed a channel so far."""
        return self._parts is not None

    def advance(self) -> None:
        """Let the session continue."""
        if not self._is_forgotten:
            self._callbacks.advance()

    # The client.

    def client_writable(self, writable: bool) -> None:
        """Note whether the client reads as fast as messages arrive."""
        if self._parts is not None or not writable:
            self.parts.channels.client_writable(writable)

    def client_gone(self) -> None:
        """Drop deliveries from now on, so that the broker's answers do not wait for them."""
        self.parts.channels.client_gone()

    def drop_deliveries(self) -> None:
        """Drop further messages for requeue until the client is writable again, because too many bytes wait for it."""
        self.parts.channels.drop_deliveries()

    def time_passed(self) -> None:
        """Do periodic work. Call it about once a second."""
        if self._parts is not None:
            self._parts.channels.pausable.time_passed()
            self._parts.publishing.time_passed()

    def must_wait(self, operation: ops.Operation | None) -> bool:
        """Whether there is a good reason that the answer to an operation, or a confirm (None), takes long."""
        if operation is None or isinstance(operation, ops.PreparePublisher):
            # During an alarm the broker does not read links that publish. Nor has it read what fills a write buffer.
            return any(link.blocked or (operation is None and link.is_writing_paused) for link in self._login.links.all)
        # The gateway delays the refusal of a token. On a paused link, the answer follows messages that wait for the
        # client.
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
            # The link keeps the exception, whose traceback would keep the session in memory.
            down.__traceback__ = None
            return ops.OperationInterrupted(down.code, down.text)
        except UpstreamError as refusal:
            may_pass = await self.parts.refusals.may_pass(operation, refusal)
            return ops.OperationFailed(refusal.code, refusal.text, refusal.method == PUBLISH, may_pass)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return ops.OperationInterrupted(CONNECTION_FORCED, "CONNECTION_FORCED - the broker did not answer")

    async def _perform(self, operation: ops.Operation) -> ops.Event:
        """Carry out an operation. Returns the answer."""
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
                parts.refusals.subscribed()
            case ops.Unsubscribe():
                event = await parts.consumers.end(operation)
            case ops.RenewToken():
                event = await self._renew_token(operation)
            case ops.FindQueues():
                event = await parts.refusals.find(operation)
            case _:
                await parts.close_channels(counts=self._session.is_ended_by_client)
                event = ops.UpstreamClosed()
        return event

    async def _renew_token(self, operation: ops.RenewToken) -> ops.Event:
        """Try a token on a new connection, and then use it on the session's links. See `LinkPool.renew`.

        On a link, the broker accepts an expired token without an error, and closes the link if it refuses a token.
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

    def _do_in_background(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[None]:
        """Run work of the session that is not an operation. A fault in it ends the session."""
        task = self._spawn(self._guarded(work), name=f"stomp-{name} {self._client}")
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)

    # Events of the broker.

    def handle(self, event: ops.Event) -> None:
        """Tell the session about an event that is not an answer."""
        self._session.handle(event)
        self._callbacks.advance()

    def channel_closed(self, refusal: UpstreamError, *, publishing: bool) -> None:
        """Tell the session that the broker closed a channel, perhaps by refusing to declare a message's queue."""
        if self._is_forgotten:
            return
        of_declaration = publishing and refusal.method == QUEUE_DECLARE
        is_away = of_declaration and refusal.code == NOT_FOUND
        if is_away:
            self.parts.context.note_away(refusal.text)
        self.handle(ops.ChannelClosed(refusal.code, refusal.text, publishing, of_declaration, is_away))

    @property
    def subscriptions(self) -> Collection[Subscription]:
        """The session's subscriptions, including lost ones that will be restored."""
        return () if self._is_forgotten else self._session.subscriptions.all

    def revoke(self, text: str, subscription: Subscription | None = None) -> None:
        """End a subscription that the broker refuses on a recheck; without one, the session. ``text``: its words."""
        if self._is_forgotten:
            return
        if subscription is not None and self._session.subscriptions.is_current(subscription):
            _ = self._do_in_background(self.parts.consumers.end(ops.Unsubscribe(subscription, None)), "revoke")
        self.handle(ops.AccessRevoked(text, subscription))

    def failed(self, error: Exception) -> None:
        """End the session because of a fault of the gateway in a call from its link."""
        if not self._is_forgotten:
            self._callbacks.failed(error)

    def link_lost(self, link: Link) -> None:
        """Note that a link is closed, with the session's channels on it."""
        if link.closed is not None and not self._is_forgotten:
            self.lose(link, link.closed)

    def lose(self, link: Link, reason: UpstreamError) -> None:
        """Give up the session's channels on a link, and tell the session that the link is lost."""
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

    async def leave_link(self, link: Link) -> None:
        """Leave a link that drains, if possible. The link asks repeatedly."""
        if not self._is_forgotten:
            await self._guarded(self.parts.leaving.leave_link(link))

    def link_changed(self, link: Link) -> None:
        """Note that the broker raised or ended an alarm, or that a link's write buffer is full or has room again."""
        if self.parts.publishing.follow(link):
            self._callbacks.advance()

    def window_full(self) -> None:
        """Hold the session, because the publish window is full."""
        self.parts.publishing.window_full()

    def keep_to_window(self) -> None:
        """Hold the session, which is about to send much, if the publish window is full."""
        if self._parts is not None:
            self._parts.publishing.keep_to_window()

    def window_open(self) -> None:
        """Release the session: the publish window has room, and it is this session's turn."""
        link = self.parts.publishing.window_open()
        if link is not None:
            self.link_changed(link)

    # The end.

    def release(self) -> None:
        """Close the channels of a session that has ended, and give its links back, in the background. Call it once."""
        parts = self._parts
        is_idle = not (self._tasks or self._background or (parts is not None and parts.use_links))
        if not is_idle:
            # Started first, so that no fault below keeps the links forever. The task begins after this function.
            _ = self._spawn(self._release(), name=f"stomp-release {self._client}")
        try:
            # At once, since the client may connect again before its channels are closed.
            self._login.close()
            if parts is not None:
                parts.end()
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
        try:
            if self._parts is not None:
                await self._parts.close(counts=self._session.is_ended_by_client)
        finally:
            self._login.release_links()
            if self._background:
                await asyncio.wait(tuple(self._background))
            self._forget()

    def _forget(self) -> None:
        """Break reference cycles: the parts refer to this object, and garbage collection blocks the event loop.

        A link that has this object on a list may still call it, or flush it for a late frame.
        """
        if self._parts is not None:
            self._parts.forget()
        vars(self).clear()
        self._is_forgotten = True
        self.flush_batch = _nothing


def _nothing() -> None:
    """Called by links for a session that has ended."""
