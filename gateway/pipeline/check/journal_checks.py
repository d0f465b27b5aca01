"""Segments of a journal: have the ingested ones changed, and which are not ingested?"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.journal.segments import SegmentName
from gateway.pipeline.check.lake_scan import file_name
from gateway.pipeline.check.output import CheckOutput, first_few, first_paths
from gateway.pipeline.snapshot import LakeSnapshot
from gateway.pipeline.source import count_lines

_ABANDONED_AFTER: Final = 3600.0
"""Seconds without a write after which an open segment probably belongs to a dead gateway."""


def check_segments(snapshot: LakeSnapshot, journal: Path, output: CheckOutput) -> None:
    """Compare the lake with the segments that a journal still has."""
    compared = _Compared()
    known = {segment.path: segment for manifest in snapshot.manifests.values() for segment in manifest.segments}
    by_name = {file_name(path): segment for path, segment in known.items()}
    newest = _newest(known)
    for path in _segments(journal, finished=True, version=1):
        where = path.relative_to(journal).as_posix()
        segment = known.get(where) or by_name.get(path.name)
        name = SegmentName.read(path.name)
        if segment is None:
            passed_over = name is not None and name.number < newest.get(name.boot, -1)
            (compared.passed_over if passed_over else compared.waiting).append(path)
        elif (lines := count_lines(path)) != segment.lines:
            compared.changed.append(f"{where}: {lines:,} lines, {segment.lines:,} when ingested")
        elif where != segment.path:
            compared.moved.append(f"{where}, in the lake as {segment.path}")
        else:
            compared.same += 1
    _report(compared, journal, output)
    _check_other_segments(journal, output)


@dataclass
class _Compared:
    """A journal's segments, compared with the lake."""

    same: int = 0
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    waiting: list[Path] = field(default_factory=list)
    passed_over: list[Path] = field(default_factory=list)


def _newest(known: Iterable[str]) -> dict[str, int]:
    """The largest number of an ingested segment, by boot."""
    newest: dict[str, int] = {}
    for path in known:
        name = SegmentName.read(file_name(path))
        if name is not None:
            newest[name.boot] = max(name.number, newest.get(name.boot, -1))
    return newest


def _report(compared: _Compared, journal: Path, output: CheckOutput) -> None:
    if compared.changed:
        output.wrong(
            f"{len(compared.changed)} ingested segments have changed since: {first_few(compared.changed)}",
            "A finished segment must never be written again. Find out who did; the lake has what was there first.",
        )
    if compared.passed_over:
        output.wrong(
            f"{len(compared.passed_over)} segments were passed over, though later ones of the same boots are in the "
            f"lake: {first_paths(compared.passed_over, journal)}",
            "Run `pipeline ingest`. If they are not in the lake then, ingest the journal into a new one.",
        )
    output.ok(f"{compared.same:,} segments of the journal have as many lines as were ingested")
    if compared.moved:
        output.note(
            f"{len(compared.moved)} segments lie under another day than when they were ingested: "
            f"{first_few(compared.moved)}",
            "Ingest knows segments by their names, and leaves these out. If they are copies, delete them.",
        )
    if compared.waiting:
        output.note(
            f"{len(compared.waiting)} segments are not ingested yet: {first_paths(compared.waiting, journal)}",
            "They are newer than what the lake has of their boots, as usual. Run `pipeline ingest`.",
        )


def _check_other_segments(journal: Path, output: CheckOutput) -> None:
    """Report segments that this release does not ingest."""
    if later := _segments(journal, finished=True, version=None):
        output.note(
            f"{len(later)} segments are of a later schema version: {first_paths(later, journal)}",
            "This release cannot read them; their lines are not in the lake. Ingest with the release that wrote them.",
        )
    if abandoned := [path for path in _segments(journal, finished=False, version=1) if _is_abandoned(path)]:
        output.note(
            f"{len(abandoned)} open segments have not been written for an hour: {first_paths(abandoned, journal)}",
            "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them.",
        )


def _segments(journal: Path, *, finished: bool, version: int | None) -> list[Path]:
    """A journal's segments of a schema version; for None, those of all versions but 1."""
    found = []
    for path in sorted(journal.glob("d=*/*")):
        name = SegmentName.read(path.name)
        if name is None or path.name != (str(name) if finished else name.while_open):
            continue
        if name.version == version or (version is None and name.version != 1):
            found.append(path)
    return found


def _is_abandoned(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_AFTER
    except OSError:  # renamed meanwhile, since it is finished
        return False
