"""Brings back what a session lost with a link: when to try, how often, and what ends it.

The session says what is to come back (`ops.Recover`), `Restorer` restores it, piece by piece. What is back stays back:
if an attempt fails half-way, the next one goes on with the rest.

A broker that closes a link because of what one session has sent does not say which one. So the sessions of that login
come back one at a time, each in its turn until the broker has answered all that it sends again. The one in whose turn
the broker closes the link again is to blame, and ends. The others ride on.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from gateway.server.broker.broker_errors import (
    BROKER_FAULTS,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LOCKED,
    LinkDownError,
    UpstreamError,
    is_cancelled,
)
from gateway.server.broker.login_links import LoginLinks
from gateway.server.broker.redial import Backoff
from gateway.server.client.expire import expire
from gateway.session import ops
from gateway.session.context import State
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# What a broker refuses for a while after a fault: it still starts, it has not noticed yet that the old connection is
# dead (405), the node of a queue is down (404), a virtual host is being made (530). All other refusals are meant.
_PASSING: Final = frozenset((CONNECTION_FORCED, INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND, RESOURCE_LOCKED))

# How often a session in its turn looks whether all is answered, and the seconds between two looks.
_LOOKS: Final = 200
_BETWEEN_LOOKS: Final = 0.005


class _Restorer(Protocol):
    """See `Restorer`."""

    @property
    def links(self) -> LoginLinks: ...

    def what_is_lost(self) -> ops.Recover: ...

    def lacks_consumer(self, subscription: Subscription) -> bool: ...

    @property
    def lacks_publisher(self) -> bool: ...

    async def restore_queues(self, operation: ops.Recover) -> None: ...

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed: ...

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
        # Whether the broker blamed a session, and the lock that is held while this one has its turn.
        self._takes_turns = False
        self._turn: asyncio.Lock | None = None

    def stop(self) -> None:
        """What is lost is not needed any more. A recovery under way ends soon, and without an outcome."""
        self._stopped.set()
        self._end_turn()
        expire(self._bound)

    async def run(self, operation: ops.Recover, ride_through: float) -> ops.Event | None:
        """Bring everything back; None if it was stopped. ``ride_through`` is the time for it in seconds."""
        clock = asyncio.get_running_loop().time
        now = clock()
        pause = self._backoff.begin(now)
        if not operation.is_again or now - self._ended_at >= ride_through:
            # After so long a time the last one was good, whatever came of what it brought back.
            self._spent = 0.0
        if self._stopped.is_set():
            return None
        event: ops.Event | None = None
        try:
            async with asyncio.timeout_at(now + ride_through - self._spent) as self._bound:
                event = await self._until_back(pause)
        except TimeoutError:
            if not self._stopped.is_set():
                event = ops.RecoveryFailed()
        finally:
            self._bound = None
            self._ended_at = clock()
            self._backoff.end(self._ended_at)
            self._spent += self._ended_at - now
            if not isinstance(event, ops.Recovered):
                self._end_turn()
        return event

    def lost(self, code: int) -> None:
        """A link is lost."""
        self._takes_turns |= code not in BROKER_FAULTS

    def is_to_blame(self, code: int) -> bool:
        """Whether the broker closes a link because of what this session sends."""
        return self._turn is not None and code not in BROKER_FAULTS

    async def prove(self, session: Session) -> None:
        """Keep the turn until the broker has answered what the session has sent again, but not for long."""
        last = session.confirms.last_sequence
        try:
            for _ in range(_LOOKS):
                is_answered = session.operation is None and session.confirms.is_answered_up_to(last)
                if self._turn is None or is_answered or session.state is State.CLOSED:
                    return
                await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            if self._turn is not None:
                self._takes_turns = False
            self._end_turn()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    async def _take_turn(self, links: LoginLinks) -> None:
        if self._takes_turns and self._turn is None:
            await links.turn.acquire()
            self._turn = links.turn

    async def _until_back(self, pause: float) -> ops.Event:
        subscribed: dict[Subscription, ops.Subscribed] = {}
        while True:
            await asyncio.sleep(pause)
            try:
                links = self._restorer.links
                await links.come_back()
                await self._take_turn(links)
                async with links.restoring:
                    publisher = await self._restore(subscribed)
            except LinkDownError as down:
                self.lost(down.code)
            except asyncio.CancelledError:
                # A dial that others wait for, too, was given up.
                if is_cancelled():
                    raise
            except UpstreamError as refusal:
                if refusal.code not in _PASSING:
                    return ops.RecoveryFailed(refusal.code, refusal.text)
            else:
                return ops.Recovered(tuple(subscribed.values()), publisher)
            self._end_turn()
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
                if restorer.lacks_consumer(request.subscription):
                    subscribed[request.subscription] = await restorer.restore_consumer(request)
            publisher = await restorer.restore_publisher(lost) if lost.publishing else None
            lost = restorer.what_is_lost()
            if not lost.subscriptions and not (lost.publishing and restorer.lacks_publisher):
                return publisher
