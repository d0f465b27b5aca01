"""Types of options that several commands have."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pydantic_core import PydanticCustomError

from gateway.config.scalars import Duration


def duration(text: str) -> float:
    """The seconds in a duration above 0, in the forms that a configuration file takes."""
    try:
        return Duration(zero=False).read(text)
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(error.message()) from None


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
