"""The traffic of the demonstration: clients and journal count the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deploy.demo import mistakes, site, traffic
from deploy.demo.agreement import of_journal
from deploy.demo.client import ClientFactory
from deploy.local.broker import Broker
from deploy.local.ports import LOOPBACK, free_ports

pytestmark = pytest.mark.system


async def test_the_journal_has_exactly_what_the_clients_did(laboratory: Broker, tmp_path: Path) -> None:
    passcode = site.prepare_broker(laboratory)
    [port] = free_ports(1)
    config, journal = tmp_path / "gateway.yaml", tmp_path / "journal"
    site.write_configuration(config, laboratory, port, journal)
    clients = ClientFactory((LOOPBACK, port), passcode)
    with site.gateway(config, port, tmp_path / "gateway.log"):
        await traffic.drive(clients, 1, 1, print)

    counted: Counter[tuple[str, str]] = Counter()
    for host, tally in clients.tallies.items():
        for what, n in tally.counts.items():
            counted["" if what == "errors" else host, what] += n
    assert of_journal(journal) == counted
    assert counted["", "errors"] > mistakes.MISTAKES  # and the rejected messages
    # A client that asks for a virtual host that is none is the only one that an operator could help.
    [line] = [line for line in (tmp_path / "gateway.log").read_text().splitlines() if "[audit]" not in line]
    assert "login refused" in line
    assert "warehouse-9" in line
