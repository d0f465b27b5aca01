"""The exit status of ``make chaos``: what was not tried is no success."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.recording import Recording
from tests.chaos.run import RunReport
from tests.chaos.verdict import Verdict


class _NothingFound:
    """Stands in for a campaign, whose every run finds nothing."""

    async def perform(self, schedule: Any) -> RunReport:  # noqa: ANN401
        return RunReport(schedule, Recording(), Verdict(), 0.1, "")

    def remarks(self) -> Iterator[str]:
        yield from ()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the campaign reads, one after the other; afterwards always the last."""

    @contextlib.asynccontextmanager
    async def begun(*_: object, **__: object) -> AsyncIterator[_NothingFound]:
        yield _NothingFound()

    times = [0.0]
    monkeypatch.setattr("tests.chaos.campaign.Campaign.begun", begun)
    now = SimpleNamespace(monotonic=lambda: times.pop(0) if len(times) > 1 else times[0])
    monkeypatch.setattr("tests.chaos.__main__.time", now)
    return times


@pytest.mark.parametrize(
    ("times", "code", "said"),
    [
        ([0.0], 0, "nothing found"),
        ([0.0, 0.0, 100.0], 3, "only 1 of 3 runs were made in 1 minutes: this proves too little"),
    ],
)
def test_a_campaign_that_was_cut_short_is_no_success(
    clock: list[float], capsys: pytest.CaptureFixture[str], times: list[float], code: int, said: str
) -> None:
    clock[:] = times
    assert chaos.main(["--runs", "3", "--minutes", "1"]) == code
    assert capsys.readouterr().out.rstrip().endswith(said)


@pytest.mark.parametrize("option", ["--runs", "--minutes"])
@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_nothing_cannot_be_asked_for(
    clock: list[float], capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert clock
    with pytest.raises(SystemExit) as ended:
        chaos.main([option, value])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err
