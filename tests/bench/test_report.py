import json
import re
from dataclasses import replace

import pytest

from tests.bench.environment import GATEWAY, PLUGIN, Cpu, Sample
from tests.bench.report import Circumstances, Outcome, as_json, as_text
from tests.bench.rounds import order_of_sides
from tests.bench.targets import ROWS

UNDER = Circumstances(broker="RabbitMQ", rounds=3, scale=1, started="now", seconds=1, client_nap_ms=0.5)


def _sample(value: float, *, client: float = 0.01, elsewhere: float = 0.0) -> Sample:
    return Sample(value, 1_000, 1.0, Cpu(broker=0.5, gateway=None, client=client, elsewhere=elsewhere))


def _outcome(row: str, plugin: list[float], gateway: list[float]) -> Outcome:
    samples = {PLUGIN: [_sample(value) for value in plugin], GATEWAY: [_sample(value) for value in gateway]}
    return Outcome(ROWS[row], {side: found for side, found in samples.items() if found})


def _line(outcome: Outcome) -> str:
    return next(line for line in as_text([outcome], UNDER).splitlines() if line.startswith(outcome.row.name))


def test_the_ratio_is_that_of_the_medians_and_its_spread_is_that_of_the_rounds() -> None:
    outcome = _outcome("send", [100, 1_000, 110], [240, 200, 220])

    assert outcome.ratio == 220 / 110
    assert _line(outcome).split() == "send messages/s 110 220 2.00 0.20-2.40 >= 1.2 met".split()


@pytest.mark.parametrize(
    ("row", "gateway", "verdict"),
    [("e2e", 140, "met"), ("e2e", 139, "missed"), ("rtt", 150, "met"), ("rtt", 151, "missed"), ("idle", 20, "met")],
)
def test_a_target_is_a_floor_for_rates_and_a_ceiling_for_times_and_memory(
    row: str, gateway: float, verdict: str
) -> None:
    assert _outcome(row, [100], [gateway]).verdict == verdict


def test_a_missing_side_is_shown_as_not_measured_and_not_as_zero() -> None:
    outcome = _outcome("send", [100], [])

    assert re.split(r"  +", _line(outcome)) == [
        "send", "messages/s", "100", "not measured", "not measured", ">= 1.2",
    ]  # fmt: skip
    document = json.loads(as_json([outcome], UNDER))["rows"]["send"]
    assert (document["gateway"]["median"], document["ratio"], document["verdict"]) == (None, None, "not measured")


def test_a_side_that_failed_shows_no_figure_and_says_why() -> None:
    outcome = _outcome("e2e", [100, 100], [150])
    outcome.failures[GATEWAY] = "3 messages arrived more than once"

    text = as_text([outcome], UNDER)

    assert outcome.verdict == "failed"
    assert re.split(r"  +", _line(outcome))[2:5] == ["100", "failed", "not measured"]
    assert "* e2e of the gateway failed: 3 messages arrived more than once" in text


def test_a_busy_client_or_machine_is_reported() -> None:
    tired = Outcome(ROWS["send"], {PLUGIN: [_sample(100, client=0.8)]})
    disturbed = Outcome(ROWS["e2e"], {GATEWAY: [_sample(100, elsewhere=1_000)]})

    text = as_text([tired, disturbed], UNDER)

    assert "send of the plugin: the client was busy for 80% of the time" in text
    assert re.search(r"busy with something else.*: e2e of the gateway \d+%$", text)


def test_the_p99_of_round_trips_has_a_line_of_its_own() -> None:
    sides = {PLUGIN: 200.0, GATEWAY: 300.0}
    samples = {side: [replace(_sample(100), others={"p99": tail})] for side, tail in sides.items()}

    assert "us, p99 200 300 1.50" in re.sub(" +", " ", as_text([Outcome(ROWS["rtt"], samples)], UNDER))


def test_the_side_that_begins_changes_with_each_round() -> None:
    assert [order_of_sides(number)[0] for number in range(4)] == [PLUGIN, GATEWAY, PLUGIN, GATEWAY]
