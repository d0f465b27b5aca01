"""A lake compared with what DuckDB computes from the same journal, and checked by the pipeline's own check."""

from __future__ import annotations

import io
import time
from pathlib import Path

from gateway.pipeline.check import check
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COMPUTED_TABLES, schema_of
from tests.pipeline.oracle import Oracle
from tests.support.journals import SECOND
from tests.support.lakes import assert_same, rows_of


def assert_right(lake: Lake, journal: Path) -> None:
    """Every table has what the journal says, no batch is left unfinished, and `check` finds the lake complete."""
    oracle = Oracle(journal, now=round(time.time() * SECOND))
    for table in ("events", *COMPUTED_TABLES):
        assert_same(rows_of(lake, table), oracle.rows(table))
    keys = ", ".join(
        name for name in schema_of("rollup_10s").names if name not in ("n", "bytes")
    )  # rows of the roll-up are partial sums
    summed = f"select {keys}, sum(n) n, sum(bytes) bytes from rollup_10s group by {keys}"  # noqa: S608
    assert_same(rows_of(lake, "rollup_10s", summed), oracle.rows("rollup_10s"))
    assert_same(rows_of(lake, "bad_lines", "select file, line from bad_lines"), oracle.rows("bad_lines"))
    oracle.close()
    assert lake.unfinished() == []
    out = io.StringIO()
    assert check(lake, [journal], out), out.getvalue()
