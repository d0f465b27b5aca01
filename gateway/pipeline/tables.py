"""Computes the tables that come from the roll-up and from events at level session, for all days that changed at once.

Each table is one job of Spark, which writes the files, and one commit to its Delta table, which replaces the days.
Nothing passes through this process but the names and the statistics of files. A commit fails if another ingest has
changed the same table since this one looked at what to compute; then this one looks again.

What a table has is in its own log: like a table that records, it has a batch of a writer if its transaction version for
this writer is not lower. See `gateway.pipeline.lake`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.rollup import day_of
from gateway.pipeline.session_tables import boots, durable_days, durable_subs, features_used, merged, sessions
from gateway.pipeline.traffic_tables import (
    by_hour,
    dest_hour,
    errors_hour,
    latency_hour,
    redeliveries_hour,
    traffic_10s,
    unacked_hotspots,
)

IDLE_AFTER: Final = 86_400.0
"""Seconds without a connection after which a durable subscription is idle."""

ABANDONED_AFTER: Final = 7 * 86_400.0
"""Seconds after which it is abandoned."""

_CLOCK_TOLERANCE: Final = 300
"""Seconds by which a clock may be adjusted during a session, so that its row is still found by its duration."""

_HOURLY: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "dest_hour": dest_hour,
    "latency_hour": latency_hour,
    "errors_hour": errors_hour,
    "redeliveries_hour": redeliveries_hour,
    "unacked_hotspots": unacked_hotspots,
}
