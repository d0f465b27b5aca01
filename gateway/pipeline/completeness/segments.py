"""Segments of the journal: are those that were ingested as they were then, and which have not been ingested?"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.journal.segments import SegmentName
from gateway.pipeline.completeness.findings import Findings, named, shortened
from gateway.pipeline.completeness.seen import file_of
from gateway.pipeline.published import Published
from gateway.pipeline.staged import count_lines

_MOST_OPEN: Final = 3600.0  # seconds since its last line after which an open segment is likely to be a dead gateway's


def check_segments(now: Published, journal: Path, findings: Findings) -> None:
    """Compare with what a journal still has.

    Args:
        now: what belongs to the lake.
        journal: directory.
        findings: where to say it.
    """
    found = _Compared()
    known = {source.path: source for manifest in now.manifests.values() for source in manifest.segments}
    by_name = {file_of(path): source for path, source in known.items()}
    newest = _newest(known)
    for path in _segments(journal, finished=True, version=1):
        where = path.relative_to(journal).as_posix()
        source = known.get(where) or by_name.get(path.name)
        name = SegmentName.read(path.name)
        if source is None:
            passed_over = name is not None and name.number < newest.get(name.boot, -1)
            (found.passed_over if passed_over else found.waiting).append(path)
        elif (lines := count_lines(path)) != source.lines:
            found.changed.append(f"{where}: {lines:,} lines, {source.lines:,} when ingested")
        elif where != source.path:
            found.moved.append(f"{where}, in the lake as {source.path}")
        else:
            found.same += 1
    _tell(found, journal, findings)
    _check_other_segments(journal, findings)


@dataclass
class _Compared:
    """A journal's segments, by what they are to the lake."""

    same: int = 0
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    waiting: list[Path] = field(default_factory=list)
    passed_over: list[Path] = field(default_factory=list)


def _newest(known: Iterable[str]) -> dict[str, int]:
    """The largest number of an ingested segment, by boot."""
    newest: dict[str, int] = {}
    for path in known:
        name = SegmentName.read(file_of(path))
        if name is not None:
            newest[name.boot] = max(name.number, newest.get(name.boot, -1))
    return newest


def _tell(found: _Compared, journal: Path, findings: Findings) -> None:
    if found.changed:
        findings.wrong(
            f"{len(found.changed)} ingested segments have changed since: {shortened(found.changed)}",
            "A finished segment must never be written again. Find out who did; the lake has what was there first.",
        )
    if found.passed_over:
        findings.wrong(
            f"{len(found.passed_over)} segments were passed over, though later ones of the same boots are in the lake: "
            f"{named(found.passed_over, journal)}",
            "Run `pipeline ingest`. If they are not in the lake then, ingest the journal into a new one.",
        )
    findings.fine(f"{found.same:,} segments of the journal have as many lines as were ingested")
    if found.moved:
        findings.note(
            f"{len(found.moved)} segments lie under another day than when they were ingested: {shortened(found.moved)}",
            "Ingest knows segments by their names, and leaves these out. If they are copies, delete them.",
        )
    if found.waiting:
        findings.note(
            f"{len(found.waiting)} segments are not ingested yet: {named(found.waiting, journal)}",
            "They are newer than all of their boots that are in the lake, as is usual. Run `pipeline ingest`.",
        )


def _check_other_segments(journal: Path, findings: Findings) -> None:
    """Segments that no ingest of this release takes up."""
    if later := _segments(journal, finished=True, version=None):
        findings.note(
            f"{len(later)} segments are of a later schema version: {named(later, journal)}",
            "This release cannot read them; their lines are not in the lake. Ingest with the release that wrote them.",
        )
    if left := [path for path in _segments(journal, finished=False, version=1) if _is_left(path)]:
        findings.note(
            f"{len(left)} open segments have not been written for an hour: {named(left, journal)}",
            "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them.",
        )


def _segments(journal: Path, *, finished: bool, version: int | None) -> list[Path]:
    """A journal's segments; those of all other versions where None is given."""
    found = []
    for path in sorted(journal.glob("d=*/*")):
        name = SegmentName.read(path.name)
        if name is None or path.name != (str(name) if finished else name.while_open):
            continue
        if name.version == version or (version is None and name.version != 1):
            found.append(path)
    return found


def _is_left(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _MOST_OPEN
    except OSError:  # finished meanwhile
        return False
