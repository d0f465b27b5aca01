"""Lakes made from journals: with pyarrow alone, independently of the pipeline, or by an ingest."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from gateway.errors import ExitCode
from gateway.journal.histogram import bucket_of
from gateway.journal.segments import SegmentName
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS, COMPUTED_TABLES, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of Spark in a process of its own: to compile code for a few rows takes longer than all else."""

Row = dict[str, object]
Line = dict[str, object]

MESSAGE = ("send", "confirm", "deliver", "ack", "nack")
WORDS = {
    "conn": "connect", "sub": "subscribe", "unsub": "unsubscribe", "conf": "confirm", "dlv": "deliver",
    "err": "error", "blk": "blocked", "use": "feature", "drop": "dropped",
}  # fmt: skip


def rows_in(table: str, rows: Sequence[Row]) -> pa.Table:
    """Rows of a table; a column that a row lacks is null."""
    schema = schema_of(table)
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def rows_of(lake: Lake, table: str, query: str | None = None) -> list[Row]:
    """A table's rows, or those of a query; times are microseconds since the epoch."""
    found = lake.sql(query or f"select * from {table}")  # noqa: S608
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in found.columns]
    rows: list[Row] = pa.Table.from_arrays(columns, found.column_names).to_pylist()
    return rows


def plain(value: object) -> object:
    """A value made comparable: maps come in two forms."""
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(sorted(value)) if isinstance(value, list) else value


def ordered(rows: list[Row]) -> list[Row]:
    """Rows by their exact columns; the others may differ in the last digits."""
    plain_rows = [{name: plain(value) for name, value in row.items()} for row in rows]
    return sorted(
        plain_rows, key=lambda row: [repr(row[name]) for name in sorted(row) if not isinstance(row[name], float)]
    )


def assert_same(found: list[Row], expected: list[Row]) -> None:
    for ours, theirs in zip(ordered(found), ordered(expected), strict=False):
        for row in (ours, theirs):
            for name, value in row.items():
                row[name] = (
                    pytest.approx(value, rel=1e-9, abs=0) if isinstance(value, float) and row is theirs else value
                )
        assert ours == theirs
    assert len(found) == len(expected)


def ingested(spark: SparkSession, lake: Path, *journals: Path) -> Lake:
    """The lake that Spark makes of journals without a complaint, with all tables."""
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415 - others run without Spark
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    errors = io.StringIO()
    progress = Progress(io.StringIO(), errors=errors)
    assert ingest(IngestOptions([str(journal) for journal in journals], str(lake)), progress, spark) is ExitCode.OK
    assert errors.getvalue() == ""
    return Lake(lake)


class LakeMaker:
    """Makes a lake from segments."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.batch = 0
        """The number of the next batch."""

    def ingest(self, segments: Sequence[Path], *, until: Sequence[str] = tuple(COLUMNS)) -> int:
        """Make a batch from finished segments, in some tables only if it shall be unfinished; return its number."""
        batch, tables = self.batch, defaultdict[str, list[Row]](list)
        self.batch += 1
        for path in segments:
            self._add_segment(path, batch, tables)
        tables["rollup_10s"] = _rollup(tables["events"])
        for row in tables["segments"]:
            row["rollup_rows"] = len(tables["rollup_10s"])
        for table in COLUMNS:
            if table not in until or table == "deleted_lines":
                continue
            if table in COMPUTED_TABLES and table != "boots":
                self.lake.commit_files(table, [], batch)  # no test here reads their figures
            else:
                self.lake.write_rows(table, rows_in(table, tables[table]), batch)
        return batch

    def _add_segment(self, path: Path, batch: int, tables: dict[str, list[Row]]) -> None:
        lines = path.read_bytes().split(b"\n")[:-1]
        name = SegmentName.read(path.name)
        assert name is not None
        rows, bad = [], []
        for raw in lines:
            line = _line(raw)
            if line is None:
                text = raw.decode("utf-8", "replace")
                bad.append({"file": path.name, "line": text, "reason": "?", "seen": EPOCH, "d": path.parent.name[2:]})
            else:
                rows.append(_event(line, path))
        tables["events"] += rows
        tables["bad_lines"] += bad
        about = {"impl": name.impl, "node": name.node, "boot": name.boot}
        days = sorted({str(row["d"]) for row in rows})
        numbers = [_int(row["seq"]) for row in rows]
        tables["segments"].append(
            {
                "name": path.name, **about, "first": min(numbers, default=None), "last": max(numbers, default=None),
                "lines": len(lines), "bad": len(bad), "days": days, "session_days": days, "batch": batch,
                "directory": f"made-{batch}", "ingested": datetime.now(UTC), "d": path.parent.name[2:],
            }
        )  # fmt: skip
        for day in days:
            of_day = [row for row in rows if row["d"] == day]
            closed = any(row["event"] == "close" for row in of_day)
            dropped = sum(_int(row["n"]) for row in of_day if row["event"] == "dropped")
            tables["boots"].append({**about, "closed": closed, "dropped": dropped, "d": day})


def _line(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    good = isinstance(line, dict) and all(
        type(line.get(key)) is kind for key, kind in (("e", str), ("t", int), ("q", int))
    )
    return line if good else None


def _event(line: Line, path: Path) -> Row:
    name = SegmentName.read(path.name)
    assert name is not None
    event = WORDS.get(str(line["e"]), str(line["e"]))
    message = event in MESSAGE
    day = f"{EPOCH + timedelta(microseconds=_int(line['t'])):%Y-%m-%d}"
    return {
        "d": day,
        "level": "message" if message else "session",
        "ts": EPOCH + timedelta(microseconds=_int(line["t"])),
        "boot": name.boot,
        "seq": line["q"],
        "node": name.node,
        "impl": name.impl,
        "event": event,
        "session": line.get("c"),
        "vhost": line.get("vh"),
        "login": line.get("u"),
        "destination": line.get("d"),
        "body_bytes": line.get("b", 0) if event in ("send", "deliver") else None,
        "latency_us": line.get("l"),
        "n": line.get("n", 1 if event in ("ack", "nack") else 0 if event == "unsubscribe" else None),
        "code": line.get("x"),
        "weight": line.get("w", 1.0) if message else None,
        "counters": line.get("cnt"),
        "histogram": line.get("h"),
        "file": path.name,
    }


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _rollup(events: Iterable[Row]) -> list[Row]:
    """A simple roll-up, in which counters are not split by latency; totals do not show that."""
    sums: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in events:
        ts = row["ts"]
        assert isinstance(ts, datetime)
        ten = ts.replace(second=ts.second // 10 * 10, microsecond=0)
        for event, code, bucket, n, body_bytes in _parts(row):
            who = (row["impl"], row["node"], row["vhost"], row["login"], row["destination"])
            key: tuple[object, ...] = (ten, *who, event, code, bucket)
            sums[key][0] += n
            sums[key][1] += body_bytes
    names = ("ts10", "impl", "node", "vhost", "login", "destination", "event", "code", "bucket")
    return [
        dict(zip(names, key, strict=True)) | {"n": n, "bytes": body_bytes, "d": f"{key[0]:%Y-%m-%d}"}
        for key, (n, body_bytes) in sums.items()
    ]


def _parts(row: Row) -> Iterable[tuple[str, object, int | None, float, float]]:
    event = str(row["event"])
    weight = row["weight"]
    assert weight is None or isinstance(weight, (int, float))
    if event == "stat":
        yield from _stat_parts(row["counters"])
    elif event in MESSAGE:
        assert weight is not None
        n = weight * (_int(row["n"]) if event in ("ack", "nack") else 1)
        body_bytes = weight * _int(row["body_bytes"]) if row["body_bytes"] is not None else 0.0
        bucket = None if row["latency_us"] is None else bucket_of(_int(row["latency_us"]))
        yield event, row["code"], bucket, n, body_bytes
    elif event == "dropped":
        yield event, None, None, _int(row["n"]), 0.0
    else:
        yield event, row["code"], None, 1.0, 0.0


def _stat_parts(counters: object) -> Iterable[tuple[str, object, int | None, float, float]]:
    assert isinstance(counters, dict)
    for name, event, code, body_bytes in (
        ("send", "send", None, "send_bytes"), ("conf", "confirm", None, ""), ("rejected", "confirm", "rejected", ""),
        ("dlv", "deliver", None, "dlv_bytes"), ("ack", "ack", None, ""), ("requeue", "nack", "requeue", ""),
        ("discard", "nack", "discard", ""),
    ):  # fmt: skip
        if counters.get(name):
            yield event, code, None, counters[name], counters.get(body_bytes, 0)
