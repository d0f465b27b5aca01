"""Plain counters of a session's traffic, for metrics, the API, `top` and the journal.

Every message is counted once. A SEND costs two additions (`Publisher.publish`). A delivery costs nothing here:
`Subscription.stats` is computed from what the subscription keeps anyway, and is added to the session's counters when
the subscription ends. Everything that a reader is shown is a sum, or a difference, of `TrafficCounter`.

`SendCounter` and `DeliveryCounter` are what an observer of the session (the journal) wants to be called for each
message. Without an observer they cost one comparison per message.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

from gateway.session.destinations import DestinationKind
from gateway.stomp.frame import CLIENT_COMMANDS

# The commands that are counted by name; a client may invent any number of others.
_COMMANDS: Final = frozenset(CLIENT_COMMANDS)

OTHER: Final = b"other"
"""Stands for all commands, or destinations, that are not counted by name."""

# Destinations of one session that are counted by name.
_MAX_DESTINATIONS: Final = 1024


@dataclass(slots=True)
class TrafficCounter:
    """Messages, and bytes of their bodies, of a subscription, a destination, or anything larger.

    ``outstanding`` messages were delivered and are not settled. The others became ``acknowledged``, ``requeued`` or
    ``discarded``. Messages that were ``filtered`` out by a selector were not delivered.
    """

    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    outstanding: int = 0
    acknowledged: int = 0
    requeued: int = 0
    discarded: int = 0
    filtered: int = 0

    def add(self, other: TrafficCounter) -> None:
        """Add every count of another counter."""
        for name in _COUNTS:
            count = getattr(other, name)
            if count:
                setattr(self, name, getattr(self, name) + count)

    def since(self, earlier: TrafficCounter) -> TrafficCounter:
        """The difference to an earlier copy of this counter."""
        return TrafficCounter(*[getattr(self, name) - getattr(earlier, name) for name in _COUNTS])


_COUNTS: Final = tuple(field.name for field in fields(TrafficCounter))


class TrafficByDestination(dict[tuple[bytes, DestinationKind], TrafficCounter]):
    """A counter for each destination. Beyond 1024 of them, further ones share a counter for each kind."""

    __slots__ = ()

    def counter(self, destination: bytes, kind: DestinationKind) -> TrafficCounter:
        """The counter of a destination."""
        found = self.get((destination, kind))
        if found is None:
            key = (destination if len(self) < _MAX_DESTINATIONS else OTHER, kind)
            found = self[key] = self.get(key) or TrafficCounter()
        return found


class SendCounter(Protocol):
    """Called for each message of one kind of SEND. HOT."""

    def sent(self, size: int, receipt: bool, /) -> object:
        """Count a message that was published: the bytes of its body, and whether its frame asked for a receipt.

        Returns:
            What ``confirmed`` is called with, for example the time; None if it need not be called.
        """

    def confirmed(self, sent_at: object, accepted: bool, /) -> None:
        """Count the broker's ack or nack of a message, for which ``sent`` returned ``sent_at``."""


class DeliveryCounter(Protocol):
    """Called for each message of one subscription, which counts its messages itself (`Subscription.stats`). HOT."""

    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        """Note a message that goes to the client: its delivery tag, the broker's flag, the bytes of its body."""

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        """Note that the client acknowledged or refused ``count`` messages.

        ``tag`` is that of the last; the others are the outstanding ones before it. ``requeue`` is None for an ACK; for
        a NACK, whether they return to their queue.
        """

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        """Note that the channel is lost: so many messages return to their queue, and tags begin anew.

        ``last_tag`` is that of the last message.
        """


class SessionTraffic:
    """What one session received, sent and had confirmed.

    ``commands`` counts frames by command, except SEND: what remains of ``frames_received`` were SENDs.
    """

    __slots__ = (
        "commands", "confirmed", "errors_sent", "frames_received", "receipts_sent", "rejected", "returned", "sends",
    )  # fmt: skip

    def __init__(self) -> None:
        self.frames_received = 0
        self.commands: dict[bytes, int] = {}
        self.receipts_sent = self.errors_sent = 0
        self.sends = TrafficByDestination()
        self.confirmed = self.rejected = self.returned = 0

    def note_command(self, command: bytes, count: int = 1) -> None:
        """Count frames that are no SENDs."""
        name = command if command in _COMMANDS else OTHER
        self.commands[name] = self.commands.get(name, 0) + count
