"""`make bench-report`: what a report on a year of tables costs. The year is made up by DuckDB, in seconds per month."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.lake import DataFile, Lake
from gateway.pipeline.report import ReportOptions, write_report
from gateway.pipeline.table_schemas import schema_of

_BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
_EVENTS: Final = 40
"""Rows of traffic_10s in ten seconds: some 50 messages a second have so many buckets of latencies."""

_TABLES: Final = {
    "traffic_10s": """
        SELECT TIMESTAMP '{day}' + to_seconds(10 * (i // {events})) AS ts10, ['send', 'deliver', 'confirm', 'ack'][
            CASE WHEN i % {events} < 1 THEN 1 WHEN i % {events} < 3 THEN 2 WHEN i % {events} < 20 THEN 3 ELSE 4 END]
            AS event, CASE WHEN i % {events} = 2 THEN 'redelivered' END AS code,
            CASE WHEN i % {events} > 2 THEN 150 + (i * 7919) % 60 END::INT AS bucket,
            CASE WHEN i % {events} < 2 THEN 500.0 ELSE 20.0 END AS n, 0.0 AS bytes
        FROM range(8640 * {events}) t(i)""",
    "dest_hour": """
        SELECT TIMESTAMP '{day}' + to_hours(i // 200) AS hour, '/queue/' || i % 200 AS destination,
            'queue' AS dest_kind, i AS sent, i * 600 AS sent_bytes, i AS confirmed, 0 AS rejected, i AS delivered,
            i * 600 AS delivered_bytes, i // 100 AS redelivered, i AS acked, 0 AS requeued, 0 AS discarded
        FROM range(4800) t(i)""",
    "latency_hour": """
        SELECT TIMESTAMP '{day}' + to_hours(i // 400) AS hour, '/queue/' || i % 200 AS destination,
            ['confirm', 'ack'][1 + i % 2] AS event, 1000 AS n, 2000 AS p50_us, 4000 AS p95_us,
            5000 + i * 31 % 9000 AS p99_us, 9000 AS p999_us, 9000 AS max_us FROM range(9600) t(i)""",
    "errors_hour": """
        SELECT TIMESTAMP '{day}' + to_hours(i // 20) AS hour, 'login' || i % 10 AS login, 'code' || i % 20 AS code,
            3 AS n FROM range(480) t(i)""",
    "redeliveries_hour": """
        SELECT TIMESTAMP '{day}' + to_hours(i // 50) AS hour, 'login' || i % 10 AS login,
            '/queue/' || i % 50 AS destination, 100 AS delivered, 1 AS redelivered, 1.0 AS redelivered_pct
        FROM range(1200) t(i)""",
    "unacked_hotspots": """
        SELECT 'login' || i % 10 AS login, '/queue/' || i AS destination, 5000 AS deliveries, 4999 AS acked,
            0 AS nacked, 1 AS unacked, 0.02 AS unacked_pct, 9000 AS p99_ack_us, 0.1 AS redelivered_pct
        FROM range(200) t(i)""",
    "features_used": """
        SELECT 'login' || i // 10 AS login, '1.2' AS version, 'feature' || i % 10 AS feature, 5 AS sessions,
            TIMESTAMP '{day}' AS first_seen, TIMESTAMP '{day}' AS last_seen FROM range(400) t(i)""",
    "sessions": """
        SELECT 'gw1' AS node, 'boot' || i % 5 AS boot, i AS session, TIMESTAMP '{day}' + to_seconds(i * 28) AS started,
            TIMESTAMP '{day}' + to_seconds(i * 28 + 4000) AS ended FROM range(3000) t(i)""",
    "boots": """
        SELECT 'gw' || i AS node, 'boot' || i || '{day}' AS boot, '0.2.0' AS gateway_version,
            TIMESTAMP '{day}' AS first_ts, TIMESTAMP '{day}' + to_hours(23) AS last_ts, true AS closed,
            100000 AS lines, 0 AS dropped FROM range(5) t(i)""",
}


def fill(lake: Lake, days: int) -> int:
    """Write so many days of computed tables, a file each, and return the number of rows."""
    engine = duckdb.connect(config={"threads": 1})
    total = 0
    for table, query in _TABLES.items():
        lake.create(table)
        schema = pa.schema([field for field in schema_of(table) if field.name != "d"])
        files = []
        for number in range(days):
            day = f"{_BEGIN + timedelta(days=number):%Y-%m-%d}"
            place = Path(lake.table_url(table)) / f"d={day}" / "made-up.parquet"
            place.parent.mkdir()
            query_of_day = query.format(day=day, events=_EVENTS)
            made = engine.sql(f"SELECT 'gateway' AS impl, '/' AS vhost, * FROM ({query_of_day})")  # noqa: S608 - ours
            columns = ", ".join(name if name in made.columns else f"NULL AS {name}" for name in schema.names)
            rows = engine.sql(f"SELECT {columns} FROM made").to_arrow_table().cast(schema)  # noqa: S608 - ours
            pq.write_table(rows, place, compression="zstd")
            total += rows.num_rows
            files.append(DataFile(f"d={day}/made-up.parquet", place.stat().st_size, 0, rows.num_rows, {"d": day}))
        lake.commit_files(table, files, 0)
    return total


def main() -> int:
    """Make up a lake and report on it, each in a process of its own, so that the memory is the report's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--format", default="html")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lake = Lake(f"{place}/lake")
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            print(f"{other.submit(fill, lake, options.days).result():,} rows in {options.days} days")
        began, busy = time.perf_counter(), time.process_time()
        write_report(lake.snapshot().sql, ReportOptions(Path(place) / "report", form=options.format))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{options.format}: {time.perf_counter() - began:.1f} s, {time.process_time() - busy:.1f} s of processor "
              f"time, {memory:.0f} MiB, {(Path(place) / 'report').stat().st_size / 1e6:.2f} MB written")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
