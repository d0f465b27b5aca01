"""Lakes made from journals with pyarrow alone: what the pipeline must produce, computed independently of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.journal.histogram import bucket_of
from gateway.journal.segments import SegmentName
from gateway.pipeline.parquet_lake import DAY_TABLES, WHOLE_TABLES, ParquetLake
from gateway.pipeline.parquet_schemas import schema_of
from gateway.pipeline.snapshot import LakeSnapshot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
COUNTS = pa.map_(pa.string(), pa.int64())

Row = dict[str, object]
Line = dict[str, object]

EVENTS = pa.schema(
    [
        ("ts", TIME), ("boot", pa.string()), ("seq", pa.int64()), ("node", pa.string()), ("impl", pa.string()),
        ("event", pa.string()), ("session", pa.int64()), ("vhost", pa.string()), ("user", pa.string()),
        ("destination", pa.string()), ("body_bytes", pa.int64()), ("latency_us", pa.int64()), ("n", pa.int64()),
        ("code", pa.string()), ("weight", pa.float64()),
        ("counters", COUNTS), ("histogram", COUNTS), ("file", pa.string()),
    ]
)  # fmt: skip
ROLLUP = pa.schema(
    [
        ("ts10", TIME), ("impl", pa.string()), ("node", pa.string()), ("vhost", pa.string()), ("user", pa.string()),
        ("destination", pa.string()), ("dest_kind", pa.string()), ("sub_name", pa.string()), ("ack_mode", pa.string()),
        ("event", pa.string()), ("code", pa.string()), ("bucket", pa.int32()),
        ("n", pa.float64()), ("bytes", pa.float64()),
    ]
)  # fmt: skip
BAD_LINES = pa.schema([("file", pa.string()), ("line", pa.string()), ("reason", pa.string()), ("seen", TIME)])
MESSAGE = ("send", "conf", "dlv", "ack", "nack")


def batches_of_day(lake: ParquetLake, table: str, day: str) -> list[Path]:
    """The directories of a batch table's day that belong to the lake; for events, those of both levels."""
    snapshot = LakeSnapshot.read(lake)
    partitions = (path for path in snapshot.partitions(table) if snapshot.day_of(path) == day)
    return [batch for path in partitions for batch in snapshot.batches_in(path)]


class LakeMaker:
    """Makes a lake from a journal."""

    def __init__(self, root: Path, journal: Path) -> None:
        self.lake = ParquetLake(root)
        self.batches: list[int] = []
        """The batches that have a manifest."""
        self._journal = journal
        self._batch = 0

    def ingest(self, segments: Sequence[Path], *, manifest: bool = True) -> int:
        """Make a batch from finished segments, with or without a manifest, and return its number."""
        rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        bad: dict[str, list[Row]] = defaultdict(list)
        sources = []
        for path in segments:
            lines = path.read_bytes().split(b"\n")[:-1]
            bad_before = sum(map(len, bad.values()))
            for raw in lines:
                line = _line(raw)
                if line is None:
                    bad[path.parent.name].append(
                        {"file": path.name, "line": raw.decode("utf-8", "replace"), "reason": "?", "seen": EPOCH}
                    )
                else:
                    row = _event(line, path)
                    level = "message" if row["event"] in MESSAGE else "session"
                    rows[_day(row["ts"]), level].append(row)
            name = path.relative_to(self._journal).as_posix()
            sources.append({"path": name, "lines": len(lines), "bad": sum(map(len, bad.values())) - bad_before})
        rollup = _rollup(row for each in rows.values() for row in each)
        for (day, level), events in rows.items():
            self._write(f"events/d={day}/level={level}", EVENTS, events)
        for day, summed in rollup.items():
            self._write(f"rollup_10s/d={day}", ROLLUP, summed)
        for directory, found in bad.items():
            self._write(f"bad_lines/{directory}", BAD_LINES, found)
        content = {
            "batch": self._batch,
            "version": 1,
            "segments": sources,
            "events": sum(map(len, rows.values())),
            "bad_lines": sum(map(len, bad.values())),
            "rollup_rows": sum(map(len, rollup.values())),
            "days": sorted({day for day, _ in rows}),
            "session_days": sorted({day for day, _ in rows}),
            "written": "2026-11-21T00:00:00+00:00",
        }
        if manifest:
            self._compute({day for day, _ in rows})
            self.lake.batches.mkdir(parents=True, exist_ok=True)
            self.lake.manifest(self._batch).write_text(json.dumps(content))
            self.lake.set_refreshed(self._batch)
            self.batches.append(self._batch)
        self._batch += 1
        return self._batch - 1

    def _compute(self, days: Iterable[str]) -> None:
        """Write the computed tables' files without rows: no test reads their figures."""
        places = [(table, self.lake.day_file(table, day)) for table in DAY_TABLES for day in days]
        places += [(table, self.lake.whole_file(table)) for table in WHOLE_TABLES]
        for table, path in places:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(schema_of(table).empty_table(), path)

    def _write(self, place: str, schema: pa.Schema, rows: list[Row]) -> None:
        directory = self.lake.root / place / f"batch={self._batch:08d}"
        directory.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), directory / "part-0.parquet", compression="zstd")


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
    event = str(line["e"])
    message = event in MESSAGE
    return {
        "ts": EPOCH + timedelta(microseconds=_int(line["t"])),
        "boot": name.boot,
        "seq": line["q"],
        "node": name.node,
        "impl": name.impl,
        "event": event,
        "session": line.get("c"),
        "vhost": line.get("vh"),
        "user": line.get("u"),
        "destination": line.get("d"),
        "body_bytes": line.get("b", 0) if event in ("send", "dlv") else None,
        "latency_us": line.get("l"),
        "n": line.get("n", 1 if event in ("ack", "nack") else 0 if event == "unsub" else None),
        "code": line.get("x"),
        "weight": line.get("w", 1.0) if message else None,
        "counters": line.get("cnt"),
        "histogram": line.get("h"),
        "file": path.name,
    }


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _day(ts: object) -> str:
    return f"{ts:%Y-%m-%d}"


def _rollup(events: Iterable[Row]) -> dict[str, list[Row]]:
    """A simple roll-up, in which counters are not split by latency; totals do not show that."""
    sums: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in events:
        ts = row["ts"]
        assert isinstance(ts, datetime)
        ten = ts.replace(second=ts.second // 10 * 10, microsecond=0)
        for event, code, bucket, n, body_bytes in _parts(row):
            who = (row["impl"], row["node"], row["vhost"], row["user"], row["destination"])
            key: tuple[object, ...] = (ten, *who, event, code, bucket)
            sums[key][0] += n
            sums[key][1] += body_bytes
    names = ("ts10", "impl", "node", "vhost", "user", "destination", "event", "code", "bucket")
    by_day: dict[str, list[Row]] = defaultdict(list)
    for key, (n, body_bytes) in sums.items():
        by_day[_day(key[0])].append(dict(zip(names, key, strict=True)) | {"n": n, "bytes": body_bytes})
    return by_day


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
    elif event == "drop":
        yield event, None, None, _int(row["n"]), 0.0
    else:
        yield event, row["code"], None, 1.0, 0.0


def _stat_parts(counters: object) -> Iterable[tuple[str, object, int | None, float, float]]:
    assert isinstance(counters, dict)
    for name, event, code, body_bytes in (
        ("send", "send", None, "send_bytes"), ("conf", "conf", None, ""), ("rejected", "conf", "rejected", ""),
        ("dlv", "dlv", None, "dlv_bytes"), ("ack", "ack", None, ""), ("requeue", "nack", "requeue", ""),
        ("discard", "nack", "discard", ""),
    ):  # fmt: skip
        if counters.get(name):
            yield event, code, None, counters[name], counters.get(body_bytes, 0)
