"""The section "What stands out": sentences about what exceeds a fixed threshold, and a few notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gateway.journal.histogram import percentile
from gateway.pipeline.report.facts import Facts
from gateway.pipeline.report.markup import Markup, joined, named, shortened, tag
from gateway.pipeline.report.units import (
    HOUR,
    MILLISECOND,
    MINUTE,
    count,
    duration,
    exact,
    latency,
    rate,
    share,
    spoken,
)

MOST_NAMED: Final = 5
"""How many of a kind are named; the rest is counted."""

SLOW_FACTOR: Final = 3
"""The worst hour's p99 stands out if it is at least so many times that of the median hour …"""
SLOW_LEAST: Final = 10 * MILLISECOND
"""… and at least so long: shorter times disturb nobody."""
SLOW_COUNT: Final = 100
"""Hours with fewer latencies are not compared."""
SLOW_HOURS: Final = 3
"""How many hours it takes to compare them."""

JUMP_FACTOR: Final = 5
"""An error code has jumped if its worst hour has at least so many times the mean of the other hours …"""
JUMP_LEAST: Final = 10
"""… and at least so many errors."""

UNACKED_SHARE: Final = 0.1
"""Unacknowledged deliveries of a destination stand out from this part of all deliveries on …"""
UNACKED_LEAST: Final = 20
"""… if there are at least so many."""

REDELIVERED_SHARE: Final = 0.05
"""Redeliveries of a destination stand out from this part of all deliveries on …"""
REDELIVERED_LEAST: Final = 10
"""… if there are at least so many."""

_PEAK_SECONDS: Final = 10
_P99: Final = 0.99
_LATENCIES: Final = (("conf", "publish → confirm"), ("ack", "deliver → acknowledge"))


@dataclass(frozen=True, slots=True)
class Highlight:
    """A sentence on something that needs attention, or that is worth knowing."""

    text: Markup
    attention: bool = True


def find_highlights(facts: Facts) -> list[Highlight]:
    """All highlights, those that need attention first."""
    warnings = (
        *_lower_bounds(facts), *_abandoned(facts), *_unacked(facts), *_redelivered(facts), *_rejected(facts),
        *_jumps(facts), *_slow(facts), *_unknown_features(facts),
    )  # fmt: skip
    return [*warnings, *_busiest(facts), *_largest(facts), *_mixed(facts)]


def highlight_list(facts: Facts) -> Markup:
    """The highlights as two lists."""
    found = find_highlights(facts)
    warnings = [each for each in found if each.attention]
    notes = [each for each in found if not each.attention]
    return joined(
        [
            _list(warnings, "attention") if warnings else tag("p", "Nothing needs attention.", class_="calm"),
            _list(notes, "notes") if notes else None,
        ]
    )


def _list(found: Sequence[Highlight], class_: str) -> Markup:
    return tag("ul", joined(tag("li", each.text) for each in found), class_=class_)


def _say(*parts: str, attention: bool = True) -> Highlight:
    return Highlight(joined(parts), attention)


def _strong(name: str | None) -> Markup:
    return tag("strong", named(name, 48))


def _rest(number: int, what: str) -> Iterator[Highlight]:
    if number > MOST_NAMED:
        yield _say(f"… and {number - MOST_NAMED:,} more {what}; see the table.")


def _lower_bounds(facts: Facts) -> Iterator[Highlight]:
    lost = [boot for boot in facts.boots if boot.lost]
    for boot in lost[:MOST_NAMED]:
        yield _say(
            _strong(boot.node), f" never closed its journal: the boot of {spoken(boot.first)} wrote its last line at "
            f"{spoken(boot.last)}. Its last moments may be missing, so figures are a lower bound.",
        )  # fmt: skip
    yield from _rest(len(lost), "boots that never closed")
    dropped = [boot for boot in facts.boots if boot.dropped]
    for boot in dropped[:MOST_NAMED]:
        yield _say(
            _strong(boot.node), f" dropped {exact(boot.dropped)} journal lines, because its disk could not keep up: "
            "all figures are a lower bound.",
        )  # fmt: skip
    yield from _rest(len(dropped), "boots that dropped journal lines")


def _abandoned(facts: Facts) -> Iterator[Highlight]:
    abandoned = [one for one in facts.durables if one.verdict == "abandoned"]
    for one in abandoned[:MOST_NAMED]:
        yield _say(
            "The durable subscription ", _strong(one.name), " of ", _strong(one.user), " to ", _strong(one.destination),
            f" has not been connected for {duration(one.idle)}, and its queue keeps growing unless it expires: "
            "delete it, or start its client again.",
        )  # fmt: skip
    yield from _rest(len(abandoned), "abandoned durable subscriptions")


def _unacked(facts: Facts) -> Iterator[Highlight]:
    by_name: dict[tuple[str | None, str | None], list[int]] = {}
    for hotspot in facts.hotspots:
        sums = by_name.setdefault((hotspot.vhost, hotspot.destination), [0, 0])
        sums[0] += hotspot.unacked
        sums[1] += hotspot.deliveries
    found = [
        (unacked, deliveries, name)
        for (_, name), (unacked, deliveries) in by_name.items()
        if unacked >= UNACKED_LEAST and unacked >= UNACKED_SHARE * deliveries
    ]
    found.sort(key=lambda item: (-item[0], item[2] or ""))
    for unacked, deliveries, name in found[:MOST_NAMED]:
        yield _say(
            _strong(name), f": {share(unacked / deliveries)} of its deliveries ({count(unacked)} of "
            f"{count(deliveries)}) were not acknowledged; the broker delivers them again.",
        )  # fmt: skip
    yield from _rest(len(found), "destinations with unacknowledged deliveries")


def _redelivered(facts: Facts) -> Iterator[Highlight]:
    found = [
        one for one in facts.destinations
        if one.redelivered >= REDELIVERED_LEAST and one.redelivered >= REDELIVERED_SHARE * one.delivered
    ]  # fmt: skip
    found.sort(key=lambda one: (-one.redelivered, one.name or ""))
    for one in found[:MOST_NAMED]:
        part = one.redelivered / max(one.delivered, one.redelivered)
        yield _say(
            _strong(one.name), f": {share(part)} of its deliveries ({count(one.redelivered)} of "
            f"{count(one.delivered)}) were redeliveries. Its consumers refuse "
            "messages, or leave without acknowledging.",
        )  # fmt: skip
    yield from _rest(len(found), "destinations with many redeliveries")


def _rejected(facts: Facts) -> Iterator[Highlight]:
    found = sorted((one for one in facts.destinations if one.rejected), key=lambda one: (-one.rejected, one.name or ""))
    for one in found[:MOST_NAMED]:
        messages = "message" if one.rejected == 1 else "messages"
        yield _say("The broker rejected ", f"{count(one.rejected)} {messages} to ", _strong(one.name), ".")
    yield from _rest(len(found), "destinations with rejected messages")


def _jumps(facts: Facts) -> Iterator[Highlight]:
    counts = facts.traffic.periods
    begins = facts.span.bins(counts.width)
    unit = _unit(counts.width)
    for code in counts.by_code("err"):
        values = [counts.codes.get(("err", code, begin), 0.0) for begin in begins]
        if len(values) < SLOW_HOURS:
            continue
        worst = max(values)
        usual = (sum(values) - worst) / (len(values) - 1)
        if worst >= JUMP_LEAST and worst >= JUMP_FACTOR * usual:
            at = begins[values.index(worst)]
            others = f"{usual:.1f}" if usual else "none"
            yield _say(
                "The error ", _strong(code), f" jumped: {count(worst)} in the {unit} from {spoken(at)}, "
                f"against {others} in other {unit}s on average.",
            )  # fmt: skip


def _slow(facts: Facts) -> Iterator[Highlight]:
    counts = facts.traffic.periods
    unit = _unit(counts.width)
    for event, name in _LATENCIES:
        by_period = {}
        for begin in facts.span.bins(counts.width):
            found = counts.latencies.get((event, begin), {})
            p99 = percentile(found, _P99)
            if p99 is not None and sum(found.values()) >= SLOW_COUNT:
                by_period[begin] = p99
        if len(by_period) < SLOW_HOURS:
            continue
        usual, worst = median(by_period.values()), max(by_period.values())
        if worst >= SLOW_LEAST and worst >= SLOW_FACTOR * usual:
            at = next(begin for begin, p99 in by_period.items() if p99 == worst)
            yield _say(
                f"{name.capitalize()} was slow in the {unit} from {spoken(at)}: its p99 was {latency(worst)}, "
                f"against {latency(usual)} in the median {unit}."
            )


def _unknown_features(facts: Facts) -> Iterator[Highlight]:
    if facts.usage.unknown:
        names = sorted(facts.usage.unknown)
        listed = [part for name in names[:MOST_NAMED] for part in (", ", _strong(name))][1:]
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
        yield _say("Clients use features that this version does not know: ", *listed, f"{more}.")


def _busiest(facts: Facts) -> Iterator[Highlight]:
    peak = facts.traffic.peak
    if peak:
        yield _say(
            f"The busiest ten seconds began at {spoken(peak.at)}: {rate(peak.sent / _PEAK_SECONDS)} sent and "
            f"{rate(peak.delivered / _PEAK_SECONDS)} delivered.",
            attention=False,
        )


def _largest(facts: Facts) -> Iterator[Highlight]:
    total = sum(one.traffic for one in facts.destinations)
    if total:
        first = facts.destinations[0]
        yield _say(
            _strong(first.name), f" has the most traffic: {share(first.traffic / total)} of all messages "
            f"({count(first.sent)} sent, {count(first.delivered)} delivered).",
            attention=False,
        )  # fmt: skip


def _mixed(facts: Facts) -> Iterator[Highlight]:
    kinds = sorted({boot.impl for boot in facts.boots})
    if len(kinds) > 1:
        yield _say(
            f"Recorders of several kinds wrote this ({shortened(', '.join(kinds), 80)}); "
            "a message that passed two of them counts twice.",
            attention=False,
        )


def _unit(width: int) -> str:
    return {HOUR: "hour", MINUTE: "minute"}.get(width, "period")
