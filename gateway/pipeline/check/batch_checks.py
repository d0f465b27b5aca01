"""Batches and segments: each batch has a manifest and its directories, and no ingested segment has changed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.journal.segments import SegmentName
from gateway.pipeline import line_numbers
from gateway.pipeline.check.check_output import CheckOutput, first_few, first_paths
from gateway.pipeline.check.lake_scan import file_name
from gateway.pipeline.compact import intent_path
from gateway.pipeline.parquet_lake import BATCH_TABLES, ParquetLake, listed, walked
from gateway.pipeline.snapshot import LakeSnapshot
from gateway.pipeline.source import count_lines

_ABANDONED_AFTER: Final = 3600.0
"""Seconds without a write after which an open segment probably belongs to a dead gateway."""


def newest_commit(lake: ParquetLake) -> int:
    """The last batch that Spark's checkpoint has committed; -1 if there is none."""
    names = (path.name for path in listed(lake.checkpoint / "commits"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def check_manifests(snapshot: LakeSnapshot, committed: int, output: CheckOutput) -> None:
    """Check that all manifests exist, add up, and have no segment in common.

    `committed` is the last batch that must have a manifest, see `newest_commit`; read it before the snapshot.
    """
    for path, reason in snapshot.unreadable.items():
        output.wrong(
            f"manifest {path.name} cannot be read: {reason}",
            f"Restore {path} from a backup; without it nobody can tell what belongs to the lake.",
        )
    _check_numbers(snapshot, committed, output)
    batches_of: dict[str, list[int]] = defaultdict(list)
    for number, manifest in snapshot.manifests.items():
        for segment in manifest.segments:
            batches_of[segment.path].append(number)
        lines = sum(segment.lines for segment in manifest.segments)
        if lines != manifest.events + manifest.bad_lines:
            output.wrong(
                f"batch {number}: its segments have {lines:,} lines, but {manifest.events:,} events and "
                f"{manifest.bad_lines:,} bad lines were written",
                "Lines were lost or made up while it was ingested: ingest these segments into a new lake, and compare.",
            )
    for path_in_journal, numbers in batches_of.items():
        if len(numbers) > 1:
            output.wrong(
                f"{path_in_journal} was ingested more than once, by batches {', '.join(map(str, numbers))}",
                "Its rows are double: ingest the journal into a new lake.",
            )
    lines = sum(segment.lines for manifest in snapshot.manifests.values() for segment in manifest.segments)
    output.ok(f"{len(snapshot.manifests):,} batches of {len(batches_of):,} segments, {lines:,} lines")


def _check_numbers(snapshot: LakeSnapshot, committed: int, output: CheckOutput) -> None:
    """Batches are numbered 0, 1, 2 ...: a number that is left out has lost its manifest."""
    broken = [int(path.stem) for path in snapshot.unreadable if path.stem.isdecimal()]
    known = [*snapshot.manifests, *broken]
    end = max([*known, committed], default=-1) + 1
    missing, _ = line_numbers.gaps_and_repeats([*((number, number) for number in known), (end, end)])
    if missing:
        output.wrong(
            f"{line_numbers.count(missing):,} batches have lost their manifests: {line_numbers.in_words(missing)}",
            f"Restore {snapshot.lake.batches} from a backup before anything else runs; if there is none, ingest the "
            "journal into a new lake.",
        )


def check_directories(snapshot: LakeSnapshot, committed: int, output: CheckOutput) -> None:
    """Check that the directories of batches are exactly those that the manifests list. See `check_manifests`."""
    _check_expected(snapshot, output)
    _check_strays(snapshot, output)
    orphans, replaced = [], []
    for table in BATCH_TABLES:
        for path in (path for each in snapshot.partitions(table) for path in sorted(each.glob("batch=*"))):
            if snapshot.is_retired(path) or snapshot.is_superseded(path):
                replaced.append(path)
            elif not snapshot.ids(path):
                orphans.append(path)
    _report_orphans(snapshot, committed, orphans, output)
    lake = snapshot.lake
    if intent_path(lake).exists():
        output.note(
            "a compaction was interrupted, or is running", "Run `pipeline compact`: it finishes or undoes it first."
        )
    if replaced:
        output.note(
            f"{len(replaced)} directories that have been replaced or retired: {first_paths(replaced, lake.root)}",
            "A compact or gc was killed; run it again, and they are removed. Do not read them.",
        )
    staged = sorted(lake.staging.iterdir()) if lake.staging.is_dir() else []
    if staged:
        output.note(
            f"{len(staged)} leftovers in {lake.staging.name}",
            "They belong to a run under way, or to one that was killed; no reader sees them.",
        )


def _report_orphans(snapshot: LakeSnapshot, committed: int, orphans: list[Path], output: CheckOutput) -> None:
    """Report directories that no manifest lists."""
    lake = snapshot.lake
    # The next ingest replaces what a killed one left behind, but only for batches after the last one.
    last = max([*snapshot.manifests, committed])
    numbered = [path for path in orphans if path.name[6:].isdecimal()]
    unfinished = [path for path in numbered if int(path.name[6:]) > last]
    lost = [path for path in numbered if int(path.name[6:]) <= last]
    strange = [path for path in orphans if path not in numbered and not intent_path(lake).exists()]
    if lost:
        output.wrong(
            f"{len(lost)} directories of batches whose manifests are lost: {first_paths(lost, lake.root)}",
            "Their rows count again when the manifests are restored. Keep the directories until then.",
        )
    if strange:
        output.wrong(
            f"{len(strange)} batch directories without a manifest: {first_paths(strange, lake.root)}",
            "No table counts them, but engines that read all files do. Move them out of the lake.",
        )
    if unfinished:
        output.note(
            f"{len(unfinished)} directories of a batch that is not finished: {first_paths(unfinished, lake.root)}",
            "An ingest is running or was killed; run `pipeline ingest` again, and it replaces them.",
        )


def _check_expected(snapshot: LakeSnapshot, output: CheckOutput) -> None:
    """Report directories that manifests list and that do not exist."""
    present = {
        table: {
            (snapshot.day_of(partition), batch)
            for partition in snapshot.partitions(table)
            for path in partition.glob("batch=*")
            for batch in snapshot.ids(path)
        }
        for table in BATCH_TABLES
    }
    missing = []
    for number, manifest in snapshot.manifests.items():
        missing += [
            f"events of {day}, batch {number}"
            for day in manifest.days
            if (day, number) not in present["events"] and day not in snapshot.retired
        ]
        for table, rows in (("rollup_10s", manifest.rollup_rows), ("bad_lines", manifest.bad_lines)):
            if rows and all(number != batch for _, batch in present[table]):
                missing.append(f"{table}, batch {number}")
    for name, compaction in snapshot.compactions.items():
        for key in compaction.places:
            path = snapshot.lake.root / key / f"batch={name}"
            if not path.is_dir() and not snapshot.is_superseded(path) and not snapshot.is_retired(path):
                missing.append(f"{key}/batch={name}")
    if missing:
        output.wrong(
            f"{len(missing)} directories that manifests speak of are not there: {first_few(missing)}",
            "Somebody removed them: restore them, or ingest the journal into a new lake.",
        )


def _check_strays(snapshot: LakeSnapshot, output: CheckOutput) -> None:
    """Report Parquet files outside of batch directories: they are not in the tables, but some engines read them."""
    strays = []
    for table in BATCH_TABLES:
        partitions = set(snapshot.partitions(table))
        strays += [
            path
            for path in walked(snapshot.lake.table(table))
            if path.suffix == ".parquet"
            and (
                path.name.startswith(("_", "."))
                or path.parent.parent not in partitions
                or not path.parent.name.startswith("batch=")
            )
        ]
    if strays:
        output.wrong(
            f"{len(strays)} Parquet files that belong to no batch: {first_paths(strays, snapshot.lake.root)}",
            "Somebody put them there. Move them out of the lake: engines that read all files count them.",
        )


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
