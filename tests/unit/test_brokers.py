"""`make test-brokers`: a line for each release of RabbitMQ."""

from __future__ import annotations

from pathlib import Path

from tests import brokers

_SUITES = """<testsuites>
<testsuite tests="10" failures="1" errors="2" skipped="3" time="130"/>
</testsuites>"""


def test_the_results_of_a_release_are_summed_up(tmp_path: Path) -> None:
    results = tmp_path / "4.0.5.xml"
    assert brokers.summary(results) == "no test was run"

    results.write_text(_SUITES)
    assert brokers.summary(results) == "4 passed, 3 failed, 3 skipped, 2 min"
