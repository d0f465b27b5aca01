"""What a soak has seen, and what is wrong with it. No files, no sockets."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tests.soak.samples import Latency, Outage, Point, curve, levels, stretches, trend

WARM_UP: Final = 60.0
"""Seconds until all sessions are there and have sent their first messages."""

LONG: Final = 600.0
"""Seconds from which on a soak has three restarts of the broker and slopes are judged. Before, noise hides them."""

_MEMORY_PER_HOUR: Final = 24.0
"""MiB; with a confidence of 95 % memory grows by less between restarts."""
_MEMORY_PER_RESTART: Final = 12.0
"""MiB by which memory may be higher after a later restart than after any before."""
_P99_PER_HOUR: Final = 90.0
"""Milliseconds; with the same confidence."""
_P99: Final = 1000.0
"""Milliseconds; the median of no stretch is above."""
_SHARE_DONE: Final = 0.5
"""Of what sessions do when the broker answers at once and is never away."""
LOST_WITH_THE_BROKER: Final = "a message to a topic"
CAME_AGAIN: Final = "a message came again"
"""Errors that a restart explains: queues of topic subscriptions are transient; what was not settled, or not confirmed,
comes again."""
_EXPLAINED: Final = frozenset({"broker does not answer", "link closed"})
"""Warnings in the log that a restart explains."""


@dataclass
class Observations:
    """What the soak has seen so far."""

    begun: float
    latencies: list[Latency] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    memory: list[Point] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    there: Counter[int] = field(default_factory=Counter)
    missing: dict[int, list[str]] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the soak began."""
        return time.time() - self.begun

    def is_away(self, at: float) -> bool:
        """Whether the broker was, at that moment or just before or after."""
        return any(outage.covers(at) for outage in self.outages)

    def warm_memory(self) -> list[list[Point]]:
        """Memory in MiB between restarts, after the warm-up."""
        return stretches([point for point in self.memory if point.at > WARM_UP], self.outages)

    def warm_latency(self, share: float) -> list[list[Point]]:
        """A percentile in milliseconds between restarts, after the warm-up."""
        return stretches(curve([each for each in self.latencies if each.at > WARM_UP], share), self.outages)

    def read_log(self, text: str) -> None:
        """Take the gateway's log. A line that is not JSON is a traceback, or something else that nobody asked for."""
        for line in text.splitlines():
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"level": "error", "event": line[:200]})

    def unasked_lines(self) -> Counter[str]:
        """Warnings and errors in the log that no restart explains."""
        return Counter(
            record["event"]
            for record in self.log
            if record.get("level") in ("warning", "error", "critical")
            and not (record["event"] in _EXPLAINED and self.is_away(self._moment(record)))
        )

    def _moment(self, record: dict[str, Any]) -> float:
        return datetime.fromisoformat(record["timestamp"]).timestamp() - self.begun


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    seconds: float
    sessions: int
    rides_through: bool
    restarts: int
    done_per_second: Mapping[str, float]
    """What all sessions together do, if the broker is never away."""


def findings(seen: Observations, plan: Plan) -> list[str]:
    """Everything that is wrong; nothing, if memory and latency were flat and all went well."""
    return [*_counts(seen, plan), *_errors(seen, plan), *_memory(seen, plan), *_latency(seen, plan)]


def _counts(seen: Observations, plan: Plan) -> Iterator[str]:
    for number, names in sorted(seen.missing.items()):
        if names:
            yield f"process {number}: {len(names)} messages with a receipt were never delivered, such as {names[0]}"
    if seen.missing.keys() != seen.there.keys():
        yield "a process did not say which messages were not delivered"
    if (there := seen.there.total()) < plan.sessions:
        yield f"{there} of {plan.sessions} sessions were there at the end"
    if len(seen.outages) != plan.restarts:
        yield f"the broker was restarted {len(seen.outages)} times in place of {plan.restarts}"
    for what, rate in plan.done_per_second.items():
        least = _SHARE_DONE * rate * max(plan.seconds - WARM_UP, 1.0)
        if seen.counts[what] < least:
            yield f"{what}: only {seen.counts[what]} in place of at least {least:.0f}"


def unexplained(seen: Observations, plan: Plan) -> Counter[str]:
    """Errors of sessions that nothing explains. Without riding through a restart explains all of them."""
    return Counter(
        text
        for at, text in seen.errors
        if not (seen.is_away(at) and (text.startswith((LOST_WITH_THE_BROKER, CAME_AGAIN)) or not plan.rides_through))
    )


def _errors(seen: Observations, plan: Plan) -> Iterator[str]:
    for text, count in unexplained(seen, plan).most_common():
        yield f"{count} x in a session: {text}"
    if not seen.log:
        yield "the log is empty"
    for event, count in seen.unasked_lines().most_common():
        yield f"{count} x in the log: {event}"


def _memory(seen: Observations, plan: Plan) -> Iterator[str]:
    parts = seen.warm_memory()
    if not parts:
        yield "no memory was seen"
    yield from _too_steep("memory", "MiB", parts, _MEMORY_PER_HOUR, plan)
    after = levels(parts)[1:]  # the first restart is the first time that sessions are held and come back
    rise = max((later - before for before, later in itertools.combinations(after, 2)), default=0.0)
    if rise > _MEMORY_PER_RESTART:
        yield f"memory: {rise:.1f} MiB higher after a restart than after one before"


def _latency(seen: Observations, plan: Plan) -> Iterator[str]:
    parts = seen.warm_latency(0.99)
    if not parts:
        yield "no latency was seen"
    yield from _too_steep("p99", "ms", parts, _P99_PER_HOUR, plan)
    for level in levels(parts):
        if level > _P99:
            yield f"p99: {level:.0f} ms"


def _too_steep(name: str, unit: str, parts: Sequence[Sequence[Point]], most: float, plan: Plan) -> Iterator[str]:
    if plan.seconds < LONG:
        return
    found = trend(parts)
    if found is None:
        yield f"{name}: too little was seen to tell its slope"
    elif found.at_most > most:
        yield f"{name}: {found.slope:+.1f} {unit} per hour, perhaps {found.at_most:+.1f}; the bound is {most:+.1f}"
