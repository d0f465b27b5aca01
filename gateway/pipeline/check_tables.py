"""Checks of tables as a whole: all files are there, the roll-up sums up to the events, the computed tables have all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from gateway.journal.schema import EVENT_WORDS, MESSAGE_EVENTS
from gateway.pipeline.lake import Lake, last_batch
from gateway.pipeline.lake_sql import Snapshot, SqlError
from gateway.pipeline.progress import CheckOutput, first_few
from gateway.pipeline.table_schemas import BATCH_TABLES, COMPUTED_TABLES, schema_of

_OVERDUE: Final = timedelta(minutes=15)
"""Age of a batch beyond which no ingest that runs is about to commit it or to compute the tables."""

_MESSAGES: Final = ", ".join(repr(EVENT_WORDS.get(event, event)) for event in MESSAGE_EVENTS)
# What the lines of a day sum up to. `queue` is left out: of level session it is in histograms only.
_SUMS: Final = f"""
with of_lines as (
    select d, event,
        sum(case when event in ('ack', 'nack') then n * coalesce(weight, 1) when event = 'dropped' then n
            when event in ({_MESSAGES}) then coalesce(weight, 1) else 1 end) n,
        sum(case when event in ('send', 'deliver') then coalesce(weight, 1) * coalesce(body_bytes, 0) else 0 end) bytes
    from events
    where d >= '%(since)s' and event in ({_MESSAGES}, 'open', 'close', 'dropped', 'connect', 'end', 'feature',
        'subscribe', 'unsubscribe', 'error', 'blocked')
    group by d, event),
stat as (
    select d, sum(counters['send']) send, sum(counters['send_bytes']) send_bytes, sum(counters['conf']) conf,
        sum(counters['rejected']) rejected, sum(counters['dlv']) dlv, sum(counters['dlv_bytes']) dlv_bytes,
        sum(counters['ack']) ack, sum(counters['requeue']) requeue, sum(counters['discard']) discard
    from events where event = 'stat' and d >= '%(since)s' group by d),
lines as (
    select d, event, sum(n) n, sum(bytes) bytes from (
        select * from of_lines
        union all select d, 'send', send, send_bytes from stat
        union all select d, 'confirm', coalesce(conf, 0) + coalesce(rejected, 0), 0 from stat
        union all select d, 'deliver', dlv, dlv_bytes from stat
        union all select d, 'ack', ack, 0 from stat
        union all select d, 'nack', coalesce(requeue, 0) + coalesce(discard, 0), 0 from stat)
    group by d, event),
summed as (select d, event, sum(n) n, sum(bytes) bytes from rollup_10s
    where event <> 'queue' and d >= '%(since)s' group by d, event)
select coalesce(l.d, s.d) d, coalesce(l.event, s.event) event, coalesce(l.n, 0) n, coalesce(l.bytes, 0) bytes,
    coalesce(s.n, 0) summed, coalesce(s.bytes, 0) summed_bytes
from lines l full join summed s on s.d = l.d and s.event = l.event
where coalesce(l.d, s.d) not in (select d from deleted_lines)
order by 1, 2
"""  # noqa: S608


def check_files(snapshot: Snapshot, output: CheckOutput) -> bool:
    """Check that the files of all tables are there and that the computed ones can be read; return whether they are."""
    missing = [
        f"{name}/{path}"
        for name, table in snapshot.tables.items()
        if table is not None
        for path in table.repair(dry_run=True)["files_removed"]
    ]
    broken = [f"{name} ({reason})" for name in COMPUTED_TABLES if (reason := _why_unreadable(snapshot, name))]
    if missing:
        output.wrong(
            f"{len(missing)} files of tables are not there: {first_few(missing)}",
            "Restore them from a backup. If all are those of a computed table, remove its directory and run `pipeline "
            "ingest`, which computes it again.",
        )
    elif broken:
        output.wrong(
            f"{len(broken)} computed tables cannot be read: {first_few(broken)}",
            "Remove the table's directory and run `pipeline ingest`, which computes it again.",
        )
    return not missing


def _why_unreadable(snapshot: Snapshot, table: str) -> str | None:
    text = next(field.name for field in schema_of(table) if field.type == pa.string())
    try:
        snapshot.sql(f"select sum(length({text})) from {table}")  # noqa: S608
    except SqlError as error:
        return str(error)
    return None


def check_batches(lake: Lake, snapshot: Snapshot, applied: int, output: CheckOutput) -> None:
    """Check that no table has lost batches: a batch is in all of `BATCH_TABLES` before the next, or what is computed.

    They are looked at again, since an ingest may have committed while the snapshot was taken.
    """
    newest = max(
        *(last_batch(snapshot.tables[name]) - 1 for name in BATCH_TABLES),
        *(last_batch(snapshot.tables[name]) for name in COMPUTED_TABLES),
    )
    behind = [name for name in BATCH_TABLES if lake.last_batch(name) < newest]
    if behind:
        output.wrong(
            f"{len(behind)} tables lack batches that others have: {first_few(behind)}",
            "Their files or their _delta_log were removed, or are of an old backup. Restore them, or ingest the "
            "journal into a new lake.",
        )
        return
    batches = snapshot.sql(f"select distinct batch from segments where batch > {applied}")["batch"].to_pylist()  # noqa: S608
    if batches:
        (output.wrong if _is_overdue(snapshot, applied) else output.note)(
            f"{len(batches)} batches are planned and not in all tables yet",
            "An ingest is running or was killed. The next ingest finishes them; they are not checked here.",
        )


def _is_overdue(snapshot: Snapshot, batch: int) -> bool:
    """Whether the batches after this one are so old that no ingest that runs is about to finish them."""
    since = snapshot.sql(f"select min(ingested) t from segments where batch > {batch}")["t"][0].as_py()  # noqa: S608
    return since is None or datetime.now(UTC) - since > _OVERDUE


def check_rollup(snapshot: Snapshot, applied: int, output: CheckOutput, since: str = "") -> None:
    """Compare the sums of the roll-up with those of the events, by day, from a day on if one is given."""
    unfinished = snapshot.sql(f"select distinct unnest(days) d from segments where batch > {applied}")["d"].to_pylist()  # noqa: S608
    days, wrong = set(), []
    for row in snapshot.rows(_SUMS % {"since": since}):
        if row["d"] in unfinished:
            continue
        days.add(row["d"])
        for what, key, expected in (("", "summed", row["n"]), ("bytes of ", "summed_bytes", row["bytes"])):
            found = row[key]
            if abs(expected - found) > 1e-9 * max(abs(expected), 1.0):
                wrong.append(f"{row['d']} {what}{row['event']}: {found:,.0f} instead of {expected:,.0f}")
    if wrong:
        output.wrong(
            f"the roll-up and the events differ: {first_few(wrong)}",
            "One of them was changed: restore the lake from a backup, or ingest the journal into a new lake.",
        )
    else:
        output.ok(f"the roll-up of {len(days):,} days has the same totals as the events")


def check_computed(snapshot: Snapshot, applied: int, output: CheckOutput) -> None:
    """Check that all computed tables have the last batch. Their figures are not checked."""
    lacking = {name: applied - has for name in COMPUTED_TABLES if (has := last_batch(snapshot.tables[name])) < applied}
    if not lacking:
        output.ok(f"computed tables: all {len(COMPUTED_TABLES)} have the last batch")
        return
    overdue = _is_overdue(snapshot, applied - max(lacking.values()))
    (output.wrong if overdue else output.note)(
        f"{len(lacking)} computed tables lack batches, up to {max(lacking.values()):,}: {first_few([*lacking])}",
        "Run `pipeline ingest`, which computes them. (With --every it does so every five minutes.)",
    )
