"""What templates of the report can do with a value: the filters of Jinja, for pages and plain sentences alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gateway.pipeline.report import units
from gateway.pipeline.report.client_text import ClientText, name_of, shortened

LATENCIES: Final = {
    "confirm": "Publish → confirm", "queue": "Publish → deliver", "ack": "Deliver → acknowledge",
}  # fmt: skip
"""The latencies of a message, by event."""

FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "name": ClientText,
    "short": lambda text, columns: shortened(name_of(text), columns),
    "event": lambda event: LATENCIES.get(event, event),
    "text": lambda text: "" if text is None else ClientText(text),
    "now_or_moment": lambda at: "now" if at is None else units.moment(at),
    "day": lambda at: units.moment(at)[:10],
    **{each.__name__: each for each in (
        units.count, units.duration, units.exact, units.latency, units.moment, units.rate, units.share, units.size,
        units.si, units.spoken,
    )},
}  # fmt: skip


_OF_NONE: Final = ("name", "text", "now_or_moment")


def shown(row: Mapping[str, Any], cell: str) -> Any:  # noqa: ANN401 - what a filter makes
    """A value of a row as a page shows it; ``cell`` is the column and the filter, like ``sent_bytes|size``."""
    column, _, name = cell.partition("|")
    value = row[column]
    return units.NOTHING if value is None and name not in _OF_NONE else FILTERS[name](value)


TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(("jinja",), default_for_string=False),
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
"""The templates beside this file. Those of pages escape what they show."""
TEMPLATES.filters.update(FILTERS)
