"""The metrics of a gateway for Prometheus, computed when it asks for them."""

from __future__ import annotations

import asyncio
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.admin.overview import StatsSnapshot, broker_name
from gateway.server.stats import LATENCY_BOUNDS, AdminLoginStats, ReloadStats, Stats, VirtualHostStats
from gateway.session.destinations import KIND_NAMES

if TYPE_CHECKING:
    from gateway.journal.journal import Journal
    from gateway.server.process.gateway import Gateway
    from gateway.server.process.readiness import Readiness
    from gateway.server.stats import LoopLag
    from gateway.server.tls_contexts import TlsContext

_PREFIX: Final = "stomp_gateway_"
_HOST: Final = "virtual_host"

# Versions of Prometheus's text format, and of OpenMetrics.
_VERSIONS: Final = frozenset(("0.0.1", "0.0.4", "1.0.0"))
_VERSION: Final = re.compile(r";\s*version=([^;]*)")

_PROCESS: Final = CollectorRegistry()
"""Metrics of the process: its CPU time and memory, and Python's garbage collections."""
ProcessCollector(registry=_PROCESS)
GCCollector(registry=_PROCESS)

Labels = tuple[str, ...]
Counts = Mapping[Labels, float]

# Counters by virtual host and one more label: name, help, label, values.
_BY_LABEL: Final[tuple[tuple[str, str, str, Callable[[Stats], Mapping[str, int]]], ...]] = (
    ("frames_received", "STOMP frames from clients.", "command",
     lambda stats: {command.decode(): count for command, count in stats.frames_received.items() if count}),
    ("frames_sent", "STOMP frames to clients.", "command", lambda stats: stats.frames_sent),
    ("messages_published", "Messages sent to the broker.", "kind",
     lambda stats: {KIND_NAMES[kind]: traffic.published for kind, traffic in stats.published.items()}),
    ("messages_published_bytes", "Their bodies.", "kind",
     lambda stats: {KIND_NAMES[kind]: traffic.published_bytes for kind, traffic in stats.published.items()}),
    ("messages_delivered", "Messages from the broker, sent to clients.", "kind",
     lambda stats: {KIND_NAMES[kind]: traffic.delivered for kind, traffic in stats.delivered.items()}),
    ("messages_delivered_bytes", "Their bodies.", "kind",
     lambda stats: {KIND_NAMES[kind]: traffic.delivered_bytes for kind, traffic in stats.delivered.items()}),
)  # fmt: skip

# Counters by virtual host alone: name, help, value.
_PLAIN: Final[tuple[tuple[str, str, Callable[[Stats], int]], ...]] = (
    ("client_received_bytes", "Bytes from clients, without TLS.", lambda stats: stats.bytes_in),
    ("client_sent_bytes", "Bytes to clients, without TLS.", lambda stats: stats.bytes_out),
    ("messages_confirmed", "Messages that the broker confirmed.", lambda stats: stats.confirmed),
    ("messages_rejected", "Messages that the broker refused to take.", lambda stats: stats.rejected),
    ("messages_returned", "Mandatory messages that reached no queue.", lambda stats: stats.returned),
    ("messages_redelivered", "Messages sent to clients not for the first time.",
     lambda stats: stats.traffic.redelivered),
    ("messages_acknowledged", "Messages that clients acknowledged, or that ack:auto settled.",
     lambda stats: stats.traffic.acknowledged),
    ("messages_requeued", "Messages that clients put back into their queue by NACK.",
     lambda stats: stats.traffic.requeued),
    ("messages_discarded", "Messages that clients refused by NACK, without requeue.",
     lambda stats: stats.traffic.discarded),
    ("messages_filtered", "Messages that a selector kept from a client.", lambda stats: stats.traffic.filtered),
)  # fmt: skip

# Rare events, by virtual host and more labels: name, help, labels, values.
_EVENTS: Final[tuple[tuple[str, str, Labels, Callable[[VirtualHostStats], Counts]], ...]] = (
    ("sessions_started", "Sessions that have logged in.", ("version", "transport"),
     lambda host: {(version, transport): count for (version, transport), count in host.started.items()}),
    ("sessions_ended", "Connections that ended; those that never logged in have an empty virtual_host.", ("reason",),
     lambda host: _by_one(host.ended)),
    ("errors", "ERROR frames sent.", ("code",), lambda host: _by_one(host.errors)),
    ("holds_begun", "Times that a client began not to be read, as seen at the end of a batch.", ("reason",),
     lambda host: _by_one(host.holds)),
    ("rechecks", "Logins that brokers were asked about again, by the result.", ("result",),
     lambda host: _by_one(host.rechecks)),
)  # fmt: skip


def _by_host(counts: Mapping[str, int]) -> Counts:
    """By virtual host; connections that never logged in are left out while their count is 0."""
    return {(host,): count for host, count in counts.items() if host or count}


def _by_one(counts: Mapping[str, int]) -> Counts:
    return {(name,): count for name, count in counts.items()}


class GatewayFamilies:
    """Everything that a gateway knows of itself, as of one moment."""

    def __init__(self, gateway: Gateway, readiness: Readiness, snapshot: StatsSnapshot) -> None:
        self._gateway = gateway
        self._readiness = readiness
        self._snapshot = snapshot

    def all(self) -> Iterator[Metric]:
        """All metric families."""
        info = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("stomp_gateway", "The gateway and what it runs on.", info)
        yield from self._counters()
        yield from self._latencies()
        yield from self._clients()
        yield from self._links()
        yield from self._upstreams()
        yield from certificate_families(self._gateway.tls_contexts)
        yield from reload_families(self._gateway.reloads)
        yield from admin_login_families(self._gateway.admin_logins)
        yield from self._rest()

    def _counters(self) -> Iterator[Metric]:
        totals, hosts = self._snapshot.totals, self._gateway.stats.hosts
        for name, text, label, values_of in _BY_LABEL:
            counts: dict[Labels, float] = {
                (host, value): count for host, each in totals.items() for value, count in values_of(each).items()
            }
            yield counter_family(name, text, (_HOST, label), counts)
        for name, text, value_of in _PLAIN:
            yield counter_family(
                name, text, (_HOST,), _by_host({host: value_of(each) for host, each in totals.items()})
            )
        for name, text, labels, counts_of in _EVENTS:
            events = {
                (host, *values): count for host, each in hosts.items() for values, count in counts_of(each).items()
            }
            yield counter_family(name, text, (_HOST, *labels), events)
        opened = _by_host({label: host.links_opened for label, host in hosts.items()})
        yield counter_family("links_opened", "AMQP connections opened.", (_HOST,), opened)
        lost = _by_host({label: host.links_lost for label, host in hosts.items()})
        yield counter_family(
            "links_lost", "AMQP connections that ended and that the gateway did not close.", (_HOST,), lost
        )

    def _latencies(self) -> Iterator[Metric]:
        text = "How long the broker took to confirm: a sample, at most one message at a time of each session."
        family = HistogramMetricFamily(_PREFIX + "confirm_latency_seconds", text, labels=(_HOST,))
        for label, host in self._gateway.stats.hosts.items():
            if label:
                buckets, seen = [], 0
                for bound, count in zip((*LATENCY_BOUNDS, None), host.latencies.counts, strict=True):
                    seen += count
                    buckets.append(("+Inf" if bound is None else f"{bound / 1e6:g}", float(seen)))
                family.add_metric((label,), buckets, host.latencies.sum / 1e6)
        yield family

    def _clients(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        text = "Open connections of clients, by the state of the session."
        yield gauge_family("connections", text, ("state",), _by_one(snapshot.states))
        text = "Sessions; those that have not logged in yet have an empty virtual_host."
        yield gauge_family("sessions", text, (_HOST,), _by_one(snapshot.sessions))
        text = "Messages that the broker has yet to confirm."
        yield gauge_family("messages_unconfirmed", text, (_HOST,), _by_host(snapshot.unconfirmed))
        text = "Messages that clients have and that are not settled."
        yield gauge_family("messages_unacknowledged", text, (_HOST,), _by_host(snapshot.unacknowledged))
        text = "Subscriptions, by their ack header."
        yield gauge_family("subscriptions", text, (_HOST, "ack"), snapshot.subscriptions)
        text = "Subscriptions that wait for their queue, because its node is away."
        yield gauge_family("subscriptions_awaiting_queue", text, (_HOST,), _by_host(snapshot.awaiting))
        yield gauge_family("holds", "Sessions that are not read for a reason.", (_HOST, "reason"), snapshot.holds)

    def _links(self) -> Iterator[Metric]:
        gateway = self._gateway
        blocked = Counter(dict.fromkeys(gateway.stats.hosts, 0))
        channels = blocked.copy()
        links: Counter[Labels] = Counter()
        for link in gateway.pool.links:
            label = gateway.stats.label(link.virtual_host)
            links[label, link.purpose] += 1
            blocked[label] += link.blocked
            channels[label] += link.channels
        yield gauge_family("links", "Open AMQP connections, by what they are used for.", (_HOST, "purpose"), links)
        yield gauge_family("links_blocked", "Those on which the broker has an alarm.", (_HOST,), _by_host(blocked))
        yield gauge_family("channels", "Open AMQP channels.", (_HOST,), _by_host(channels))

    def _upstreams(self) -> Iterator[Metric]:
        hosts = self._readiness.virtual_hosts
        up: Counts = {(host,): self._readiness.is_up(host) for host in hosts}
        yield gauge_family("virtual_host_up", "Whether a broker of the virtual host answers.", (_HOST,), up)
        states = {(host, broker_name(state.broker)): state for host, each in hosts.items() for state in each}
        labels = (_HOST, "broker")
        answers: Counts = {names: state.is_up for names, state in states.items()}
        yield gauge_family("upstream_up", "Whether the broker answers.", labels, answers)
        links: Counts = {names: state.links for names, state in states.items()}
        yield gauge_family("upstream_links", "Open AMQP connections to the broker.", labels, links)

    def _rest(self) -> Iterator[Metric]:
        gateway = self._gateway
        yield gauge_family("ready", "Whether /readyz says so.", (), {(): int(self._readiness.is_ready)})
        yield lag_family(gateway.lag)
        yield gauge_family("tasks", "Tasks of the event loop.", (), {(): len(asyncio.all_tasks())})
        yield counter_family("journal_lines", "Lines of the traffic journal.", (), {(): gateway.journal.lines})
        text = "Events that are missing in the journal, because the disk did not take them."
        yield counter_family("journal_dropped", text, (), {(): gateway.journal.dropped})
        yield from shipping_families(gateway.journal)
        text = "Connections that listeners refused, or ended for others, by the limit or list that did not let them in."
        yield counter_family("connections_refused", text, ("limit",), _by_one(gateway.stats.connections_refused))
        text = "Logins that brokers refused for their passcode."
        yield counter_family("logins_failed", text, (), {(): gateway.limits.failed_logins.total})
        text = "Addresses that could not connect for a while, because too many logins from them had failed."
        yield counter_family("lock_outs", text, (), {(): gateway.limits.lock_outs.total})
        text = "Log lines that clients caused and that are missing, because there were too many."
        yield counter_family("log_lines_left_out", text, (), {(): gateway.log_limits.left_out})


def shipping_families(journal: Journal) -> Iterator[Metric]:
    """What happens to finished segments that are to be shipped."""
    stats, waiting = journal.shipping, journal.shipping.waiting
    counters = (
        ("segments", "Segments of the traffic journal that were shipped.", stats.segments),
        ("bytes", "Their bytes.", stats.bytes),
        ("errors", "Attempts to ship segments that failed.", stats.errors),
        ("lost", "Segments that retain_bytes deleted before they were shipped.", journal.lost),
    )
    for name, text, count in counters:
        yield counter_family(f"journal_ship_{name}", text, (), {(): count})
    gauges = (
        ("waiting_segments", "Finished segments that are not shipped yet.", waiting.segments),
        ("waiting_bytes", "Their bytes.", waiting.bytes),
        ("oldest_seconds", "How long the oldest of them has been finished; 0 if there is none.", waiting.oldest_age),
    )
    for name, text, value in gauges:
        yield gauge_family(f"journal_ship_{name}", text, (), {(): value})


def certificate_families(contexts: Iterable[TlsContext]) -> Iterator[Metric]:
    """When certificates expire, and whether their files can be used."""
    expiries: dict[Labels, float] = {}
    stale: dict[Labels, float] = {}
    refused: Counter[Labels] = Counter()
    for context in contexts:
        file = (str(context.file),)
        if context.expires_at is not None:
            expiries[file] = context.expires_at
        if context.file is not None:
            # Several listeners may have the same file.
            stale[file] = max(stale.get(file, 0), context.is_stale)
            refused[file] += context.refused
    text = "When the first certificate of a file expires, in seconds since 1970."
    yield gauge_family("certificate_expiry_timestamp_seconds", text, ("file",), expiries)
    text = "Whether the file, its key or its authorities have changed and cannot be used, so that the old ones are."
    yield gauge_family("certificate_stale", text, ("file",), stale)
    text = "Changes of these files that could not be used."
    yield counter_family("certificate_changes_refused", text, ("file",), refused)


def lag_family(lag: LoopLag) -> Metric:
    """How late an event loop is."""
    text = "How late the event loop was at the most, in the last 15 seconds."
    return gauge_family("event_loop_lag_seconds", text, (), {(): lag.seconds})


def reload_families(reloads: ReloadStats) -> Iterator[Metric]:
    """How often the configuration was read again, when, and whether it could be used."""
    counts: dict[Labels, float] = {("done",): reloads.done, ("refused",): reloads.refused}
    text = "Times that the configuration was read again, by the result."
    yield counter_family("reloads", text, ("result",), counts)
    text = "When the configuration was last read, refused or not, in seconds since 1970."
    yield gauge_family("last_reload_timestamp_seconds", text, (), {(): reloads.last_at / 1e6})
    text = "Whether the last reload of the configuration succeeded; 1 before the first."
    yield gauge_family("last_reload_successful", text, (), {(): int(reloads.last_successful)})


def admin_login_families(logins: AdminLoginStats) -> Iterator[Metric]:
    """Guesses at the admin listener."""
    text = "Requests to the admin listener with a wrong user or passcode, or beyond the limits of failed_logins."
    yield counter_family("admin_logins_failed", text, (), {(): logins.failed})
    text = "Addresses that could not connect to the admin listener for a while, because too many logins had failed."
    yield counter_family("admin_lock_outs", text, (), {(): logins.lock_outs})


def counter_family(name: str, text: str, labels: Labels, counts: Counts) -> Metric:
    """A family of counters, from their values by labels."""
    return _filled(CounterMetricFamily(_PREFIX + name, text, labels=labels), counts)


def gauge_family(name: str, text: str, labels: Labels, counts: Counts) -> Metric:
    """The same for gauges."""
    return _filled(GaugeMetricFamily(_PREFIX + name, text, labels=labels), counts)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, counts: Counts) -> Metric:
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


async def families_of(gateway: Gateway, readiness: Readiness) -> list[Metric]:
    """All metric families of a gateway and of its process. The readiness is as of now."""
    families = GatewayFamilies(gateway, readiness, await StatsSnapshot(gateway).take())
    return [*families.all(), *_PROCESS.collect()]


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def encoded(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The text of metrics, and its content type.

    The Accept header chooses between Prometheus's text format and OpenMetrics.
    """
    encode, content_type = choose_encoder(_known(accept))
    return encode(_Fixed(families)), content_type


def _known(accept: str) -> str:
    """An Accept header without unknown versions: the library raises on some, and claims to speak others."""
    choices = accept.split(",")
    return ",".join(each for each in choices if all(version in _VERSIONS for version in _VERSION.findall(each)))
