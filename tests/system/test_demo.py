"""The demonstration's traffic, and what the journal has of it: both sides count, and must agree to the last message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deploy.demo import mistakes, site, traffic
from deploy.demo.agreement import of_journal
from deploy.demo.client import Reception
from deploy.local.broker import Broker
from deploy.local.ports import LOOPBACK, free_ports

pytestmark = pytest.mark.system


async def test_the_journal_has_exactly_what_the_clients_did(laboratory: Broker, tmp_path: Path) -> None:
    passcode = site.furnish(laboratory)
    [port] = free_ports(1)
    config, journal = tmp_path / "gateway.yaml", tmp_path / "journal"
    site.write_configuration(config, laboratory, port, journal)
    reception = Reception((LOOPBACK, port), passcode)
    with site.gateway(config, port, tmp_path / "gateway.log"):
        await traffic.drive(reception, 1, 1, print)

    clients: Counter[tuple[str, str]] = Counter()
    for host, tally in reception.tallies.items():
        for what, n in tally.counts.items():
            clients["" if what == "errors" else host, what] += n
    assert of_journal(journal) == clients
    assert clients["", "errors"] > mistakes.MISTAKES  # and the rejected messages
    assert (tmp_path / "gateway.log").read_text() == ""
