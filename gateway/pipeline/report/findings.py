"""What stands out in a lake: rules with fixed thresholds. The names of rules are a contract: programs test them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gateway.journal.histogram import highest_of
from gateway.journal.schema import FEATURES
from gateway.pipeline.report.client_text import ClientText
from gateway.pipeline.report.event_counts import LATENCIES, Row, Sql, bin_of, micros, rows
from gateway.pipeline.report.facts import ANSWERS, DEPARTS, RUNS, durable_where, feature_where
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.units import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    count,
    duration,
    exact,
    latency,
    moment,
    rate,
    share,
    spoken,
)

MOST_FOUND: Final = 100
"""Findings of a rule, at most; the others are counted."""

SLOW_FACTOR: Final = 3
"""The worst hour's p99 stands out if it is at least so many times that of the median hour …"""
SLOW_LEAST: Final = 10 * MILLISECOND
"""… and at least so long: shorter times disturb nobody."""
SLOW_COUNT: Final = 100
"""Hours with fewer latencies are not compared."""
FEWEST_PERIODS: Final = 3
"""How many hours it takes to compare them."""

JUMP_FACTOR: Final = 5
"""Errors or redeliveries have jumped if their worst hour has at least so many times the mean of the other hours …"""
JUMP_LEAST: Final = 10
"""… and at least so many."""

UNACKED_SHARE: Final = 0.1
"""Unacknowledged deliveries of a destination stand out from this part of all deliveries on …"""
UNACKED_LEAST: Final = 20
"""… if there are at least so many."""

REDELIVERED_SHARE: Final = 0.05
"""Redeliveries of a destination stand out from this part of all deliveries on …"""
REDELIVERED_LEAST: Final = 10
"""… if there are at least so many."""

LAG: Final = HOUR
"""How old the newest line of a lake may be, if not said otherwise."""

_PEAK_SLOTS: Final = 10


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """A sentence, of words and of texts from clients, with the values that a program needs."""

    parts: tuple[str | ClientText, ...]
    values: Row

    @property
    def text(self) -> str:
        """The sentence."""
        return "".join(str(part) for part in self.parts).replace("\u00a0", " ")


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule has found. ``total`` may be more than there are findings."""

    findings: Sequence[ReportFinding]
    total: int
    more: str
    """What those are that are not named."""
    attention: bool = True


@dataclass(frozen=True, slots=True)
class LakeQuestion:
    """What rules look at. ``now`` and ``newest``, the newest line if there is one, are microseconds since the epoch.

    ``lag`` in microseconds: None does not look at the age of the newest line. ``peak``: messages in a second that need
    attention; None for none.
    """

    sql: Sql
    span: Span
    now: int
    newest: int | None
    lag: int | None = LAG
    peak: float | None = None


def find(asked: LakeQuestion) -> dict[str, Found]:
    """What each rule finds, rules that find nothing included, in the order of a report."""
    return {name: rule(asked) for name, rule in RULES.items()}


def _found(
    found: Sequence[Row], say: Callable[[Row], tuple[str | ClientText, ...]], more: str, *,
    attention: bool = True,
) -> Found:  # fmt: skip
    """Findings from rows; their columns are the values, and `in_all` counts them if there is such a column."""
    total = found[0].get("in_all", len(found)) if found else 0
    findings = [ReportFinding(say(row), {key: value for key, value in row.items() if key != "in_all"}) for row in found]
    return Found(findings, total, more, attention)


def _name(text: str | None) -> ClientText:
    return ClientText(text, 48)


def _lag(asked: LakeQuestion) -> Found:
    found = []
    if asked.lag is not None and asked.newest is not None and asked.now - asked.newest > asked.lag:
        found.append({"lag_seconds": (asked.now - asked.newest) // SECOND})

    def say(row: Row) -> tuple[str, ...]:
        age = duration(row["lag_seconds"] * SECOND)
        return (f"The newest line in the lake is {age} old: ingest does not run, journals do not arrive, or no gateway "
                "runs.",)  # fmt: skip

    return _found(found, say, "")


def _unclosed(asked: LakeQuestion) -> Found:
    found = _boots(asked, "lost")
    return _found(found, lambda row: (
        _name(row["node"]), f" never closed its journal: the boot of {spoken(row['first'])} wrote its last line at "
        f"{spoken(row['last'])}. Its last moments may be missing, so figures are a lower bound.",
    ), "boots that never closed")  # fmt: skip


def _dropped(asked: LakeQuestion) -> Found:
    found = _boots(asked, "dropped > 0")
    return _found(found, lambda row: (
        _name(row["node"]), f" dropped {exact(row['dropped'])} journal lines, because its disk could not keep up: "
        "all figures are a lower bound.",
    ), "boots that dropped journal lines")  # fmt: skip


def _boots(asked: LakeQuestion, which: str) -> list[Row]:
    span = asked.span
    return rows(
        asked.sql,
        f"""
        WITH {RUNS} SELECT node, impl, boot, first, last, dropped, count(*) OVER () AS in_all FROM boot_runs
        WHERE {which} AND first < {span.end} AND last >= {span.start} ORDER BY first, node, boot LIMIT {MOST_FOUND}""",
    )


def _abandoned(asked: LakeQuestion) -> Found:
    found = rows(
        asked.sql,
        f"""
        SELECT vhost, login, sub_name, destination, coalesce(days_idle, 0.0) AS days_idle, count(*) OVER () AS in_all
        {durable_where(asked.span)} AND verdict = 'abandoned'
        ORDER BY days_idle DESC, sub_name, destination LIMIT {MOST_FOUND}""",
    )
    return _found(found, lambda row: (
        "The durable subscription ", _name(row["sub_name"]), " of ", _name(row["login"]), " to ",
        _name(row["destination"]), f" has not been connected for {duration(row['days_idle'] * DAY)}, and its queue "
        "keeps growing unless it expires: delete it, or start its client again.",
    ), "abandoned durable subscriptions")  # fmt: skip


def _unacked(asked: LakeQuestion) -> Found:
    found = rows(
        asked.sql,
        f"""
        WITH totals AS (
            SELECT vhost, login, destination, {ANSWERS} FROM unacked_hotspots WHERE {asked.span.days_in_sql}
            GROUP BY vhost, login, destination),
        sums AS (
            SELECT vhost, destination, sum(greatest(deliveries - acked - nacked, 0)) AS unacked,
                   sum(deliveries) AS deliveries
            FROM totals GROUP BY vhost, destination)
        SELECT *, count(*) OVER () AS in_all FROM sums
        WHERE unacked >= {UNACKED_LEAST} AND unacked >= {UNACKED_SHARE} * deliveries
        ORDER BY unacked DESC, vhost, destination LIMIT {MOST_FOUND}""",
    )
    return _found(found, lambda row: (
        _name(row["destination"]), f": {share(row['unacked'] / row['deliveries'])} of its deliveries "
        f"({count(row['unacked'])} of {count(row['deliveries'])}) were not acknowledged; the broker delivers them "
        "again.",
    ), "destinations with unacknowledged deliveries")  # fmt: skip


def _by_destination(asked: LakeQuestion, which: str, order: str) -> list[Row]:
    return rows(
        asked.sql,
        f"""
        WITH totals AS (
            SELECT vhost, destination, sum(delivered) AS delivered, sum(redelivered) AS redelivered,
                   sum(rejected) AS rejected
            FROM dest_hour WHERE {asked.span.in_sql("hour", HOUR)} GROUP BY vhost, destination)
        SELECT *, count(*) OVER () AS in_all FROM totals WHERE {which}
        ORDER BY {order} DESC, vhost, destination LIMIT {MOST_FOUND}""",
    )


def _redelivered(asked: LakeQuestion) -> Found:
    which = f"redelivered >= {REDELIVERED_LEAST} AND redelivered >= {REDELIVERED_SHARE} * coalesce(delivered, 0)"
    return _found(_by_destination(asked, which, "redelivered"), lambda row: (
        _name(row["destination"]), f": {share(row['redelivered'] / max(row['delivered'] or 0, row['redelivered']))} of "
        f"its deliveries ({count(row['redelivered'])} of {count(row['delivered'] or 0)}) were redeliveries. Its "
        "consumers refuse messages, or leave without acknowledging.",
    ), "destinations with many redeliveries")  # fmt: skip


def _rejected(asked: LakeQuestion) -> Found:
    return _found(_by_destination(asked, "rejected > 0", "rejected"), lambda row: (
        f"The broker rejected {count(row['rejected'])} {'message' if row['rejected'] == 1 else 'messages'} to ",
        _name(row["destination"]), ".",
    ), "destinations with rejected messages")  # fmt: skip


def _jumps(asked: LakeQuestion, where: str) -> list[Row]:
    """The worst period of each code, if it is far above the mean of the others; a period without any counts as 0."""
    span, width = asked.span, asked.span.period
    others = len(span.bins(width)) - 1
    if others + 1 < FEWEST_PERIODS:
        return []
    return rows(
        asked.sql,
        f"""
        WITH counted AS (
            SELECT code, {bin_of("ts10", width)} AS at, sum(n) AS n FROM traffic_10s
            WHERE {where} AND {span.in_sql("ts10")} GROUP BY 1, 2),
        placed AS (
            SELECT *, (sum(n) OVER (PARTITION BY code) - n) / {others} AS usual,
                   sum(n) OVER (PARTITION BY code) AS whole,
                   row_number() OVER (PARTITION BY code ORDER BY n DESC, at) AS place FROM counted)
        SELECT code, at, n, usual, count(*) OVER () AS in_all FROM placed
        WHERE place = 1 AND n >= {JUMP_LEAST} AND n >= {JUMP_FACTOR} * usual
        ORDER BY whole DESC, code LIMIT {MOST_FOUND}""",
    )


def _in_the_period(asked: LakeQuestion, row: Row) -> str:
    unit = _unit(asked.span.period)
    usual = f"{row['usual']:.1f}" if row["usual"] else "none"
    return (f" jumped: {count(row['n'])} in the {unit} from {spoken(row['at'])}, against {usual} in other {unit}s on "
            "average.")  # fmt: skip


def _unit(width: int) -> str:
    return {HOUR: "hour", MINUTE: "minute"}.get(width, "period")


def _error_jump(asked: LakeQuestion) -> Found:
    found = _jumps(asked, "event = 'error'")
    return _found(
        found, lambda row: ("The error ", _name(row["code"]), _in_the_period(asked, row)),
        "errors that jumped",
    )  # fmt: skip


def _redelivery_jump(asked: LakeQuestion) -> Found:
    found = _jumps(asked, "event = 'deliver' AND code = 'redelivered'")
    return _found(found, lambda row: ("Redeliveries", _in_the_period(asked, row)), "")


def _slow(asked: LakeQuestion) -> Found:
    width = asked.span.period
    names = ", ".join(f"'{event}'" for event in LATENCIES)
    periods = rows(
        asked.sql,
        f"""
        WITH counted AS (
            SELECT event, {bin_of("ts10", width)} AS at, bucket, sum(n) AS n FROM traffic_10s
            WHERE event IN ({names}) AND bucket IS NOT NULL AND {asked.span.in_sql("ts10")} GROUP BY 1, 2, 3),
        ranked AS (
            SELECT *, sum(n) OVER (PARTITION BY event, at ORDER BY bucket) AS seen,
                   sum(n) OVER (PARTITION BY event, at) AS whole FROM counted WHERE n > 0)
        SELECT event, at, max(whole) AS n,
               coalesce(min(CASE WHEN seen >= ceil(0.99 * whole) THEN bucket END), max(bucket)) AS bucket
        FROM ranked GROUP BY event, at HAVING max(whole) >= {SLOW_COUNT} ORDER BY event, at""",
    )
    found = []
    for event in LATENCIES:
        of_event = [row for row in periods if row["event"] == event]
        if len(of_event) >= FEWEST_PERIODS:
            worst = max(of_event, key=lambda row: (row["bucket"], -row["at"]))
            usual, longest = median(highest_of(row["bucket"]) for row in of_event), highest_of(worst["bucket"])
            if longest >= SLOW_LEAST and longest >= SLOW_FACTOR * usual:
                found.append({"event": event, "at": worst["at"], "p99_us": longest, "usual_p99_us": usual})
    unit = _unit(width)
    return _found(found, lambda row: (
        f"{LATENCIES[row['event']]} was slow in the {unit} from {spoken(row['at'])}: its p99 was "
        f"{latency(row['p99_us'])}, against {latency(row['usual_p99_us'])} in the median {unit}.",
    ), "")  # fmt: skip


def _unknown_features(asked: LakeQuestion) -> Found:
    known = ", ".join(f"'{name}'" for name in FEATURES)
    found = _used_features(asked, f"feature NOT IN ({known}) AND NOT {DEPARTS}")
    return _found(found, lambda row: (
        "Clients use a feature that this version does not know: ", _name(row["feature"]), ".",
    ), "features that this version does not know")  # fmt: skip


def _departures(asked: LakeQuestion) -> Found:
    found = _used_features(asked, DEPARTS)
    return _found(found, lambda row: (
        f"In {count(row['sessions'])} {'session' if row['sessions'] == 1 else 'sessions'} clients do what the gateway "
        "answers differently than RabbitMQ's plugin: ", _name(row["feature"]), ".",
    ), "uses that the gateway answers differently")  # fmt: skip


def _used_features(asked: LakeQuestion, where: str) -> list[Row]:
    return rows(
        asked.sql,
        f"""
        WITH used AS (SELECT feature, sum(sessions) AS sessions {feature_where(asked.span)}
                      AND {where} GROUP BY feature)
        SELECT *, count(*) OVER () AS in_all FROM used ORDER BY feature LIMIT {MOST_FOUND}""",
    )


def _peak(asked: LakeQuestion) -> Found:
    """The busiest second where messages have lines of their own, and the busiest ten seconds anywhere."""
    moved = "event IN ('send', 'deliver')"
    slots = rows(
        asked.sql,
        f"""
        SELECT {micros("ts10")} AS at, sum(n) AS n, coalesce(sum(n) FILTER (WHERE event = 'send'), 0) AS sent,
               coalesce(sum(n) FILTER (WHERE event = 'deliver'), 0) AS delivered
        FROM traffic_10s WHERE {moved} AND {asked.span.in_sql("ts10")} GROUP BY 1 HAVING sum(n) > 0
        ORDER BY n DESC, at LIMIT {_PEAK_SLOTS}""",
    )
    if not slots:
        return _found([], lambda _: (), "", attention=False)
    seconds = 10
    found: Row = slots[0]
    days = ", ".join(sorted({f"'{moment(slot['at'])[:10]}'" for slot in slots}))
    times = " OR ".join(
        f"ts BETWEEN to_timestamp_micros({slot['at']}) AND to_timestamp_micros({slot['at'] + TEN_SECONDS - 1})"
        for slot in slots
    )
    lines = "sum(coalesce(weight, 1.0))"
    single = rows(
        asked.sql,
        f"""
        SELECT {bin_of("ts", SECOND)} AS at, {lines} AS n,
               coalesce({lines} FILTER (WHERE event = 'send'), 0) AS sent,
               coalesce({lines} FILTER (WHERE event = 'deliver'), 0) AS delivered
        FROM events WHERE level = 'message' AND d IN ({days}) AND {moved} AND ({times})
        GROUP BY 1 ORDER BY n DESC, at LIMIT 1""",
    )
    if single and single[0]["n"] >= found["n"] / seconds:
        found, seconds = single[0], 1
    per_second = found["n"] / seconds
    values = {
        "at": found["at"], "seconds": seconds, "messages_per_second": per_second,
        "sent_per_second": found["sent"] / seconds, "delivered_per_second": found["delivered"] / seconds,
    }  # fmt: skip
    when = "The busiest second was" if seconds == 1 else "The busiest ten seconds began at"
    return _found([values], lambda row: (
        f"{when} {spoken(row['at'])}: {rate(row['sent_per_second'])} sent and "
        f"{rate(row['delivered_per_second'])} delivered.",
    ), "", attention=asked.peak is not None and per_second > asked.peak)  # fmt: skip


def _largest(asked: LakeQuestion) -> Found:
    found = rows(
        asked.sql,
        f"""
        WITH totals AS (
            SELECT vhost, destination, coalesce(sum(sent), 0) AS sent, coalesce(sum(delivered), 0) AS delivered
            FROM dest_hour WHERE {asked.span.in_sql("hour", HOUR)} GROUP BY vhost, destination),
        shared AS (SELECT *, (sent + delivered) / cast(sum(sent + delivered) OVER () AS double) AS share FROM totals)
        SELECT * FROM shared WHERE sent + delivered > 0
        ORDER BY sent + delivered DESC, vhost, destination LIMIT 1""",
    )
    return _found(found, lambda row: (
        _name(row["destination"]), f" has the most traffic: {share(row['share'])} of all messages "
        f"({count(row['sent'])} sent, {count(row['delivered'])} delivered).",
    ), "", attention=False)  # fmt: skip


def _mixed(asked: LakeQuestion) -> Found:
    span = asked.span
    kinds = [
        row["impl"]
        for row in rows(
            asked.sql,
            f"""
        WITH {RUNS} SELECT DISTINCT impl FROM boot_runs WHERE first < {span.end} AND last >= {span.start}
        ORDER BY impl LIMIT {MOST_FOUND}""",
        )
    ]
    found = [{"kinds": ", ".join(str(ClientText(kind)) for kind in kinds)}] if len(kinds) > 1 else []
    return _found(found, lambda row: (
        "Recorders of several kinds wrote this (", ClientText(row["kinds"], 80),
        "); a message that passed two of them counts twice.",
    ), "", attention=False)  # fmt: skip


RULES: Final[Mapping[str, Callable[[LakeQuestion], Found]]] = {
    "lake-lag": _lag,
    "journal-not-closed": _unclosed,
    "journal-lines-dropped": _dropped,
    "abandoned-subscription": _abandoned,
    "unacknowledged": _unacked,
    "redelivered": _redelivered,
    "rejected": _rejected,
    "error-jump": _error_jump,
    "redelivery-jump": _redelivery_jump,
    "slow-latency": _slow,
    "departure": _departures,
    "unknown-feature": _unknown_features,
    "peak": _peak,
    "largest-destination": _largest,
    "several-recorders": _mixed,
}
"""Every rule by its name."""

NOTES: Final = ("largest-destination", "several-recorders")
"""Rules whose findings never need attention."""
