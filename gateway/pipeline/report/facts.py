"""What the page shows besides events over time: each a question in SQL, with a bounded number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.event_counts import Row, Sql, micros, rows
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.units import HOUR

MOST_ROWS: Final = 500
"""Rows of a table, at most. Each row has in `in_all` how many there are."""

LEAST_LATENCIES: Final = 20
"""How many latencies an hour of a destination must have to be called slow."""

DEPARTS: Final = "feature LIKE '%/%'"
"""SQL for a feature that is the name of a rule: a use that the gateway answers differently, which a tap saw."""

_MOST_SLOW: Final = 20
_SUMMED: Final = (
    "sent", "sent_bytes", "confirmed", "rejected", "delivered", "delivered_bytes",
    "redelivered", "acked", "requeued", "discarded",
)  # fmt: skip

# One row for each run of a gateway, over all its days. `followed`: the same gateway has started again since.
RUNS: Final = f"""
    runs AS (
        SELECT boot, min(node) AS node, min(impl) AS impl, min(gateway_version) AS gateway_version,
               {micros("min(first_ts)")} AS first, {micros("max(last_ts)")} AS last, bool_or(closed) AS closed,
               sum(lines) AS lines, sum(dropped) AS dropped
        FROM boots WHERE boot IS NOT NULL AND first_ts IS NOT NULL AND last_ts IS NOT NULL GROUP BY boot),
    boot_runs AS (
        SELECT *, max(first) OVER (PARTITION BY impl, node) > first AS followed,
               max(first) OVER (PARTITION BY impl, node) > first AND NOT coalesce(closed, false) AS lost FROM runs)"""


def known_span(sql: Sql) -> Span | None:
    """The time that a lake covers; None if it is empty."""
    days = rows(sql, "SELECT min(d) AS first, max(d) AS last FROM traffic_10s")[0]
    if days["first"] is not None:
        first, last = (
            rows(sql, f"SELECT {micros(f'{which}(ts10)')} AS at FROM traffic_10s WHERE d = '{day}'")[0]["at"]
            for which, day in (("min", days["first"]), ("max", days["last"]))
        )
        return Span(first, last + TEN_SECONDS)
    boots = rows(sql, f"SELECT {micros('min(first_ts)')} AS first, {micros('max(last_ts)')} AS last FROM boots")[0]
    if boots["first"] is None or boots["last"] is None:
        return None
    return Span(boots["first"] // TEN_SECONDS * TEN_SECONDS, (boots["last"] // TEN_SECONDS + 1) * TEN_SECONDS)


def newest_line(sql: Sql, known: Span) -> int:
    """The last moment that the lake knows of, to ten seconds."""
    last: int | None = rows(sql, f"SELECT {micros('max(last_ts)')} AS last FROM boots")[0]["last"]
    return known.end if last is None else max(last, known.end - TEN_SECONDS)


def boot_rows(sql: Sql, span: Span) -> list[Row]:
    """The runs of gateways in a span, the earliest first."""
    return rows(
        sql,
        f"""
        WITH {RUNS} SELECT *, count(*) OVER () AS in_all FROM boot_runs WHERE {_touches(span, "first", "last")}
        ORDER BY first, node, boot LIMIT {MOST_ROWS}""",
    )


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions that were open at some time of a span: how many, and how many at most at the same time."""

    total: int
    at_once: int


def count_sessions(sql: Sql, span: Span) -> Sessions:
    """Count the sessions of a span."""
    # A gateway that was killed has not written the end of its sessions: they ended with it. At equal times ends come
    # first: a session that follows another one does not overlap with it.
    found = rows(
        sql,
        f"""
        WITH {RUNS},
        lives AS (
            SELECT {micros("s.started")} AS begun,
                   coalesce({micros("s.ended")}, CASE WHEN b.closed OR b.followed THEN b.last END) AS ended
            FROM sessions s LEFT JOIN boot_runs b ON s.boot = b.boot),
        kept AS (SELECT * FROM lives WHERE begun IS NOT NULL AND {_touches(span, "begun", "ended")}),
        changes AS (SELECT greatest(begun, {span.start}) AS at, 1 AS change FROM kept
                    UNION ALL SELECT ended, -1 FROM kept WHERE ended IS NOT NULL),
        running AS (SELECT change, sum(change) OVER (ORDER BY at, change) AS open FROM changes)
        SELECT count(*) FILTER (WHERE change > 0) AS total, max(open) AS at_once FROM running""",
    )[0]
    return Sessions(found["total"], found["at_once"] or 0)


def destination_rows(sql: Sql, span: Span) -> list[Row]:
    """Destinations of a span, the busiest first, with the sums of all."""
    sums = ", ".join(f"coalesce(sum({column}), 0) AS {column}" for column in _SUMMED)
    return rows(
        sql,
        f"""
        WITH totals AS (SELECT vhost, destination, min(dest_kind) AS dest_kind, {sums} FROM dest_hour
                        WHERE {_hours(span)} GROUP BY vhost, destination)
        SELECT *, count(*) OVER () AS in_all, sum(sent) OVER () AS sent_in_all,
               sum(delivered) OVER () AS delivered_in_all
        FROM totals ORDER BY sent + delivered DESC, vhost, destination LIMIT {MOST_ROWS}""",
    )


def slow_rows(sql: Sql, span: Span) -> list[Row]:
    """Each destination's worst hour, the worst first."""
    return rows(
        sql,
        f"""
        WITH placed AS (
            SELECT vhost, destination, event, {micros("hour")} AS hour, n, p50_us, p99_us,
                   row_number() OVER (PARTITION BY vhost, destination, event ORDER BY p99_us DESC, hour) AS place
            FROM latency_hour WHERE destination IS NOT NULL AND n >= {LEAST_LATENCIES} AND {_hours(span)})
        SELECT * FROM placed WHERE place = 1 ORDER BY p99_us DESC, destination, event LIMIT {_MOST_SLOW}""",
    )


def error_rows(sql: Sql, span: Span) -> list[Row]:
    """Errors by code and login, the most frequent first."""
    return rows(
        sql,
        f"""
        WITH totals AS (SELECT vhost, login, code, sum(n) AS n FROM errors_hour WHERE {_hours(span)}
                        GROUP BY vhost, login, code)
        SELECT *, count(*) OVER () AS in_all FROM totals ORDER BY n DESC, vhost, login, code LIMIT {MOST_ROWS}""",
    )


def redelivery_rows(sql: Sql, span: Span) -> list[Row]:
    """Redeliveries by login and destination, the most first."""
    return rows(
        sql,
        f"""
        WITH totals AS (SELECT vhost, login, destination, sum(delivered) AS delivered, sum(redelivered) AS redelivered
                        FROM redeliveries_hour WHERE {_hours(span)} GROUP BY vhost, login, destination)
        SELECT *, count(*) OVER () AS in_all FROM totals
        ORDER BY redelivered DESC, vhost, login, destination LIMIT {MOST_ROWS}""",
    )


def hotspot_rows(sql: Sql, span: Span) -> list[Row]:
    """Unacknowledged deliveries by login and destination, the most first; whole days."""
    return rows(
        sql,
        f"""
        WITH totals AS (SELECT vhost, login, destination, {ANSWERS}, max(p99_ack_us) AS p99_ack_us
                        FROM unacked_hotspots WHERE {span.days_in_sql} GROUP BY vhost, login, destination),
        answered AS (SELECT *, greatest(deliveries - acked - nacked, 0) AS unacked FROM totals)
        SELECT *, count(*) OVER () AS in_all FROM answered
        ORDER BY unacked DESC, vhost, login, destination LIMIT {MOST_ROWS}""",
    )


ANSWERS: Final = ", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in ("deliveries", "acked", "nacked"))
"""SQL for sums of the table unacked_hotspots."""

_DURABLES: Final = "FROM durable_subs WHERE coalesce({first}, {last}) < {end}"


def durable_where(span: Span) -> str:
    """SQL for the durable subscriptions that existed by the end of a span."""
    return _DURABLES.format(first=micros("first_seen"), last=micros("last_connected"), end=span.end)


def verdict_rows(sql: Sql, span: Span) -> list[Row]:
    """How many durable subscriptions have each verdict."""
    return rows(sql, f"SELECT verdict, count(*) AS n {durable_where(span)} GROUP BY verdict")


def durable_rows(sql: Sql, span: Span) -> list[Row]:
    """Durable subscriptions, those that need attention first, the longest idle first."""
    return rows(
        sql,
        f"""
        SELECT vhost, login, sub_name, destination, coalesce(verdict, 'unknown') AS verdict,
               coalesce({micros("first_seen")}, {micros("last_connected")}) AS first,
               coalesce({micros("last_connected")}, {micros("first_seen")}) AS last,
               {micros("last_delivery")} AS last_delivery, {micros("last_ack")} AS last_ack,
               coalesce(deliveries, 0) AS deliveries, coalesce(acks, 0) AS acks,
               coalesce(connected, false) AS connected, coalesce(days_idle, 0.0) AS days_idle,
               count(*) OVER () AS in_all
        {durable_where(span)}
        ORDER BY CASE verdict WHEN 'abandoned' THEN 0 WHEN 'idle' THEN 1 WHEN 'active' THEN 2 WHEN 'deleted' THEN 3
                 ELSE 4 END, coalesce(days_idle, 0.0) DESC, sub_name, destination LIMIT {MOST_ROWS}""",
    )


def feature_where(span: Span) -> str:
    """SQL for the features that were used in a span."""
    touched = _touches(span, micros("first_seen"), micros("last_seen"))
    return f"FROM features_used WHERE feature IS NOT NULL AND {span.days_in_sql} AND {touched}"


def feature_rows(sql: Sql, span: Span) -> list[Row]:
    """Sessions by client and feature, for the first clients by name. `client` counts clients from 1."""
    return rows(
        sql,
        f"""
        WITH used AS (SELECT vhost, login, version, feature, sum(sessions) AS sessions {feature_where(span)}
                      GROUP BY vhost, login, version, feature),
        counted AS (SELECT *, dense_rank() OVER (ORDER BY vhost, login, version) AS client FROM used)
        SELECT *, (SELECT max(client) FROM counted) AS in_all FROM counted WHERE client <= {MOST_ROWS}
        ORDER BY client, feature""",
    )


def used_features(sql: Sql, span: Span) -> list[str]:
    """The names of all features that were used in a span, at most as many as a table may have rows."""
    query = f"SELECT DISTINCT feature {feature_where(span)} ORDER BY feature LIMIT {MOST_ROWS}"
    return [row["feature"] for row in rows(sql, query)]


def _hours(span: Span) -> str:
    return span.in_sql("hour", HOUR)


def _touches(span: Span, first: str, last: str) -> str:
    """SQL for the time from ``first`` to ``last`` overlapping with a span; null means no bound."""
    return f"coalesce({first} < {span.end}, true) AND coalesce({last} >= {span.start}, true)"
