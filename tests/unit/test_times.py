"""Times, which clients and damaged journals may make any number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gateway.times import datetime_of, iso, micros_of, moment, utc

_A_TIME = 1_795_269_910_123_456


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (moment(_A_TIME), "2026-11-21 14:05:10"),
        (iso(_A_TIME, "seconds"), "2026-11-21T14:05:10Z"),
        (iso(_A_TIME, "milliseconds"), "2026-11-21T14:05:10.123Z"),
        (iso(_A_TIME, "microseconds"), "2026-11-21T14:05:10.123456Z"),
        (moment(1 << 63), "9999-12-31 23:59:59"),
        (moment(-1), "1969-12-31 23:59:59"),
        (moment(-1 << 63), "0001-01-01 00:00:00"),
    ],
)
def test_times_are_texts(shown: str, text: str) -> None:
    assert shown == text


def test_a_time_is_the_same_both_ways() -> None:
    assert micros_of(datetime_of(_A_TIME)) == _A_TIME


def test_a_text_without_a_zone_is_utc() -> None:
    assert utc("2026-11-21T14:05") == datetime(2026, 11, 21, 14, 5, tzinfo=UTC)
    assert utc("2026-11-21T14:05+02:00") == datetime(2026, 11, 21, 14, 5, tzinfo=timezone(timedelta(hours=2)))
    assert utc("2026-11-21").isoformat() == "2026-11-21T00:00:00+00:00"
