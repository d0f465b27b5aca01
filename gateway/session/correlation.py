"""The time of publishing, which a message carries so that the journal can correlate publishing and delivery.

It is an integer in the AMQP headers table. STOMP clients cannot forge it, because their headers become strings, and do
not see it, because MESSAGE never has a header of that name (`translate`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from gateway.amqp import properties as amqp
from gateway.pieces import Body
from gateway.session.cached_publish import CachedPublish
from gateway.session.subscription import Subscription
from gateway.session.traffic import DeliveryCounter
from gateway.session.translate import PUBLISHED
from gateway.session.varied_publish import VariedPublish

Stamp = Callable[[], bytes]
"""Gives the time, in microseconds since the epoch, as eight bytes."""

_ENTRY: Final = amqp.number_name(PUBLISHED)


class _Stamped(CachedPublish):
    """A `CachedPublish` whose messages carry the time of publishing, as the first entry of the headers table."""

    __slots__ = ()

    stamp: Stamp

    def table(self) -> tuple[bytes, ...]:
        """See `CachedPublish.table`."""
        return (_ENTRY, *super().table())

    def values(self, receipt: bytes | None, length: bytes | None) -> tuple[bytes, ...]:
        """See `CachedPublish.values`."""
        return (self.stamp(), *super().values(receipt, length))


class StampedPublish(_Stamped):
    """A `CachedPublish` with the time of publishing."""

    __slots__ = ("stamp",)


class StampedVariedPublish(_Stamped, VariedPublish):
    """A `VariedPublish` with the time of publishing."""

    __slots__ = ("stamp",)


class CorrelatedCounter(DeliveryCounter, Protocol):
    """The counter of a `CorrelatedSubscription`."""

    published: int | None
    """The time of publishing of the next messages that it counts, in microseconds since the epoch, or None."""
    properties: bytes
    """The properties in which ``published`` was found; empty before the first message."""


class CorrelatedSubscription(Subscription):
    """A subscription that tells its counter, if it has one, when each message was published."""

    __slots__ = ()

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """See `Subscription.deliver`. HOT: once per message, or once for many similar ones."""
        counter = cast("CorrelatedCounter | None", self._counter)
        if counter is not None and properties is not counter.properties:
            counter.published, counter.properties = _published(properties), properties
        super().deliver(tag, redelivered, route, properties, body)


def _published(properties: bytes) -> int | None:
    """The time of publishing that a message carries; None without one."""
    headers = (amqp.decode(properties).headers or ()) if _ENTRY in properties else ()
    return next((value for name, value in headers if name == PUBLISHED and isinstance(value, int)), None)
