"""Types of options that several commands of `stomp-gateway pipeline` have."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import Final

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""Seconds by the letter of a unit."""


def duration(text: str) -> float:
    """The seconds in a duration such as 30s, 5m, 2h or 7d."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: write 30s, 5m, 2h or 7d")
    return float(found[1]) * UNITS[found[2]]


def moment(text: str) -> datetime:
    """A time such as 2026-11-21 or 2026-11-21T14:30, in UTC unless it has a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 2026-11-21 or 2026-11-21T14:30") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def above_zero(text: str) -> float:
    """A number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found
