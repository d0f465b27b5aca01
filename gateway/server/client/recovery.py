"""Brings back what a session lost with a link: when to try, how often, and what ends it.

The session says what is to come back (`ops.Recover`), `Restorer` restores it, piece by piece. What is back stays back:
if an attempt fails half-way, the next one goes on with the rest.

A broker that closes a link because of what one session has sent does not say which one. So the sessions of that login
come back one at a time, see `RecoveryTurn`. The one to blame ends, and the others ride on.
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
from gateway.server.client.consumers import Consumers
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.leaving_links import LeavingLinks
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.context import State
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# How often a session in its turn looks whether all is answered, and the seconds between two looks.
_LOOKS: Final = 200
_BETWEEN_LOOKS: Final = 0.005
# Seconds before a channel is opened in place of one that the broker closed because of a message. It bounds how many
# such messages of one client the broker has to refuse, and to log, in a second.
_AFTER_REFUSAL: Final = 0.01

# Seconds in which the broker may refuse what it allowed before.
# RabbitMQ deletes a virtual host's permissions before the host itself, which may be made again.
# A refused login is not tried again.
_WITHOUT_PERMISSIONS: Final = 2.0

# How long a session may keep its turn, in seconds. One that takes longer goes on without.
_LONGEST_TURN: Final = 2.0


class RecoveryTurn:
    """Taken before a session comes back, and given back when the broker has answered what the session sends again.

    If a link closes in a session's turn, the session is suspect; in its second turn, it is to blame. Once is too few:
    a session that has just connected takes no turns, and may do harm in the turn of another.
    """

    __slots__ = ("_ends", "_is_needed", "_is_suspect", "_lock")

    def __init__(self) -> None:
        # Whether the broker has blamed a session, perhaps this one.
        self._is_needed = False
        self._is_suspect = False
        # Held during the turn.
        self._lock: asyncio.Lock | None = None
        self._ends: asyncio.TimerHandle | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the session has its turn."""
        return self._lock is not None

    def lost(self, code: int) -> None:
        """A link is lost."""
        self._is_needed |= code not in BROKER_FAULTS

    def is_to_blame(self, code: int) -> bool:
        """Whether a link that is lost now is lost because of what this session sends. It gives the turn back."""
        if not self.is_taken or code in BROKER_FAULTS:
            return False
        self.give_back()
        was_suspect, self._is_suspect = self._is_suspect, True
        return was_suspect

    async def take(self, lock: asyncio.Lock) -> None:
        """Wait for the turn, if there are turns now. ``lock`` is that of the login."""
        if self._is_needed and not self.is_taken:
            await lock.acquire()
            self._lock = lock
            self._ends = asyncio.get_running_loop().call_later(_LONGEST_TURN, self.give_back)

    def proven(self) -> None:
        """The broker has answered everything, or nothing for long, and did not close the link: no more turns."""
        self._is_needed = self._is_suspect = False
        self.give_back()

    def give_back(self) -> None:
        """It is the next one's turn."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None


class Restorer:
    """Queues, consumers and the publishing channel of one session; each piece stays back once it is back."""

    __slots__ = ("_channels", "_consumers", "_leaving", "_publishing", "_queues", "context")

    def __init__(
        self,
        context: BridgeContext,
        channels: ConsumingChannels,
        queues: SessionQueues,
        consumers: Consumers,
        publishing: PublishingChannel,
        leaving: LeavingLinks,
    ) -> None:
        self.context = context
        self._channels = channels
        self._queues = queues
        self._consumers = consumers
        self._publishing = publishing
        self._leaving = leaving

    def lacks_consumer(self, subscription: Subscription) -> bool:
        """Whether a subscription has no channel, and has not ended meanwhile."""
        return subscription not in self._channels and self.context.session.subscriptions.is_current(subscription)

    @property
    def lacks_publisher(self) -> bool:
        """Whether the session has no publishing channel."""
        return not self._publishing.is_open

    async def find_away(self) -> None:
        """Leave out the subscriptions whose queues are away, and begin to wait for those of messages."""
        lost, watch = self.context.session.what_is_lost(), self.context.links.queue_watch
        lasting = [each for each in lost.subscriptions if each.queue is None or each.queue.durable]
        names = {each.queue_name for each in lasting} | {queue.name for queue in lost.queues}
        await asyncio.gather(*map(watch.state, names), return_exceptions=True)
        for request in lasting:
            if watch.is_away(request.queue_name) and self.lacks_consumer(request.subscription):
                self._consumers.lost.wait_for(request.subscription, self._consumers.restore)
        for queue in lost.queues:
            if watch.is_away(queue.name):
                self._publishing.wait_for(queue.name)

    async def restore_queues(self, operation: ops.Recover) -> None:
        """Take the session's exclusive queues again, apart from those that subscriptions declare.

        Those have to be on the link of their subscription. What the session has left must be closed first.
        """
        await self._leaving.done()
        await self._queues.restore({each.queue.name for each in operation.subscriptions if each.queue is not None})

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed | None:
        """Subscribe again; None if the queue is away, so that the subscription comes back later and by itself."""
        consumers = self._consumers
        restore, lost = consumers.restore, consumers.lost
        subscribed = await lost.try_once(operation, restore)
        if subscribed is None:
            lost.wait_for(operation.subscription, restore)
        return subscribed

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared:
        """Open a publishing channel, and declare the queues of the messages that will be published again."""
        return await self._publishing.restore(operation)


class Recovery:
    """The recoveries of one session; at most one is under way."""

    def __init__(self, restorer: Restorer) -> None:
        self._restorer = restorer
        self._backoff = Backoff()
        # Seconds spent on what is lost; only this counts, however long the session lived between two attempts.
        self._spent = 0.0
        # Bounds the recovery under way.
        self._bound: asyncio.Timeout | None = None
        self._stopped = asyncio.Event()
        # When the last one ended, on the event loop's clock.
        self._ended_at = 0.0
        self.turn = RecoveryTurn()
        # Counts recoveries.
        self._number = 0
        # Whether it waits for a broker that answers.
        self._is_down = False

    def stop(self) -> None:
        """What is lost is not needed any more. A recovery under way ends soon, and without an outcome."""
        self._stopped.set()
        self.turn.give_back()
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(0)

    async def run(self, operation: ops.Recover, ride_through: float) -> ops.Event | None:
        """Bring everything back; None if it was stopped. ``ride_through`` is the time for it in seconds."""
        clock = asyncio.get_running_loop().time
        now = clock()
        # The broker is well: a session that sends much must not wait longer and longer for one wrong destination.
        pause = _AFTER_REFUSAL if operation.is_refusal else self._backoff.begin(now)
        self._number += 1
        self.turn.give_back()
        if not operation.is_again or now - self._ended_at >= ride_through:
            # After so long a time the last one was good, whatever came of what it brought back.
            self._spent = 0.0
        if self._stopped.is_set():
            return None
        if not operation.is_again:
            self._restorer.context.recovery_begins()
        event: ops.Event | None = None
        try:
            async with asyncio.timeout_at(now + ride_through - self._spent) as self._bound:
                event = await self._until_back(pause)
        except TimeoutError:
            if not self._stopped.is_set():
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
        """Keep the turn until the broker has answered what the session has sent again, but not for long."""
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
                    # Asked here, and not one after the other while other sessions wait.
                    await self._restorer.find_away()
                async with links.restoring:
                    publisher = await self._restore(subscribed)
            except LinkDownError as down:
                # It lives as long as its link, and its traceback would keep the session.
                down.__traceback__ = None
                self.turn.lost(down.code)
            except asyncio.CancelledError:
                # A dial that others wait for, too, was given up.
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
        """Restore what is not there. When this returns, everything is, even if another link was lost in the middle.

        The subscriptions come first: what is published again may be for them.
        """
        restorer = self._restorer
        while True:
            lost = restorer.context.session.what_is_lost()
            await restorer.restore_queues(lost)
            for request in lost.subscriptions:
                if not restorer.lacks_consumer(request.subscription):
                    continue
                if (back := await restorer.restore_consumer(request)) is None:
                    # Other queues may be away, too. Asked together, all take no longer than one.
                    await restorer.find_away()
                    break
                subscribed[request.subscription] = back
            else:
                publisher = await restorer.restore_publisher(lost) if lost.publishing else None
                lost = restorer.context.session.what_is_lost()
                if not lost.subscriptions and not (lost.publishing and restorer.lacks_publisher):
                    return publisher
