"""What a session has sent and delivered so far: plain counts, for whoever asks now and then.

Nobody is told of anything here. A message costs two additions on the way in; on the way out `Subscription.figures`
knows already, and what a subscription brought is kept here when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.session.destinations import Kind

if TYPE_CHECKING:
    from gateway.session.subscription import Subscription

COMMANDS: Final = frozenset((
    b"CONNECT", b"STOMP", b"SEND", b"SUBSCRIBE", b"UNSUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"ABORT",
    b"DISCONNECT", b"TOKEN",
))  # fmt: skip
"""The commands that are counted by name; clients may make up any number of others."""

OTHER: Final = b"other"
"""Stands for all commands, or destinations, beyond those that are counted by name."""

# Destinations of one session that are counted by name.
_REMEMBERED: Final = 1024


class SendCount:
    """Messages that a session sent to one destination, and the bytes of their bodies."""

    __slots__ = ("destination", "kind", "messages", "octets")

    def __init__(self, destination: bytes, kind: Kind) -> None:
        self.destination = destination
        self.kind = kind
        self.messages = 0
        self.octets = 0


class DeliveryCount:
    """Messages that subscriptions to one destination brought, bytes of bodies, and what became of them."""

    __slots__ = (
        "acknowledged", "destination", "discarded", "kind", "messages", "octets", "redelivered", "requeued",
        "subscriptions",
    )  # fmt: skip

    def __init__(self, destination: bytes, kind: Kind) -> None:
        self.destination = destination
        self.kind = kind
        self.messages = self.octets = self.redelivered = 0
        self.acknowledged = self.requeued = self.discarded = 0
        # Those that are active.
        self.subscriptions = 0

    def add(self, subscription: Subscription) -> None:
        """Add what a subscription brought."""
        stats = subscription.stats
        self.messages += stats.delivered
        self.octets += stats.octets
        self.redelivered += stats.redelivered
        self.acknowledged += stats.acknowledged
        self.requeued += stats.requeued
        self.discarded += stats.discarded


CountT = TypeVar("CountT", SendCount, DeliveryCount)


class _ByDestination(Generic[CountT]):
    """One count for each destination; of very many the later ones are counted together, by kind."""

    __slots__ = ("_by_destination", "_new")

    def __init__(self, new: Callable[[bytes, Kind], CountT]) -> None:
        self._new: Callable[[bytes, Kind], CountT] = new
        self._by_destination: dict[bytes | Kind, CountT] = {}

    def count(self, destination: bytes, kind: Kind) -> CountT:
        """The count for a destination."""
        known = self._by_destination.get(destination)
        if known is not None:
            return known
        key: bytes | Kind = destination
        if len(self._by_destination) >= _REMEMBERED:
            key, destination = kind, OTHER
        return self._by_destination.setdefault(key, self._new(destination, kind))

    @property
    def all(self) -> Iterable[CountT]:
        """Every count there is."""
        return self._by_destination.values()


class Sends(_ByDestination[SendCount]):
    """What a session sent, by destination; a count is shared by all plans that send there."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SendCount)


class Deliveries(_ByDestination[DeliveryCount]):
    """What subscriptions brought that have ended, by destination."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(DeliveryCount)

    def ended(self, subscription: Subscription) -> None:
        """A subscription has ended: keep what it brought."""
        self.count(subscription.address, subscription.kind).add(subscription)
