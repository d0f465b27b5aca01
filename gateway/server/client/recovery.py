"""Brings back what a session lost with a link: when to try, how often, and what ends it.

The session says what is to come back (`ops.Recover`), `Restorer` restores it, piece by piece. What is back stays back:
if an attempt fails half-way, the next one goes on with the rest.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from gateway.server.broker.broker_errors import (
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
from gateway.session.subscription import Subscription

# What a broker refuses for a while after a fault: it still starts, it has not noticed yet that the old connection is
# dead (405), the node of a queue is down (404), a virtual host is being made (530). All other refusals are meant.
_PASSING: Final = frozenset((CONNECTION_FORCED, INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND, RESOURCE_LOCKED))


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

    def stop(self) -> None:
        """What is lost is not needed any more. A recovery under way ends soon, and without an outcome."""
        self._stopped.set()
        expire(self._bound)

    async def run(self, operation: ops.Recover, ride_through: float) -> ops.Event | None:
        """Bring everything back; None if it was stopped. ``ride_through`` is the time for it in seconds."""
        clock = asyncio.get_running_loop().time
        now = clock()
        pause = self._backoff.begin(now)
        if not operation.is_again:
            self._spent = 0.0
        if self._stopped.is_set():
            return None
        try:
            async with asyncio.timeout_at(now + ride_through - self._spent) as self._bound:
                return await self._until_back(pause)
        except TimeoutError:
            return None if self._stopped.is_set() else ops.RecoveryFailed()
        finally:
            self._bound = None
            self._backoff.end(clock())
            self._spent += clock() - now

    async def _until_back(self, pause: float) -> ops.Event:
        subscribed: dict[Subscription, ops.Subscribed] = {}
        while True:
            await asyncio.sleep(pause)
            try:
                await self._restorer.links.come_back()
                async with self._restorer.links.restoring:
                    publisher = await self._restore(subscribed)
            except LinkDownError:
                pass
            except asyncio.CancelledError:
                # A dial that others wait for, too, was given up.
                if is_cancelled():
                    raise
            except UpstreamError as refusal:
                if refusal.code not in _PASSING:
                    return ops.RecoveryFailed(refusal.code, refusal.text)
            else:
                return ops.Recovered(tuple(subscribed.values()), publisher)
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
