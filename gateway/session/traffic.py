"""Plain counters of a session's traffic, for metrics, the API, `top` and the journal.

Every message is counted once. A SEND costs two additions (`Publisher.publish`). A delivery costs nothing:
`Subscription.stats` is computed from the subscription's ledger, and added to the session's counters when the
subscription ends. All figures for operators are sums or differences of `TrafficCounter`.

`SendCounter` and `DeliveryCounter` are the interfaces of an observer (the journal) for each message. Without an
observer they cost one comparison per message.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

from gateway.session.destinations import DestinationKind
from gateway.stomp.frame import CLIENT_COMMANDS

# Only these commands are counted by name, because a client may invent any number of others.
_COMMANDS: Final = frozenset(CLIENT_COMMANDS)

OTHER: Final = b"other"
"""The name for all commands, or destinations, that are not counted by name."""

# The most destinations of one session that are counted by name.
_MAX_DESTINATIONS: Final = 1024


@dataclass(slots=True)
class TrafficCounter:
    """The numbers of messages, and of bytes of their bodies, of a subscription, a destination, or sums of these.

    Of the ``delivered`` messages, ``outstanding`` ones are not settled. The others are ``acknowledged``, ``requeued``
    or ``discarded``. Messages that a selector ``filtered`` out do not count as delivered.
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
    """A counter for each of up to 1024 destinations. Further ones share one counter per kind."""

    __slots__ = ()

    def counter(self, destination: bytes, kind: DestinationKind) -> TrafficCounter:
        """The counter of a destination, or that of further ones of this kind."""
        found = self.get((destination, kind))
        if found is None:
            key = (destination if len(self) < _MAX_DESTINATIONS else OTHER, kind)
            found = self[key] = self.get(key) or TrafficCounter()
        return found


class SendCounter(Protocol):
    """Called for each message of one kind of SEND. HOT."""

    def sent(self, size: int, receipt: bool, /) -> object:
        """Count a published message. ``size``: of its body in bytes. ``receipt``: its frame asked for one.

        Returns:
            The argument ``sent_at`` for ``confirmed``; None if ``confirmed`` need not be called.
        """

    def confirmed(self, sent_at: object, accepted: bool, /) -> None:
        """Count the broker's confirm of the message for which ``sent`` returned ``sent_at``."""


class DeliveryCounter(Protocol):
    """Called for each message of one subscription, in addition to `Subscription.stats`. HOT."""

    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        """Note a message that goes to the client. ``size``: of its body in bytes."""

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        """Note that the client acknowledged or refused ``count`` messages: this one and outstanding ones before it.

        ``requeue``: None for an ACK; for a NACK, whether they are requeued.
        """

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        """Note that the channel is lost after this tag: outstanding messages are requeued, and tags start again."""


class SessionTraffic:
    """Counters of frames and messages of one session.

    ``commands`` counts the received frames by command, except SEND. The rest of ``frames_received`` are SENDs.
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
        """Count frames with a command other than SEND."""
        name = command if command in _COMMANDS else OTHER
        self.commands[name] = self.commands.get(name, 0) + count
