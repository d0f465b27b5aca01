"""Formats numbers, sizes, latencies and times for people. Times are microseconds since the epoch, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import floor, log10
from typing import Final

MILLISECOND: Final = 1000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (
    (limit.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) for limit in (datetime.min, datetime.max)
)
NOTHING: Final = "-"
"""Stands for a missing figure."""

_SPACE: Final = "\u00a0"  # a figure and its unit stay on one line
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_THOUSAND: Final = 1000
_FEW: Final = 10_000


def _three_digits(value: float) -> str:
    """A value to three significant digits: 0.123, 1.2, 45.6, 789."""
    if value == 0:
        return "0"
    text = f"{value:.{max(0, 2 - floor(log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float) -> tuple[str, str]:
    power = 0
    while abs(float(_three_digits(value))) >= _THOUSAND and power < len(_PREFIXES) - 1:
        value, power = value / _THOUSAND, power + 1
    return _three_digits(value), _PREFIXES[power]


def si(value: float) -> str:
    """A number to three digits with a prefix: 950, 1.2k, 34.5M."""
    return "".join(_scaled(value))


def count(value: float) -> str:
    """A count: exact below ten thousand, with a prefix from there on."""
    return exact(value) if value < _FEW else si(value)


def exact(value: float) -> str:
    """A count in full: 1,234,567."""
    return f"{round(value):,}"


def size(value: float) -> str:
    """A number of bytes with a decimal prefix: 1.23 GB."""
    digits, prefix = _scaled(value)
    return f"{digits}{_SPACE}{prefix}B"


def rate(per_second: float) -> str:
    """A rate per second: 1.2k/s."""
    return f"{si(per_second)}/s"


def share(part: float) -> str:
    """A part of 1 as a percentage."""
    percent = part * 100
    text = "under 0.1" if 0 < percent < 0.1 else f"{percent:.1f}" if percent < 10 else f"{percent:.0f}"  # noqa: PLR2004
    return f"{text} %".replace(" ", _SPACE)


def latency(micros: float | None) -> str:
    """A latency: 850 µs, 12.3 ms, 1.24 s, 3 min 20 s."""
    if micros is None:
        return NOTHING
    for unit, length, limit in (("µs", 1, 1000), ("ms", MILLISECOND, 1000), ("s", SECOND, 60)):
        digits = _three_digits(micros / length)
        if float(digits) < limit:
            return f"{digits}{_SPACE}{unit}"
    return duration(micros)


def duration(micros: float) -> str:
    """A length of time in its two largest units: 3 min 20 s, 12 d 4 h."""
    left = round(micros / SECOND) * SECOND
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND)):
        whole, left = divmod(left, length)
        if whole or parts or unit == "s":
            parts.append((whole, unit))
    return " ".join(f"{whole}{_SPACE}{unit}" for place, (whole, unit) in enumerate(parts[:2]) if whole or not place)


def datetime_of(micros: float) -> datetime:
    """A time as a datetime, limited to the first and last one that it can represent."""
    return _EPOCH + timedelta(microseconds=min(max(int(micros), _FIRST), _LAST))


def micros_of(moment: datetime) -> int:
    """A datetime as microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(micros: float | None) -> str:
    """A time to the second: 2026-11-21 14:05:10."""
    return NOTHING if micros is None else datetime_of(micros).strftime("%Y-%m-%d %H:%M:%S")


def spoken(micros: float) -> str:
    """A time in a sentence: 14:05:10 on 21 Nov 2026."""
    when = datetime_of(micros)
    return f"{when:%H:%M:%S} on {when.day}{_SPACE}{when:%b}{_SPACE}{when.year}"
