"""Log-linear buckets: 16 for each power of two, so that a value is known to 1/16 of itself. Integers only.

Counts by bucket can be added up in any order, which percentiles cannot. Every value below 16 has a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

_BITS: Final = 4
_PER_OCTAVE: Final = 1 << _BITS


def bucket_of(value: int) -> int:
    """The bucket of a value, for example of microseconds. A negative value counts as 0."""
    if value < _PER_OCTAVE:
        return max(value, 0)
    shift = value.bit_length() - _BITS - 1
    return (shift << _BITS) + (value >> shift)


def lowest_of(bucket: int) -> int:
    """The smallest value in a bucket."""
    if bucket < _PER_OCTAVE:
        return bucket
    shift = (bucket >> _BITS) - 1
    return (_PER_OCTAVE + (bucket & (_PER_OCTAVE - 1))) << shift


def highest_of(bucket: int) -> int:
    """The largest value in a bucket."""
    return lowest_of(bucket + 1) - 1


def percentile(counts: Mapping[int, float], share: float) -> int | None:
    """The largest value of the bucket that holds a percentile, so never too small; None without values.

    ``counts`` are by bucket; ``share`` is 0.99 for the 99th percentile.
    """
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, ceil(share * total))
    seen = 0.0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return highest_of(bucket)
    return highest_of(max(counts))


class Latencies:
    """Counts of latencies by bucket.

    Messages that are confirmed or acknowledged together were mostly sent or delivered together, so those with the same
    latency as the last one are counted first, and go into their bucket together.
    """

    __slots__ = ("_counts", "_latency", "_number")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._latency = self._number = 0

    def add(self, latency: int, number: int = 1) -> None:
        """Count some messages of one latency. HOT."""
        if latency != self._latency:
            self._enter()
            self._latency = latency
        self._number += number

    def _enter(self) -> None:
        if self._number:
            bucket = bucket_of(self._latency)
            self._counts[bucket] = self._counts.get(bucket, 0) + self._number
            self._number = 0

    def take(self) -> dict[int, int]:
        """The counts by bucket since the last call."""
        self._enter()
        counts, self._counts = self._counts, {}
        return counts
