"""What the pages show is what was measured, and says where it is from."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import pages
from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, Cpu, Sample
from tests.bench.growth_report import BEHIND, Curve, Growth, Point
from tests.bench.pages import PAGES, Measured, fill
from tests.bench.report import Circumstances, Outcome, read_json, write_json
from tests.bench.targets import ROWS

UNDER = Circumstances(
    broker="RabbitMQ 3.10.8", rounds=3, scale=1, started="2026-11-01T10:00:00+00:00", seconds=1, client_nap_ms=0.5,
    cores=2, python="CPython 3.11", processor="Abacus", commit="abc1234",
)  # fmt: skip


def _outcome(row: str, plugin: float, gateway: float, cpu: tuple[float, float] = (1.0, 0.5)) -> Outcome:
    values = {PLUGIN: (plugin, cpu[0], None), GATEWAY: (gateway, cpu[1], 0.25), LIMIT: (gateway, 0.25, None)}
    samples = {
        side: [Sample(value, 10_000, 1.0, Cpu(broker, own, 0.01, 0.0), {"p99": 3 * value} if row == "rtt" else {})]
        for side, (value, broker, own) in values.items()
    }
    return Outcome(ROWS[row], samples)


def _written(path: Path, outcomes: list[Outcome], under: Circumstances = UNDER) -> Path:
    write_json(path, outcomes, under)
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    outcomes = [_outcome("send", 100, 130), _outcome("rtt", 200, 300)]
    outcomes[0].omissions[LIMIT] = "not there"

    assert read_json(_written(tmp_path / "bench.json", outcomes)) == (outcomes, UNDER)


def test_the_short_table_has_cpu_time_rates_and_p99_and_says_where_it_is_from(tmp_path: Path) -> None:
    path = _written(tmp_path / "bench.json", [_outcome("rtt", 200, 300), _outcome("send", 100, 130)])

    table = pages.short_table(Measured.read([path]))

    assert "| `send`, messages/s | 100.0 | 75.0 | 0.75 | 100 | 130 | 1.30 |\n| `rtt`, us, p50 |" in table
    assert "| p99, us |  |  |  | 600 | 900 | 1.50 |" in table
    assert "RabbitMQ 3.10.8, CPython 3.11, 2 cores (Abacus); commit abc1234, 2026-11-01, medians of 3 rounds." in table


def test_what_the_plugin_does_better_is_said(tmp_path: Path) -> None:
    rows = [_outcome("send", 100, 99), _outcome("rtt", 200, 300, (1.0, 1.5)), _outcome("fanout", 1, 2)]

    table = " ".join(pages.short_table(Measured.read([_written(tmp_path / "bench.json", rows)])).split())

    assert "The plugin has better figures in `send` (0.99), `rtt` (1.50). " in table
    assert "need more CPU time than the broker with the plugin in `rtt` (1.75)." in table


def test_figures_of_a_disturbed_machine_say_so(tmp_path: Path) -> None:
    outcome = _outcome("send", 100, 130)
    for samples in outcome.samples.values():
        samples[:] = [replace(samples[0], cpu=replace(samples[0].cpu, elsewhere=0.5 * len(os.sched_getaffinity(0))))]

    table = pages.cpu_table(Measured.read([_written(tmp_path / "bench.json", [outcome])]))

    assert "something else used 50% of the machine meanwhile." in " ".join(table.split())


def test_a_later_file_replaces_rows_of_an_earlier_one_and_each_run_has_its_line(tmp_path: Path) -> None:
    first = _written(tmp_path / "a.json", [_outcome("send", 100, 130), _outcome("e2e", 100, 130)])
    second = _written(tmp_path / "b.json", [_outcome("e2e", 100, 200)], replace(UNDER, commit="def5678"))

    table = pages.cpu_table(measured := Measured.read([first, second]))

    assert [outcome.ratio for outcome in measured.outcomes] == [1.3, 2.0]
    assert "* `send`: RabbitMQ" in table
    assert "* `e2e`: RabbitMQ 3.10.8, CPython 3.11, 2 cores (Abacus); commit def5678," in table


def test_only_the_places_of_tables_that_there_are_change() -> None:
    text = (
        "a\n<!-- bench: cpu -->\nold\n<!-- end of bench -->\nb\n<!-- bench: newest cpu -->\nc\n<!-- end of bench -->\n"
    )

    filled = fill(text, {"cpu": "new"})

    assert filled == text.replace("old\n", "\nnew\n\n")
    assert fill(filled, {"cpu": "new"}) == filled


def test_more_cores_are_computed_from_the_cpu_time_of_broker_and_gateway(tmp_path: Path) -> None:
    measured = Measured.read([_written(tmp_path / "bench.json", [_outcome("send", 100, 130)])])

    assert "| `send` | 50.0 | 25.0 | 40k | 27k, 0.7 | 107k, 2.7 | 427k, 10.7 |" in pages.sizing_table(measured)
    assert "| `send` | 275k, 14 | 1,101k, 55 |" in pages.alone_table(measured)


def test_growth_is_a_table_for_each_curve() -> None:
    point = Point(1_000, {PLUGIN: [40, 50, 60], BEHIND: [20, 21, 22], GATEWAY: [3, 4, 5]})

    table = pages.growth_table(Growth(UNDER, [Curve("body", "bytes of a body", [point])]))

    assert (
        "| bytes of a body | plugin | broker behind gateway | gateway | gateway and its broker | both/plugin |" in table
    )
    assert "| 1,000 | 50.0 | 21.0 | 4.0 | 25.0 | 0.50 |" in table


def test_every_table_has_its_place_in_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [tmp_path / page.name for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        copy.write_text(page.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(pages, "PAGES", copies)
    bench = _written(tmp_path / "bench.json", [_outcome(row, 654_321, 7) for row in ("send", "rtt")])
    growth = tmp_path / "growth.json"
    Growth(UNDER, [Curve("body", "bytes of a body", [Point(98_765, {})])]).write(growth)

    assert pages.main(["--bench", str(bench), "--newest", str(bench), "--growth", str(growth)]) == 0

    readme, performance, tuning = (copy.read_text("utf-8") for copy in copies)
    assert readme.count("commit abc1234") == performance.count("commit abc1234") == 1
    assert performance.count("| 50.0 | 25.0 | 40k |") == 1
    assert tuning.count("commit abc1234") == 5
    assert tuning.count("| `send` | 275k, 14 |") == 1
    assert tuning.count("98,765") == 1


def test_without_a_measurement_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "bench.json")

    assert pages.main(["--bench", missing, "--newest", missing, "--growth", missing]) == 2
    assert "`make bench` makes one" in capsys.readouterr().err


def test_the_curves_are_drawn(tmp_path: Path) -> None:
    plots = pytest.importorskip("tests.bench.growth_plots", reason="matplotlib is not installed")
    points = [Point(amount, {PLUGIN: [40], BEHIND: [20], GATEWAY: [amount]}) for amount in (0, 8)]

    (path,) = plots.draw(Growth(UNDER, [Curve("headers", "headers of a message", points)]), tmp_path)

    assert path.name == "growth-headers.svg"
    for text in ("headers of a message", "gateway alone", "commit abc1234"):
        assert text in path.read_text("utf-8")


def test_json_of_growth_is_read_again(tmp_path: Path) -> None:
    growth = Growth(UNDER, [Curve("body", "bytes of a body", [Point(64, {PLUGIN: [1.5]})])])

    growth.write(tmp_path / "growth.json")

    assert Growth.read(tmp_path / "growth.json") == growth
    assert json.loads((tmp_path / "growth.json").read_text())["curves"][0]["points"][0]["amount"] == 64
