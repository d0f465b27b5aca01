"""Findings for programs: JSON, and a text file for Prometheus (node_exporter's textfile collector)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from gateway.pipeline.report.client_text import ClientText
from gateway.pipeline.report.findings import NOTES, Found, LakeQuestion
from gateway.pipeline.report.units import SECOND, datetime_of

JSON_VERSION: Final = 1
"""The version of the JSON's format: it grows when a name changes its meaning."""

_TIMES: Final = ("at", "first", "last")


def as_json(asked: LakeQuestion, found: Mapping[str, Found]) -> str:
    """The findings of a lake as JSON; times in ISO 8601, UTC."""
    document = {
        "version": JSON_VERSION,
        "from": _iso(asked.span.start),
        "to": _iso(asked.span.end),
        "generated": _iso(asked.now),
        "newest_line": None if asked.newest is None else _iso(asked.newest),
        "counts": {rule: each.total for rule, each in found.items()},
        "findings": [
            {"rule": rule, "attention": each.attention, "text": finding.text}
            | {key: _plain(key, value) for key, value in finding.values.items()}
            for rule, each in found.items()
            for finding in each.findings
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _plain(key: str, value: object) -> object:
    if key in _TIMES and isinstance(value, int):
        return _iso(value)
    return str(ClientText(value)) if isinstance(value, str) else value


def _iso(micros: int) -> str:
    return datetime_of(micros).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_prometheus(asked: LakeQuestion, found: Mapping[str, Found]) -> str:
    """The number of findings by rule, and what thresholds are set on, as gauges."""
    peak = max((one.values["messages_per_second"] for one in found["peak"].findings), default=0.0)
    gauges = (
        ("stomp_lake_findings", "What stands out in the lake, by rule.",
         {f'{{rule="{rule}"}}': each.total if each.attention else 0
          for rule, each in found.items() if rule not in NOTES}),
        ("stomp_lake_newest_line_timestamp_seconds", "Time of the newest line in the lake.",
         {} if asked.newest is None else {"": asked.newest / SECOND}),
        ("stomp_lake_report_timestamp_seconds", "Time at which the lake was read.", {"": asked.now / SECOND}),
        ("stomp_lake_peak_messages_per_second", "Messages sent and delivered in the busiest second that is known.",
         {"": peak}),
    )  # fmt: skip
    lines = []
    for name, what, values in gauges:
        lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"]
        lines += [f"{name}{labels} {value!r}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
