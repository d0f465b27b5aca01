"""The reports of several workers as those of one gateway. Nothing that counts goes down when one dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from gateway.admin.metrics import (
    admin_login_families,
    certificate_families,
    counter_family,
    gauge_family,
    lag_family,
    reload_families,
)
from gateway.admin.overview import totals_of
from gateway.server.stats import Refusal

if TYPE_CHECKING:
    from gateway.admin.gateway_view import WorkerReport
    from gateway.server.process.readiness import Readiness
    from gateway.server.process.supervisor import Supervisor
    from gateway.server.stats import LoopLag
    from gateway.server.tls_contexts import TlsContext

Families = list[Metric]

_GROWING: Final = frozenset(("counter", "histogram"))

GROWING_OF_HOST: Final = ("published", "delivered")
"""Of a virtual host: what only grows."""

# How gauges of several workers become one. All others are added.
_JOINED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "stomp_gateway_virtual_host_up": max,
    "stomp_gateway_upstream_up": max,
    "stomp_gateway_certificate_expiry_timestamp_seconds": min,
    "stomp_gateway_certificate_stale": max,
    "stomp_gateway_event_loop_lag_seconds": max,
    # Each worker sees what waits in the directory that they share.
    "stomp_gateway_journal_ship_waiting_segments": max,
    "stomp_gateway_journal_ship_waiting_bytes": max,
    "stomp_gateway_journal_ship_oldest_seconds": max,
    "process_start_time_seconds": min,
    "process_max_fds": min,
}


def merged_families(parts: Sequence[Families]) -> Families:
    """The sums of several, in the order of the first that has each family."""
    merged: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}
    labels: dict[tuple[str, frozenset[tuple[str, str]]], dict[str, str]] = {}
    for family in (family for part in parts for family in part):
        _ = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        joined = max if family.type == "info" else _JOINED.get(family.name, add)
        found = values.setdefault(family.name, {})
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            found[key] = joined(found[key], sample.value) if key in found else sample.value
            labels.setdefault(key, sample.labels)
    for name, family in merged.items():
        for key, value in values[name].items():
            family.add_sample(key[0], labels[key], value)
    return list(merged.values())


def own_families(
    supervisor: Supervisor, readiness: Readiness, workers: Iterable[tuple[int, Families]]
) -> dict[str, Metric]:
    """What the supervisor knows better than its workers, which are given by number; by the families' names."""
    memory: dict[tuple[str, ...], float] = {
        (str(number),): sample.value
        for number, families in workers
        for family in families
        if family.name == "process_resident_memory_bytes"
        for sample in family.samples
    }
    families = [
        *reload_families(supervisor.reloads),
        *admin_login_families(supervisor.admin_logins),
        gauge_family("ready", "Whether /readyz says so.", (), {(): int(readiness.is_ready)}),
        gauge_family("workers", "Workers that serve clients.", (), {(): len(supervisor.running)}),
        counter_family("worker_deaths", "Workers that ended and should not have.", (), {(): supervisor.deaths}),
        gauge_family("worker_resident_memory_bytes", "Memory of a worker, by its number.", ("worker",), memory),
    ]
    return {family.name: family for family in families}


def supervisor_process(contexts: Iterable[TlsContext], lag: LoopLag) -> Families:
    """The CPU time, memory and file descriptors of this process, its certificates and its event loop."""
    return [*ProcessCollector(registry=None).collect(), *certificate_families(contexts), lag_family(lag)]


class PastWorkers:
    """What workers counted that are gone, as of their last reports."""

    def __init__(self) -> None:
        self.families: Families = []
        self.growing: dict[str, Counter[str]] = {
            "totals": Counter(totals_of((), {}, 0)),
            "errors": Counter(),
            "connections_refused": Counter(dict.fromkeys(map(str, Refusal), 0)),
        }
        self.hosts: dict[str, dict[str, Any]] = {}

    def add(self, report: WorkerReport) -> None:
        """A worker is gone, whose last report this was."""
        growing = [family for family in report.families if family.type in _GROWING]
        self.families = merged_families([self.families, growing])
        for key, counts in self.growing.items():
            counts.update(report.overview[key])
        for row in report.virtual_hosts:
            host = self.hosts.setdefault(row["name"], {"errors": Counter()})
            for key in GROWING_OF_HOST:
                host[key] = host.get(key, 0) + row[key]
            host["errors"].update(row["errors"])
