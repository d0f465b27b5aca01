"""docs/limits.md: its defaults are the configuration's, and its answers, counters and log lines are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.config.loader import parse
from gateway.config.virtual_host import Limit, Prefetch, VirtualHost
from gateway.errors import CloseReason
from gateway.session.context import Hold

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^\| what a client does \|.*?\n\n", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`]+)`")
NUMBER = re.compile(r"([0-9][0-9,]*) ?(KiB|MiB|min|s|)\b")
UNITS = {"": 1, "s": 1, "min": 60, "KiB": 1 << 10, "MiB": 1 << 20}
# What several keys below one name mean, in the order of the page.
PARTS = {"transactions": ("max_open", "max_actions", "max_bytes"), "confirm_window": ("messages", "bytes")}
SOURCE = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "gateway").rglob("*.py")))


class Row(NamedTuple):
    """A line of the table."""

    what: str
    key: str
    default: str
    answer: str
    counter: str
    log: str


def rows() -> Iterator[Row]:
    found = TABLE.search((ROOT / "docs" / "limits.md").read_text("utf-8"))
    assert found is not None
    for line in found[0].strip().splitlines()[2:]:
        yield Row(*(cell.strip() for cell in line.strip("|").split("|")))


ROWS = list(rows())
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)


def setting(name: str) -> object:
    """The default of a key: of the gateway, a listener or a virtual host."""
    config = parse("listeners: [{tcp: '127.0.0.1:0'}]", environment={})
    first, _, rest = name.partition(".")
    for place in (config.listeners[0], VirtualHost(name="/"), config):
        if hasattr(place, first):
            found = getattr(place, first)
            return getattr(found, rest) if rest else found
    raise AssertionError(f"there is no key {name}")


def keys(row: Row) -> list[str]:
    """The keys of a row; one without a section is in the section of the one before it."""
    found: list[str] = []
    for name in QUOTED.findall(row.key):
        section = found[-1].rpartition(".")[0] if found and "." not in name else ""
        found += [f"{name}.{part}" for part in PARTS[name]] if name in PARTS else [f"{section}.{name}".lstrip(".")]
    return found


@each_row
def test_defaults_are_those_of_the_configuration(row: Row) -> None:
    numbers = [int(digits.replace(",", "")) * UNITS[unit] for digits, unit in NUMBER.findall(row.default)]
    for name, number in zip(keys(row), numbers, strict=False):
        assert setting(name) == number, name
    if row.default == "none":
        assert {str(setting(name)) for name in keys(row)} <= {"None", str(Limit()), str(Prefetch())}
    else:
        assert len(numbers) >= len(keys(row)) or not numbers


@each_row
def test_every_error_counter_hold_and_log_line_is_there(row: Row) -> None:
    errors = re.findall(r"ERROR `([^`]+)`(?: or `([^`]+)`)?", row.answer)
    for message in filter(None, (text for pair in errors for text in pair)):
        assert f'"{message}"' in SOURCE
    for code in re.findall(r"code `([^`]+)`", row.counter):
        assert code in {text.lower().replace(" ", "-") for pair in errors for text in pair}
    for reason in re.findall(r"reason `([^`]+)`", row.counter):
        assert reason in {str(each.value) for each in CloseReason}
    for name in re.findall(r"`(stomp_gateway_\w+)`", row.counter):
        assert f'"{name.removeprefix("stomp_gateway_").removesuffix("_total")}' in SOURCE
    if row.answer.startswith("hold"):
        assert set(QUOTED.findall(row.answer)) <= {each.value for each in Hold}
    for event in QUOTED.findall(row.log):
        assert f'"{event}"' in SOURCE or f"{event}=" in SOURCE
