"""What a session has sent and delivered so far: plain counts, for whoever asks now and then.

Nobody is told of anything here. A message costs two additions on the way in; on the way out `Subscription.figures`
knows already, and what a subscription brought is kept here when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.session.destinations import Kind

COMMANDS: Final = frozenset((
    b"CONNECT", b"STOMP", b"SEND", b"SUBSCRIBE", b"UNSUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"ABORT",
    b"DISCONNECT", b"TOKEN",
))  # fmt: skip
"""The commands that are counted by name; clients may make up any number of others."""

OTHER: Final = b"other"
"""Stands for all commands, or destinations, beyond those that are counted by name."""

# Destinations of one session that are counted by name.
_REMEMBERED: Final = 1024


class SendCounter(Protocol):
    """What is published by one plan. HOT: called for each message."""

    def sent(self, size: int, receipt: bool) -> object:
        """A message was published.

        Args:
            size: bytes of its body.
            receipt: whether its frame asked for a receipt.

        Returns:
            What ``confirmed`` is called with, for example the time; None if ``confirmed`` need not be called.
        """

    def confirmed(self, sent_at: object, accepted: bool) -> None:
        """The broker answered for a message.

        Args:
            sent_at: what ``sent`` returned for it.
            accepted: ack or nack.
        """


class DeliveryCounter(Protocol):
    """What one subscription delivers. HOT: called for each message.

    Counts alone need no counter: a subscription has ``figures``.
    """

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """A message goes to the client.

        Args:
            tag: delivery tag.
            redelivered: the broker's flag.
            size: bytes of its body.
        """

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """The client acknowledged or refused messages.

        Args:
            tag: of the last one; with ``count`` above 1 all outstanding ones before it are meant too.
            count: how many.
            requeue: None for an ACK; for a NACK whether they go back to their queue.
        """


class SubscriptionStats(NamedTuple):
    """What a subscription brought its client: messages, bytes of bodies, and those redelivered or not settled.

    ``acknowledged``, ``requeued`` and ``discarded`` are what became of those that are settled.
    """

    delivered: int
    octets: int
    redelivered: int
    outstanding: int
    acknowledged: int = 0
    requeued: int = 0
    discarded: int = 0


class CountedSubscription(Protocol):
    """A subscription, as far as its messages are counted."""

    kind: Kind

    @property
    def address(self) -> bytes:
        """Its destination; for the queue behind a reply-to, its name there."""

    @property
    def stats(self) -> SubscriptionStats:
        """What it brought so far."""


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

    def add(self, subscription: CountedSubscription) -> None:
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

    def ended(self, subscription: CountedSubscription) -> None:
        """A subscription has ended: keep what it brought."""
        self.count(subscription.address, subscription.kind).add(subscription)


class SessionTraffic:
    """What one session received, sent and had confirmed.

    ``commands`` counts the frames by command, but not SEND: what is left of ``frames_received`` were SENDs.
    """

    __slots__ = (
        "commands", "confirmed", "errors_sent", "frames_received", "receipts_sent", "rejected", "returned", "sends",
    )  # fmt: skip

    def __init__(self) -> None:
        self.frames_received = 0
        self.commands: dict[bytes, int] = {}
        self.receipts_sent = self.errors_sent = 0
        self.sends = Sends()
        self.confirmed = self.rejected = self.returned = 0

    def note_command(self, command: bytes) -> None:
        """Count a frame that is no SEND."""
        name = command if command in COMMANDS else OTHER
        self.commands[name] = self.commands.get(name, 0) + 1
