"""Is a lake complete? Every line of every ingested segment in it, once, and nothing else; proven by (boot, seq).

Made with pyarrow only, so that the engine that wrote the lake is not the one that says it is right. Columns are read in
batches and compared by arithmetic; only where that does not close are numbers looked at, and only of that boot. Of the
tables that are computed from events only the files are looked at, not the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from gateway.errors import PipelineError
from gateway.pipeline.completeness.amounts import check_amounts, check_rollup
from gateway.pipeline.completeness.computed import check_computed
from gateway.pipeline.completeness.contents import read_bad_lines, read_events
from gateway.pipeline.completeness.directories import check_directories
from gateway.pipeline.completeness.findings import Findings
from gateway.pipeline.completeness.manifests import check_manifests, newest_commit
from gateway.pipeline.completeness.numbers import Numbers
from gateway.pipeline.completeness.seen import Seen
from gateway.pipeline.completeness.segments import check_segments
from gateway.pipeline.lake import Lake, listed
from gateway.pipeline.published import Published, is_being_written


def check(lake: Lake, journal: Path | None, out: TextIO, *, quiet: bool = False) -> bool:
    """Say whether a lake is complete, and what to do where it is not.

    Args:
        lake: which; it is only read, and may be written meanwhile.
        journal: also compare with the segments in this directory.
        out: where to say it.
        quiet: only what is wrong, and nothing at all where nothing is.

    Returns:
        True if nothing is missing, double or unreadable.

    Raises:
        PipelineError: there is no lake, or no journal, or a directory of them cannot be listed.
    """
    lake.must_be_listable()
    if journal is not None:
        _must_be_listable(journal)
    findings = Findings(out, quiet=quiet)
    if is_being_written(lake):
        findings.note(
            "another process is writing into the lake", "Findings may be of the moment; check again after it."
        )
    # Before the manifests: what an ingest does from here on makes these two too small, and never too large.
    committed, refreshed = newest_commit(lake), lake.refreshed()
    now = Published.of(lake)
    check_manifests(now, committed, findings)
    check_directories(now, committed, findings)
    seen = Seen()
    read_events(now, seen, findings)
    read_bad_lines(now, seen, findings)
    check_amounts(now, seen, findings)
    Numbers(now, seen, findings).check()
    check_rollup(now, seen, findings)
    check_computed(now, refreshed, findings)
    if journal is not None:
        check_segments(now, journal, findings)
    return findings.verdict()


def _must_be_listable(journal: Path) -> None:
    if not journal.is_dir():
        raise PipelineError(f"there is no journal at {journal}. Give the directory that `pipeline ingest` reads.")
    for day in listed(journal):
        listed(day)
