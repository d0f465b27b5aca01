"""Gateways that ship their journals: configuration, traffic, and what has arrived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from gateway.journal.segments import PATTERN, SegmentName
from tests.support.deadline import within
from tests.support.gateway import GatewayProcess
from tests.support.object_store import ObjectStore
from tests.support.stomp_client import StompClient

Stored = dict[str, bytes]
"""Segments by their names below the place."""


def in_store(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Stored:
    with monkeypatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        opened = from_url(store.url)
        names = [meta["path"] for batch in obstore.list(opened) for meta in batch]
        return {name: obstore.get(opened, name).bytes().to_bytes() for name in names}


def in_directory(directory: Path) -> Stored:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in directory.glob(f"d*=*/{PATTERN}")}


def shipping(journal: Path, ship: dict[str, str], node: str = "node") -> dict[str, Any]:
    """A journal in small segments, shipped to a place."""
    settings = {"level": "message", "directory": str(journal), "node": node, "rotate_bytes": 5000, "ship": ship}
    return {"journal": {**settings, "retain_bytes": "1GiB"}}


async def traffic(process: GatewayProcess, messages: int) -> None:
    async with within(60), StompClient.logged_in(process.address) as client:
        for _ in range(messages):
            await client.ask("SEND", b"x", destination="/topic/nobody")
        await client.disconnect()


def assert_whole(stored: Stored) -> None:
    """Every boot's lines are there once, without a gap."""
    boots: dict[str, list[str]] = {}
    for name in sorted(stored):
        parsed = SegmentName.read(name.partition("/")[2])
        assert parsed is not None
        boots.setdefault(parsed.boot, []).append(name)
    for names in boots.values():
        lines = [json.loads(line) for name in names for line in stored[name].splitlines()]
        assert [line["q"] for line in lines] == list(range(len(lines)))
