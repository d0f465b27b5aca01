"""Proves that a lake is complete: every line of every ingested segment is in it, once, identified by (boot, number).

DataFusion computes what is compared, over one snapshot of all tables, so other commands may write meanwhile, and the
engine that wrote the lake is not the one that checks it. Memory grows with the number of segments and not of lines. Of
the computed tables, the files are checked but not the figures in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from gateway.pipeline.check_journal import OVERDUE, check_aside, check_journals
from gateway.pipeline.check_lines import LineChecker
from gateway.pipeline.check_tables import check_batches, check_computed, check_files, check_rollup
from gateway.pipeline.lake import Lake, closed_before, last_batch
from gateway.pipeline.lake_sql import Snapshot, SqlError
from gateway.pipeline.progress import CheckOutput, first_few
from gateway.pipeline.table_schemas import BATCH_TABLES

_BOOTS: Final = """
select boot, max(node) node, sum(dropped) dropped, bool_or(closed) closed from boots group by boot order by boot
"""


def check(
    lake: Lake,
    journals: Sequence[Path | str],
    out: TextIO,
    *,
    quiet: bool = False,
    overdue: float = OVERDUE,
    since: str = "",
) -> bool:
    """Print whether a lake is complete, and what to do if it is not. If `quiet`, print only what is wrong.

    The segments of `journals`, directories or URLs, are compared too; those that wait for more than `overdue` seconds
    are wrong. With `since`, a day, lines and roll-up of segments that were begun before it are not read. Returns True
    if nothing is missing, aside, duplicated or unreadable. Raises PipelineError if there is no lake or no journal.
    """
    lake.must_exist()
    output = CheckOutput(out, quiet=quiet)
    snapshot = lake.snapshot()
    applied = min(last_batch(snapshot.tables[table]) for table in BATCH_TABLES)
    try:
        if check_files(snapshot, output):
            check_batches(lake, snapshot, applied, output)
            LineChecker(snapshot, applied, output, max(since, closed_before(snapshot.tables["segments"]))).check()
            _note_boots(snapshot, output)
            check_rollup(snapshot, applied, output, since)
            check_computed(snapshot, applied, output)
        check_journals(snapshot, journals, check_aside(snapshot, output), overdue, output)
    except SqlError as error:
        output.wrong(
            f"a table cannot be read: {error}",
            "Restore its files from a backup, or ingest the journal into a new lake.",
        )
    return output.verdict()


def _note_boots(snapshot: Snapshot, output: CheckOutput) -> None:
    """Tell what gateways dropped, and which did not stop in an orderly way."""
    not_closed = []
    for row in snapshot.rows(_BOOTS):
        name = f"boot {row['boot']} ({row['node']})"
        if row["dropped"]:
            output.note(
                f"{name}: {row['dropped']:,} events were dropped, and counted, by its gateway",
                "Disk or writer could not keep up. They are lost; the journal's level session writes less.",
            )
        if not row["closed"]:
            not_closed.append(name)
    if not_closed:
        output.note(
            f"{len(not_closed)} boots did not close: {first_few(not_closed)}",
            "They are running, or their last segments are not ingested, or they were killed: then up to 512 "
            "events, or 250 ms of them, may be missing at their ends, and at level session ten seconds of counts.",
        )
