"""Durable subscriptions with their verdicts."""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.pipeline.report.drawing.lifelines import Life, draw_lives, height_of
from gateway.pipeline.report.drawing.svg import Canvas, drawing
from gateway.pipeline.report.facts.durables import VERDICTS, Durable
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import figure
from gateway.pipeline.report.markup import Markup, tag
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.units import NOTHING, duration, exact, moment

_TITLE: Final = "Durable subscriptions"
_MOST: Final = 30


def durables(facts: Facts) -> Section:
    """A life line for each, abandoned ones first."""
    if not facts.durables:
        return Section("durables", _TITLE, paragraph("There are no durable subscriptions."))
    lives = [_life(one, facts.as_of) for one in facts.durables[:_MOST]]
    verdicts = Counter(one.verdict for one in facts.durables)
    summary = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict])
    span = Span(min(life.first for life in lives), max(facts.as_of, *(life.last for life in lives)) + TEN_SECONDS)

    def draw(canvas: Canvas) -> Markup:
        return drawing("durables", canvas, height_of(lives, canvas), _TITLE, summary, draw_lives(lives, span, canvas))

    more = f" The first {_MOST} are drawn." if len(facts.durables) > _MOST else ""
    caption = (
        f"{len(facts.durables):,} in all: {summary}. From first seen to last connected; dashed since nobody is. "
        f"As of {moment(facts.as_of)} UTC, whatever the time of this report.{more}"
    )
    return Section("durables", _TITLE, figure(caption, draw, [_table(facts)]))


def _life(one: Durable, as_of: int) -> Life:
    last = max(one.last, as_of) if one.connected else one.last
    idle = "" if one.connected or one.verdict == "deleted" else f" {duration(one.idle)}"
    known = one.verdict if one.verdict in VERDICTS else "idle"
    return Life(one.name, one.first, last, known, f"{one.verdict}{idle}")


def _table(facts: Facts) -> Table:
    rows = [
        [name(one.name), name(one.destination), name(one.user), name(one.vhost),
         tag("strong", one.verdict) if one.verdict == "abandoned" else one.verdict,
         moment(one.first), "now" if one.connected else moment(one.last),
         NOTHING if one.connected else duration(one.idle), moment(one.last_delivery), moment(one.last_ack),
         exact(one.deliveries), exact(one.acks)]
        for one in facts.durables
    ]  # fmt: skip
    head = (
        "Subscription", "Destination", "User", "Virtual host", "Verdict", "First seen", "Last connected", "Idle for",
        "Last delivery", "Last ACK", "Deliveries", "ACKs",
    )  # fmt: skip
    return Table("Durable subscriptions", head, rows, names=5)
