"""Scrape configuration and alerts, as promtool sees them, and against the metrics that a gateway exposes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.address import address
from tests.support.exposed import exposed, unknown_names

_FILES = Path(__file__).parents[3] / "deploy/prometheus"


def _rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((_FILES / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def _promtool(program: str, *arguments: str, directory: Path = _FILES) -> str:
    done = subprocess.run([program, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration_and_its_rules(promtool: str) -> None:
    assert f"{len(_rules())} rules found" in _promtool(promtool, "check", "config", "prometheus.yml")


def test_every_alert_fires_when_it_should_and_only_then(promtool: str) -> None:
    assert "SUCCESS" in _promtool(promtool, "test", "rules", "alerts_test.yml")


def test_no_alert_is_without_a_test() -> None:
    tests = yaml.safe_load((_FILES / "alerts_test.yml").read_text())["tests"]
    samples = [sample for test in tests for asked in test["promql_expr_test"] for sample in asked["exp_samples"]]
    tested = {name for sample in samples for name in re.findall(r'alertname="(\w+)"', sample["labels"])}

    assert tested == {rule["alert"] for rule in _rules()}


@pytest.mark.parametrize("mutilated", [("== 0", "== 7"), ("> 0.25", "> 0.0001"), ("for: 15m", "for: 1m")])
def test_the_tests_of_alerts_would_notice(promtool: str, tmp_path: Path, mutilated: tuple[str, str]) -> None:
    text = (_FILES / "alerts.yml").read_text()
    assert mutilated[0] in text
    (tmp_path / "alerts.yml").write_text(text.replace(*mutilated))
    (tmp_path / "alerts_test.yml").write_text((_FILES / "alerts_test.yml").read_text())
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, check=False
    )

    assert done.returncode != 0


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for rule in _rules():
        assert set(rule["annotations"]) == {"description", "runbook_url", "summary"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


async def test_alerts_ask_for_nothing_that_no_gateway_exposes(tmp_path: Path) -> None:
    samples = exposed(tmp_path)
    assert "stomp_gateway_ready" in samples

    assert {rule["alert"]: found for rule in _rules() if (found := unknown_names(rule["expr"], samples))} == {}


async def test_a_metric_or_a_label_that_is_not_exposed_would_be_noticed(tmp_path: Path) -> None:
    samples = exposed(tmp_path)

    assert unknown_names("rate(stomp_gateway_sessions_total[5m])", samples) == ["stomp_gateway_sessions_total"]
    assert unknown_names('stomp_gateway_holds{why="x"}', samples) == ["stomp_gateway_holds{why}"]
    assert unknown_names("sum by (why) (stomp_gateway_holds)", samples) == ["by (why)"]
    assert unknown_names('sum by (instance, reason) (stomp_gateway_holds{job="x"})', samples) == []


def test_each_alert_has_a_runbook() -> None:
    """A heading of a page that exists."""
    docs = _FILES.parents[1] / "docs"
    for rule in _rules():
        page, _, anchor = rule["annotations"]["runbook_url"].removeprefix(f"{address()}/blob/main/docs/").partition("#")
        headings = re.findall(r"^#+ (.*)$", (docs / page).read_text("utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, rule["alert"]
