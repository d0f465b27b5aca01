"""Two lakes side by side: figures, verdicts, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.cli import command_line
from gateway.pipeline.compare import Compared, compare, comparison_as_json, comparison_as_text, failed
from gateway.pipeline.lake import Lake
from tests.support.report_tables import AN_HOUR, START, Rows, made_up

Side = Callable[[str], Rows]


@pytest.fixture
def side(tmp_path: Path) -> Side:
    """Lakes with ten minutes of quiet sessions, to which a test adds."""

    def make(name: str) -> Rows:
        rows = Rows(Lake(tmp_path / name))
        rows.event(START, "connect", 100)
        rows.event(START + timedelta(seconds=590), "send", 6000, bytes=600_000.0)
        rows.event(START, "deliver", 9000, bytes=900_000.0)
        return rows

    return make


def compared(before: Rows, after: Rows, tolerance: float = 0.1) -> dict[str, Compared]:
    found = compare(before.write().snapshot().sql, after.write().snapshot().sql, tolerance)
    return {row.measure: row for row in found}


def test_a_lake_is_the_same_as_itself(tmp_path: Path) -> None:
    lake = made_up(Lake(tmp_path / "lake"), AN_HOUR)
    found = compare(lake.snapshot().sql, lake.snapshot().sql)
    assert {row.verdict for row in found} <= {"same", "not measured"}
    assert not failed(found)
    assert {"send.rate", "ack.p99_us", "confirm.p50_us", "deliver.redelivered"} <= {row.measure for row in found}


def test_volumes_are_rates_and_mean_sizes(side: Side) -> None:
    before, after = side("before"), side("after")
    after.event(START + timedelta(seconds=10), "send", 6000, bytes=1_800_000.0)
    found = compared(before, after)
    assert (found["send.rate"].before, found["send.rate"].after) == (10.0, 20.0)
    assert (found["send.bytes"].before, found["send.bytes"].after) == (100.0, 200.0)
    assert (found["deliver.per_send"].before, found["deliver.per_send"].after) == (1.5, 0.75)
    assert {found[measure].verdict for measure in ("send.rate", "send.bytes", "deliver.per_send")} == {"different"}
    assert found["deliver.rate"].verdict == "same"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(20_000, 21_000, "same"), (20_000, 40_000, "worse"), (40_000, 20_000, "better"), (300, 900, "same")],
)
def test_latencies_have_percentiles_and_a_better_side(side: Side, before: int, after: int, verdict: str) -> None:
    one, other = side("before"), side("after")
    for rows, value in ((one, before), (other, after)):
        rows.event(START, "ack", 100, latency_us=value)
        rows.event(START, "ack", 2, latency_us=10 * value)
    found = compared(one, other)
    assert (found["ack.p50_us"].verdict, found["ack.p99_us"].verdict[:5]) == (verdict, found["ack.p99_us"].verdict[:5])
    assert found["ack.p50_us"].before == pytest.approx(before, rel=0.0625)
    assert found["ack.p99_us"].after == pytest.approx(10 * after, rel=0.0625)


def test_few_latencies_are_not_compared(side: Side) -> None:
    one, other = side("before"), side("after")
    one.event(START, "confirm", 99, latency_us=20_000)
    other.event(START, "confirm", 100, latency_us=90_000)
    found = compared(one, other)
    assert (found["confirm.p99_us"].before, found["confirm.p99_us"].verdict) == (None, "only after")
    assert not failed(list(found.values()))


def test_shares_are_worse_when_they_are_more(side: Side) -> None:
    one, other = side("before"), side("after")
    one.event(START, "deliver", 10, code="redelivered")
    other.event(START, "deliver", 500, code="redelivered")
    one.event(START, "error", 40, code="not-found")
    other.event(START, "error", 20, code="access-refused")
    one.event(START, "nack", 2, code="discard")
    other.event(START, "nack", 8, code="discard")
    found = compared(one, other)
    assert {name: row.verdict for name, row in found.items() if row.unit == "share"} == {
        "deliver.redelivered": "worse",
        "confirm.rejected": "same",
        "nack.discard": "same",  # less than one in a thousand deliveries
        "nack.requeue": "same",
        "error.all": "better",
        "error.access-refused": "worse",
        "error.not-found": "better",
    }
    assert found["error.access-refused"].after == 0.2
    assert found["error.access-refused"].change is None


def test_the_tolerance_is_asked_for(side: Side) -> None:
    one, other = side("before"), side("after")
    other.event(START, "send", 1200, bytes=120_000.0)
    assert compared(one, other, 0.1)["send.rate"].verdict == "different"
    assert compared(side("before2"), other, 0.25)["send.rate"].verdict == "same"


def test_an_empty_lake_is_only_one_side(side: Side, tmp_path: Path) -> None:
    found = compare(Lake(tmp_path / "none").snapshot().sql, side("after").write().snapshot().sql)
    assert {row.verdict for row in found} <= {"only after", "not measured"}


def test_text_and_json_say_the_same(side: Side) -> None:
    one, other = side("before"), side("after")
    other.event(START, "deliver", 1000, code="redelivered\x1b")
    other.event(START, "error", 20, code="a\x1b")
    rows = list(compared(one, other).values())
    document = json.loads(comparison_as_json(rows))
    assert (document["version"], document["failed"]) == (1, True)
    first = document["rows"][0]
    assert first == {
        "measure": "send.rate", "title": "Messages sent", "unit": "rate", "before": 10.0, "after": 10.0,
        "verdict": "same", "change": 0.0,
    }  # fmt: skip
    text = comparison_as_text(rows)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].split() == ["before", "after", "change", "verdict"]
    assert lines[1].split() == ["Messages", "sent", "10/s", "10/s", "+0%", "same"]
    assert len(lines) == len(rows) + 3
    assert lines[-1] == f"{sum(row['verdict'] in ('worse', 'different') for row in document['rows'])} of {len(rows)} " \
        "rows are worse or different."  # fmt: skip


class TestCommandLine:
    def run(self, *arguments: str | Path) -> int:
        return command_line.main(["pipeline", *map(str, arguments)])

    def test_compare_fails_on_what_is_worse(self, side: Side, capsys: pytest.CaptureFixture[str]) -> None:
        one, other = side("before"), side("after")
        other.event(START, "send", 1200, bytes=120_000.0)
        before, after = one.write().url, other.write().url
        assert self.run("compare", "--before", before, "--after", after) == 1
        assert "different" in capsys.readouterr().out
        assert self.run("compare", "--before", before, "--after", before, "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["failed"] is False
        assert self.run("compare", "--before", before, "--after", after, "--tolerance", "25") == 0
        assert self.run("compare", "--before", before, "--after", f"{after}/none") == 1
        assert "there is no lake at" in capsys.readouterr().err

    def test_report_fails_on_rules_that_are_asked_for(
        self, side: Side, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = side("lake")
        rows.durable("old", "abandoned", 12)
        arguments = ("report", "--lake", rows.write().url, "--format", "json", "-o")
        assert self.run(*arguments, tmp_path / "out.json") == 0
        assert json.loads((tmp_path / "out.json").read_text("utf-8"))["counts"]["abandoned-subscription"] == 1
        assert self.run(*arguments, "-", "--fail-on", "error-jump", "--fail-on", "abandoned-subscription") == 1
        assert json.loads(capsys.readouterr().out)["version"] == 1
        assert self.run(*arguments, "-", "--fail-on", "error-jump") == 0
        assert self.run(*arguments, "-", "--fail-on", "all") == 1
        assert self.run(*arguments, "-", "--fail-on", "peak") == 0
        assert self.run(*arguments, "-", "--fail-on", "peak", "--peak", "2.5") == 1
        capsys.readouterr()
        assert self.run(*arguments, "-", "--fail-on", "erors") == 2
        assert "there is no such rule" in capsys.readouterr().err
        assert self.run("report", "--lake", tmp_path / "none", "-o", tmp_path / "out.html") == 1
        assert "there is no lake at" in capsys.readouterr().err
