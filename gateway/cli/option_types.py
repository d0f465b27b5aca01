"""Types of options that several commands have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic_core import PydanticCustomError

from gateway.config.scalars import Duration, Size

T = TypeVar("T")

NULL: Final = "null"
"""No limit. A configuration file has it for `journal.retain_bytes`, and no such value for `journal.retain`."""


def duration(text: str) -> float:
    """The seconds in a duration above 0, in the forms that a configuration file takes."""
    return _read(Duration(zero=False).read, text)


def duration_or_null(text: str) -> float:
    """The same; null, which is none of those forms, is for ever."""
    return math.inf if text == NULL else duration(text)


def size(text: str) -> int:
    """The bytes in a size above 0, in the forms that a configuration file takes."""
    found = _read(Size().read, text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 64MiB or 1GiB")
    return found


def size_or_null(text: str) -> int | None:
    """The same; null is no limit."""
    return None if text == NULL else size(text)


def _read(read: Callable[[str], T], text: str) -> T:
    """What a reader of configuration files makes of an option; a mistake has the same words, advice included."""
    try:
        return read(text)
    except PydanticCustomError as error:
        advice = (error.context or {}).get("suggestion")
        raise argparse.ArgumentTypeError(f"{error.message()} {advice}" if advice else error.message()) from None


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
