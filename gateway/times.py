"""Times as journals and programs hold them, microseconds since the epoch, and as texts; in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST, _LAST = ((limit.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for limit in (datetime.min, datetime.max))


def datetime_of(micros: float) -> datetime:
    """A time as a datetime, limited to the first and last one that it can represent: clients may write any number."""
    return _EPOCH + timedelta(microseconds=min(max(int(micros), _FIRST), _LAST))


def micros_of(moment: datetime) -> int:
    """A datetime as microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(micros: float) -> str:
    """A time to the second, for people: 2026-11-21 14:05:10."""
    return datetime_of(micros).replace(tzinfo=None).isoformat(" ", "seconds")


def iso(micros: float, timespec: str) -> str:
    """A time in ISO 8601, for programs: 2026-11-21T14:05:10Z. ``timespec`` is as in `datetime.isoformat`."""
    return datetime_of(micros).isoformat(timespec=timespec).replace("+00:00", "Z")


def utc(text: str) -> datetime:
    """A time in ISO 8601, in UTC unless it says otherwise. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
