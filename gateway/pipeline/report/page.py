"""The page: one file that asks nobody for anything and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.pipeline.report.drawing.stacks import hatches
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.markup import Markup, joined, tag
from gateway.pipeline.report.sections.deliveries import deliveries
from gateway.pipeline.report.sections.destinations import destinations
from gateway.pipeline.report.sections.durables import durables
from gateway.pipeline.report.sections.errors import errors
from gateway.pipeline.report.sections.features import features
from gateway.pipeline.report.sections.guide import guide
from gateway.pipeline.report.sections.header import header, title
from gateway.pipeline.report.sections.holds import holds
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.sections.traffic import latencies, traffic
from gateway.pipeline.report.sentences import standing_out
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import moment

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def full_page(facts: Facts, generated: int) -> str:
    """The report on a span."""
    sections = [
        Section("standing-out", "What stands out", standing_out(facts)),
        traffic(facts), latencies(facts), destinations(facts), errors(facts), deliveries(facts), durables(facts),
        features(facts), holds(facts), guide(),
    ]  # fmt: skip
    parts = [
        tag("header", header(facts, generated)),
        _contents(sections),
        tag("main", joined(section.markup() for section in sections)),
    ]
    return _page(f"STOMP traffic {moment(facts.span.start)} to {moment(facts.span.end)} UTC", parts)


def empty_page(known: Span | None, generated: int) -> str:
    """The report on nothing: says so, and what to do."""
    if known is None:
        said = [
            paragraph("The lake is empty: there is nothing to report.", "calm"),
            paragraph("Turn the journal on in the gateway's configuration, let some traffic pass, and run:"),
            tag("pre", tag("code", "stomp-gateway pipeline ingest --journal DIR --lake DIR")),
            paragraph(
                "The gateway finishes a segment of its journal about once a minute; only finished ones are read."
            ),
        ]
    else:
        said = [
            paragraph("There is nothing in the lake for the time that was asked for.", "calm"),
            paragraph(f"It covers {moment(known.start)} to {moment(known.end)} UTC: choose --from and --to in there."),
        ]
    parts = [tag("header", title(None)), tag("main", *said, paragraph(f"Generated {moment(generated)} UTC.", "note"))]
    return _page("STOMP traffic: nothing to report", parts)


def _contents(sections: Sequence[Section]) -> Markup:
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
