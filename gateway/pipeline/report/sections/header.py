"""The top of the report: what it is about, and a few big numbers."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.journal.histogram import percentile
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import folded
from gateway.pipeline.report.markup import Markup, joined, named, tag
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.units import count, duration, exact, latency, moment, octets

_P99 = 0.99


def header(facts: Facts, generated: int) -> Markup:
    """Title, span, gateways and figures."""
    return joined(
        [
            title(facts.span),
            tag("p", *_gateways(facts), class_="lead"),
            tag("p", f"Generated {moment(generated)} UTC from the traffic journal.", class_="note"),
            tag("dl", joined(_cards(facts)), class_="cards"),
            folded(_boots(facts)) if facts.boots else None,
        ]
    )


def title(span: Span | None) -> Markup:
    """The title, with the span where there is one."""
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
    """Nodes with the versions that ran on them."""
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
    yield _card("Messages sent", count(counts.total("send")), f"{octets(counts.octets['send'])} of bodies")
    yield _card("Messages delivered", count(counts.total("dlv")), f"{octets(counts.octets['dlv'])} of bodies")
    yield _card("Acknowledged", count(counts.total("ack")), f"{count(counts.total('nack'))} refused")
    yield _card("Octets", octets(counts.octets["send"] + counts.octets["dlv"]), "bodies, in and out")
    yield _card("Sessions", count(facts.sessions.total), f"at most {count(facts.sessions.at_once)} at once")
    yield _card("Errors", count(counts.total("err")), "ERROR frames sent")
    yield _card("Publish → confirm", latency(p99["conf"]), "99th percentile")
    yield _card("Deliver → acknowledge", latency(p99["ack"]), "99th percentile")


def _card(name: str, figure: str, remark: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", figure, class_="big"), tag("dd", remark, class_="remark"))


def _boots(facts: Facts) -> Table:
    rows = [
        [name(boot.node), name(boot.impl), name(boot.version), name(boot.boot), moment(boot.first), moment(boot.last),
         "yes" if boot.closed else "no, and it started again" if boot.lost else "not yet",
         exact(boot.lines), exact(boot.dropped)]
        for boot in facts.boots
    ]  # fmt: skip
    head = ("Node", "Kind", "Version", "Boot", "First line", "Last line", "Closed", "Lines", "Lines dropped")
    return Table("Gateways and their boots", head, rows, names=4)
