"""The dashboard, as far as it can be judged without a Grafana: its form, its queries, and the metrics in them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.exposed import exposed, unknown_names

_DEPLOY = Path(__file__).parents[3] / "deploy"
_ROWS = ["Overview", "Traffic", "Latency", "Holds and errors", "Links", "Process"]
_WIDTH = 24


@pytest.fixture
def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_DEPLOY / "grafana/stomp-gateway.json").read_text("utf-8"))
    return document


def _expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Panel, expression with its variables filled in, and legend."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], _filled(target["expr"]), target.get("legendFormat", "")
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield annotation["name"], _filled(annotation["expr"]), annotation["textFormat"]


def _filled(expression: str) -> str:
    filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$virtual_host", ".*")
    assert "$" not in filled
    return filled


def test_it_has_the_rows_that_an_operator_looks_for(dashboard: dict[str, Any]) -> None:
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == _ROWS
    assert dashboard["schemaVersion"] >= 39  # Grafana 11


def test_panels_neither_overlap_nor_share_an_id(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == _WIDTH - 1


def test_every_panel_says_what_it_shows_and_in_which_unit(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] in {"stat", "timeseries"}:
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_its_data_source_is_chosen_in_it(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}

    assert list(variables) == ["datasource", "instance", "virtual_host"]
    assert variables["datasource"]["query"] == "prometheus"


def test_every_query_is_one(dashboard: dict[str, Any], promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:query:{number}", "expr": expression}
        for number, (_, expression, _) in enumerate(_expressions(dashboard))
    ]
    assert rules
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


async def test_queries_ask_for_nothing_that_no_gateway_exposes(dashboard: dict[str, Any], tmp_path: Path) -> None:
    samples = exposed(tmp_path)
    queries = [(title, expression) for title, expression, _ in _expressions(dashboard)]
    queries += [
        (variable["name"], re.sub(r"label_values\((\w+), (\w+)\)", r"sum by (\2) (\1)", variable["definition"]))
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]

    assert {title: found for title, expression in queries if (found := unknown_names(expression, samples))} == {}


def test_a_legend_names_a_label_that_is_left(dashboard: dict[str, Any]) -> None:
    for title, expression, legend in _expressions(dashboard):
        labels = set(re.findall(r"{{(\w+)}}", legend))
        by = re.search(r"\bby \(([^)]*)\)", expression)
        left = {"instance", "job"} if by is None else {label.strip() for label in by[1].split(",")}
        assert labels <= left, title


async def test_it_shows_all_that_a_gateway_tells_of_itself(dashboard: dict[str, Any], tmp_path: Path) -> None:
    """A figure that is on no panel is not worth telling; of a histogram, the buckets are shown."""
    shown = " ".join(expression for _, expression, _ in _expressions(dashboard))
    told = {name for name in exposed(tmp_path) if name.startswith("stomp_gateway_") and "latency" not in name}

    assert not sorted(name for name in told if not re.search(rf"\b{name}\b", shown))


def test_compose_puts_everything_where_the_provisioning_looks() -> None:
    compose = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["services"]
    [source] = yaml.safe_load((_DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    [provider] = yaml.safe_load((_DEPLOY / "grafana/provisioning/dashboards/stomp-gateway.yaml").read_text())[
        "providers"
    ]
    mounted = dict(volume.split(":")[:2][::-1] for volume in compose["grafana"]["volumes"])
    shown = provider["options"]["path"] + "/stomp-gateway.json"

    assert mounted[shown] == "./grafana/stomp-gateway.json"
    assert mounted["/etc/grafana/provisioning"] == "./grafana/provisioning"
    assert compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == shown
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
