"""The plugin's traffic through a tap beside the gateway's from its own journal, as a site sees them that migrates."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.cli import command_line
from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS, schema_of
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.lakes import ingested
from tests.support.stomp_client import StompClient
from tests.support.tapping import tapping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RULE = "send/header-collision"
MESSAGES = 120
"""Latencies need 100 to be compared."""
MISTAKES = {"plugin": 1, "gateway": 3}
VERDICTS = {
    "send.bytes": "same", "deliver.bytes": "same", "deliver.per_send": "same", "deliver.redelivered": "same",
    "error.all": "worse",
}  # fmt: skip


async def test_the_plugin_behind_a_tap_and_the_gateway_are_put_side_by_side(
    spark: SparkSession, plugin_address: Address, broker_url: str, amqp: AmqpBroker, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    queues = {side: f"test-{secrets.token_hex(6)}" for side in ("plugin", "gateway")}
    settings = {"journal": {"level": "message", "directory": str(tmp_path / "gateway-journal")}}
    with gateway_process(configuration(broker_url, settings)) as process:
        async with within(2 * PATIENCE), tapping(plugin_address, tmp_path / "plugin-journal") as tap:
            addresses = {"plugin": tap.addresses[0], "gateway": process.address}
            await _traffic(*((addresses[side], queue) for side, queue in queues.items()))
            for side, number in MISTAKES.items():
                await _mistakes(addresses[side], number)
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    both = ingested(spark, tmp_path / "lake", *(tmp_path / f"{side}-journal" for side in queues))
    lakes = {side: _side_of(both, side, tmp_path / f"{side}-lake") for side in queues}
    for side, queue in queues.items():
        await amqp.delete_queue(queue)
        # A tap also counts a SEND that the server answers with an ERROR.
        refused = {"/nowhere": (MISTAKES[side], 0, 0, 0)} if side == "plugin" else {}
        assert _volumes(lakes[side]) == {f"/queue/{queue}": (MESSAGES, 10 * MESSAGES, MESSAGES, MESSAGES)} | refused
    assert _features(lakes["plugin"]) - _features(lakes["gateway"]) == {RULE}
    assert _features(lakes["gateway"]) <= _features(lakes["plugin"])

    found = {side: _findings(tmp_path, side) for side in queues}
    assert [each["feature"] for each in found["plugin"] if each["rule"] == "departure"] == [RULE]
    assert not [each for each in found["gateway"] if each["rule"] == "departure"]

    capsys.readouterr()
    plugin, gateway = (tmp_path / f"{side}-lake" for side in queues)
    assert _run("compare", "--before", plugin, "--after", plugin) == ExitCode.OK
    capsys.readouterr()
    assert _run("compare", "--before", plugin, "--after", gateway, "--format", "json") == ExitCode.FAILURE
    rows = {row["measure"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    # How long the clients took, and so rates and latencies, is not for a test to say.
    for measure, verdict in VERDICTS.items():
        assert rows[measure]["verdict"] == verdict, rows[measure]
    for measure in ("confirm.p50_us", "ack.p99_us"):
        assert min(rows[measure]["before"], rows[measure]["after"]) > 0


@asynccontextmanager
async def _pair(address: Address, queue: str) -> AsyncIterator[tuple[StompClient, StompClient]]:
    """One that receives and acknowledges, and one that sends."""
    async with StompClient.logged_in(address) as receiver, StompClient.logged_in(address) as sender:
        await receiver.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client-individual")
        yield receiver, sender
        await sender.disconnect()
        await receiver.disconnect()


async def _traffic(*sides: tuple[Address, str]) -> None:
    """The same on both sides, message by message in turn."""
    async with _pair(*sides[0]) as one, _pair(*sides[1]) as other:
        for _ in range(MESSAGES):
            for (receiver, sender), (_, queue) in zip((one, other), sides, strict=True):
                await sender.ask("SEND", b"0123456789", destination=f"/queue/{queue}", subscription="forged")
                message = await receiver.expect("MESSAGE", b"0123456789")
                await receiver.ask("ACK", id=message["ack"])


async def _mistakes(address: Address, number: int) -> None:
    for _ in range(number):
        async with StompClient.logged_in(address) as client:
            client.write("SEND", destination="/nowhere")
            await client.expect("ERROR")


def _side_of(both: Lake, impl: str, there: Path) -> Lake:
    """The lake of one side alone, as an ingest of its journal would make it. Spark takes longest to begin."""
    lake = Lake(there)
    for table in COLUMNS:
        own = f"where impl = '{impl}'" if "impl" in schema_of(table).names else ""
        lake.write_rows(table, both.sql(f"select * from {table} {own}"), 0)  # noqa: S608
    return lake


def _volumes(lake: Lake) -> dict[str, tuple[float, ...]]:
    query = """
    select destination, sum(sent) sent, sum(sent_bytes) bytes, sum(delivered) delivered, sum(acked) acked
    from dest_hour group by destination
    """
    return {destination: tuple(figures) for destination, *figures in map(dict.values, lake.sql(query).to_pylist())}


def _features(lake: Lake) -> set[str]:
    return set(lake.sql("select distinct feature from features_used")["feature"].to_pylist())


def _findings(base: Path, side: str) -> list[dict[str, Any]]:
    output = base / f"{side}.json"
    assert _run("report", "--lake", base / f"{side}-lake", "--format", "json", "-o", output) == ExitCode.OK
    found: list[dict[str, Any]] = json.loads(output.read_text())["findings"]
    return found


def _run(*arguments: object) -> int:
    return command_line.main(["pipeline", *map(str, arguments)])
