"""Directories of batches: those that manifests speak of are there, and no others are."""

from __future__ import annotations

from pathlib import Path

from gateway.pipeline.compact import intent_path
from gateway.pipeline.completeness.findings import Findings, named, shortened
from gateway.pipeline.lake import BATCH_TABLES, walked
from gateway.pipeline.published import Published


def check_directories(now: Published, committed: int, findings: Findings) -> None:
    """Look at all directories of batches.

    Args:
        now: what belongs to the lake.
        committed: the last batch that must have a manifest.
        findings: where to say it.
    """
    _check_expected(now, findings)
    _check_strays(now, findings)
    orphans, left = [], []
    for table in BATCH_TABLES:
        for path in (path for place in now.places(table) for path in sorted(place.glob("batch=*"))):
            if now.is_retired(path) or now.superseded(path):
                left.append(path)
            elif not now.ids(path):
                orphans.append(path)
    _tell_orphans(now, committed, orphans, findings)
    lake = now.lake
    if intent_path(lake).exists():
        findings.note(
            "a compaction was left off, or is running", "Run `pipeline compact`: it finishes or undoes it first."
        )
    if left:
        findings.note(
            f"{len(left)} directories that have been replaced or retired: {named(left, lake.root)}",
            "A compact or gc was killed; run it again, and they are removed. Do not read them.",
        )
    staged = sorted(lake.staging.iterdir()) if lake.staging.is_dir() else []
    if staged:
        findings.note(
            f"{len(staged)} leftovers in {lake.staging.name}",
            "Of a run that is at work, or was killed; nobody reads them.",
        )


def _tell_orphans(now: Published, committed: int, orphans: list[Path], findings: Findings) -> None:
    """Directories that no manifest speaks of."""
    lake = now.lake
    # The rerun of a killed ingest replaces what it left behind; what is older than the last batch, nobody will.
    last = max([*now.manifests, committed])
    numbered = [path for path in orphans if path.name[6:].isdecimal()]
    fresh = [path for path in numbered if int(path.name[6:]) > last]
    lost = [path for path in numbered if int(path.name[6:]) <= last]
    strange = [path for path in orphans if path not in numbered and not intent_path(lake).exists()]
    if lost:
        findings.wrong(
            f"{len(lost)} directories of batches whose manifests are lost: {named(lost, lake.root)}",
            "Their rows count again when the manifests are restored. Keep the directories until then.",
        )
    if strange:
        findings.wrong(
            f"{len(strange)} batch directories without a manifest: {named(strange, lake.root)}",
            "No table counts them, but engines that read all files do. Move them out of the lake.",
        )
    if fresh:
        findings.note(
            f"{len(fresh)} directories of a batch that is not finished: {named(fresh, lake.root)}",
            "An ingest is running or was killed; run `pipeline ingest` again, and it replaces them.",
        )


def _check_expected(now: Published, findings: Findings) -> None:
    """Directories that manifests speak of."""
    there = {
        table: {
            (now.day_of(place), batch)
            for place in now.places(table)
            for path in place.glob("batch=*")
            for batch in now.ids(path)
        }
        for table in BATCH_TABLES
    }
    missing = []
    for number, manifest in now.manifests.items():
        missing += [
            f"events of {day}, batch {number}"
            for day in manifest.days
            if (day, number) not in there["events"] and day not in now.retired
        ]
        for table, rows in (("rollup_10s", manifest.rollup_rows), ("bad_lines", manifest.bad_lines)):
            if rows and all(number != batch for _, batch in there[table]):
                missing.append(f"{table}, batch {number}")
    for name, compaction in now.compactions.items():
        for place in compaction.places:
            path = now.lake.root / place / f"batch={name}"
            if not path.is_dir() and not now.superseded(path) and not now.is_retired(path):
                missing.append(f"{place}/batch={name}")
    if missing:
        findings.wrong(
            f"{len(missing)} directories that manifests speak of are not there: {shortened(missing)}",
            "Somebody removed them: restore them, or ingest the journal into a new lake.",
        )


def _check_strays(now: Published, findings: Findings) -> None:
    """Parquet files that are in no directory of a batch: nobody counts them, and engines that read all files do."""
    strays = []
    for table in BATCH_TABLES:
        places = set(now.places(table))
        strays += [
            path
            for path in walked(now.lake.table(table))
            if path.suffix == ".parquet"
            and (
                path.name.startswith(("_", "."))
                or path.parent.parent not in places
                or not path.parent.name.startswith("batch=")
            )
        ]
    if strays:
        findings.wrong(
            f"{len(strays)} Parquet files that belong to no batch: {named(strays, now.lake.root)}",
            "Somebody put them there. Move them out of the lake: engines that read all files count them.",
        )
