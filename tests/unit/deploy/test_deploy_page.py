"""docs/deploy.md and what is in deploy/ say the same."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

_ROOT = Path(__file__).parents[3]
_PAGE = (_ROOT / "docs/deploy.md").read_text("utf-8")


def test_every_alert_is_listed_with_its_severity() -> None:
    groups = yaml.safe_load((_ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"]}

    assert dict(re.findall(r"^\| `(StompGateway\w+)` \|.*\| (\w+) \|$", _PAGE, re.MULTILINE)) == alerts


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"\bdeploy/[\w./@-]*\w", _PAGE)
    assert "deploy/compose.yaml" in named

    assert not [name for name in named if not (_ROOT / name).exists()]


def test_every_variable_of_compose_is_explained() -> None:
    variables = set(re.findall(r"\$\{(\w+):-", (_ROOT / "deploy/compose.yaml").read_text()))
    assert variables

    assert not [name for name in variables if f"`{name}`" not in _PAGE]
