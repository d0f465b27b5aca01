"""The columns of the computed tables, in order and with Spark's names of types, and how their files are replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.parquet_lake import ParquetLake, sync_directory

_ARROW: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

COLUMNS: Final = {
    "boots": (
        "node string, impl string, boot string, gateway_version string, first_ts timestamp, last_ts timestamp, "
        "closed boolean, lines bigint, dropped bigint"
    ),
    "sessions": (
        "node string, impl string, boot string, session bigint, vhost string, user string, peer string, tls boolean, "
        "version string, heartbeat string, started timestamp, ended timestamp, duration_us bigint, end_code string, "
        "frames_in bigint, frames_out bigint, bytes_in bigint, bytes_out bigint, unacked bigint, max_unacked bigint, "
        "connect_us bigint"
    ),
    "traffic_10s": (
        "ts10 timestamp, impl string, vhost string, event string, code string, bucket int, n double, bytes double"
    ),
    "dest_hour": (
        "hour timestamp, impl string, vhost string, destination string, dest_kind string, sent bigint, "
        "sent_bytes bigint, confirmed bigint, rejected bigint, delivered bigint, delivered_bytes bigint, "
        "redelivered bigint, acked bigint, requeued bigint, discarded bigint"
    ),
    "latency_hour": (
        "hour timestamp, impl string, vhost string, destination string, event string, n bigint, p50_us bigint, "
        "p95_us bigint, p99_us bigint, p999_us bigint, max_us bigint"
    ),
    "errors_hour": "hour timestamp, impl string, vhost string, user string, code string, n bigint",
    "redeliveries_hour": (
        "hour timestamp, impl string, vhost string, user string, destination string, delivered bigint, "
        "redelivered bigint, redelivered_pct double"
    ),
    "unacked_hotspots": (
        "impl string, vhost string, user string, destination string, deliveries bigint, acked bigint, nacked bigint, "
        "unacked bigint, unacked_pct double, p99_ack_us bigint, redelivered_pct double"
    ),
    "features_used": (
        "impl string, vhost string, user string, version string, feature string, supported boolean, sessions bigint, "
        "first_seen timestamp, last_seen timestamp"
    ),
    "durable_days": (
        "vhost string, user string, sub_name string, destination string, first_seen timestamp, "
        "last_connected timestamp, last_delivery timestamp, last_ack timestamp, deliveries bigint, acks bigint, "
        "last_sub timestamp, last_sub_boot string, last_unsub timestamp, last_unsub_code string"
    ),
    "durable_subs": (
        "vhost string, user string, sub_name string, destination string, first_seen timestamp, "
        "last_connected timestamp, last_delivery timestamp, last_ack timestamp, deliveries bigint, acks bigint, "
        "connected boolean, days_idle double, verdict string"
    ),
}
"""Each computed table's columns, as a schema that Spark reads."""


def schema_of(table: str) -> pa.Schema:
    """The schema of a computed table's files."""
    columns = (column.split(" ") for column in COLUMNS[table].split(", "))
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns])


def replace_file(lake: ParquetLake, table: str, rows: pa.Table, path: Path) -> None:
    """Replace a computed table's file in one step, so that a reader sees either the old or the new one.

    ``rows`` have at least the table's columns, in any order. The file is written under the lake's ``_staging`` first.
    """
    schema = schema_of(table)
    rows = rows.select(schema.names).cast(schema)
    rows = rows.sort_by([(name, "ascending") for name in schema.names])
    path.parent.mkdir(parents=True, exist_ok=True)
    lake.staging.mkdir(parents=True, exist_ok=True)
    staged = lake.staging / f"{table}-{path.parent.name}.parquet"
    with staged.open("wb") as file:
        pq.write_table(rows, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_directory(path.parent)
