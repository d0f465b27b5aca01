"""The tables of a lake: columns, in order and with Spark's names of types, and partitions.

Arrow's schemas are derived from these texts; Spark takes them as they are.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_ARROW: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

BATCH_TABLES: Final = {
    "events": (
        "ts timestamp, boot string, seq bigint, node string, impl string, event string, session bigint, vhost string, "
        "login string, destination string, dest_kind string, sub_id string, sub_name string, ack_mode string, "
        "msg_no bigint, body_bytes bigint, header_count int, persistent boolean, transacted boolean, receipt boolean, "
        "latency_us bigint, queue_us bigint, redelivered boolean, n bigint, code string, weight double, peer string, "
        "tls boolean, version string, heartbeat string, prefetch int, durable boolean, auto_delete boolean, "
        "exclusive boolean, counters map<string,bigint>, histogram map<string,bigint>, totals map<string,bigint>, "
        "header_values map<string,string>, gateway_version string, config string, file string, d string, level string"
    ),
    "rollup_10s": (
        "ts10 timestamp, impl string, node string, vhost string, login string, destination string, dest_kind string, "
        "sub_name string, ack_mode string, event string, code string, bucket int, n double, bytes double, d string"
    ),
    "bad_lines": "file string, line string, reason string, seen timestamp, d string",
}
"""Tables that grow by the batches of the ingest."""

SEGMENTS: Final = (
    "name string, impl string, node string, boot string, first bigint, last bigint, lines bigint, bad bigint, "
    "bytes bigint, newest timestamp, days array<string>, hours array<string>, session_days array<string>, "
    "session_hours array<string>, "
    "batch bigint, directory string, rollup_rows bigint, ingested timestamp, d string"
)
"""The table of ingested segments: the plan of every batch, and the record of what is in the lake.

``days`` and ``hours``, such as 2026-11-21T05, are those of the segment's events, ``session_days`` and
``session_hours`` those in which the sessions in it began, ``d`` the day on which it was begun. ``directory`` is where
the batch's files are, in each of `BATCH_TABLES`; ``rollup_rows`` is how many rows of ``rollup_10s`` they have. Earlier
releases wrote no hours.
"""

SEGMENTS_ASIDE: Final = (
    "name string, node string, boot string, path string, bytes bigint, written timestamp, reason string, "
    "seen timestamp, d string"
)
"""Segments that an ingest put aside, and why: they are not read again until they change.

``bytes`` and ``written`` tell whether they have. A segment that is in ``segments`` is no longer aside.
"""

DELETED_LINES: Final = (
    "file string, boot string, lines bigint, first bigint, last bigint, sum1 bigint, sum2 bigint, sum3 bigint, d string"
)
"""What `pipeline gc` has deleted from ``events``: of each day, how many lines of each segment, and their numbers.

``sum1`` to ``sum3`` are the sums of the line numbers, their squares and cubes, modulo 2^64. Days that it names are not
computed again from events.
"""

COMPUTED_TABLES: Final = {
    "boots": (
        "hour timestamp, node string, impl string, boot string, gateway_version string, first_ts timestamp, "
        "last_ts timestamp, closed boolean, lines bigint, dropped bigint, d string"
    ),
    "sessions": (
        "node string, impl string, boot string, session bigint, vhost string, login string, peer string, tls boolean, "
        "version string, heartbeat string, started timestamp, ended timestamp, duration_us bigint, end_code string, "
        "frames_in bigint, frames_out bigint, bytes_in bigint, bytes_out bigint, unacked bigint, max_unacked bigint, "
        "connect_us bigint, d string"
    ),
    "traffic_10s": (
        "ts10 timestamp, impl string, vhost string, event string, code string, bucket int, n double, bytes double, "
        "d string"
    ),
    "dest_hour": (
        "hour timestamp, impl string, vhost string, destination string, dest_kind string, sent bigint, "
        "sent_bytes bigint, confirmed bigint, rejected bigint, delivered bigint, delivered_bytes bigint, "
        "redelivered bigint, acked bigint, requeued bigint, discarded bigint, d string"
    ),
    "latency_hour": (
        "hour timestamp, impl string, vhost string, destination string, event string, n bigint, p50_us bigint, "
        "p95_us bigint, p99_us bigint, p999_us bigint, max_us bigint, d string"
    ),
    "errors_hour": "hour timestamp, impl string, vhost string, login string, code string, n bigint, d string",
    "redeliveries_hour": (
        "hour timestamp, impl string, vhost string, login string, destination string, delivered bigint, "
        "redelivered bigint, redelivered_pct double, d string"
    ),
    "flows_hour": (
        "hour timestamp, impl string, vhost string, sender string, destination string, subscribed string, "
        "receiver string, sub_name string, messages double, bytes double, p50_us bigint, p99_us bigint, d string"
    ),
    "unacked_hotspots": (
        "hour timestamp, impl string, vhost string, login string, destination string, deliveries bigint, acked bigint, "
        "nacked bigint, unacked bigint, unacked_pct double, p99_ack_us bigint, redelivered_pct double, d string"
    ),
    "features_used": (
        "hour timestamp, impl string, vhost string, login string, version string, feature string, sessions bigint, "
        "first_seen timestamp, last_seen timestamp, d string"
    ),
    "durable_days": (
        "hour timestamp, vhost string, login string, sub_name string, destination string, first_seen timestamp, "
        "last_connected timestamp, last_delivery timestamp, last_ack timestamp, deliveries bigint, acks bigint, "
        "last_sub timestamp, last_sub_boot string, last_unsub timestamp, last_unsub_code string, d string"
    ),
    "durable_subs": (
        "vhost string, login string, sub_name string, destination string, first_seen timestamp, "
        "last_connected timestamp, last_delivery timestamp, last_ack timestamp, deliveries bigint, acks bigint, "
        "connected boolean, days_idle double, verdict string"
    ),
}
"""Tables that are computed from `BATCH_TABLES`; ``durable_subs`` as a whole."""

TABLES_OF_EVENTS: Final = ("boots", "features_used", "durable_days")
"""Computed tables that need the rows of ``events``, which `pipeline gc` may delete."""

HOURLY_TABLES: Final = (
    "sessions", "traffic_10s", "dest_hour", "latency_hour", "errors_hour", "redeliveries_hour", "flows_hour",
    "unacked_hotspots", *TABLES_OF_EVENTS,
)  # fmt: skip
"""Computed tables of which single hours are replaced: each of their files has rows of one hour, which its path names.

A file of an earlier release has a whole day, and no ``hour`` in some tables.
"""

STREAM_MESSAGE: Final = (
    "stream string, offset bigint, timestamp timestamp, exchange string, routing_key string, destination string, "
    "headers map<string,string>, content_type string, content_encoding string, delivery_mode int, priority int, "
    "correlation_id string, reply_to string, expiration string, message_id string, type string, user_id string, "
    "app_id string, body binary"
)
"""A message of a RabbitMQ stream, as the data source ``rabbitmq_stream`` gives it."""

MESSAGES: Final = f"{STREAM_MESSAGE}, body_bytes bigint, vhost string, archived timestamp, d string"
"""What `pipeline archive` keeps of messages; ``d`` is the day on which it did."""

COLUMNS: Final = {
    **BATCH_TABLES, "segments": SEGMENTS, "segments_aside": SEGMENTS_ASIDE, "deleted_lines": DELETED_LINES,
    **COMPUTED_TABLES, "messages": MESSAGES,
}  # fmt: skip
"""Every table of a lake, as a schema that Spark reads."""


def partitions_of(table: str) -> list[str]:
    """The columns by which a table is partitioned."""
    return [] if table == "durable_subs" else ["d", "level"] if table == "events" else ["d"]


def schema_of(table: str) -> pa.Schema:
    """The Arrow schema of a table."""
    return arrow_schema(COLUMNS[table])


def arrow_schema(text: str) -> pa.Schema:
    """The Arrow schema of columns that are written as in `COLUMNS`."""
    columns = (column.split(" ") for column in text.split(", "))
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns])
