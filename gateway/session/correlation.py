"""The time of publishing, which a message carries so that the journal can correlate publishing and delivery.

It is an integer in the AMQP headers table. STOMP clients cannot forge it, because their headers become strings, and do
not see it, because MESSAGE never has a header of that name (`translate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from gateway.amqp import properties as amqp
from gateway.session.cached_publish import CachedPublish
from gateway.session.traffic import DeliveryCounter
from gateway.session.translate import PUBLISHED
from gateway.session.varied_publish import VariedPublish

Stamp = Callable[[], bytes]
"""Gives the time, in microseconds since the epoch, as eight bytes."""

_ENTRY: Final = amqp.number_name(PUBLISHED)


class Stamped(CachedPublish):
    """A `CachedPublish` whose messages carry the time of publishing, as the first entry of the headers table."""

    __slots__ = ("stamp",)

    stamp: Stamp

    def table(self) -> tuple[bytes, ...]:
        """See `CachedPublish.table`."""
        return (_ENTRY, *super().table())

    def values(self, receipt: bytes | None, length: bytes | None) -> tuple[bytes, ...]:
        """See `CachedPublish.values`."""
        return (self.stamp(), *super().values(receipt, length))


class _StampedVariedPublish(Stamped, VariedPublish):
    __slots__ = ()


STAMPED: Final[Mapping[type[CachedPublish], Any]] = {
    CachedPublish: Stamped,
    VariedPublish: _StampedVariedPublish,
}
"""The classes whose messages carry the time of publishing, by the class without it."""


class CorrelatedCounter(DeliveryCounter, Protocol):
    """A counter of deliveries that needs to know when each message was published."""

    published: int | None
    """The time of publishing of the next messages that it counts, in microseconds since the epoch, or None."""
    properties: bytes
    """The properties in which ``published`` was found; empty before the first message."""


def note_published(counter: DeliveryCounter, properties: bytes) -> None:
    """Tell a `CorrelatedCounter` when the next messages, with these properties, were published."""
    counter = cast("CorrelatedCounter", counter)
    if properties is not counter.properties:
        headers = (amqp.decode(properties).headers or ()) if _ENTRY in properties else ()
        published = [value for name, value in headers if name == PUBLISHED and isinstance(value, int)]
        counter.published, counter.properties = published[0] if published else None, properties
