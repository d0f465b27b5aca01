"""Metrics and their description agree, and no label grows with what clients say."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.merged_reports import own_families, supervisor_process
from gateway.admin.metrics import encoded, families_of
from gateway.admin.overview import StatsSnapshot, virtual_hosts
from gateway.config.addresses import BrokerUrl
from gateway.config.loader import parse
from gateway.errors import StompError
from gateway.journal.writer import Clock
from gateway.server.client.connection import ClientConnection
from gateway.server.process.readiness import BrokerState, Readiness
from gateway.server.process.supervisor import Supervisor
from gateway.server.stats import (
    LATENCY_BOUNDS,
    NOT_LOGGED_IN,
    AdminLoginStats,
    ConfirmLatencies,
    GatewayStats,
    LoopLag,
    ReloadStats,
)
from gateway.server.tls_contexts import TlsContexts
from gateway.session.destinations import DestinationKind
from gateway.session.traffic import TrafficCounter
from tests.support.deadline import until
from tests.support.gateway import gateway_here

ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"^\| `(stomp_gateway_\w+)` \|([^|]*)\|", re.MULTILINE)


async def test_every_metric_is_described_with_its_labels() -> None:
    described = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in _ROW.findall((ROOT / "docs" / "monitoring.md").read_text("utf-8"))
    }
    config = parse("listeners: [{tcp: '127.0.0.1:0'}]\ndefaults: {journal: {level: 'off'}}", environment={})
    async with gateway_here(config) as gateway:
        host = gateway.stats.host("/")
        host.started["1.2", "tcp"] += 1
        for counter in (host.ended, host.errors, host.holds):
            counter["x"] += 1
        host.totals.frames_received[b"ACK"] += 1
        host.totals.receipts += 1
        for counters in (host.totals.published, host.totals.delivered):
            counters[DestinationKind.QUEUE].add(TrafficCounter(1, 1, 1, 1))
        host.latencies.add(1)
        state = BrokerState(BrokerUrl("amqp", "mq", 5672), "", 1)
        families = await families_of(gateway, Readiness(virtual_hosts={"/": (state,)}))
    text, _ = encoded(families, "")
    supervisor = SimpleNamespace(reloads=ReloadStats(Clock()), admin_logins=AdminLoginStats(), running=[], deaths=0)
    own = own_families(cast(Supervisor, supervisor), Readiness(), [(0, supervisor_process(TlsContexts(), LoopLag(1)))])
    found: dict[str, set[str]] = {}
    for family in (*text_string_to_metric_families(text.decode()), *own.values()):
        if family.name.startswith("stomp_gateway"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = labels
            assert family.documentation
    # What is there only while there are clients, links or certificates, or once a login was asked about again.
    certificates = (
        "stomp_gateway_certificate_expiry_timestamp_seconds",
        "stomp_gateway_certificate_stale",
        "stomp_gateway_certificate_changes_refused_total",
    )
    for name in ("stomp_gateway_subscriptions", "stomp_gateway_links", "stomp_gateway_rechecks_total", *certificates):
        assert not found[name]
        found[name] = described[name]
    assert found == described


def test_names_that_are_passed_through_are_one() -> None:
    stats = GatewayStats(["/", "*"])
    assert stats.label("/") == "/"
    assert {stats.label(f"made-up-{number}") for number in range(10)} == {"*"}
    assert set(stats.hosts) == {"/", "*", NOT_LOGGED_IN}


def test_latencies_fall_into_their_buckets() -> None:
    latencies = ConfirmLatencies()
    for microseconds in (0, 500, 501, 30_000_000, 30_000_001):
        latencies.add(microseconds)
    assert latencies.counts[0] == 2
    assert latencies.counts[1] == 1
    assert latencies.counts[-2:] == [1, 1]
    assert latencies.sum == 60_001_002
    assert len(latencies.counts) == len(LATENCY_BOUNDS) + 1


def test_recent_latencies_are_forgotten() -> None:
    latencies = ConfirmLatencies()
    latencies.add(5)
    latencies.minute_passed()
    assert latencies.recent == {5: 1}
    latencies.minute_passed()
    assert not latencies.recent


def test_codes_of_errors_are_known() -> None:
    from gateway.journal.schema import error_code  # noqa: PLC0415

    assert error_code(StompError("Closed by operator", "")) == "closed-by-operator"
    assert error_code(StompError("whatever a broker says", "")) == "other"


def test_without_an_admin_listener_its_library_is_not_loaded() -> None:
    program = (
        "import sys, gateway.admin.admin_listener, gateway.server.process.gateway; sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


async def test_virtual_hosts_are_listed_while_a_reload_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    take = StatsSnapshot.take
    text = "listeners: [{tcp: '127.0.0.1:0'}]\nvirtual_hosts: "
    async with gateway_here(parse(f"{text}{{/: {{}}}}", environment={})) as gateway:

        async def take_late(snapshot: StatsSnapshot) -> StatsSnapshot:
            await gateway.apply(parse(f"{text}{{/: {{}}, new: {{}}}}", environment={}))
            return await take(snapshot)

        monkeypatch.setattr(StatsSnapshot, "take", take_late)
        assert [row["name"] for row in await virtual_hosts(gateway, Readiness())] == ["/"]
        assert [row["name"] for row in await virtual_hosts(gateway, Readiness())] == ["/", "new"]


async def test_a_client_that_logs_in_to_a_virtual_host_that_a_reload_adds_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "listeners: [{tcp: '127.0.0.1:0'}]\nvirtual_hosts: "
    async with gateway_here(parse(f"{text}{{/: {{}}}}", environment={})) as gateway:

        async def clients() -> list[ClientConnection]:
            return list(gateway.clients)

        _, writer = await asyncio.open_connection(*gateway.addresses[0])
        (client,) = await until(clients, bool)
        take = StatsSnapshot.take

        async def take_late(snapshot: StatsSnapshot) -> StatsSnapshot:
            await gateway.apply(parse(f"{text}{{/: {{}}, new: {{}}}}", environment={}))
            session = client.session.context
            session.login, session.settings = b"guest", session.settings.model_copy(update={"name": "new"})
            client.stats.started()
            client.stats.bytes_in = 7
            return await take(snapshot)

        monkeypatch.setattr(StatsSnapshot, "take", take_late)
        shown, _ = encoded(await families_of(gateway, Readiness()), "")
        assert b'stomp_gateway_sessions{virtual_host="new"} 1.0' in shown
        assert b'stomp_gateway_client_received_bytes_total{virtual_host="new"} 7.0' in shown
        writer.transport.abort()
        await until(clients, lambda found: not found)
