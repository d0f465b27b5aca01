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

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
"""The first moment that `datetime` can represent."""
LAST: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
"""The last one, the end of the year 9999."""
NOTHING: Final = "-"
"""Stands for a missing figure."""

_SPACE: Final = "\u00a0"  # a figure and its unit stay on one line
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_THOUSAND: Final = 1000
_FEW: Final = 10_000
_SHORT_UNITS: Final = (("µs", 1, 1000.0), ("ms", MILLISECOND, 1000.0), ("s", SECOND, 60.0))
_LONG_UNITS: Final = (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND))
_SMALL_SHARE: Final = 0.001
_WHOLE_SHARE: Final = 0.1


def three_digits(value: float) -> str:
    """A value to three significant digits: 0.123, 1.2, 45.6, 789."""
    if value == 0:
        return "0"
    text = f"{value:.{max(0, 2 - floor(log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float) -> tuple[str, str]:
    power = 0
    while abs(float(three_digits(value))) >= _THOUSAND and power < len(_PREFIXES) - 1:
        value, power = value / _THOUSAND, power + 1
    return three_digits(value), _PREFIXES[power]


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
    if 0 < part < _SMALL_SHARE:
        return f"under{_SPACE}0.1{_SPACE}%"
    return f"{part * 100:.1f}{_SPACE}%" if part < _WHOLE_SHARE else f"{part * 100:.0f}{_SPACE}%"


def latency(micros: float | None) -> str:
    """A latency: 850 µs, 12.3 ms, 1.24 s, 3 min 20 s."""
    if micros is None:
        return NOTHING
    for unit, length, limit in _SHORT_UNITS:
        digits = three_digits(micros / length)
        if float(digits) < limit:
            return f"{digits}{_SPACE}{unit}"
    return duration(micros)


def duration(micros: float) -> str:
    """A length of time in its two largest units: 3 min 20 s, 12 d 4 h."""
    left = round(micros / SECOND) * SECOND
    parts = []
    for unit, length in _LONG_UNITS:
        whole, left = divmod(left, length)
        parts.append((whole, unit))
    first = next((place for place, (whole, _) in enumerate(parts) if whole), len(parts) - 1)
    chosen = parts[first : first + 2]
    return " ".join(f"{whole}{_SPACE}{unit}" for place, (whole, unit) in enumerate(chosen) if whole or not place)


def datetime_of(micros: float) -> datetime:
    """A time as a datetime, limited to the first and last one that it can represent."""
    return EPOCH + timedelta(microseconds=min(max(int(micros), FIRST), LAST))


def micros_of(moment: datetime) -> int:
    """A datetime as microseconds since the epoch."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(micros: float | None) -> str:
    """A time to the second: 2026-11-21 14:05:10."""
    return NOTHING if micros is None else datetime_of(micros).strftime("%Y-%m-%d %H:%M:%S")


def spoken(micros: float) -> str:
    """A time in a sentence: 14:05:10 on 21 Nov 2026."""
    when = datetime_of(micros)
    return f"{when:%H:%M:%S} on {when.day}{_SPACE}{when:%b}{_SPACE}{when.year}"
