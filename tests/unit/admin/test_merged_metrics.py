"""The metrics of several workers are added up, and those of a dead one stay."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.admin.gateway_view import WorkerReport
from gateway.admin.merged_reports import PastWorkers, merged_families
from gateway.server.process.readiness import Readiness


def _worker(count: float, sessions: float, late: float) -> list[Metric]:
    messages = CounterMetricFamily("stomp_gateway_messages", "-", labels=("kind",))
    messages.add_metric(("queue",), count)
    open_now = GaugeMetricFamily("stomp_gateway_sessions", "-", value=sessions)
    lag = GaugeMetricFamily("stomp_gateway_event_loop_lag_seconds", "-", value=late)
    latency = HistogramMetricFamily("latency", "-", buckets=[("1", count), ("+Inf", count + 1)], sum_value=count)
    return [messages, open_now, lag, latency]


def _values(families: list[Metric]) -> dict[str, float]:
    return {
        sample.name + str(sample.labels.get("le", "")): sample.value for each in families for sample in each.samples
    }


def test_workers_are_added_up() -> None:
    assert _values(merged_families([_worker(1, 2, 0.1), _worker(10, 20, 0.3)])) == {
        "stomp_gateway_messages_total": 11,
        "stomp_gateway_sessions": 22,
        "stomp_gateway_event_loop_lag_seconds": 0.3,
        "latency_bucket1": 11,
        "latency_bucket+Inf": 13,
        "latency_count": 13,
        "latency_sum": 11,
    }


def test_of_a_dead_worker_what_it_counted_stays_and_what_it_had_does_not() -> None:
    past = PastWorkers()
    counts: dict[str, dict[str, int]] = {"totals": {}, "errors": {}, "connections_refused": {}}
    past.add(WorkerReport(Readiness(), _worker(1, 2, 0.5), counts, [], Counter()))
    values = _values(merged_families([_worker(10, 20, 0.1), past.families]))
    assert values["stomp_gateway_messages_total"] == 11
    assert values["latency_count"] == 13
    assert values["stomp_gateway_sessions"] == 20
    assert values["stomp_gateway_event_loop_lag_seconds"] == 0.1


def test_what_waits_in_a_directory_that_workers_share_counts_once() -> None:
    name = "stomp_gateway_journal_ship_waiting_"
    workers: list[list[Metric]] = [
        [GaugeMetricFamily(f"{name}segments", "-", value=number), GaugeMetricFamily(f"{name}bytes", "-", value=number)]
        for number in (3, 2)
    ]
    assert _values(merged_families(workers)) == {f"{name}segments": 3, f"{name}bytes": 3}
