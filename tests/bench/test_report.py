import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.bench.broker import Broker
from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, PROXY, Cpu, Environment, Sample, Side
from tests.bench.report import Circumstances, Outcome, as_json, as_text
from tests.bench.rounds import least_disturbed, measure, order_of_sides
from tests.bench.rows import MEASURES
from tests.bench.targets import ROWS
from tests.bench.wire import Account

UNDER = Circumstances(broker="RabbitMQ", rounds=3, scale=1, started="now", seconds=1, client_nap_ms=0.5)


def _sample(value: float, *, client: float = 0.01, elsewhere: float = 0.0) -> Sample:
    return Sample(value, 1_000, 1.0, Cpu(broker=0.5, gateway=None, client=client, elsewhere=elsewhere))


def _outcome(row: str, plugin: list[float], gateway: list[float], limit: Sequence[float] = ()) -> Outcome:
    values = {PLUGIN: plugin, GATEWAY: gateway, LIMIT: limit}
    samples = {side: [_sample(value) for value in found] for side, found in values.items()}
    return Outcome(ROWS[row], {side: found for side, found in samples.items() if found})


def _lines(outcome: Outcome) -> list[str]:
    """Of the row, in the table of CPU times and in that of its figures."""
    return [line for line in as_text([outcome], UNDER).splitlines() if line.startswith(f"{outcome.row.name} ")]


def test_the_ratios_are_those_of_the_medians_and_the_spread_is_that_of_the_rounds() -> None:
    outcome = _outcome("send", [100, 1_000, 110], [240, 200, 220], [440, 440])

    assert outcome.ratio == 220 / 110
    figures = "send messages/s 110 +-409% 220 +-9% 440 +-0% 2.00 0.20-2.40 0.50 >= 0.94 met"
    assert _lines(outcome)[1].split() == figures.split()


def test_cpu_time_comes_first_with_broker_gateway_and_both_beside_plugin_and_limit() -> None:
    outcome = _outcome("send", [1, 1], [], [1, 1])
    parts = [(0.2, 0.1), (0.3, 0.1)]
    outcome.samples[GATEWAY] = [
        replace(_sample(1), cpu=Cpu(broker=broker, gateway=gateway, client=0.1, elsewhere=0))
        for broker, gateway in parts
    ]
    outcome.samples[LIMIT] = [replace(_sample(1), cpu=Cpu(broker=0.25, gateway=None, client=0.1, elsewhere=0))]

    figures = "send message 500.0 +-0% 250.0 +-20% 100.0 +-0% 350.0 +-14% 250.0 0.70 1.40 <= 1.06 met"
    assert _lines(outcome)[0].split() == figures.split()
    document = json.loads(as_json([outcome], UNDER))["rows"]["send"]
    assert (document["cpu_ratio"], document["cpu_ratio_to_limit"]) == (0.7, 1.4)


def test_a_row_without_a_target_has_ratios_and_no_verdict() -> None:
    outcome = _outcome("send_headers", [100], [50])

    assert outcome.verdict == "measured"
    assert _lines(outcome)[1].split()[-3:] == ["0.50", "0.50-0.50", "-"]


@pytest.mark.parametrize(
    ("row", "gateway", "verdict"),
    [("e2e", 154, "met"), ("e2e", 153, "missed"), ("idle", 8, "met"), ("idle", 9, "missed")],
)
def test_a_target_is_a_floor_for_rates_and_a_ceiling_for_times_and_memory(
    row: str, gateway: float, verdict: str
) -> None:
    assert _outcome(row, [100], [gateway]).verdict == verdict


@pytest.mark.parametrize(("gateway", "verdict"), [(220, "met"), (221, "missed")])
def test_a_round_trip_is_compared_with_one_through_a_process_that_copies_bytes(gateway: float, verdict: str) -> None:
    outcome = _outcome("rtt", [100], [gateway])
    assert outcome.verdict == "not measured"

    outcome.samples[PROXY] = [_sample(200)]

    assert outcome.verdict == verdict
    assert f"us, p50, plugin behind a proxy 200 {gateway}" in re.sub(" +", " ", as_text([outcome], UNDER))


def test_a_missing_side_is_shown_as_not_measured_and_not_as_zero() -> None:
    outcome = _outcome("send", [100], [])

    assert re.split(r"  +", _lines(outcome)[1]) == [
        "send", "messages/s", "100", "not measured", "not measured", "not measured", "-", ">= 0.94",
    ]  # fmt: skip
    document = json.loads(as_json([outcome], UNDER))["rows"]["send"]
    assert (document["gateway"]["median"], document["ratio"], document["verdict"]) == (None, None, "not measured")


def test_a_side_that_failed_shows_no_figure_and_says_why() -> None:
    outcome = _outcome("e2e", [100, 100], [150])
    outcome.failures[GATEWAY] = "3 messages arrived more than once"

    text = as_text([outcome], UNDER)

    assert outcome.verdict == "failed"
    assert re.split(r"  +", _lines(outcome)[1])[2:6] == ["100 +-0%", "failed", "not measured", "not measured"]
    assert "* e2e of the gateway failed: 3 messages arrived more than once" in text


def test_a_busy_client_or_machine_is_reported() -> None:
    tired = Outcome(ROWS["send"], {PLUGIN: [_sample(100, client=0.8)]})
    disturbed = Outcome(ROWS["e2e"], {GATEWAY: [_sample(100, elsewhere=1_000)]})

    text = as_text([tired, disturbed], UNDER)

    assert "send of the plugin: the client was busy for 80% of the time" in text
    assert re.search(r"busy with something else.*: e2e of the gateway \d+%$", text)


def test_the_p99_of_round_trips_has_a_line_of_its_own() -> None:
    sides = {PLUGIN: 200.0, GATEWAY: 300.0, LIMIT: 150.0}
    samples = {side: [replace(_sample(100), others={"p99": tail})] for side, tail in sides.items()}

    assert "us, p99 200 300 150 1.50 2.00" in re.sub(" +", " ", as_text([Outcome(ROWS["rtt"], samples)], UNDER))


@pytest.mark.parametrize(
    ("p99", "flood", "goals"),
    [(2_200, 80, ("<= 2.2 met", ">= 0.8 met")), (2_201, 79, ("<= 2.2 missed", ">= 0.8 missed"))],
)
def test_other_figures_have_targets_and_verdicts_of_their_own(p99: float, flood: float, goals: tuple[str, str]) -> None:
    def beside_flood(p99: float, flood: float) -> Sample:
        return replace(_sample(100), others={"p99": p99, "flood_per_second": flood})

    outcome = Outcome(ROWS["rtt_busy"], {PLUGIN: [beside_flood(1_000, 100)], GATEWAY: [beside_flood(p99, flood)]})

    lines = re.sub(" +", " ", as_text([outcome], UNDER)).splitlines()
    assert outcome.verdict == "met"
    for name, goal in zip(("us, p99", "flood, messages/s"), goals, strict=True):
        [line] = [line for line in lines if line.startswith(f" {name} ")]
        assert line.endswith(goal)


def test_a_disturbed_measurement_is_made_again_until_it_is_undisturbed() -> None:
    samples = iter([_sample(1, elsewhere=1_000), _sample(2), _sample(3)])

    assert least_disturbed(lambda: next(samples), again=2) == (_sample(2), 2)


def test_of_measurements_that_are_all_disturbed_the_least_disturbed_counts() -> None:
    disturbed = [_sample(1, elsewhere=1_000), _sample(2, elsewhere=800), _sample(3, elsewhere=900), _sample(4)]
    samples = iter(disturbed)

    assert least_disturbed(lambda: next(samples), again=2) == (disturbed[1], 3)
    assert next(samples) is disturbed[3]


def test_a_row_that_takes_minutes_is_measured_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in ("idle", "idle_many"):
        monkeypatch.setitem(MEASURES, row, lambda *_: _sample(1))
    side = Side(GATEWAY, Account("", 0, "", "", ""), in_broker=False)
    environment = Environment(Broker(""), {GATEWAY: side}, "")

    outcomes = measure(environment, [ROWS["idle"], ROWS["idle_many"]], 3, 1, lambda _: None)

    assert [len(outcome.samples[GATEWAY]) for outcome in outcomes] == [3, 1]


def test_the_side_that_begins_changes_with_each_round() -> None:
    assert [order_of_sides(number)[0] for number in range(4)] == [PLUGIN, PROXY, PLUGIN, PROXY]
