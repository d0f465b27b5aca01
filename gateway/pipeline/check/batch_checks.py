"""Batches: each has a manifest and its directories, and no directory lacks a manifest."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from gateway.pipeline import line_numbers
from gateway.pipeline.check.output import CheckOutput, first_few, first_paths
from gateway.pipeline.compact import intent_path
from gateway.pipeline.lake import BATCH_TABLES, Lake, listed, walked
from gateway.pipeline.snapshot import LakeSnapshot


def newest_commit(lake: Lake) -> int:
    """The last batch that Spark's checkpoint has committed; -1 if there is none."""
    names = (path.name for path in listed(lake.checkpoint / "commits"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def check_manifests(snapshot: LakeSnapshot, committed: int, output: CheckOutput) -> None:
    """Check that all manifests exist, add up, and have no segment in common.

    Args:
        snapshot: of the lake.
        committed: the last batch that must have a manifest, see `newest_commit`; read before the snapshot was.
        output: receives the findings.
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
    """Check that the directories of batches are those that the manifests list, and no others.

    Args:
        snapshot: of the lake.
        committed: the last batch that must have a manifest, see `newest_commit`.
        output: receives the findings.
    """
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
    """Report Parquet files outside of batch directories: no table counts them, but engines that read all files do."""
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
