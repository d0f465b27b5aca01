"""Brings back what a session lost with a link: when to try, how often, and what ends it.

The session says what is to come back (`ops.Recover`), `Restorer` restores it, piece by piece. What is back stays back:
if an attempt fails half-way, the next one goes on with the rest.

A broker that closes a link because of what one session has sent does not say which one. So the sessions of that login
come back one at a time, see `RecoveryTurn`. The one to blame ends, and the others ride on.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from gateway.server.broker.broker_errors import LinkDownError, UpstreamError, is_cancelled, passes
from gateway.server.broker.login_links import LoginLinks
from gateway.server.broker.redial import Backoff
from gateway.server.client.expire import expire
from gateway.server.client.recovery_log import RecoveryLog
from gateway.server.client.recovery_turn import RecoveryTurn
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


class _Restorer(Protocol):
    """See `Restorer`."""

    @property
    def links(self) -> LoginLinks: ...

    @property
    def log(self) -> RecoveryLog: ...

    def what_is_lost(self) -> ops.Recover: ...

    def lacks_consumer(self, subscription: Subscription) -> bool: ...

    @property
    def lacks_publisher(self) -> bool: ...

    async def find_away(self) -> None: ...

    async def restore_queues(self, operation: ops.Recover) -> None: ...

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed | None: ...

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared: ...


class Recovery:
    """The recoveries of one session; at most one is under way."""

    def __init__(self, restorer: _Restorer) -> None:
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
        expire(self._bound)

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
            self._restorer.log.begin()
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
        while True:
            await asyncio.sleep(pause)
            try:
                links = self._restorer.links
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
                if not passes(refusal):
                    return ops.RecoveryFailed(refusal.code, refusal.text)
                self._restorer.log.waits(refusal.text)
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
            lost = restorer.what_is_lost()
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
                lost = restorer.what_is_lost()
                if not lost.subscriptions and not (lost.publishing and restorer.lacks_publisher):
                    return publisher
