"""Line numbers of a boot: is each of them there, exactly once? Computed by Arrow, never row by row in Python.

Count, largest and a *fingerprint* of a set of numbers are compared with those of 0 to the largest. The fingerprint is
the sum, modulo 2^64, of a hash of each number: equal for equal multisets, and different for others except with a
probability of 1 in 2^64. Only if they differ, the numbers themselves are sorted, window by window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Range = tuple[int, int]
"""Numbers from and to, both included."""

WINDOW: Final = 1 << 22
"""Numbers that are sorted at a time."""

_CHUNK: Final = 1 << 18
_MODULUS: Final = 1 << 64


def hashed(numbers: pa.Array) -> pa.Array:
    """The finaliser of SplitMix64 of each number, as uint64."""
    value = pc.add(pc.cast(numbers, pa.uint64(), safe=False), _u64(0x9E3779B97F4A7C15))
    value = pc.multiply(pc.bit_wise_xor(value, pc.shift_right(value, _u64(30))), _u64(0xBF58476D1CE4E5B9))
    value = pc.multiply(pc.bit_wise_xor(value, pc.shift_right(value, _u64(27))), _u64(0x94D049BB133111EB))
    return pc.bit_wise_xor(value, pc.shift_right(value, _u64(31)))


@cache
def _u64(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint64())


@cache
def _first_chunk() -> pa.Array:
    return pa.array(range(_CHUNK), pa.int64())


def fingerprint_of_range(first: int, last: int) -> int:
    """The fingerprint of all numbers from first to last."""
    total = 0
    for start in range(first, last + 1, _CHUNK):
        numbers = pc.add(_first_chunk().slice(0, min(_CHUNK, last + 1 - start)), pa.scalar(start, pa.int64()))
        total += pc.sum(hashed(numbers)).as_py()
    return total % _MODULUS


def fingerprint_of(numbers: Sequence[int]) -> int:
    """The fingerprint of some numbers."""
    return (pc.sum(hashed(pa.array(numbers, pa.int64()))).as_py() or 0) % _MODULUS


def ranges_of_sorted(numbers: pa.Array) -> list[Range]:
    """Sorted numbers as ranges; a repeated number makes a range of its own."""
    if not len(numbers):
        return []
    steps = pc.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1))
    starts = [numbers[0].as_py(), *numbers.take(pc.add(breaks, pa.scalar(1, pa.uint64()))).to_pylist()]
    ends = [*numbers.take(breaks).to_pylist(), numbers[-1].as_py()]
    return list(zip(starts, ends, strict=True))


def ranges(files: Iterable[Path], boot: str) -> Iterator[Range]:
    """The line numbers of a boot in some Parquet files of events, window by window; a repeated number comes again."""
    groups = [(path, group, *_bounds(path, group)) for path in files for group in range(_groups(path))]
    start = min((first for *_, first, _ in groups), default=None)
    while start is not None:
        end = start + WINDOW - 1
        inside: list[pa.Array] = []
        beyond: list[int] = []
        for path, group, first, last in groups:
            if last < start:
                continue
            if first > end:
                beyond.append(first)
                continue
            numbers = _numbers(path, group, boot)
            inside.append(numbers.filter(pc.and_(pc.greater_equal(numbers, start), pc.less_equal(numbers, end))))
            later = pc.min(numbers.filter(pc.greater(numbers, end))).as_py()
            if later is not None:
                beyond.append(later)
        if inside:
            window = pa.concat_arrays(inside)
            yield from ranges_of_sorted(window.take(pc.sort_indices(window)))
        start = min(beyond, default=None)


def _groups(path: Path) -> int:
    with pq.ParquetFile(path) as file:
        return int(file.metadata.num_row_groups)


def _bounds(path: Path, group: int) -> Range:
    """The smallest and largest number in a row group's statistics, of all boots; the widest range if it has none."""
    with pq.ParquetFile(path) as file:
        column = file.schema_arrow.get_field_index("seq")
        # Columns of a row group are leaves, and a map has two of them: look for the name.
        metadata = file.metadata.row_group(group)
        for index in range(column, metadata.num_columns):
            chunk = metadata.column(index)
            if chunk.path_in_schema == "seq" and chunk.statistics is not None and chunk.statistics.has_min_max:
                return chunk.statistics.min, chunk.statistics.max
    return 0, (1 << 63) - 1


def _numbers(path: Path, group: int, boot: str) -> pa.Array:
    with pq.ParquetFile(path) as file:
        table = file.read_row_group(group, columns=["boot", "seq"])
    numbers = table.filter(pc.equal(table["boot"], boot))["seq"].combine_chunks()
    return numbers if isinstance(numbers, pa.Array) else pa.concat_arrays(numbers.chunks)


def count(found: Iterable[Range]) -> int:
    """How many numbers there are in ranges."""
    return sum(last - first + 1 for first, last in found)


def gaps_and_repeats(found: Iterable[Range]) -> tuple[list[Range], list[Range]]:
    """The numbers missing between 0 and the largest, and those that occur more than once."""
    missing: list[Range] = []
    repeated: list[Range] = []
    expected = 0
    for first, last in sorted(found):
        if first > expected:
            missing.append((expected, first - 1))
        elif first < expected:
            repeated.append((first, min(last, expected - 1)))
        expected = max(expected, last + 1)
    return missing, joined(repeated)


def joined(found: Iterable[Range]) -> list[Range]:
    """Ranges sorted, with overlapping and adjacent ones merged."""
    result: list[Range] = []
    for first, last in sorted(found):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def in_words(found: Sequence[Range], most: int = 8) -> str:
    """Ranges as text: 5-9, 12 and 3 more ranges."""
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:most]]
    rest = f" and {len(found) - most} more ranges" if len(found) > most else ""
    return ", ".join(texts) + rest
