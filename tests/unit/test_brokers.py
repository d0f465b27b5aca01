"""`make test-brokers`: a line for each release of RabbitMQ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.local.errors import LocalError
from tests import brokers

_SUITES = """<testsuites>
<testsuite tests="10" failures="1" errors="2" skipped="3" time="130"/>
</testsuites>"""


def test_the_results_of_a_release_are_summed_up(tmp_path: Path) -> None:
    results = tmp_path / "4.0.5.xml"
    assert brokers.summary(results) == "no test was run"

    results.write_text(_SUITES)
    assert brokers.summary(results) == "4 passed, 3 failed, 3 skipped, 2 min"


def test_a_release_that_is_not_to_be_had_does_not_hide_the_results_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, _: Sequence[str]) -> tuple[str, bool]:
        if name == "4.0":
            raise LocalError("no disk space")
        return f"RabbitMQ {name}: 1 passed", True

    monkeypatch.setattr(brokers, "run", run)
    assert brokers.main(["--only", "3.10", "--only", "4.0", "--only", "newest"]) == 1
    lines = ["RabbitMQ 3.10: 1 passed", "RabbitMQ 4.0: no disk space", "RabbitMQ newest: 1 passed"]
    assert capsys.readouterr().out.splitlines() == lines
