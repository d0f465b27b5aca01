"""Texts for people, whichever command prints them."""

from __future__ import annotations

import pytest

from gateway.admin.terminal_output import rate, since
from gateway.texts import byte_size, count, counted, duration, latency, printable, three_digits


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (count(9999), "9,999"),
        (count(999_950), "1M"),
        (count(12_345), "12.3k"),
        (rate(0.004), "0.004/s"),
        (rate(1234), "1,234/s"),
        (rate(None), "-"),
        (byte_size(1023), "1023 B"),
        (byte_size(1536), "1.5 KiB"),
        (byte_size(float("inf")), "inf TiB"),
        (duration(59.9), "59 s"),
        (duration(3 * 86400 + 4 * 3600 + 59), "3 d 4 h"),
        (duration(12 * 60), "12 min"),
        (duration(12 * 86400 + 4 * 3600 + 59), "12 d 4 h"),
        (duration(12 * 86400 + 59), "12 d"),
        (duration(0.5), "0 s"),
        (duration(-5), "0 s"),
        (latency(0), "0 us"),
        (latency(0.00123), "1.23 ms"),
        (latency(0.000045), "45 us"),
        (latency(0.0009999), "1 ms"),
        (latency(0.99995), "1 s"),
        (latency(59.949), "59.9 s"),
        (latency(59.999), "1 min"),
        (latency(7260), "2 h 1 min"),
        (since("2026-11-21T10:00:00.000Z", 1795255260.0), "1 min"),
        (since("2026-11-21T10:00:00.000Z", 1795255400.0), "3 min 20 s"),
    ],
)
def test_numbers_have_units(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.1234, "0.123"), (4.5, "4.5"), (45.67, "45.7"), (789.4, "789"), (-1.239, "-1.24")]
)
def test_three_digits_are_enough(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_nouns_follow_their_numbers() -> None:
    assert counted(1, "segment", "is aside", "are aside") == "1 segment is aside"
    assert counted(2000, "batch", "is planned", "are planned") == "2,000 batches are planned"
    assert counted(0, "line") == "0 lines"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Jürgen\u3000日本", "Jürgen\u3000日本"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\nb\u202e", r"a\nb\u202e"),
    ],
)
def test_nothing_controls_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
