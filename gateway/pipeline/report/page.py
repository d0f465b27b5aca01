"""The page: one HTML file that loads nothing from elsewhere and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.journal.histogram import percentile
from gateway.pipeline.report.durable_subscriptions import durable_section
from gateway.pipeline.report.elements import ReportSection, Table, folded, name_cell, paragraph
from gateway.pipeline.report.error_counts import error_section
from gateway.pipeline.report.facts import Facts
from gateway.pipeline.report.feature_usage import feature_section
from gateway.pipeline.report.highlights import highlight_list
from gateway.pipeline.report.markup import Markup, joined, named, tag
from gateway.pipeline.report.redeliveries import redelivery_section
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.time_charts import hatches
from gateway.pipeline.report.top_destinations import destination_section
from gateway.pipeline.report.traffic_over_time import hold_section, latency_section, traffic_section
from gateway.pipeline.report.units import count, duration, exact, latency, moment, size

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_P99 = 0.99
_TERMS: Final = (
    ("Sent, delivered, acknowledged", "SEND frames that were published, MESSAGE frames written to clients, and "
     "messages that an ACK covered; one cumulative ACK counts for all that it covers. With ack mode auto nothing is "
     "acknowledged, so acknowledged may be far below delivered."),
    ("Bytes", "Bodies only, without commands and headers."),
    ("Publish → confirm", "From publishing a message until the broker confirmed it, by the gateway's clock."),
    ("Deliver → acknowledge", "From writing a MESSAGE to the client until its ACK: the network and the client's work."),
    ("p50, p95, p99", "That percentage of the latencies was not longer than this. Latencies are counted in buckets "
     "that are at most 6.25 % wide, and the upper end of the bucket is given: at most 6.25 % too large. "
     "Percentiles of longer times are computed from the counts, not from other percentiles."),
    ("Times", "All in UTC. Destinations, redeliveries and errors by user are counted by whole hours, unacknowledged "
     "deliveries and features by whole days: at both ends they may include a little more than the report's time."),
    ("Sampling", "Where the journal records a sample of the messages, each counts with its weight; such figures are "
     "estimates. Sessions, errors and subscriptions are never sampled."),
    ("Redelivered", "The broker flagged the message as delivered before. It does not say how often."),
    ("Unacknowledged", "Neither acknowledged nor refused within the days of the report. The broker puts such messages "
     "back into their queue when the subscription ends. Messages that a client is still working on count too."),
    ("Abandoned, idle", "How long a durable subscription has had no connection, measured against the newest "
     "line of all journals. The gateway does not see the length of its queue."),
    ("Holds", "The gateway stops reading a client that sends faster than the broker, or the gateway itself, can "
     "take. This slows the client down, and the gateway does not grow."),
    ("Lower bound", "When a gateway was killed, or its disk could not keep up, lines of the journal are missing. Then "
     "the real figures are at least those shown."),
    ("Not measured", "How long a message lay in its queue; the length of queues; what clients that speak AMQP do; what "
     "the network between client and gateway took, other than as a part of deliver → acknowledge."),
)  # fmt: skip


def full_page(facts: Facts, generated: int) -> str:
    """The report on a span."""
    span, counts = facts.span, facts.traffic.plotted
    sections = [
        ReportSection("standing-out", "What stands out", highlight_list(facts)),
        traffic_section(span, counts),
        latency_section(span, counts, facts.slow_hours),
        destination_section(facts.destinations),
        error_section(span, counts, facts.errors),
        redelivery_section(facts.redeliveries, facts.hotspots),
        durable_section(facts.durables, facts.as_of),
        feature_section(facts.usage),
        hold_section(counts),
        _guide(),
    ]
    parts = [
        tag("header", _header(facts, generated)),
        _contents(sections),
        tag("main", joined(section.markup() for section in sections)),
    ]
    return _page(f"STOMP traffic {moment(facts.span.start)} to {moment(facts.span.end)} UTC", parts)


def empty_page(known: Span | None, generated: int) -> str:
    """The page for a span without data: says so, and what to do."""
    if known is None:
        message = [
            paragraph("The lake is empty: there is nothing to report.", "calm"),
            paragraph("Turn the journal on in the gateway's configuration, let some traffic pass, and run:"),
            tag("pre", tag("code", "stomp-gateway pipeline ingest --journal DIR --lake DIR")),
            paragraph(
                "The gateway finishes a segment of its journal about once a minute; only finished ones are read."
            ),
        ]
    else:
        message = [
            paragraph("There is nothing in the lake for the time that was asked for.", "calm"),
            paragraph(f"It covers {moment(known.start)} to {moment(known.end)} UTC: choose --from and --to in there."),
        ]
    parts = [
        tag("header", _title(None)),
        tag("main", *message, paragraph(f"Generated {moment(generated)} UTC.", "note")),
    ]
    return _page("STOMP traffic: nothing to report", parts)


def _contents(sections: Sequence[ReportSection]) -> Markup:
    links = (tag("li", tag("a", section.title, href=f"#{section.key}")) for section in sections)
    return tag("nav", tag("ul", joined(links)), aria_label="Contents")


def _page(name: str, parts: Sequence[Markup]) -> str:
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", name),
        tag("style", Markup(style)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', hatches(), *parts), lang='en')}\n"


def _header(facts: Facts, generated: int) -> Markup:
    return joined(
        [
            _title(facts.span),
            tag("p", *_gateways(facts), class_="lead"),
            tag("p", f"Generated {moment(generated)} UTC from the traffic journal.", class_="note"),
            tag("dl", joined(_cards(facts)), class_="cards"),
            folded(_boots(facts)) if facts.boots else None,
        ]
    )


def _title(span: Span | None) -> Markup:
    when = None
    if span:
        when = tag(
            "p",
            tag("span", moment(span.start)),
            " to ",
            tag("span", f"{moment(span.end)} UTC"),
            tag("span", f" · {duration(span.length)}"),
            class_="when",
        )
    return joined([tag("h1", "STOMP traffic report"), when])


def _gateways(facts: Facts) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for boot in facts.boots:
        versions = found.setdefault((boot.impl, boot.node), [])
        if boot.version not in versions:
            versions.append(boot.version)
    if not found:
        yield "No gateway is recorded for this time."
    for number, ((impl, node), versions) in enumerate(sorted(found.items())):
        yield " · " if number else "Recorded by "
        yield tag("strong", named(node, 40))
        yield joined([" (", named(impl, 40), " ", named(", ".join(versions), 40), ")"])


def _cards(facts: Facts) -> Iterator[Markup]:
    counts = facts.traffic.plotted
    p99 = {event: percentile(counts.all_latencies(event), _P99) for event in ("conf", "ack")}
    yield _card("Messages sent", count(counts.total("send")), f"{size(counts.body_bytes['send'])} of bodies")
    yield _card("Messages delivered", count(counts.total("dlv")), f"{size(counts.body_bytes['dlv'])} of bodies")
    yield _card("Acknowledged", count(counts.total("ack")), f"{count(counts.total('nack'))} refused")
    yield _card("Bytes", size(counts.body_bytes["send"] + counts.body_bytes["dlv"]), "bodies, in and out")
    yield _card("Sessions", count(facts.sessions.total), f"at most {count(facts.sessions.at_once)} at once")
    yield _card("Errors", count(counts.total("err")), "ERROR frames sent")
    yield _card("Publish → confirm", latency(p99["conf"]), "99th percentile")
    yield _card("Deliver → acknowledge", latency(p99["ack"]), "99th percentile")


def _card(name: str, figure: str, remark: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", figure, class_="big"), tag("dd", remark, class_="remark"))


def _boots(facts: Facts) -> Table:
    rows = [
        [name_cell(boot.node), name_cell(boot.impl), name_cell(boot.version), name_cell(boot.boot),
         moment(boot.first), moment(boot.last),
         "yes" if boot.closed else "no, and it started again" if boot.lost else "not yet",
         exact(boot.lines), exact(boot.dropped)]
        for boot in facts.boots
    ]  # fmt: skip
    head = ("Node", "Kind", "Version", "Boot", "First line", "Last line", "Closed", "Lines", "Lines dropped")
    return Table("Gateways and their boots", head, rows, names=4)


def _guide() -> ReportSection:
    """Definitions, precision, and what is not measured."""
    terms = joined(part for term, meaning in _TERMS for part in (tag("dt", term), tag("dd", meaning)))
    return ReportSection("guide", "How to read this", tag("dl", terms, class_="guide"))
