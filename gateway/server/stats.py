"""Counters of a running gateway, by virtual host.

A session counts its own messages (`gateway.session.traffic`). At its end, its counters are added to those of its
virtual host; until then, `gateway.admin.overview` adds them to a copy. Only rare events are counted here at once:
beginnings and ends of sessions, ERRORs, holds, and a sample of the broker's confirms.

The label of a virtual host is its key in the configuration, so the number of labels is bounded. Other names have the
label ``*``, and connections that never logged in have the empty one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gateway.config.model import PASS_THROUGH
from gateway.journal.histogram import bucket_of, percentile
from gateway.journal.writer import Clock
from gateway.session.destinations import DestinationKind
from gateway.session.session import Session
from gateway.session.traffic import TrafficCounter

NOT_LOGGED_IN: Final = ""
"""The label of connections that never logged in."""

LATENCY_BOUNDS: Final = (
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
)  # fmt: skip
"""Upper bounds of the histogram of confirm latencies, in microseconds."""


class Refusal(StrEnum):
    """Why a listener refuses a connection."""

    LISTENER = "listener"
    """There are `max_connections`."""
    DESCRIPTORS = "descriptors"
    """The process keeps its last file descriptors for links, journal and admin listener."""
    ADDRESS = "address"
    """Its address has `max_connections_per_address` or `max_unauthenticated_per_address`."""
    NETWORK = "network"
    """Its address is refused by the listener's lists of networks."""
    LOCKED_OUT = "locked-out"
    """Too many logins from its address have failed."""
    HANDSHAKES = "handshakes"
    """There are `max_handshakes`, most of them from its address."""


TrafficByKind = defaultdict[DestinationKind, TrafficCounter]


class ConfirmLatencies:
    """The time of the broker's confirms, for a sample of messages."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self.sum = 0
        # In finer buckets: the current minute and the one before.
        self._recent: Counter[int] = Counter()
        self._before: Counter[int] = Counter()

    def add(self, microseconds: int) -> None:
        """Count one message."""
        self.counts[bisect_left(LATENCY_BOUNDS, microseconds)] += 1
        self.sum += microseconds
        self._recent[bucket_of(microseconds)] += 1

    def minute_passed(self) -> None:
        """Start a new minute."""
        self._before, self._recent = self._recent, Counter()

    @property
    def recent(self) -> Counter[int]:
        """The counts of the last one or two minutes, by bucket of ``gateway.journal.histogram``."""
        return self._before + self._recent


@dataclass(slots=True)
class Stats:
    """The sums of some sessions. ``published`` and ``delivered``: by kind of destination."""

    frames_received: Counter[bytes] = field(default_factory=Counter)
    """By command."""
    connected: int = 0
    receipts: int = 0
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    confirmed: int = 0
    rejected: int = 0
    returned: int = 0
    published: TrafficByKind = field(default_factory=lambda: defaultdict(TrafficCounter))
    delivered: TrafficByKind = field(default_factory=lambda: defaultdict(TrafficCounter))

    def add(self, session: Session) -> None:
        """Add the counters of a session."""
        traffic = session.traffic
        self.receipts += traffic.receipts_sent
        self.errors += traffic.errors_sent
        self.confirmed += traffic.confirmed
        self.rejected += traffic.rejected
        self.returned += traffic.returned
        for command, count in traffic.commands.items():
            self.frames_received[command] += count
        # A session counts all frames, and by command those that are not SEND.
        self.frames_received[b"SEND"] += traffic.frames_received - sum(traffic.commands.values())
        for (_, kind), counter in traffic.sends.items():
            self.published[kind].add(counter)
        for (_, kind), counter in session.subscriptions.past.items():
            self.delivered[kind].add(counter)
        for subscription in session.subscriptions.all:
            self.delivered[subscription.kind].add(subscription.stats)

    @property
    def traffic(self) -> TrafficCounter:
        """The sum over all kinds of destinations."""
        total = TrafficCounter()
        for counter in (*self.published.values(), *self.delivered.values()):
            total.add(counter)
        return total

    @property
    def frames_sent(self) -> dict[str, int]:
        """Frames to clients, by command."""
        counts = {
            "CONNECTED": self.connected,
            "MESSAGE": self.traffic.delivered,
            "RECEIPT": self.receipts,
            "ERROR": self.errors,
        }
        return {command: count for command, count in counts.items() if count}

    def copy(self) -> Stats:
        """The same counts, to add to."""
        return replace(
            self,
            frames_received=self.frames_received.copy(),
            published=_copied(self.published),
            delivered=_copied(self.delivered),
        )


def _copied(counters: TrafficByKind) -> TrafficByKind:
    return defaultdict(TrafficCounter, {kind: replace(counter) for kind, counter in counters.items()})


class VirtualHostStats:
    """The counters of one virtual host, without its open sessions."""

    def __init__(self) -> None:
        self.totals = Stats()
        self.started: Counter[tuple[str, str]] = Counter()
        """Sessions, by version and transport."""
        self.ended: Counter[str] = Counter()
        """Sessions, by the reason."""
        self.errors: Counter[str] = Counter()
        """ERROR frames, by code."""
        self.holds: Counter[str] = Counter()
        """Holds that have begun, by reason."""
        self.rechecks: Counter[str] = Counter()
        """Logins that brokers were asked about again, by the result."""
        self.latencies = ConfirmLatencies()
        self.links_opened = self.links_lost = 0


@dataclass(slots=True)
class AdminLoginStats:
    """Refused logins to the admin listener, and addresses that were locked out of it."""

    failed: int = 0
    lock_outs: int = 0


@dataclass(slots=True)
class ReloadStats:
    """The reloads of the configuration. ``last_at``: in microseconds since 1970, at first that of the start."""

    clock: Clock
    last_at: int = 0
    done: int = 0
    refused: int = 0
    last_successful: bool = True

    def __post_init__(self) -> None:
        self.last_at = self.clock.time

    def count(self, *, successful: bool) -> None:
        """Note that the configuration was read again."""
        self.clock.tick()
        self.last_at, self.last_successful = self.clock.time, successful
        self.done += successful
        self.refused += not successful


class GatewayStats:
    """The counters of all virtual hosts. ``names``: their keys in the configuration."""

    def __init__(self, names: Iterable[str]) -> None:
        self.connections_refused = Counter(dict.fromkeys(map(str, Refusal), 0))
        """Connections that listeners refused, or ended for others, by the reason."""
        self.hosts: dict[str, VirtualHostStats] = {name: VirtualHostStats() for name in (*names, NOT_LOGGED_IN)}

    def add_hosts(self, names: Iterable[str]) -> None:
        """Add virtual hosts of another configuration. Others stay, because counters must not disappear."""
        for name in names:
            self.hosts.setdefault(name, VirtualHostStats())

    def count_ended(self) -> int:
        """The number of sessions that have ended, including those without a login."""
        return sum(host.ended.total() for host in self.hosts.values())

    def label(self, virtual_host: str) -> str:
        """The label of a virtual host's name."""
        return virtual_host if virtual_host in self.hosts else PASS_THROUGH

    def host(self, virtual_host: str) -> VirtualHostStats:
        """The counters of a virtual host, by its name. By its label, they are in ``hosts``."""
        return self.hosts[self.label(virtual_host)]

    def past(self) -> dict[str, Stats]:
        """A copy of the totals by label, to which open sessions can be added.

        Sessions without a login must not be added: a counter must not move from one label to another.
        """
        return {label: host.totals.copy() for label, host in self.hosts.items()}

    @property
    def recent_latencies(self) -> Counter[int]:
        """`ConfirmLatencies.recent` of all virtual hosts together."""
        return sum((host.latencies.recent for host in self.hosts.values()), Counter[int]())

    def confirm_latency(self, share: float) -> float | None:
        """A percentile of the recent confirm latencies, in seconds; None if there are none."""
        found = percentile(self.recent_latencies, share)
        return None if found is None else found / 1e6

    def minute_passed(self) -> None:
        """Forget old latencies."""
        for host in self.hosts.values():
            host.latencies.minute_passed()


class LoopLag:
    """How late the event loop is. Call ``tick`` every ``interval`` seconds."""

    def __init__(self, interval: float) -> None:
        self.ticks = 0
        self._interval = interval
        self._last = 0.0
        # The last few, so that a monitor that seldom asks still sees the worst.
        self._delays: deque[float] = deque(maxlen=15)

    def start(self, now: float) -> None:
        """Measure from now on."""
        self._last = now

    def tick(self, now: float) -> None:
        """Note that the interval is over, or should be."""
        self.ticks += 1
        self._delays.append(max(0.0, now - self._last - self._interval))
        self._last = now

    @property
    def seconds(self) -> float:
        """The largest of the last delays."""
        return max(self._delays, default=0.0)
