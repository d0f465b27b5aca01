"""The metrics that a gateway exposes: names and labels, as Prometheus knows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.metrics_core import Metric

from gateway.admin.metrics import GatewayFamilies
from gateway.admin.overview import StatsSnapshot
from gateway.config.loader import parse
from gateway.server.process.gateway import Gateway
from gateway.server.process.readiness import Readiness

_SAMPLES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
# Words of PromQL that look like a metric, in the expressions that we write.
_METRIC = re.compile(r"\b((?:stomp_gateway|process|python)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_BY = re.compile(r"\bby \(([^)]*)\)")

# What Prometheus adds to every series of ours.
_TARGET = {"job", "instance"}


def exposed(directory: Path) -> dict[str, set[str]]:
    """Every sample that a gateway may expose, with its labels. Called in a running event loop.

    Args:
        directory: of the configuration, which is empty.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    gateway = Gateway(parse("", directory=directory, name="gateway.yaml", environment={}))
    samples: dict[str, set[str]] = {}
    own = GatewayFamilies(gateway, Readiness(), StatsSnapshot(gateway)).all()
    for family in (*registry.collect(), *own):
        for suffix in _SAMPLES.get(family.type, ("",)):
            samples[family.name + suffix] = _labels(family) | ({"le"} if suffix == "_bucket" else set())
    return samples


def _labels(family: Metric) -> set[str]:
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    return labels | set(getattr(family, "_labelnames", ()))


def unknown_names(expression: str, samples: Mapping[str, set[str]]) -> list[str]:
    """The names in an expression that no gateway exposes.

    Args:
        expression: PromQL.
        samples: what is exposed.

    Returns:
        Metrics, and labels as ``metric{label}``.
    """
    asked = {name: matchers for name, matchers in _METRIC.findall(expression)}
    missing = [name for name in asked if name not in samples]
    if missing:
        return missing
    known = set().union(*(samples[name] for name in asked), _TARGET)
    found = [
        f"{name}{{{label}}}"
        for name, matchers in _METRIC.findall(expression)
        for label in _MATCHER.findall(matchers)
        if label not in samples[name] | _TARGET
    ]
    grouped = {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")}
    return found + [f"by ({label})" for label in sorted(grouped - known)]
