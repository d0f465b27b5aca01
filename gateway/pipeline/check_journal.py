"""Compares a lake with the segments that journals still have."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.journal.schema import VERSION
from gateway.journal.segments import SegmentName
from gateway.pipeline.lake import closed_before
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.progress import CheckOutput, first_few
from gateway.pipeline.stored_segments import OddFile, StoredSegment, listed

_ABANDONED_AFTER: Final = 3600.0
"""Seconds without a write after which an open segment probably belongs to a dead gateway."""

_ASIDE: Final = """
select name, last_value(reason order by seen) reason from segments_aside
where name not in (select name from segments) and d >= '%s' group by name order by name
"""
_WRONG: Final = {
    "changed": (
        "ingested segments have changed since",
        "A finished segment must never be written again. Find out who did; the lake has what was there first.",
    ),
    "overdue": (
        "segments wait for hours",
        "No ingest runs, it fails, or it does not read this journal. Run `pipeline ingest`, and look at its messages.",
    ),
    "too late": (
        "segments are of days that the lake has closed",
        "It has forgotten which of them it has. Move them elsewhere, or ingest them into another lake.",
    ),
    "refused": (
        "files of the journal are no segments that may be read",
        "Links could lead to any file. Put the segments themselves there.",
    ),
    "passed over": (
        "segments were passed over, though later ones of the same boots are in the lake",
        "Run `pipeline ingest`. If they are not in the lake then, ingest the journal into a new one.",
    ),
}
_NOTED: Final = {
    "waiting": (
        "segments are not ingested yet",
        "They are newer than what the lake has of their boots, as usual. Run `pipeline ingest`.",
    ),
    "later": (
        "segments are of another schema version",
        "This release cannot read them, and their lines are not in the lake. Ingest with that which wrote them.",
    ),
    "odd": (
        "files of the journal have names that no gateway gives",
        "Nobody reads them. Give a segment its name again, or move the file elsewhere.",
    ),
    "abandoned": (
        "open segments have not been written for an hour",
        "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them.",
    ),
}


OVERDUE: Final = 6 * 3600.0
"""Seconds since the last write of a finished segment after which it should be in the lake, if not said otherwise."""


def check_aside(snapshot: Snapshot, output: CheckOutput) -> set[str]:
    """Tell which segments are aside, and why; return their names."""
    closed = closed_before(snapshot.tables["segments"])
    reasons = {row["name"]: f"{row['name']} ({row['reason']})" for row in snapshot.rows(_ASIDE % closed)}
    if reasons:
        output.wrong(
            f"{len(reasons)} segments are aside: {first_few([*reasons.values()])}",
            "Mend or restore them in their journals; the next `pipeline ingest` takes in those that have changed, and "
            "`pipeline ingest --again` tries all of them.",
        )
    return {*reasons}


def check_journals(
    snapshot: Snapshot, journals: Sequence[Path | str], aside: Container[str], overdue: float, output: CheckOutput
) -> None:
    """Compare the lake with the segments of journals.

    Args:
        snapshot: of the lake.
        journals: directories or URLs.
        aside: segments of which something was told already.
        overdue: seconds, see `OVERDUE`.
        output: of the check.

    Raises:
        PipelineError: a journal cannot be listed.
    """
    if not journals:
        return
    closed = closed_before(snapshot.tables["segments"])
    known = {str(row["name"]): row["lines"] for row in snapshot.rows("select name, lines from segments")}
    newest: dict[str, int] = {}
    for each in map(SegmentName.read, known):
        if each is not None:
            newest[each.boot] = max(each.number, newest.get(each.boot, -1))
    same, found = 0, {kind: list[str]() for kind in (*_WRONG, *_NOTED)}
    for journal in journals:
        for file in listed(journal):
            if isinstance(file, OddFile):
                found["refused" if file.is_refused else "odd"].append(str(file))
                continue
            if str(file.name) in aside:
                continue
            with suppress(FileNotFoundError):  # the gateway or `gc` has deleted it meanwhile
                kind, text = _compared(file, known.get(str(file.name)), newest.get(file.name.boot, -1), closed, overdue)
                if kind in found:
                    found[kind].append(text)
                same += kind == "same"
    _tell(output.wrong, found, _WRONG)
    output.ok(f"{same:,} segments of the journal have as many lines as were ingested")
    _tell(output.note, found, _NOTED)


def _tell(
    tell: Callable[[str, str], None], found: Mapping[str, list[str]], kinds: Mapping[str, tuple[str, str]]
) -> None:
    for kind, (what, advice) in kinds.items():
        if found[kind]:
            tell(f"{len(found[kind])} {what}: {first_few(found[kind])}", advice)


def _compared(segment: StoredSegment, lines: int | None, newest: int, closed: str, overdue: float) -> tuple[str, str]:
    """How a segment compares with the lake, and what to print of it.

    ``lines`` are those that were ingested, ``newest`` is the boot's last number in the lake, ``closed`` the first day
    that is not closed, and ``overdue`` as in `check_journals`.
    """
    name = str(segment.name)
    if segment.is_open:
        is_abandoned = time.time() - segment.written > _ABANDONED_AFTER
        return "abandoned" if is_abandoned else "being written", segment.name.while_open
    if segment.name.version != VERSION:
        return "later", name
    if lines is None:
        if segment.day < closed:
            return "too late", name
        is_overdue = time.time() - segment.written > overdue
        return "passed over" if segment.name.number < newest else "overdue" if is_overdue else "waiting", name
    now = segment.count_lines()
    return ("same", name) if now == lines else ("changed", f"{name}: {now:,} lines, {lines:,} when ingested")
