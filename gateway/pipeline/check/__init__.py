"""Proves that a lake is complete: every line of every ingested segment is in it, once, identified by (boot, seq).

Uses pyarrow only, so that the engine that wrote the lake is not the one that checks it. Columns are read in batches and
compared by counts and fingerprints. Only if those of a boot differ, its line numbers are compared. Of the computed
tables, the files are checked but not the figures in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from gateway.errors import PipelineError
from gateway.pipeline.check.batch_checks import check_directories, check_manifests, check_segments, newest_commit
from gateway.pipeline.check.check_output import CheckOutput
from gateway.pipeline.check.lake_scan import LakeScan, read_bad_lines, read_events
from gateway.pipeline.check.line_checks import LineChecker
from gateway.pipeline.check.table_checks import check_computed, check_rollup, check_row_counts
from gateway.pipeline.parquet_lake import ParquetLake, listed
from gateway.pipeline.snapshot import LakeSnapshot, is_being_written


def check(lake: ParquetLake, journal: Path | None, out: TextIO, *, quiet: bool = False) -> bool:
    """Print whether a lake is complete, and what to do if it is not. If `quiet`, print only what is wrong.

    The lake is only read; another command may write into it at the same time. If `journal` is given, the segments in
    this directory are compared too. Returns True if nothing is missing, duplicated or unreadable. Raises PipelineError
    if there is no lake or no journal, or if one of their directories cannot be listed.
    """
    lake.must_be_listable()
    if journal is not None:
        _must_be_listable(journal)
    output = CheckOutput(out, quiet=quiet)
    if is_being_written(lake):
        output.note(
            "another process is writing into the lake", "What is reported may be temporary; check again after it."
        )
    # Read these two before the manifests. If an ingest is running, they can then be too small, but never too large.
    committed, refreshed = newest_commit(lake), lake.refreshed()
    snapshot = LakeSnapshot.read(lake)
    check_manifests(snapshot, committed, output)
    check_directories(snapshot, committed, output)
    scan = LakeScan()
    read_events(snapshot, scan, output)
    read_bad_lines(snapshot, scan, output)
    check_row_counts(snapshot, scan, output)
    LineChecker(snapshot, scan, output).check()
    check_rollup(snapshot, scan, output)
    check_computed(snapshot, refreshed, output)
    if journal is not None:
        check_segments(snapshot, journal, output)
    return output.verdict()


def _must_be_listable(journal: Path) -> None:
    if not journal.is_dir():
        raise PipelineError(f"there is no journal at {journal}. Give the directory that `pipeline ingest` reads.")
    for day in listed(journal):
        listed(day)
