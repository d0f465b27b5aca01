"""The page about limits names keys that exist, with the defaults that they have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.config.listener_settings import Listener
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"
MODELS = (GatewayConfig, VirtualHost, Listener)
UNITS = {"": 1, "s": 1, "min": 60, "KiB": 1 << 10, "MiB": 1 << 20}
NUMBER = re.compile(r"([0-9][0-9,]*) ?(KiB|MiB|min|s)?\b")


def rows() -> Iterator[tuple[list[str], str]]:
    """Keys and defaults, as the first table has them."""
    for line in PAGE.read_text().partition("## Memory")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and not set(cells[1]) <= {"-"} and cells[2] != "key":
            yield re.findall(r"`([a-z_.]+)`", cells[2]), cells[3]


def default(key: str) -> object:
    """The default of a key of the configuration, wherever it stands; the last parts of a name may be enough."""
    first, *rest = key.split(".")
    for model in MODELS:
        if first in model.model_fields:
            value = model.model_fields[first].get_default(call_default_factory=True)
            for name in rest:
                value = getattr(value, name)
            return value
    raise KeyError(key)


@pytest.mark.parametrize(("keys", "stated"), [row for row in rows() if row[0]], ids=lambda value: str(value)[:40])
def test_the_keys_exist_and_have_these_defaults(keys: list[str], stated: str) -> None:
    names, scope = [], ""
    for key in keys:
        # The second key of a row may leave out what the first one says.
        names.append(key if "." in key or not scope or known(key) else f"{scope}.{key}")
        scope = names[-1].rpartition(".")[0]
    values = [default(name) for name in names]
    numbers = [int(number.replace(",", "")) * UNITS[unit] for number, unit in NUMBER.findall(stated)]
    plain = [value for value in values if isinstance(value, int | float)]
    if stated == "none":
        assert all(value is None or isinstance(value, BaseModel) for value in values)
    elif len(plain) == len(values) == len(numbers):
        assert numbers == plain
    else:
        assert set(plain) <= set(numbers) or not stated


def known(key: str) -> bool:
    return any(key in model.model_fields for model in MODELS)
