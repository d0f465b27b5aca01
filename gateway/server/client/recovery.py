"""Restores what a session lost with a link: when to try, how often, and when to stop.

`ops.Recover` says what to restore, and `Restorer` restores it piece by piece. If an attempt fails half-way, the next
one continues with the rest.

If a broker closes a link because of something that one session sent, it does not say which session. So the sessions of
that login recover one at a time, see `RecoveryTurn`. The session to blame ends, and the others continue.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.server.broker.broker_errors import (
    ACCESS_REFUSED,
    BROKER_FAULTS,
    LinkDownError,
    UpstreamError,
    is_cancelled,
    passes,
)
from gateway.server.broker.redial import Backoff
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.leaving_links import LeavingLinks
from gateway.server.client.lost_consumers import LostConsumers
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.context import State
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# During a session's turn: how often to check whether everything is answered, and the pauses in seconds.
_LOOKS: Final = 200
_BETWEEN_LOOKS: Final = 0.005
# The pause in seconds before a channel replaces one that the broker closed because of a message. It bounds how many
# such messages of one client the broker has to refuse and log in a second.
_AFTER_REFUSAL: Final = 0.01

# For this many seconds, the recovery retries what the broker refuses for lack of permissions, except a login: RabbitMQ
# deletes the permissions of a virtual host before the host itself, which may be made again.
_WITHOUT_PERMISSIONS: Final = 2.0

# The longest turn in seconds. A session that needs longer continues without a turn.
_LONGEST_TURN: Final = 2.0


class RecoveryTurn:
    """The turn of one session to recover, until the broker has answered everything that it sends again.

    If a link closes during its turn, the session is suspect; if it happens again, it is to blame. Once is not enough,
    because a session that has just connected takes no turns, and may be the cause.
    """

    __slots__ = ("_ends", "_is_needed", "_is_suspect", "_lock")

    def __init__(self) -> None:
        # Whether the broker closed a link because of some session, so that there are turns.
        self._is_needed = False
        self._is_suspect = False
        # The lock of the login, held during the turn.
        self._lock: asyncio.Lock | None = None
        self._ends: asyncio.TimerHandle | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the session has its turn."""
        return self._lock is not None

    def lost(self, code: int) -> None:
        """Note the code with which a link was lost."""
        self._is_needed |= code not in BROKER_FAULTS

    def is_to_blame(self, code: int) -> bool:
        """Whether this session caused the loss of a link, for a second time. This gives the turn back."""
        if not self.is_taken or code in BROKER_FAULTS:
            return False
        self.give_back()
        was_suspect, self._is_suspect = self._is_suspect, True
        return was_suspect

    async def take(self, lock: asyncio.Lock) -> None:
        """Wait for the turn, if there are turns. ``lock`` is that of the login."""
        if self._is_needed and not self.is_taken:
            await lock.acquire()
            self._lock = lock
            self._ends = asyncio.get_running_loop().call_later(_LONGEST_TURN, self.give_back)

    def proven(self) -> None:
        """Need no turn any more: the broker has answered everything or kept the link for long enough."""
        self._is_needed = self._is_suspect = False
        self.give_back()

    def give_back(self) -> None:
        """Let the next session have its turn."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None


class Restorer:
    """Restores queues, consumers and the publishing channel of one session, each of them once."""

    __slots__ = ("_channels", "_leaving", "_lost", "_publishing", "_queues", "context")

    def __init__(
        self,
        context: BridgeContext,
        channels: ConsumingChannels,
        queues: SessionQueues,
        lost: LostConsumers,
        publishing: PublishingChannel,
        leaving: LeavingLinks,
    ) -> None:
        self.context = context
        self._channels = channels
        self._queues = queues
        self._lost = lost
        self._publishing = publishing
        self._leaving = leaving

    def lacks_consumer(self, subscription: Subscription) -> bool:
        """Whether a subscription of the session has no channel."""
        return subscription not in self._channels and self.context.session.subscriptions.is_current(subscription)

    @property
    def lacks_publisher(self) -> bool:
        """Whether the session has no publishing channel."""
        return not self._publishing.is_open

    async def find_away(self) -> None:
        """Find queues that are away. Their subscriptions are left to `LostConsumers`; those of messages are awaited."""
        lost, watch = self.context.session.recovery_request(), self.context.links.queue_watch
        lasting = [each for each in lost.subscriptions if each.queue is None or each.queue.durable]
        names = {each.queue_name for each in lasting} | {queue.name for queue in lost.queues}
        await asyncio.gather(*map(watch.state, names), return_exceptions=True)
        for request in lasting:
            if watch.is_away(request.queue_name) and self.lacks_consumer(request.subscription):
                self._lost.wait_for(request.subscription)
        for queue in lost.queues:
            if watch.is_away(queue.name):
                self._publishing.wait_for(queue.name)

    async def restore_queues(self, operation: ops.Recover) -> None:
        """Declare the session's exclusive queues, except those that subscriptions declare on their own links.

        First waits until the channels on links that the session has left are closed.
        """
        await self._leaving.done()
        await self._queues.restore({each.queue.name for each in operation.subscriptions if each.queue is not None})

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed | None:
        """Subscribe again. Returns None if the queue is away; `LostConsumers` then restores the subscription later."""
        subscribed = await self._lost.try_once(operation)
        if subscribed is None:
            self._lost.wait_for(operation.subscription)
        return subscribed

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared:
        """See `PublishingChannel.restore`."""
        return await self._publishing.restore(operation)


class Recovery:
    """The recoveries of one session, one at a time."""

    def __init__(self, restorer: Restorer) -> None:
        self._restorer = restorer
        self._backoff = Backoff()
        # The seconds of recoveries since something last succeeded. The time between recoveries does not count.
        self._spent = 0.0
        # The timeout of the recovery under way.
        self._bound: asyncio.Timeout | None = None
        self._is_stopped = False
        # When the last recovery ended, on the event loop's clock.
        self._ended_at = 0.0
        self.turn = RecoveryTurn()
        # The number of recoveries so far.
        self._number = 0
        # True while it waits for a broker that answers.
        self._is_down = False

    def stop(self) -> None:
        """End a recovery under way soon, without an event: nothing that is lost is needed any more."""
        self._is_stopped = True
        self.turn.give_back()
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(0)

    async def run(self, operation: ops.Recover, ride_through: float) -> ops.Event | None:
        """Restore everything, within ``ride_through`` seconds. Returns Recovered or RecoveryFailed; None if stopped."""
        clock = asyncio.get_running_loop().time
        now = clock()
        # After a refused message there is no back-off: a session that sends to wrong destinations must not slow down.
        pause = _AFTER_REFUSAL if operation.is_refusal else self._backoff.begin(now)
        self._number += 1
        self.turn.give_back()
        if not operation.is_again or now - self._ended_at >= ride_through:
            # After such a time the last recovery counts as a success, even if the session lost its channels again.
            self._spent = 0.0
        if self._is_stopped:
            return None
        if not operation.is_again:
            self._restorer.context.recovery_begins()
        event: ops.Event | None = None
        try:
            async with asyncio.timeout_at(now + ride_through - self._spent) as self._bound:
                event = await self._until_back(pause)
        except TimeoutError:
            if not self._is_stopped:
                event = ops.RecoveryFailed(is_down=self._is_down)
        finally:
            self._bound = None
            self._ended_at = clock()
            if not operation.is_refusal:
                self._backoff.end(self._ended_at)
            self._spent += self._ended_at - now
            if not isinstance(event, ops.Recovered):
                self.turn.give_back()
        return event

    async def prove(self, session: Session) -> None:
        """Keep the turn until the broker has answered what the session sent again, but at most for a second."""
        last, number = session.confirms.last_sequence, self._number
        try:
            for _ in range(_LOOKS):
                is_answered = session.operation is None and session.confirms.is_answered_up_to(last)
                if number != self._number or not self.turn.is_taken or is_answered or session.state is State.CLOSED:
                    return
                await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            if number == self._number and self.turn.is_taken:
                self.turn.proven()

    async def _until_back(self, pause: float) -> ops.Event:
        subscribed: dict[Subscription, ops.Subscribed] = {}
        clock = asyncio.get_running_loop().time
        refused_until = clock() + _WITHOUT_PERMISSIONS
        while True:
            await asyncio.sleep(pause)
            try:
                links = self._restorer.context.links
                self._is_down = True
                await links.come_back()
                self._is_down = False
                await self.turn.take(links.turn)
                if links.queue_watch.knows_away:
                    # Now, all together, because other sessions wait during ``_restore``.
                    await self._restorer.find_away()
                async with links.restoring:
                    publisher = await self._restore(subscribed)
            except LinkDownError as down:
                # The link keeps the exception, whose traceback would keep the session in memory.
                down.__traceback__ = None
                self.turn.lost(down.code)
            except asyncio.CancelledError:
                # Otherwise a dial that several sessions share was cancelled.
                if is_cancelled():
                    raise
            except UpstreamError as refusal:
                self._is_down = False
                is_brief = refusal.code == ACCESS_REFUSED and refusal.method and clock() < refused_until
                if not is_brief and not passes(refusal):
                    return ops.RecoveryFailed(refusal.code, refusal.text)
                self._restorer.context.log_wait(refusal.text)
            else:
                return ops.Recovered(tuple(subscribed.values()), publisher)
            self.turn.give_back()
            pause = self._backoff.next()

    async def _restore(self, subscribed: dict[Subscription, ops.Subscribed]) -> ops.PublisherPrepared | None:
        """Restore everything that is missing, even if another link is lost meanwhile.

        The subscriptions come first, because messages that are published again may be for them.
        """
        restorer = self._restorer
        while True:
            lost = restorer.context.session.recovery_request()
            await restorer.restore_queues(lost)
            for request in lost.subscriptions:
                if not restorer.lacks_consumer(request.subscription):
                    continue
                if (back := await restorer.restore_consumer(request)) is None:
                    # Other queues may be away, too. Asking about all of them takes no longer than about one.
                    await restorer.find_away()
                    break
                subscribed[request.subscription] = back
            else:
                publisher = await restorer.restore_publisher(lost) if lost.publishing else None
                lost = restorer.context.session.recovery_request()
                if not lost.subscriptions and not (lost.publishing and restorer.lacks_publisher):
                    return publisher
