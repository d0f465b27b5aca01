"""Proves that a lake is complete: every line of every ingested segment is in it, once, identified by (boot, number).

DataFusion computes what is compared, over one snapshot of all tables, so other commands may write meanwhile, and the
engine that wrote the lake is not the one that checks it. Memory grows with the number of segments and not of lines. Of
the computed tables, the files are checked but not the figures in them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa

from gateway.journal.schema import EVENT_WORDS, MESSAGE_EVENTS, VERSION
from gateway.journal.segments import SegmentName
from gateway.pipeline.check_lines import LineChecker
from gateway.pipeline.lake import Lake, closed_before, last_batch
from gateway.pipeline.lake_sql import Snapshot, SqlError
from gateway.pipeline.progress import CheckOutput, first_few
from gateway.pipeline.stored_segments import OddFile, StoredSegment, listed
from gateway.pipeline.table_schemas import BATCH_TABLES, COMPUTED_TABLES, schema_of
from gateway.texts import counted

OVERDUE: Final = 6 * 3600.0
"""Seconds since the last write of a finished segment after which it should be in the lake, if not said otherwise."""

_BATCH_OVERDUE: Final = timedelta(minutes=15)
"""Age of a batch beyond which no ingest that runs is about to commit it or to compute the tables."""

_MESSAGES: Final = ", ".join(repr(EVENT_WORDS.get(event, event)) for event in MESSAGE_EVENTS)
# The sums of a day's lines, and of the roll-up. `queue` is left out: at level session only histograms have it.
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
        if _check_files(snapshot, output):
            _check_batches(lake, snapshot, applied, output)
            LineChecker(snapshot, applied, output, max(since, closed_before(snapshot.tables["segments"]))).check()
            _note_boots(snapshot, output)
            _check_rollup(snapshot, applied, output, since)
            _check_computed(snapshot, applied, output)
        _check_journals(snapshot, journals, _check_aside(snapshot, output), overdue, output)
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
                f"{name}: {counted(row['dropped'], 'event', 'was', 'were')} dropped, and counted, by its gateway",
                "Disk or writer could not keep up. They are lost; the journal's level session writes less.",
            )
        if not row["closed"]:
            not_closed.append(name)
    if not_closed:
        output.note(
            f"{counted(len(not_closed), 'boot')} did not close: {first_few(not_closed)}",
            "They are running, or their last segments are not ingested, or they were killed: then up to 512 "
            "events, or 250 ms of them, may be missing at their ends, and at level session ten seconds of counts.",
        )


# Tables as a whole: all files are there, the roll-up sums up to the events, the computed tables have all.


def _check_files(snapshot: Snapshot, output: CheckOutput) -> bool:
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
            f"{counted(len(missing), 'file', 'of a table is', 'of tables are')} not there: {first_few(missing)}",
            "Restore them from a backup. If all are those of a computed table, remove its directory and run `pipeline "
            "ingest`, which computes it again.",
        )
    elif broken:
        output.wrong(
            f"{counted(len(broken), 'computed table')} cannot be read: {first_few(broken)}",
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


def _check_batches(lake: Lake, snapshot: Snapshot, applied: int, output: CheckOutput) -> None:
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
            f"{counted(len(behind), 'table', 'lacks', 'lack')} batches that others have: {first_few(behind)}",
            "Their files or their _delta_log were removed, or are of an old backup. Restore them, or ingest the "
            "journal into a new lake.",
        )
        return
    batches = snapshot.sql(f"select distinct batch from segments where batch > {applied}")["batch"].to_pylist()  # noqa: S608
    if batches:
        (output.wrong if _is_overdue(snapshot, applied) else output.note)(
            f"{counted(len(batches), 'batch', 'is', 'are')} planned and not in all tables yet",
            "An ingest is running or was killed. The next ingest finishes them; they are not checked here.",
        )


def _is_overdue(snapshot: Snapshot, batch: int) -> bool:
    """Whether the batches after this one are so old that no ingest that runs is about to finish them."""
    since = snapshot.sql(f"select min(ingested) t from segments where batch > {batch}")["t"][0].as_py()  # noqa: S608
    return since is None or datetime.now(UTC) - since > _BATCH_OVERDUE


def _check_rollup(snapshot: Snapshot, applied: int, output: CheckOutput, since: str = "") -> None:
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
        output.ok(f"the roll-up of {counted(len(days), 'day')} has the same totals as the events")


def _check_computed(snapshot: Snapshot, applied: int, output: CheckOutput) -> None:
    """Check that all computed tables have the last batch. Their figures are not checked."""
    lacking = {name: applied - has for name in COMPUTED_TABLES if (has := last_batch(snapshot.tables[name])) < applied}
    if not lacking:
        output.ok(f"computed tables: all {len(COMPUTED_TABLES)} have the last batch")
        return
    overdue = _is_overdue(snapshot, applied - max(lacking.values()))
    (output.wrong if overdue else output.note)(
        f"{counted(len(lacking), 'computed table', 'lacks', 'lack')} batches, up to {max(lacking.values()):,}: "
        f"{first_few([*lacking])}",
        "Run `pipeline ingest`, which computes them. (With --every it does so every five minutes.)",
    )


# The segments that journals still have.


_ABANDONED_AFTER: Final = 3600.0
"""Seconds without a write after which an open segment probably belongs to a dead gateway."""

_ASIDE: Final = """
select name, last_value(reason order by seen) reason from segments_aside
where name not in (select name from segments) and d >= '%s' group by name order by name
"""
_WRONG_KINDS: Final = {
    "changed": (
        ("ingested segment", "has changed since", "have changed since"),
        "A finished segment must never be written again. Find out who did; the lake has what was there first.",
    ),
    "overdue": (
        ("segment", "waits for hours", "wait for hours"),
        "No ingest runs, it fails, or it does not read this journal. Run `pipeline ingest`, and look at its messages.",
    ),
    "too late": (
        ("segment", "is of a day that the lake has closed", "are of days that the lake has closed"),
        "It has forgotten which of them it has. Move them elsewhere, or ingest them into another lake.",
    ),
    "refused": (
        ("file", "of the journal is no segment that may be read", "of the journal are no segments that may be read"),
        "Links could lead to any file. Put the segments themselves there.",
    ),
    "passed over": (
        (
            "segment",
            "was passed over, though a later one of its boot is in the lake",
            "were passed over, though later ones of the same boots are in the lake",
        ),
        "Run `pipeline ingest`. If they are not in the lake then, ingest the journal into a new one.",
    ),
}
_NOTED_KINDS: Final = {
    "waiting": (
        ("segment", "is not ingested yet", "are not ingested yet"),
        "They are newer than what the lake has of their boots, as usual. Run `pipeline ingest`.",
    ),
    "later": (
        ("segment", "is of another schema version", "are of another schema version"),
        "This release cannot read them, and their lines are not in the lake. Ingest with that which wrote them.",
    ),
    "odd": (
        ("file", "of the journal has a name that no gateway gives", "of the journal have names that no gateway gives"),
        "Nobody reads them. Give a segment its name again, or move the file elsewhere.",
    ),
    "abandoned": (
        ("open segment", "has not been written for an hour", "have not been written for an hour"),
        "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them.",
    ),
}


def _check_aside(snapshot: Snapshot, output: CheckOutput) -> set[str]:
    """Tell which segments are aside, and why; return their names."""
    closed = closed_before(snapshot.tables["segments"])
    reasons = {row["name"]: f"{row['name']} ({row['reason']})" for row in snapshot.rows(_ASIDE % closed)}
    if reasons:
        output.wrong(
            f"{counted(len(reasons), 'segment', 'is', 'are')} aside: {first_few([*reasons.values()])}",
            "Mend or restore them in their journals; the next `pipeline ingest` takes in those that have changed, and "
            "`pipeline ingest --again` tries all of them.",
        )
    return {*reasons}


def _check_journals(
    snapshot: Snapshot, journals: Sequence[Path | str], aside: Container[str], overdue: float, output: CheckOutput
) -> None:
    """Compare the lake with the segments of journals, but for those that are ``aside``. Raises PipelineError."""
    if not journals:
        return
    closed = closed_before(snapshot.tables["segments"])
    known = {str(row["name"]): row["lines"] for row in snapshot.rows("select name, lines from segments")}
    newest: dict[str, int] = {}
    for each in map(SegmentName.read, known):
        if each is not None:
            newest[each.boot] = max(each.number, newest.get(each.boot, -1))
    found = defaultdict[str, list[str]](list)
    for file in (file for journal in journals for file in listed(journal)):
        if isinstance(file, OddFile):
            found["refused" if file.is_refused else "odd"].append(str(file))
        elif (name := str(file.name)) not in aside:
            with suppress(FileNotFoundError):  # the gateway or `gc` has deleted it meanwhile
                kind, text = _compared(file, known.get(name), newest.get(file.name.boot, -1), closed, overdue)
                found[kind].append(text)
    _tell(output.wrong, found, _WRONG_KINDS)
    same = counted(len(found["same"]), "segment", "of the journal has", "of the journal have")
    output.ok(f"{same} as many lines as were ingested")
    _tell(output.note, found, _NOTED_KINDS)


def _tell(
    tell: Callable[[str, str], None],
    found: Mapping[str, list[str]],
    kinds: Mapping[str, tuple[tuple[str, str, str], str]],
) -> None:
    for kind, (words, advice) in kinds.items():
        if texts := found.get(kind):
            tell(f"{counted(len(texts), *words)}: {first_few(texts)}", advice)


def _compared(segment: StoredSegment, lines: int | None, newest: int, closed: str, overdue: float) -> tuple[str, str]:
    """How a segment compares with the lake, and what to print of it.

    ``lines`` are those that were ingested, ``newest`` is the boot's last number in the lake, ``closed`` the first day
    that is not closed, and ``overdue`` seconds, see `OVERDUE`.
    """
    name, age = str(segment.name), time.time() - segment.written
    if segment.is_open:
        return "abandoned" if age > _ABANDONED_AFTER else "being written", segment.name.while_open
    if segment.name.version != VERSION:
        return "later", name
    if lines is None:
        if segment.day < closed:
            return "too late", name
        return "passed over" if segment.name.number < newest else "overdue" if age > overdue else "waiting", name
    now = segment.count_lines()
    return ("same", name) if now == lines else ("changed", f"{name}: {now:,} lines, {lines:,} when ingested")
