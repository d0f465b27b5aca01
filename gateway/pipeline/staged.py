"""What a batch that has been prepared holds, read from its files without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_CHUNK: Final = 1 << 20
_DAY: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_STEP: Final = 300_000_000
"""How far a clock may have been set during a session, in microseconds, so that its beginning is still found."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a batch by segment: events, and bad lines."""

    events: dict[str, int]
    bad: dict[str, int]

    def lines(self) -> int:
        """All lines that rows were made of."""
        return sum(self.events.values()) + sum(self.bad.values())


@dataclass(frozen=True, slots=True)
class Look:
    """What octets alone tell of a segment: its lines, and whether one of them may be more than one JSON object."""

    lines: int
    odd: bool


_AFTER: Final = (b"\n", b"}", b",")
"""What may follow a brace."""
_ODD: Final = re.compile(rb"\}(?:[^},\n]|,\{)")
"""What stands where a second object begins, or something else; in a text, or from a later gateway, it may be right."""


def look(path: Path) -> Look:
    """Look through a segment, as fast as it can be read.

    A parser stops after the first object of a line. What follows is not seen by it, but in most cases here: a line that
    does not end with a brace, a brace where none should follow, braces that do not come in pairs.
    """
    lines = objects = braces = 0
    odd, last = False, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            lines += chunk.count(b"\n")
            objects += chunk.count(b"}\n") + (last == b"}" and chunk[:1] == b"\n")
            braces += chunk.count(b"{") - chunk.count(b"}")
            odd = odd or _ODD.search(chunk) is not None or (last == b"}" and chunk[:1] not in _AFTER)
            last = chunk[-1:]
    return Look(lines + (last != b"\n"), odd or objects != lines or braces != 0 or last != b"\n")


def count_lines(path: Path) -> int:
    """The lines of a file; one that does not end with LF counts too."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def per_file(table: Path) -> dict[str, int]:
    """How many rows of a staged table come from which segment."""
    found: dict[str, int] = {}
    for path in _files(table):
        column = pq.read_table(path, columns=["file"], read_dictionary=["file"], partitioning=None)["file"]
        for entry in pc.value_counts(column).to_pylist():
            found[entry["values"]] = found.get(entry["values"], 0) + entry["counts"]
    return found


def rows(table: Path) -> int:
    """How many rows a staged table has."""
    return sum(pq.read_metadata(path).num_rows for path in _files(table))


def days(table: Path) -> list[str]:
    """The days of a staged table."""
    return sorted(path.name.removeprefix("d=") for path in table.glob("d=*"))


def session_days(events: Path) -> list[str]:
    """The days on which the sessions began that a batch has the beginning or the end of.

    Where there is only an end, its time and the session's duration tell the beginning, by two clocks; what lies near
    midnight counts for both days.
    """
    found: set[int] = set()
    for path in _files(events, "level=session"):
        table = pq.read_table(path, columns=["ts", "event", "totals"], partitioning=None)
        table = table.filter(pc.is_in(table["event"], pa.array(["conn", "end"])))
        times = table["ts"].cast(pa.int64()).to_pylist()
        totals = table["totals"].to_pylist()
        for time, pairs in zip(times, totals, strict=True):
            began = time - (dict(pairs).get("us", 0) if pairs else 0)
            found.update(((began - _STEP) // _DAY, (began + _STEP) // _DAY))
    limit = (date.max - _EPOCH).days
    return [str(_EPOCH + timedelta(days=number)) for number in sorted(found) if 0 <= number <= limit]


def newest(events: Path) -> float | None:
    """The time of the newest event, in seconds since the epoch."""
    found = []
    for path in _files(events):
        metadata = pq.read_metadata(path)
        column = metadata.schema.names.index("ts")
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                found.append(statistics.max.replace(tzinfo=UTC).timestamp())
    return max(found, default=None)


def _files(table: Path, below: str = "") -> Iterator[Path]:
    pattern = f"d=*/{below}/*.parquet" if below else "**/*.parquet"
    return (path for path in table.glob(pattern) if not path.name.startswith((".", "_")))
