"""Another level of the log for a while, in one process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from gateway.config.model import Logging
from gateway.server.process.logs import CONFIGURED, LogLevel
from tests.support.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.usefixtures("logs_as_before")

LEVELS = ("debug", "info", "warning", "error")
JSON = Logging(format="json")


Capture = pytest.CaptureFixture[str]


def lines(capsys: Capture) -> list[dict[str, Any]]:
    """What was logged since this was asked last."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def written(capsys: Capture) -> list[str]:
    """Write a line of each level; those that come through, the least first."""
    lines(capsys)
    for level in LEVELS:
        getattr(structlog.get_logger("gateway"), level)(level)
    return [line["event"] for line in lines(capsys)]


def test_a_level_ends_by_itself(capsys: Capture) -> None:
    told: list[str | None] = []
    changes: list[dict[str, Any]] = []

    async def changed() -> None:
        level = LogLevel(JSON, tell=told.append)
        level.change("debug", 600, "an operator")
        changes.extend(lines(capsys))
        assert level.shown()["level"] == "debug"
        assert written(capsys) == ["debug", "info", "warning", "error"]
        await asyncio.sleep(599)
        assert written(capsys) == ["debug", "info", "warning", "error"]
        await asyncio.sleep(2)
        changes.extend(lines(capsys))
        assert written(capsys) == ["info", "warning", "error"]
        assert level.shown() == {"level": "info", "configured": "info", "until": None}

    run_in_virtual_time(changed())
    assert told == ["debug", None]
    facts = [(line["event"], line["new_level"], line["asked_by"], line.get("seconds")) for line in changes]
    assert facts == [
        ("log level changed", "debug", "an operator", 600), ("log level changed", "info", "its time was over", None),
    ]  # fmt: skip


def test_each_change_is_in_the_log_whatever_is_written_otherwise(capsys: Capture) -> None:
    async def changed() -> None:
        level = LogLevel(Logging(format="json", level="error"))
        level.change("warning", 60, "an operator")
        level.change(CONFIGURED, 60, "an operator")

    asyncio.run(changed())
    assert [line["event"] for line in lines(capsys)] == ["log level changed"] * 2
    assert written(capsys) == ["error"]


def test_a_later_change_counts_for_its_own_time(capsys: Capture) -> None:
    async def changed() -> None:
        level = LogLevel(JSON)
        level.change("debug", 10, "an operator")
        level.change("warning", 100, "an operator")
        await asyncio.sleep(50)
        assert written(capsys) == ["warning", "error"]

    run_in_virtual_time(changed())


def test_a_reload_with_another_level_counts_at_once_and_any_other_leaves_the_operators(capsys: Capture) -> None:
    async def changed() -> None:
        level = LogLevel(JSON)
        level.change("debug", 600, "an operator")
        level.configure(JSON.model_copy(update={"lines_per_address": 5}))
        assert written(capsys) == ["debug", "info", "warning", "error"]
        level.configure(JSON.model_copy(update={"level": "error"}))
        assert written(capsys) == ["error"]
        await asyncio.sleep(601)
        assert level.shown() == {"level": "error", "configured": "error", "until": None}
        assert written(capsys) == ["error"]

    run_in_virtual_time(changed())
