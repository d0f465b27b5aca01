"""Publishing: bytes for the publishing channel, and the counter of what the broker has not confirmed.

Confirms are switched on by the first frame that needs one, as in RabbitMQ's adapter: a RECEIPT for SEND is the broker's
confirm and nothing else. Publish sequence numbers count from 1 from that moment on (RabbitMQ, "Consumer
Acknowledgements and Publisher Confirms").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.amqp import properties
from gateway.amqp.codec import Publication
from gateway.amqp.splitter import Return
from gateway.errors import CodecError
from gateway.session.settings import Settings
from gateway.session.traffic import SendCounter, TrafficCounter


@dataclass(slots=True, eq=False)
class Commit:
    """A COMMIT that waits for the confirms of its messages."""

    waiting: int = 0
    rejected: bool = False
    returned: bool = False


class Route(Protocol):
    """Where a message went: the client's destination, its exchange and routing key, and who counts it.

    ``traffic`` always counts; ``counter`` belongs to the observer of the session.
    """

    destination: bytes
    exchange: bytes
    routing_key: bytes
    mandatory: bool
    counter: SendCounter | None
    traffic: TrafficCounter


Unconfirmed = tuple[bytes | None, Route, int, Commit | None, object]
"""One published message: its receipt, where it went, the bytes of its body, the commit it belongs to, and the ticket
of its counter."""


class Publisher:
    """The publishing side of one session."""

    __slots__ = (
        "_max_bytes",
        "_max_messages",
        "_returned",
        "_sequence",
        "_unconfirmed",
        "channel",
        "confirms",
        "frame_max",
        "output",
        "unconfirmed_bytes",
    )

    def __init__(self, settings: Settings) -> None:
        self.channel = 0
        self.frame_max = 0
        self.confirms = False
        self.output: list[bytes] = []
        self.unconfirmed_bytes = 0
        self._max_messages = settings.confirm_messages
        self._max_bytes = settings.confirm_bytes
        self._sequence = 0
        # The last message that the broker returned.
        self._returned = 0
        self._unconfirmed: dict[int, Unconfirmed] = {}

    def open(self, channel: int, frame_max: int, *, confirms: bool) -> None:
        """The channel is there.

        Args:
            channel: its number.
            frame_max: bytes of an AMQP frame at the most.
            confirms: whether the broker confirms what is published from now on.
        """
        self.channel = channel
        self.frame_max = frame_max
        self.confirms = confirms

    @property
    def unconfirmed(self) -> int:
        """Messages published and not confirmed yet."""
        return len(self._unconfirmed)

    @property
    def last(self) -> int:
        """The publish sequence number of the last message; 0 before confirms are on."""
        return self._sequence

    def awaits(self, sequence: int) -> bool:
        """Whether the broker has yet to answer for a message."""
        return sequence in self._unconfirmed

    @property
    def owes_receipts(self) -> bool:
        """Whether a receipt waits for its confirm."""
        return any(receipt is not None for receipt, *_ in self._unconfirmed.values())

    @property
    def is_full(self) -> bool:
        """Whether as much is unconfirmed as may be."""
        return len(self._unconfirmed) >= self._max_messages or self.unconfirmed_bytes >= self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether so much was confirmed since it was full that a client may go on."""
        return 2 * len(self._unconfirmed) <= self._max_messages and 2 * self.unconfirmed_bytes <= self._max_bytes

    def publish(
        self,
        publication: Publication,
        body: bytes,
        values: tuple[bytes, ...],
        receipt: bytes | None,
        route: Route,
        commit: Commit | None = None,
    ) -> None:
        """Publish one message.

        HOT: an encode, and an entry in the counter once confirms are on.
        """
        self.output.append(publication.encode(body, values))
        counter, traffic, size = route.counter, route.traffic, len(body)
        traffic.published += 1
        traffic.published_bytes += size
        sent_at = None if counter is None else counter.sent(size, receipt is not None)
        if self.confirms:
            self._sequence += 1
            self._unconfirmed[self._sequence] = (receipt, route, size, commit, sent_at)
            self.unconfirmed_bytes += size

    def confirm(self, sequence: int, *, multiple: bool) -> list[Unconfirmed]:
        """Strike off what the broker answered for.

        Args:
            sequence: publish sequence number.
            multiple: whether all before it are meant too.

        Returns:
            The messages answered for, in the order they were published.
        """
        unconfirmed = self._unconfirmed
        if not multiple:
            entry = unconfirmed.pop(sequence, None)
            if entry is None:
                return []
            self.unconfirmed_bytes -= entry[2]
            return [entry]
        # The counter is in publishing order, so what a multiple means stands in front. It is taken out afterwards: to
        # look for the first one anew each time would mean to pass all that were taken out before.
        struck: list[int] = []
        for first in unconfirmed:
            if first > sequence:
                break
            struck.append(first)
        entries = [unconfirmed.pop(first) for first in struck]
        self.unconfirmed_bytes -= sum([entry[2] for entry in entries])
        return entries

    def take_returned(self, returned: Return) -> Unconfirmed | None:
        """Find the message that the broker returned, and let its confirm, which follows, mean nothing to anybody.

        The broker does not say which one it was, but it works in order: it is behind the one returned last. Of those
        that went the same way, some may have reached a queue and wait for their confirm only; they are told apart by
        what they bear, since a receipt is among a message's headers.

        Returns:
            The message as it was; None if there is none like it.
        """
        unconfirmed = self._unconfirmed
        receipt = _receipt_in(returned.properties)
        first = max(self._returned + 1, next(iter(unconfirmed), 0))
        for sequence in range(first, self._sequence + 1):
            entry = unconfirmed.get(sequence)
            if entry is not None and _is_returned(entry, returned, receipt):
                self._returned = sequence
                _, route, size, commit, _ = entry
                unconfirmed[sequence] = (None, route, size, commit, None)
                return entry
        return None

    def receipt_of_failure(self, text: str) -> bytes | None:
        """The receipt of the SEND that made the broker close the channel.

        The broker does not say which message it was, but its text quotes the exchange, and for a topic permission the
        routing key. The first unconfirmed message that fits is the one, since the channel works in order. A text that
        quotes neither tells only if there is one candidate.

        Args:
            text: the broker's reply text.
        """
        quoted = text.encode()
        for receipt, route, *_ in self._unconfirmed.values():
            names_key = b"topic '" not in quoted or b"'%b'" % route.routing_key in quoted
            if names_key and b"'%b'" % (route.exchange or b"amq.default") in quoted:
                return receipt
        if len(self._unconfirmed) == 1 and b"exchange" not in quoted:
            return next(iter(self._unconfirmed.values()))[0]
        return None


def _is_returned(entry: Unconfirmed, returned: Return, receipt: bytes | None) -> bool:
    borne, route, size, *_ = entry
    return (
        route.mandatory
        and route.routing_key == returned.routing_key
        and route.exchange == returned.exchange
        and size == returned.size
        and borne == receipt
    )


def _receipt_in(octets: bytes) -> bytes | None:
    """The receipt among the headers of a message."""
    try:
        headers = properties.decode(octets).headers or ()
    except CodecError:
        return None
    return next((value for name, value in headers if name == b"receipt" and isinstance(value, bytes)), None)
