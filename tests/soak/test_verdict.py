"""The verdict of a soak: each check fails when what it guards against happens."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.soak.samples import Latency, Outage, Point
from tests.soak.verdict import CAME_AGAIN, LOST_WITH_THE_BROKER, Observations, Plan, findings

_BEGUN = 1_800_000_000.0
_SECONDS = 1200
_OUTAGES = (Outage(300, 310, "SIGKILL"), Outage(600, 605, "restart"), Outage(900, 910, "SIGKILL"))
_PLAN = Plan(_SECONDS, 100, True, 3, {"echo": 4.0})


def line(event: str, at: float, level: str = "info") -> str:
    moment = datetime.fromtimestamp(_BEGUN + at, UTC).isoformat()
    return json.dumps({"event": event, "level": level, "timestamp": moment}) + "\n"


def well(memory_per_hour: float = 0.0, slower_per_hour: float = 0.0) -> Observations:
    """What a soak sees if all goes well."""
    chance = random.Random(1)  # noqa: S311 - no secret
    seen = Observations(_BEGUN, outages=list(_OUTAGES), counts=Counter(echo=4500), there=Counter({0: 50, 1: 50}))
    seen.missing = {0: [], 1: []}
    for at in range(0, _SECONDS, 5):
        seen.memory.append(Point(at, 120 + chance.gauss(0, 1) + memory_per_hour * at / 3600))
        slower = slower_per_hour / 1000 * at / 3600
        seen.latencies += [Latency(at, chance.uniform(0.002, 0.030) + slower) for _ in range(50)]
    seen.read_log(line("listening", 0))
    return seen


def test_all_is_well() -> None:
    assert findings(well(), _PLAN) == []


def test_what_the_restarts_explain() -> None:
    seen = well()
    seen.errors += [(305.0, f"{LOST_WITH_THE_BROKER} is lost"), (310.0, CAME_AGAIN)]
    seen.memory.append(Point(305.0, 1000.0))
    seen.latencies += [Latency(305.0, 20.0)] * 100
    seen.read_log(line("broker does not answer", 301, "warning"))
    assert findings(seen, _PLAN) == []


def steps(seen: Observations) -> None:
    seen.memory = [Point(at, value + 15 * sum(o.ended < at for o in _OUTAGES)) for at, value in seen.memory]


def small_steps(seen: Observations) -> None:
    seen.memory = [Point(at, value + 7 * sum(o.ended < at for o in _OUTAGES)) for at, value in seen.memory]


def many_slow(seen: Observations) -> None:
    seen.latencies += [Latency(at, 1.5) for at in range(0, _SECONDS, 5) for _ in range(5)]


@pytest.mark.parametrize(
    ("happens", "finding"),
    [
        (
            lambda seen: seen.missing.update({1: ["a", "b"]}),
            "process 1: 2 messages with a receipt were never delivered",
        ),
        (lambda seen: seen.missing.clear(), "a process did not say"),
        (lambda seen: seen.missing.pop(1), "a process did not say"),
        (lambda seen: seen.there.update({1: -1}), "99 of 100 sessions"),
        (lambda seen: seen.outages.pop(), "restarted 2 times in place of 3"),
        (lambda seen: seen.counts.update(echo=-3000), "echo: only 1500 in place of at least 2280"),
        (lambda seen: seen.errors.append((100.0, "ERROR bad")), "1 x in a session: ERROR bad"),
        (lambda seen: seen.errors.append((305.0, "ERROR bad")), "1 x in a session: ERROR bad"),
        (lambda seen: seen.errors.append((305.0, "no RECEIPT of COMMIT")), "no RECEIPT of COMMIT"),
        (lambda seen: seen.errors.append((100.0, LOST_WITH_THE_BROKER)), LOST_WITH_THE_BROKER),
        (lambda seen: seen.errors.append((100.0, CAME_AGAIN)), CAME_AGAIN),
        (lambda seen: seen.log.clear(), "the log is empty"),
        (lambda seen: seen.read_log(line("internal error", 305, "error")), "1 x in the log: internal error"),
        (lambda seen: seen.read_log(line("too many", 305, "warning")), "1 x in the log: too many"),
        (lambda seen: seen.read_log(line("broker does not answer", 100, "warning")), "broker does not answer"),
        (lambda seen: seen.read_log("Traceback (most recent call last):\n"), "in the log: Traceback"),
        (lambda seen: seen.memory.clear(), "no memory was seen"),
        (lambda seen: seen.latencies.clear(), "no latency was seen"),
        (steps, "MiB higher after a restart"),
        (small_steps, "MiB higher after a restart than after one before"),
        (many_slow, "p99: 1500 ms"),
    ],
)
def test_each_check(happens: Callable[[Observations], object], finding: str) -> None:
    seen = well()
    _ = happens(seen)
    assert any(finding in each for each in findings(seen, _PLAN)), findings(seen, _PLAN)


def test_memory_that_grows() -> None:
    assert any(each.startswith("memory: +") for each in findings(well(memory_per_hour=90), _PLAN))
    assert any(each.startswith("memory: +") for each in findings(well(memory_per_hour=30), _PLAN))
    assert findings(well(memory_per_hour=5), _PLAN) == []


def test_answers_that_become_slower() -> None:
    assert any(each.startswith("p99: +") for each in findings(well(slower_per_hour=120), _PLAN))


def test_too_little_to_tell_a_slope() -> None:
    seen = well()
    seen.memory = [point for point in seen.memory if point.at < 200]
    assert "memory: too little was seen to tell its slope" in findings(seen, _PLAN)


def test_a_short_soak_says_nothing_of_slopes() -> None:
    short = Plan(180.0, 100, True, 3, {"echo": 4.0})
    assert findings(well(memory_per_hour=45), short) == []


def test_without_riding_through_a_restart_explains_what_ends() -> None:
    seen = well()
    seen.errors.append((305.0, "ERROR CONNECTION_FORCED"))
    assert findings(seen, Plan(_SECONDS, 100, False, 3, {})) == []
    seen.errors.append((100.0, "ERROR CONNECTION_FORCED"))
    assert len(findings(seen, Plan(_SECONDS, 100, False, 3, {}))) == 1
