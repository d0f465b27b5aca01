"""GatewayStats of a running gateway, by virtual host: what its sessions did since it started.

Theory of operation. Nobody counts here while messages flow. A session has its own counts (``gateway.session.traffic``),
which are added to the totals of its virtual host once, when it ends; whoever asks in between gets a copy of the totals
with the living sessions added. Only what is rare is noted as it happens: beginnings and ends, ERRORs, holds, and a
sample of the broker's confirms.

Virtual hosts are named by their keys in the configuration, so there are no more of them than it has: a name that was
passed through is ``*``, and who never logged in is counted under the empty name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.config import PASS_THROUGH
from gateway.journal.histogram import bucket_of, percentile
from gateway.session.destinations import KIND_NAMES, Kind
from gateway.session.traffic import DeliveryCount

if TYPE_CHECKING:
    from gateway.server.client.connection_stats import ConnectionStats


NOT_LOGGED_IN: Final = ""
"""Stands for the virtual host of connections that never logged in."""

LATENCY_BOUNDS: Final = (
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
)  # fmt: skip
"""Upper bounds of the histogram of confirm latencies, in microseconds."""


class Latencies:
    """How long the broker took to confirm, by a sample of messages."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self.sum = 0
        # Finer, and only of the last one or two minutes.
        self._recent: Counter[int] = Counter()
        self._before: Counter[int] = Counter()

    def add(self, microseconds: int) -> None:
        """Take note of one message."""
        self.counts[bisect_left(LATENCY_BOUNDS, microseconds)] += 1
        self.sum += microseconds
        self._recent[bucket_of(microseconds)] += 1

    def minute_passed(self) -> None:
        """Forget what is older than a minute."""
        self._before, self._recent = self._recent, Counter()

    @property
    def recent(self) -> Counter[int]:
        """Counts of the last one or two minutes, by bucket of ``gateway.journal.histogram``."""
        return self._before + self._recent


@dataclass(slots=True)
class Totals:
    """What sessions did, summed up. Dictionaries are by command, or by kind of destination."""

    commands: defaultdict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    sends: int = 0
    connected: int = 0
    receipts: int = 0
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    published: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    published_bytes: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    confirmed: int = 0
    rejected: int = 0
    returned: int = 0
    delivered: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    delivered_bytes: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    redelivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    discarded: int = 0

    def add(self, stats: ConnectionStats) -> None:
        """Add one session. There may be thousands, so this is done with few calls."""
        session, traffic = stats.session, stats.session.traffic
        self.bytes_in += stats.bytes_in
        self.bytes_out += stats.bytes_out
        self.confirmed += traffic.confirmed
        self.rejected += traffic.rejected
        self.returned += traffic.returned
        self.receipts += traffic.receipts_sent
        self.errors += traffic.errors_sent
        sends = traffic.frames_received
        for command, count in traffic.commands.items():
            self.commands[command] += count
            sends -= count
        self.sends += sends
        self.connected += stats.is_greeted
        for send in traffic.sends.all:
            self.published[send.kind] += send.messages
            self.published_bytes[send.kind] += send.octets
        for past in session.subscriptions.past.all:
            self._add_deliveries(past)
        for subscription in session.subscriptions.all:
            living = DeliveryCount(subscription.address, subscription.kind)
            living.add(subscription)
            self._add_deliveries(living)

    def _add_deliveries(self, count: DeliveryCount) -> None:
        self.delivered[count.kind] += count.messages
        self.delivered_bytes[count.kind] += count.octets
        self.redelivered += count.redelivered
        self.acknowledged += count.acknowledged
        self.requeued += count.requeued
        self.discarded += count.discarded

    @property
    def frames_received(self) -> dict[str, int]:
        """Frames of clients, by command."""
        counts = {command.decode(): count for command, count in self.commands.items()}
        return {"SEND": self.sends, **counts} if self.sends else counts

    @property
    def frames_sent(self) -> dict[str, int]:
        """Frames to clients, by command."""
        counts = {
            "CONNECTED": self.connected,
            "MESSAGE": sum(self.delivered.values()),
            "RECEIPT": self.receipts,
            "ERROR": self.errors,
        }
        return {command: count for command, count in counts.items() if count}

    def copy(self) -> Totals:
        """The same, to add to."""
        twin = Totals()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, defaultdict) else value)
        return twin


def by_kind(counts: Mapping[Kind, int]) -> dict[str, int]:
    """Counts by the words of figures for kinds of destinations."""
    return {KIND_NAMES[kind]: count for kind, count in counts.items()}


class VirtualHostStats:
    """What is known of one virtual host beyond its living sessions."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.started: Counter[tuple[str, str]] = Counter()
        """Sessions, by version and transport."""
        self.ended: Counter[str] = Counter()
        """Sessions, by the reason."""
        self.errors: Counter[str] = Counter()
        """ERROR frames, by code."""
        self.holds: Counter[str] = Counter()
        """Holds that have begun, by reason."""
        self.latencies = Latencies()
        self.links_opened = self.links_lost = 0


class GatewayStats:
    """GatewayStats of a gateway.

    Args:
        names: keys of the configured virtual hosts.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self.hosts: dict[str, VirtualHostStats] = {name: VirtualHostStats() for name in (*names, NOT_LOGGED_IN)}

    def label(self, virtual_host: str) -> str:
        """What a virtual host counts as, by its name."""
        return virtual_host if virtual_host in self._names else PASS_THROUGH

    def host(self, label: str) -> VirtualHostStats:
        """The figures of a virtual host, by its label."""
        return self.hosts[label]

    def past(self) -> dict[str, Totals]:
        """Totals by virtual host of the sessions that have ended, to add the living ones to.

        Who has not logged in yet is counted when that is decided: counters may not go down.
        """
        return {label: host.totals.copy() for label, host in self.hosts.items()}

    def confirm_latency(self, share: float) -> float | None:
        """What a share of the broker's confirms did not exceed lately, in seconds; None if there were none."""
        counts: Counter[int] = Counter()
        for host in self.hosts.values():
            counts += host.latencies.recent
        found = percentile(counts, share)
        return None if found is None else found / 1e6

    def minute_passed(self) -> None:
        """Called about once a minute."""
        for host in self.hosts.values():
            host.latencies.minute_passed()
