"""What stands out in a lake: rules with fixed thresholds. The names of rules are a contract: programs test them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.formats import HOUR, MINUTE, TEMPLATES, ClientText
from gateway.pipeline.report.queries import LakeQueries, Row
from gateway.times import iso

JSON_VERSION: Final = 1
"""The version of the JSON's format: it grows when a name changes its meaning."""

LAG: Final = HOUR
"""How old the newest line of a lake may be, if not said otherwise."""

_TIMES: Final = ("at", "first", "last")
_JUMPED: Final = (
    " jumped: {{ n | count }} in the {{ unit }} from {{ at | spoken }}, against "
    "{{ '%.1f' % usual if usual else 'none' }} in other {{ unit }}s on average."
)


@dataclass(frozen=True, slots=True)
class ReportRule:
    """A sentence about each row that the question of the rule's name finds; ``more`` are those that are not named.

    The sentence is a template. If ``attention`` is false, the rule is for your information.
    """

    sentence: str
    more: str = ""
    attention: bool = True


RULES: Final[Mapping[str, ReportRule]] = {
    "lake-lag": ReportRule(
        "{{ 'The lake has no lines' if lag_seconds is none else 'The newest line in the lake is ' ~ "
        "(lag_seconds * 1000000) | duration ~ ' old' }}: ingest does not run, journals do not arrive, or no "
        "gateway runs."
    ),
    "node-silent": ReportRule(
        "{{ node | name }} has written no line for {{ (lag_seconds * 1000000) | duration }}, and has not closed its "
        "journal: it was killed, is idle, or its segments do not arrive.",
        "nodes that have written no line",
    ),
    "clock-ahead": ReportRule(
        "The clock of {{ node | name }} is {{ (ahead_seconds * 1000000) | duration }} ahead: its lines are on wrong "
        "days. Set it by NTP.",
        "nodes whose clock is ahead",
    ),
    "journal-not-closed": ReportRule(
        "{{ node | name }} never closed its journal: the boot of {{ first | spoken }} wrote its last line at "
        "{{ last | spoken }}. Its last moments may be missing, so figures are a lower bound.",
        "boots that never closed",
    ),
    "journal-lines-dropped": ReportRule(
        "{{ node | name }} dropped {{ dropped | exact }} journal lines, because its disk could not keep up: all "
        "figures are a lower bound.",
        "boots that dropped journal lines",
    ),
    "abandoned-subscription": ReportRule(
        "The durable subscription {{ sub_name | name }} of {{ login | name }} to {{ destination | name }} has not been "
        "connected for {{ (days_idle * 86400000000) | duration }}, and its queue keeps growing unless it expires: "
        "delete it, or start its client again.",
        "abandoned durable subscriptions",
    ),
    "unacknowledged": ReportRule(
        "{{ destination | name }}: {{ (unacked / deliveries) | share }} of its deliveries ({{ unacked | count }} of "
        "{{ deliveries | count }}) were not acknowledged; the broker delivers them again.",
        "destinations with unacknowledged deliveries",
    ),
    "redelivered": ReportRule(
        "{{ destination | name }}: {{ (redelivered / [delivered, redelivered] | max) | share }} of its deliveries "
        "({{ redelivered | count }} of {{ delivered | count }}) were redeliveries. Its consumers refuse messages, or "
        "leave without acknowledging.",
        "destinations with many redeliveries",
    ),
    "rejected": ReportRule(
        "The broker rejected {{ rejected | count }} message{{ 's' if rejected != 1 }} to {{ destination | name }}.",
        "destinations with rejected messages",
    ),
    "error-jump": ReportRule("The error {{ code | name }}" + _JUMPED, "errors that jumped"),
    "redelivery-jump": ReportRule("Redeliveries" + _JUMPED),
    "slow-latency": ReportRule(
        "{{ event | event }} was slow in the {{ unit }} from {{ at | spoken }}: its p99 was {{ p99_us | latency }}, "
        "against {{ usual_p99_us | latency }} in the median {{ unit }}."
    ),
    "departure": ReportRule(
        "In {{ sessions | count }} session{{ 's' if sessions != 1 }} clients do what the gateway answers differently "
        "than RabbitMQ's plugin: {{ feature | name }}.",
        "uses that the gateway answers differently",
    ),
    "unknown-feature": ReportRule(
        "Clients use a feature that this version does not know: {{ feature | name }}.",
        "features that this version does not know",
    ),
    "peak": ReportRule(
        "{{ 'The busiest second was' if seconds == 1 else 'The busiest ten seconds began at' }} {{ at | spoken }}: "
        "{{ sent_per_second | rate }} sent and {{ delivered_per_second | rate }} delivered."
    ),
    "largest-destination": ReportRule(
        "{{ destination | name }} has the most traffic: {{ share | share }} of all messages ({{ sent | count }} sent, "
        "{{ delivered | count }} delivered).",
        attention=False,
    ),
    "several-recorders": ReportRule(
        "Recorders of several kinds wrote this ({{ kinds | name }}); a message that passed two of them counts twice.",
        attention=False,
    ),
}  # fmt: skip
"""Every rule by its name, in the order of a report."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule has found: rows of values. ``total`` may be more than there are rows."""

    rule: ReportRule
    rows: Sequence[Row]
    total: int
    attention: bool


def find(queries: LakeQueries) -> dict[str, Found]:
    """What each rule finds, rules that find nothing included, in the order of a report."""
    return {name: _find(queries, name, rule) for name, rule in RULES.items()}


def _find(queries: LakeQueries, name: str, rule: ReportRule) -> Found:
    found = queries.rows(name.replace("-", "_"))
    rows = [{key: value for key, value in row.items() if key not in ("in_all", "attention")} for row in found]
    total = found[0].get("in_all", len(found)) if found else 0
    return Found(rule, rows, total, all(row.get("attention", rule.attention) for row in found))


def unit_of(queries: LakeQueries) -> str:
    """The word for the periods that rules compare."""
    return {HOUR: "hour", MINUTE: "minute"}.get(queries.span.period, "period")


def as_json(queries: LakeQueries, found: Mapping[str, Found]) -> str:
    """The findings of a lake as JSON; times in ISO 8601, UTC."""
    unit = unit_of(queries)
    document = {
        "version": JSON_VERSION,
        "from": iso(queries.span.start, "seconds"),
        "to": iso(queries.span.end, "seconds"),
        "generated": iso(queries.now, "seconds"),
        "newest_line": None if queries.newest is None else iso(queries.newest, "seconds"),
        "counts": {rule: each.total for rule, each in found.items()},
        "findings": [
            {"rule": rule, "attention": each.attention,
             "text": TEMPLATES.from_string(each.rule.sentence).render(row, unit=unit).replace("\u00a0", " "),
             **{key: _plain(key, value) for key, value in row.items()}}
            for rule, each in found.items()
            for row in each.rows
        ],
    }  # fmt: skip
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _plain(key: str, value: object) -> object:
    if key in _TIMES and isinstance(value, int):
        return iso(value, "seconds")
    return str(ClientText(value)) if isinstance(value, str) else value


_PROMETHEUS: Final = """\
# HELP stomp_lake_findings What stands out in the lake, by rule.
# TYPE stomp_lake_findings gauge
{% for rule, each in found.items() if each.rule.attention %}
stomp_lake_findings{rule="{{ rule }}"} {{ each.total if each.attention else 0 }}
{% endfor %}
# HELP stomp_lake_newest_line_timestamp_seconds Time of the newest line in the lake.
# TYPE stomp_lake_newest_line_timestamp_seconds gauge
{% if newest is not none %}
stomp_lake_newest_line_timestamp_seconds {{ newest / 1000000 }}
{% endif %}
# HELP stomp_lake_node_newest_line_timestamp_seconds Time of the newest line of a node, of those that wrote in a week.
# TYPE stomp_lake_node_newest_line_timestamp_seconds gauge
{% for each in nodes %}
stomp_lake_node_newest_line_timestamp_seconds{node="{{ each.node }}",impl="{{ each.impl }}"} {{ each.last / 1000000 }}
{% endfor %}
# HELP stomp_lake_report_timestamp_seconds Time at which the lake was read.
# TYPE stomp_lake_report_timestamp_seconds gauge
stomp_lake_report_timestamp_seconds {{ now / 1000000 }}
# HELP stomp_lake_peak_messages_per_second Messages sent and delivered in the busiest second that is known.
# TYPE stomp_lake_peak_messages_per_second gauge
stomp_lake_peak_messages_per_second {{ found.peak.rows | map(attribute="messages_per_second") | first | default(0.0) }}
"""


def as_prometheus(queries: LakeQueries, found: Mapping[str, Found]) -> str:
    """The number of findings by rule, and what thresholds are set on, as gauges."""
    nodes = queries.rows("newest_by_node")
    text = TEMPLATES.from_string(_PROMETHEUS).render(found=found, newest=queries.newest, now=queries.now, nodes=nodes)
    return text + "\n"
