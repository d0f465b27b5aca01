"""The page: one HTML file that loads nothing from elsewhere and runs no script. Its words are in page.html.jinja."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gateway.journal.histogram import highest_of, lowest_of, percentile
from gateway.journal.schema import FEATURES
from gateway.pipeline.report import charts, facts
from gateway.pipeline.report.client_text import ClientText, name_of, shortened
from gateway.pipeline.report.event_counts import LATENCIES, EventCounts, Row, count_events
from gateway.pipeline.report.findings import Found, LakeQuestion
from gateway.pipeline.report.span import MOST_BARS, MOST_POINTS, TEN_SECONDS, Span
from gateway.pipeline.report.units import (
    DAY,
    NOTHING,
    count,
    duration,
    exact,
    latency,
    moment,
    rate,
    share,
    si,
    size,
)

Cell = str | ClientText

_HERE: Final = Path(__file__).parent
_MOST_NODES: Final = 12
_MOST_NAMED: Final = 5
_MOST_BARS: Final = 15
_MOST_LIVES: Final = 30
_MOST_ROW_BARS: Final = 10
_FLOWS: Final = (("send", "sent", 1), ("deliver", "delivered", 2), ("ack", "acknowledged", 3))
_PERCENTILES: Final = ((0.5, "p50", 1), (0.95, "p95", 2), (0.99, "p99", 4))
_VERDICTS: Final = ("abandoned", "idle", "active", "deleted")


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first ``names`` columns contain names, all others figures. ``left_out`` rows are not in it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    note: str = ""
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its tables. A legend is samples and their names."""

    caption: str
    plot: Markup
    tables: Sequence[Table]
    legend: Sequence[tuple[Markup, str]] = ()


def full_page(asked: LakeQuestion, found: Mapping[str, Found]) -> str:
    """The report on a span."""
    span, sql = asked.span, asked.sql
    counts = count_events(sql, span, span.width(MOST_POINTS))
    boots = facts.boot_rows(sql, span)
    as_of = span.end if asked.newest is None else asked.newest
    return _rendered(
        title=f"STOMP traffic {moment(span.start)} to {moment(span.end)} UTC",
        span=span, generated=asked.now, boots=_boots(boots), nodes=_nodes(boots),
        cards=_cards(counts, facts.count_sessions(sql, span)),
        found=list(found.values()), most_named=_MOST_NAMED, traffic=_traffic(span, counts),
        latencies=[_latency(span, counts, event) for event in LATENCIES if counts.all_latencies(event)],
        slowest=_slowest(facts.slow_rows(sql, span)), destinations=_destinations(facts.destination_rows(sql, span)),
        errors=_errors(span, counts), errors_by_login=_errors_by_login(facts.error_rows(sql, span)),
        redelivered=_redelivered(facts.redelivery_rows(sql, span)), unacked=_unacked(facts.hotspot_rows(sql, span)),
        durables=_durables(asked, as_of), features=_features(asked), holds=_holds(counts),
    )  # fmt: skip


def empty_page(known: Span | None, generated: int) -> str:
    """The page for a span without data: says so, and what to do."""
    return _rendered(title="STOMP traffic: nothing to report", span=None, known=known, generated=generated)


def _rendered(**context: object) -> str:
    templates = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    templates.filters.update(moment=moment, duration=duration, exact=exact)
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return templates.get_template("page.html.jinja").render(style=style, **context) + "\n"


def _left_out(rows: Sequence[Row]) -> int:
    return rows[0]["in_all"] - len(rows) if rows else 0


def _boots(boots: Sequence[Row]) -> Table | None:
    if not boots:
        return None
    rows: list[list[Cell]] = [
        [ClientText(boot["node"]), ClientText(boot["impl"]), ClientText(boot["gateway_version"]),
         ClientText(boot["boot"]), moment(boot["first"]), moment(boot["last"]),
         "yes" if boot["closed"] else "no, and it started again" if boot["lost"] else "not yet",
         exact(boot["lines"] or 0), exact(boot["dropped"] or 0)]
        for boot in boots
    ]  # fmt: skip
    head = ("Node", "Kind", "Version", "Boot", "First line", "Last line", "Closed", "Lines", "Lines dropped")
    return Table("Gateways and their boots", head, rows, names=4, left_out=_left_out(boots))


def _nodes(boots: Sequence[Row]) -> tuple[list[tuple[ClientText, ClientText, ClientText]], int]:
    """The first gateways by name, each with its kind and its versions, and how many more there are."""
    found: dict[tuple[str, str], list[str]] = {}
    for boot in boots:
        versions = found.setdefault((name_of(boot["impl"]), name_of(boot["node"])), [])
        if (version := name_of(boot["gateway_version"])) not in versions:
            versions.append(version)
    named = sorted(found.items())[:_MOST_NODES]
    listed = [
        (ClientText(node, 40), ClientText(impl, 40), ClientText(", ".join(versions), 40))
        for (impl, node), versions in named
    ]
    return listed, len(found) - len(named)


def _cards(counts: EventCounts, sessions: facts.Sessions) -> list[tuple[str, str, str]]:
    p99 = {event: percentile(counts.all_latencies(event), 0.99) for event in LATENCIES}
    body_bytes = counts.body_bytes
    return [
        ("Messages sent", count(counts.total("send")), f"{size(body_bytes['send'])} of bodies"),
        ("Messages delivered", count(counts.total("deliver")), f"{size(body_bytes['deliver'])} of bodies"),
        ("Acknowledged", count(counts.total("ack")), f"{count(counts.total('nack'))} refused"),
        ("Bytes", size(body_bytes["send"] + body_bytes["deliver"]), "bodies, in and out"),
        ("Sessions", count(sessions.total), f"at most {count(sessions.at_once)} at once"),
        ("Errors", count(counts.total("error")), "ERROR frames sent"),
        *((name, latency(p99[event]), "99th percentile") for event, name in LATENCIES.items()
          if event != "queue" or p99[event] is not None),
    ]  # fmt: skip


def _traffic(span: Span, counts: EventCounts) -> Figure:
    begins = span.bins(counts.width)
    seconds = [span.seconds_of(begin, counts.width) for begin in begins]
    series = [
        charts.Series(name, style, [
            counts.events.get((event, begin), 0.0) / length for begin, length in zip(begins, seconds, strict=True)
        ], filled=style == 1)
        for event, name, style in _FLOWS
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [moment(begin), *(
            cell for each, (event, _, _) in zip(series, _FLOWS, strict=True)
            for cell in (exact(counts.events.get((event, begin), 0.0)), rate(each.values[place] or 0.0))
        )]
        for place, begin in enumerate(begins[: facts.MOST_ROWS])
    ]  # fmt: skip
    head = ("From (UTC)", "Sent", "per second", "Delivered", "per second", "Acknowledged", "per second")
    highest = ", ".join(f"{each.name} {rate(max((value or 0.0) for value in each.values))}" for each in series)
    return Figure(
        f"Messages per second, each point the mean of {duration(counts.width)}.",
        charts.lines(
            "traffic", "Traffic over time", f"Highest means: {highest}. The table has all values.", span,
            _middles(span, counts.width), series,
        ),
        [Table("Messages over time", head, rows, left_out=len(begins) - len(rows))],
        [(charts.line_sample(style), name) for _, name, style in _FLOWS],
    )  # fmt: skip


def _latency(span: Span, counts: EventCounts, event: str) -> Figure:
    begins, title = span.bins(counts.width), LATENCIES[event]
    series = [
        charts.Series(name, style, [counts.percentile(event, begin, part) for begin in begins])
        for part, name, style in _PERCENTILES
    ]
    rows: list[list[Cell]] = [
        [moment(begin), exact(sum(counts.latencies.get((event, begin), {}).values())),
         *(latency(each.values[place]) for each in series)]
        for place, begin in enumerate(begins[: facts.MOST_ROWS])
    ]  # fmt: skip
    of_all = counts.all_latencies(event)
    whole = "Of the whole time: " + ", ".join(
        f"{name} {latency(percentile(of_all, part))}" for part, name, _ in _PERCENTILES
    )
    head = ("From (UTC)", "Measured", "p50", "p95", "p99")
    return Figure(
        f"{title}, logarithmic, by {duration(counts.width)}. {whole}.",
        charts.lines(
            f"latency-{event}", f"{title} over time", whole, span, _middles(span, counts.width), series, latencies=True
        ),
        [Table(f"{title} over time", head, rows, left_out=len(begins) - len(rows))],
        [(charts.line_sample(style), name) for _, name, style in _PERCENTILES],
    )  # fmt: skip


def _middles(span: Span, width: int) -> list[float]:
    """Where points go: into the middle of the part of a bin that lies in the span."""
    return [(max(begin, span.start) + min(begin + width, span.end)) / 2 for begin in span.bins(width)]


def _slowest(slow_hours: Sequence[Row]) -> Table | None:
    rows: list[list[Cell]] = [
        [ClientText(slow["destination"]), ClientText(slow["vhost"]), ClientText(LATENCIES.get(slow["event"],
         slow["event"])), moment(slow["hour"]), exact(slow["n"]), latency(slow["p50_us"]), latency(slow["p99_us"])]
        for slow in slow_hours
    ]  # fmt: skip
    head = ("Destination", "Virtual host", "Latency", "Worst hour (UTC)", "Measured", "p50", "p99")
    note = f"Hours with fewer than {facts.LEAST_LATENCIES} measurements are left out."
    caption = "Slowest destinations, by the p99 of their worst hour"
    return Table(caption, head, rows, names=3, note=note) if rows else None


def _destinations(totals: Sequence[Row]) -> Figure | None:
    if not totals:
        return None
    first = totals[:_MOST_BARS]
    entries = [_flow_row(one["destination"], one["sent"], one["delivered"]) for one in first]
    if others := totals[0]["in_all"] - len(first):
        sums = (totals[0][f"{name}_in_all"] - sum(one[name] for one in first) for name in ("sent", "delivered"))
        entries.append(_flow_row(f"{others:,} others together", *sums))
    head = (
        "Destination", "Virtual host", "Kind", "Sent", "Bytes", "Confirmed", "Rejected", "Delivered", "Bytes",
        "Redelivered", "Acknowledged", "Requeued", "Discarded",
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [ClientText(one["destination"]), ClientText(one["vhost"]), ClientText(one["dest_kind"]), exact(one["sent"]),
         size(one["sent_bytes"]), exact(one["confirmed"]), exact(one["rejected"]), exact(one["delivered"]),
         size(one["delivered_bytes"]), exact(one["redelivered"]), exact(one["acked"]), exact(one["requeued"]),
         exact(one["discarded"])]
        for one in totals
    ]  # fmt: skip
    busiest = shortened(name_of(first[0]["destination"]), 60)
    return Figure(
        "Messages by destination, in whole hours.",
        charts.bars("destinations", "Top destinations", f"The busiest is {busiest}. The table has more.", entries),
        [Table("Destinations", head, rows, names=3, left_out=_left_out(totals))],
        [(charts.bar_sample(1), "sent by clients"), (charts.bar_sample(2), "delivered to clients")],
    )


def _flow_row(name: str | None, sent: int, delivered: int) -> charts.BarRow:
    return charts.BarRow(name, ((sent, count(sent)), (delivered, count(delivered))))


def _errors(span: Span, counts: EventCounts) -> Figure | None:
    codes = list(counts.by_code("error"))
    if not codes:
        return None
    width = max(span.width(MOST_BARS), counts.width)
    begins = span.bins(width)
    alone = codes if len(codes) <= charts.LAYERS else codes[: charts.LAYERS - 1]
    groups = [(shortened(name_of(code), 32), {code}) for code in alone]
    if others := codes[len(alone) :]:
        groups.append((f"{len(others)} other codes", set(others)))
    layers = [
        charts.Layer(name, style, _sums(span, counts, width, members))
        for style, (name, members) in enumerate(groups, start=1)
    ]
    rows: list[list[Cell]] = [
        [moment(begin), *(exact(layer.values[place]) for layer in layers)]
        for place, begin in enumerate(begins[: facts.MOST_ROWS])
    ]
    named = [(layer, count(sum(layer.values))) for layer in layers]
    return Figure(
        f"ERROR frames by code, in steps of {duration(width)}.",
        charts.stacks(
            "errors", "Errors over time", ", ".join(f"{layer.name} {n}" for layer, n in named), span, begins, width,
            layers,
        ),
        [Table("Errors over time", ("From (UTC)", *(layer.name for layer in layers)), rows,
               left_out=len(begins) - len(rows))],
        [(charts.layer_sample(layer.style), f"{layer.name} ({n})") for layer, n in named],
    )  # fmt: skip


def _sums(span: Span, counts: EventCounts, width: int, codes: set[str | None]) -> list[float]:
    sums = dict.fromkeys(span.bins(width), 0.0)
    for (event, code, begin), amount in counts.codes.items():
        if event == "error" and code in codes:
            sums[begin // width * width] += amount
    return list(sums.values())


def _errors_by_login(errors: Sequence[Row]) -> Table | None:
    rows: list[list[Cell]] = [
        [ClientText(one["code"]), ClientText(one["login"]), ClientText(one["vhost"]), exact(one["n"] or 0)]
        for one in errors
    ]
    note = "A session that never logged in has no login. Whole hours."
    head = ("Code", "Login", "Virtual host", "Errors")
    return Table("Errors by code and login", head, rows, 3, note, _left_out(errors)) if rows else None


def _redelivered(redeliveries: Sequence[Row]) -> Figure | None:
    if not redeliveries:
        return None
    rows: list[list[Cell]] = [
        [ClientText(one["destination"]), ClientText(one["login"]), ClientText(one["vhost"]), exact(one["delivered"]),
         exact(one["redelivered"]), share(_part(one, "redelivered", "delivered"))]
        for one in redeliveries
    ]  # fmt: skip
    head = ("Destination", "Login", "Virtual host", "Delivered", "Redelivered", "Share")
    note = "Only hours in which something was delivered again."
    table = Table("Redeliveries", head, rows, 3, note, _left_out(redeliveries))
    return _row_bars(
        "redelivered", "Deliveries flagged as redelivered, by destination and login.",
        [_row_bar(one, "redelivered", "delivered") for one in redeliveries[:_MOST_ROW_BARS]], table,
    )  # fmt: skip


def _unacked(hotspots: Sequence[Row]) -> Figure | Table | None:
    if not hotspots:
        return None
    rows: list[list[Cell]] = [
        [ClientText(one["destination"]), ClientText(one["login"]), ClientText(one["vhost"]), exact(one["deliveries"]),
         exact(one["acked"]), exact(one["nacked"]), exact(one["unacked"]), share(_part(one, "unacked", "deliveries")),
         latency(one["p99_ack_us"])]
        for one in hotspots
    ]  # fmt: skip
    head = (
        "Destination", "Login", "Virtual host", "Delivered", "Acknowledged", "Refused", "Unacknowledged", "Share",
        "p99 until acknowledged",
    )  # fmt: skip
    note = "Ack modes client and client-individual only; whole days. The p99 is the worst day's."
    table = Table("Deliveries to be acknowledged", head, rows, 3, note, _left_out(hotspots))
    entries = [_row_bar(one, "unacked", "deliveries") for one in hotspots[:_MOST_ROW_BARS] if one["unacked"]]
    caption = "Deliveries that were not acknowledged, by destination and login."
    return _row_bars("unacked", caption, entries, table) if entries else table


def _part(row: Row, part: str, whole: str) -> float:
    return row[part] / row[whole] if row[whole] else 0.0


def _row_bar(row: Row, part: str, whole: str) -> charts.BarRow:
    name = f"{name_of(row['destination'])} · {name_of(row['login'])}"
    return charts.BarRow(name, ((row[part], f"{count(row[part])} ({share(_part(row, part, whole))})"),))


def _row_bars(key: str, caption: str, entries: Sequence[charts.BarRow], table: Table) -> Figure:
    most = f"The most: {shortened(name_of(entries[0].name), 100)}, {entries[0].bars[0][1]}. The table has more."
    return Figure(caption, charts.bars(key, caption, most, entries), [table])


def _durables(asked: LakeQuestion, as_of: int) -> Figure | None:
    found = facts.durable_rows(asked.sql, asked.span)
    if not found:
        return None
    numbers = {row["verdict"]: row["n"] for row in facts.verdict_rows(asked.sql, asked.span)}
    summary = ", ".join(f"{numbers[verdict]:,} {verdict}" for verdict in _VERDICTS if verdict in numbers)
    lives = [_lifeline(one, as_of) for one in found[:_MOST_LIVES]]
    span = Span(min(life.first for life in lives), max(as_of, *(life.last for life in lives)) + TEN_SECONDS)
    rows: list[list[Cell]] = [
        [ClientText(one["sub_name"]), ClientText(one["destination"]), ClientText(one["login"]),
         ClientText(one["vhost"]), one["verdict"], moment(one["first"]),
         "now" if one["connected"] else moment(one["last"]),
         NOTHING if one["connected"] else duration(one["days_idle"] * DAY), moment(one["last_delivery"]),
         moment(one["last_ack"]), exact(one["deliveries"]), exact(one["acks"])]
        for one in found
    ]  # fmt: skip
    head = (
        "Subscription", "Destination", "Login", "Virtual host", "Verdict", "First seen", "Last connected", "Idle for",
        "Last delivery", "Last ACK", "Deliveries", "ACKs",
    )  # fmt: skip
    total = found[0]["in_all"]
    more = f" The first {_MOST_LIVES} are drawn." if total > _MOST_LIVES else ""
    caption = (
        f"{total:,} in all: {summary}. Lines go from first seen to last connected, and are dashed from then on. "
        f"As of {moment(as_of)} UTC, regardless of the time of this report.{more}"
    )
    return Figure(
        caption, charts.lifelines("durables", "Durable subscriptions", summary, lives, span),
        [Table("Durable subscriptions", head, rows, names=5, left_out=_left_out(found))],
    )  # fmt: skip


def _lifeline(one: Row, as_of: int) -> charts.Lifeline:
    last = max(one["last"], as_of) if one["connected"] else one["last"]
    idle = "" if one["connected"] or one["verdict"] == "deleted" else f" {duration(one['days_idle'] * DAY)}"
    return charts.Lifeline(one["sub_name"], one["first"], last, one["verdict"], f"{one['verdict']}{idle}")


@dataclass(frozen=True, slots=True)
class FeatureMatrix:
    """Which client uses what: for each client its names, and for each feature a figure and the exact number."""

    head: Sequence[str]
    features: Sequence[tuple[str, ClientText]]
    """How it is marked, and its name."""
    rows: Sequence[tuple[Sequence[ClientText], Sequence[tuple[str, str] | None]]]
    unused: str
    marks: Set[str]
    """Those that stand at features."""
    left_out: int


def _features(asked: LakeQuestion) -> FeatureMatrix | None:
    found = facts.feature_rows(asked.sql, asked.span)
    if not found:
        return None
    used = facts.used_features(asked.sql, asked.span)
    shown = [feature for feature in FEATURES if feature in used] + [name for name in used if name not in FEATURES]
    several = len({row["vhost"] for row in found}) > 1
    clients: dict[int, dict[str, Row]] = {}
    for row in found:
        clients.setdefault(row["client"], {})[row["feature"]] = row
    rows = []
    for cells in clients.values():
        one = next(iter(cells.values()))
        names = [one["login"], one["vhost"], one["version"]] if several else [one["login"], one["version"]]
        sums = [cells[feature]["sessions"] or 0 if feature in cells else None for feature in shown]
        rows.append(
            ([ClientText(name) for name in names], [None if n is None else (si(n), exact(n)) for n in sums])
        )  # fmt: skip
    return FeatureMatrix(
        head=("Login", "Virtual host", "STOMP") if several else ("Login", "STOMP"),
        features=[(_mark(feature), ClientText(feature, 40)) for feature in shown],
        rows=rows,
        unused=", ".join(feature for feature in FEATURES if feature not in used),
        marks={_mark(feature) for feature in shown},
        left_out=found[0]["in_all"] - len(clients),
    )


def _mark(feature: str) -> str:
    """What stands at a feature that the gateway answers differently, or that this version does not know."""
    return "" if feature in FEATURES else "≠" if "/" in feature else "!"


def _holds(counts: EventCounts) -> Figure | None:
    found = counts.by_code("blocked")
    if not found:
        return None
    entries, cells = [], list[list[Cell]]()
    for code, amount in found.items():
        times = counts.by_reason.get(("blocked", code), {})
        total = sum((lowest_of(bucket) + highest_of(bucket)) / 2 * n for bucket, n in times.items())
        entries.append(charts.BarRow(code, ((amount, f"{count(amount)} times, {duration(total)}"),)))
        longest = highest_of(max(times)) if times else None
        cells.append(
            [ClientText(code), exact(amount), duration(total), latency(percentile(times, 0.5)),
             latency(percentile(times, 0.99)), latency(longest)]
        )  # fmt: skip
    described = "; ".join(f"{shortened(name_of(entry.name), 60)}: {entry.bars[0][1]}" for entry in entries)
    return Figure(
        "How often the gateway stopped reading a client for a while, by reason, and for how long together.",
        charts.bars("holds", "Holds by reason", described, entries),
        [Table("Holds by reason", ("Reason", "Times", "Together, about", "p50", "p99", "Longest"), cells)],
    )
