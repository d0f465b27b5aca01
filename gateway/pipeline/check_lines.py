"""Checks that every line of every ingested segment is in the lake, once, identified by (boot, number).

The numbers of a segment are compared as sums, which the engine computes: how many, the first and the last one, and the
sums of the numbers, their squares and their cubes. Numbers that are not those from the first to the last, each once,
have other sums, unless somebody chose them so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final

from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.progress import CheckOutput, first_few
from gateway.texts import counted

Range = tuple[int, int]
"""Numbers from and to, both included."""

SUMS: Final = (
    "count(*) lines, min(seq) first, max(seq) last, sum(seq) sum1, sum(seq * seq) sum2, sum(seq * seq * seq) sum3"
)
"""The SQL of the sums, modulo 2^64."""

_MODULUS: Final = 1 << 64
_MOST_RANGES: Final = 8

_DOUBLE: Final = ("segment", "is recorded more than once", "are recorded more than once")
_DIFFERING: Final = ("segment", "does not have its lines as rows", "do not have their lines as rows")
_FOREIGN: Final = (
    "segment",
    "has rows, and the table segments does not have it",
    "have rows, and the table segments does not have them",
)
_TOTALS: Final = (
    "sum(lines) lines, min(first) first, max(last) last, sum(sum1) sum1, sum(sum2) sum2, sum(sum3) sum3, "
    "bool_or(is_deleted) is_deleted"
)

# A row for each segment: what is recorded of it, and what is there of it.
_SEGMENTS: Final = f"""
with present as (select file, d, {SUMS}, false is_deleted from events where d >= '%(eve)s' group by file, d),
deleted as (
    select file, d, lines, first, last, sum1, sum2, sum3, true is_deleted from deleted_lines
    where (file, d) not in (select (file, d) from present)),
found as (select file, {_TOTALS} from (select * from present union all select * from deleted) group by file),
bad as (select file, count(*) bad from bad_lines where d >= '%(since)s' group by file),
recorded as (
    select name, max(boot) boot, max(node) node, max(lines) lines, max(bad) bad, max(batch) batch, count(*) times,
        first_value(days) days
    from segments where d >= '%(since)s' group by name)
select r.name, r.boot, r.node, r.lines, r.bad, r.batch, r.times, r.days, coalesce(f.file, b.file) file,
    coalesce(b.bad, 0) bad_found, coalesce(f.lines, 0) found, f.first, f.last, f.sum1, f.sum2, f.sum3, f.is_deleted
from recorded r full join found f on f.file = r.name full join bad b on b.file = coalesce(r.name, f.file)
where '%(since)s' = '' or r.name is not null
order by r.boot, length(r.name), r.name
"""  # noqa: S608


@dataclass
class _Boot:
    """A boot as far as its segments have been read."""

    name: str
    node: str
    expected: int | None = 0
    """The number that must come next; None if the boot began before the segments that are checked."""
    spare: int = 0
    """Bad lines of the last segments, which may have had some of the next numbers."""
    missing: list[Range] = field(default_factory=list)
    repeated: list[Range] = field(default_factory=list)


class LineChecker:
    """Looks for missing and repeated lines of each boot, segment by segment in the order of numbers.

    Memory: DataFusion groups lines by segment and day, which are some hundred bytes each; this class keeps one boot.
    """

    def __init__(self, snapshot: Snapshot, applied: int, output: CheckOutput, since: str = "") -> None:
        self._snapshot = snapshot
        self._since = since
        """The first day of segments that are checked; all if empty."""
        self._applied = applied
        """The last batch that all recorded tables have; later ones are not checked."""
        self._output = output
        self._odd: dict[tuple[str, str, str], list[str]] = {what: [] for what in (_DOUBLE, _DIFFERING, _FOREIGN)}
        self._totals = Counter[str]()

    def check(self) -> None:
        """Check all boots."""
        boot: _Boot | None = None
        # Lines of a segment may be of the day before the one on which it was begun, by a clock that was set.
        eve = f"{date.fromisoformat(self._since) - timedelta(days=1)}" if self._since else ""
        for row in self._snapshot.rows(_SEGMENTS % {"since": self._since, "eve": eve}):
            if row["name"] is None:
                self._odd[_FOREIGN].append(str(row["file"]))
            elif row["batch"] <= self._applied:
                if boot is None or boot.name != row["boot"]:
                    self._report(boot)
                    is_known = not self._since or row["first"] == 0
                    boot = _Boot(str(row["boot"]), str(row["node"]), 0 if is_known else None)
                self._check_segment(boot, row)
        self._report(boot)
        self._report_segments()

    def _check_segment(self, boot: _Boot, row: Mapping[str, Any]) -> None:
        self._totals.update(segments=1, lines=row["lines"], bad=row["bad"], with_bad=row["bad"] > 0)
        if row["times"] > 1:
            self._odd[_DOUBLE].append(row["name"])
        elif (row["found"], row["bad_found"]) != (row["lines"] - row["bad"], row["bad"]):
            self._odd[_DIFFERING].append(
                f"{row['name']}: {row['found']:,} events and {row['bad_found']:,} bad lines of {row['lines']:,} lines"
            )
        if not row["found"]:
            boot.spare += row["bad"]
            return
        self._check_numbers(boot, row)

    def _check_numbers(self, boot: _Boot, row: Mapping[str, Any]) -> None:
        """Compare a segment's numbers with those that follow the last one's. A bad line explains a missing number."""
        first, last, bad = row["first"], row["last"], row["bad"]
        if boot.expected is None:
            boot.expected = first
        if first < boot.expected:
            boot.repeated.append((first, min(last, boot.expected - 1)))
        elif first > boot.expected:
            explained = min(first - boot.expected, boot.spare + bad)
            bad -= max(0, explained - boot.spare)
            if boot.expected + explained < first:
                boot.missing.append((boot.expected + explained, first - 1))
        missing, repeated = self._within(row)
        boot.missing += without_first(missing, bad)
        boot.repeated += repeated
        boot.spare = max(0, bad - count(missing))
        boot.expected = max(boot.expected, last + 1)

    def _within(self, row: Mapping[str, Any]) -> tuple[list[Range], list[Range]]:
        """The missing and repeated numbers between the first and the last of a segment."""
        first, last = row["first"], row["last"]
        complete = (last - first + 1, *sums_of_range(first, last))
        if (row["found"], row["sum1"], row["sum2"], row["sum3"]) == complete:
            return [], []
        if row["is_deleted"]:  # of the deleted lines only the sums are known
            return ([(first, last)], []) if row["found"] < complete[0] - row["bad"] else ([], [])
        where = f"file = '{row['name']}' and d in ({', '.join(map(repr, row['days']))})"
        steps = f"select seq, lag(seq) over (order by seq) before from events where {where}"  # noqa: S608
        odd = [*self._snapshot.rows(f"select * from ({steps}) where seq <> before + 1 order by seq")]  # noqa: S608
        missing = [(step["before"] + 1, step["seq"] - 1) for step in odd if step["seq"] > step["before"]]
        return missing, [(step["seq"], step["seq"]) for step in odd if step["seq"] == step["before"]]

    def _report(self, boot: _Boot | None) -> None:
        if boot is None:
            return
        self._totals.update(boots=1, complete=not boot.missing and not boot.repeated)
        name = f"boot {boot.name} ({boot.node})"
        if boot.missing:
            missing = joined(boot.missing)
            self._output.wrong(
                f"{name}: {counted(count(missing), 'line', 'is', 'are')} missing: {in_words(missing)}",
                "If a journal still has the segments with these lines, `pipeline check --journal` names them, and "
                "`pipeline ingest` takes them up. If none has, they are lost.",
            )
        if boot.repeated:
            repeated = joined(boot.repeated)
            self._output.wrong(
                f"{name}: {counted(count(repeated), 'line', 'is', 'are')} there more than once: {in_words(repeated)}",
                "Rows were copied within the lake, or a segment was ingested under two names: the column file of "
                "events says which. Ingest the journal into a new lake.",
            )

    def _report_segments(self) -> None:
        anew = "Restore the lake from a backup, or ingest the journal into a new lake."
        for what, found in self._odd.items():
            if found:
                self._output.wrong(f"{counted(len(found), *what)}: {first_few(found)}", anew)
        totals = self._totals
        self._output.ok(f"{counted(totals['segments'], 'segment')}, {counted(totals['lines'], 'line')}")
        boots = counted(totals["boots"], "boot", "has all its numbers", "have all their numbers")
        self._output.ok(f"{totals['complete']:,} of {boots}, each once")
        if totals["bad"]:
            self._output.note(
                f"{counted(totals['bad'], 'bad line')} in {counted(totals['with_bad'], 'segment')}",
                "They could not be read; the table bad_lines has them as they are, and why.",
            )


def sums_of_range(first: int, last: int) -> tuple[int, int, int]:
    """The last three of `SUMS` for all numbers from first to last."""
    before, all_of_them = _sums_up_to(first - 1), _sums_up_to(last)
    one, two, three = (wrapped(upper - lower) for upper, lower in zip(all_of_them, before, strict=True))
    return one, two, three


def _sums_up_to(last: int) -> tuple[int, int, int]:
    one = last * (last + 1) // 2
    return one, one * (2 * last + 1) // 3, one * one


def wrapped(value: int) -> int:
    """A sum as 64 bits with a sign hold it."""
    return (value + _MODULUS // 2) % _MODULUS - _MODULUS // 2


def count(found: Iterable[Range]) -> int:
    """How many numbers there are in ranges."""
    return sum(last - first + 1 for first, last in found)


def without_first(found: Iterable[Range], skipped: int) -> list[Range]:
    """Ranges without their first numbers."""
    result = []
    for first, last in found:
        skip = min(skipped, last - first + 1)
        skipped -= skip
        if first + skip <= last:
            result.append((first + skip, last))
    return result


def joined(found: Iterable[Range]) -> list[Range]:
    """Ranges sorted, with overlapping and adjacent ones merged."""
    result: list[Range] = []
    for first, last in sorted(found):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def in_words(found: Sequence[Range]) -> str:
    """The first ranges as text: 5-9, 12 and 3 more ranges."""
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:_MOST_RANGES]]
    rest = f" and {len(found) - _MOST_RANGES} more ranges" if len(found) > _MOST_RANGES else ""
    return ", ".join(texts) + rest
