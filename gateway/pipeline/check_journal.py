"""Compares a lake with the segments that journals still have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.journal.schema import VERSION
from gateway.journal.segments import SegmentName
from gateway.pipeline.check_output import CheckOutput, first_few
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.stored_segments import StoredSegment, stored_segments

_ABANDONED_AFTER: Final = 3600.0
"""Seconds without a write after which an open segment probably belongs to a dead gateway."""


@dataclass
class _Compared:
    """The segments of journals, compared with the lake."""

    same: int = 0
    changed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)

    def add(self, segment: StoredSegment, lines: int | None, newest: int) -> None:
        """Add a segment; ``lines`` are those that were ingested, ``newest`` is the boot's last number in the lake."""
        name = str(segment.name)
        if segment.is_open:
            if time.time() - segment.written > _ABANDONED_AFTER:
                self.abandoned.append(segment.name.while_open)
        elif segment.name.version != VERSION:
            self.later.append(name)
        elif lines is None:
            (self.passed_over if segment.name.number < newest else self.waiting).append(name)
        elif (now := segment.count_lines()) != lines:
            self.changed.append(f"{name}: {now:,} lines, {lines:,} when ingested")
        else:
            self.same += 1

    def report(self, output: CheckOutput) -> None:
        """Tell what was found."""
        if self.changed:
            output.wrong(
                f"{len(self.changed)} ingested segments have changed since: {first_few(self.changed)}",
                "A finished segment must never be written again. Find out who did; the lake has what was there first.",
            )
        if self.passed_over:
            output.wrong(
                f"{len(self.passed_over)} segments were passed over, though later ones of the same boots are in the "
                f"lake: {first_few(self.passed_over)}",
                "Run `pipeline ingest`. If they are not in the lake then, ingest the journal into a new one.",
            )
        output.ok(f"{self.same:,} segments of the journal have as many lines as were ingested")
        for found, what, advice in (
            (self.waiting, "segments are not ingested yet",
             "They are newer than what the lake has of their boots, as usual. Run `pipeline ingest`."),
            (self.later, "segments are of another schema version",
             "This release cannot read them, and their lines are not in the lake. Ingest with that which wrote them."),
            (self.abandoned, "open segments have not been written for an hour",
             "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them."),
        ):  # fmt: skip
            if found:
                output.note(f"{len(found)} {what}: {first_few(found)}", advice)


def check_journals(snapshot: Snapshot, journals: Sequence[Path | str], output: CheckOutput) -> None:
    """Compare the lake with the segments of journals. Raises PipelineError if one cannot be listed."""
    if not journals:
        return
    known = {str(row["name"]): row["lines"] for row in snapshot.rows("select name, lines from segments")}
    newest: dict[str, int] = {}
    for each in map(SegmentName.read, known):
        if each is not None:
            newest[each.boot] = max(each.number, newest.get(each.boot, -1))
    compared = _Compared()
    for journal in journals:
        for segment in stored_segments(journal):
            with suppress(FileNotFoundError):  # the gateway or `gc` has deleted it meanwhile
                compared.add(segment, known.get(str(segment.name)), newest.get(segment.name.boot, -1))
    compared.report(output)
