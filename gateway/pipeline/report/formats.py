"""How reports and comparisons show values: names of clients, figures and times; and the filters of templates.

Texts that clients made up become visible, of bounded length, and never markup. Times are microseconds since the epoch,
UTC.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from rich.cells import cell_len

from gateway import texts, times
from gateway.texts import count, scaled

# Names.

_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: control characters, marks of direction, halves of characters, ends of lines."""
_JOINERS: Final = "\u200c\u200d"
"""Which scripts and emoji need."""
_USUAL: Final = 56
"""Columns of a name in a page."""
_LONGEST: Final = 2000
"""Columns of a name in a title or in JSON; longer names are an attack or an accident."""


@dataclass(frozen=True, slots=True)
class ClientText:
    """A name or code from outside. A template shows it shortened, in full in its title, isolated (bdi)."""

    text: str | None

    def __str__(self) -> str:
        return shortened(name_of(self.text), _LONGEST)

    def __html__(self) -> str:
        whole = name_of(self.text)
        short = shortened(whole, _USUAL)
        title = "" if short == whole else Markup(' title="{}"').format(shortened(whole, _LONGEST))
        return Markup("<bdi{}>{}</bdi>").format(title, short)


def name_of(text: str | None) -> str:
    """A name to show; never empty."""
    return "(none)" if text is None else visible(text) or "(empty)"


def visible(text: str) -> str:
    r"""A text with control characters, direction marks and the like as escapes, for example ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    no_character = ord(char) & 0xFFFE == 0xFFFE  # noqa: PLR2004 - the last two of each plane
    hidden = no_character or (unicodedata.category(char) in _INVISIBLE and char not in _JOINERS)
    return char.encode("unicode_escape").decode("ascii") if hidden else char


def columns_of(text: str) -> int:
    """At most how many columns a text takes. A combining mark counts as one, so that all names have a bound."""
    return sum(max(1, cell_len(char)) for char in text)


def shortened(text: str, columns: int) -> str:
    """A text in so many columns, if necessary without its middle: names differ most often at their ends."""
    if columns_of(text) <= columns:
        return text
    half = (columns - 1) // 2
    return _cut(text, half) + "…" + _cut(text[::-1], half)[::-1]


def _cut(text: str, columns: int) -> str:
    width = 0
    for place, char in enumerate(text):
        width += columns_of(char)
        if width > columns:
            return text[:place]
    return text


# Figures and times.

MILLISECOND: Final = 1000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

NOTHING: Final = "-"
"""Stands for a missing figure."""

_SPACE: Final = "\u00a0"  # a figure and its unit stay on one line
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")


def si(value: float) -> str:
    """A number to three digits with a prefix: 950, 1.2k, 34.5M."""
    return scaled(value, 1000, _PREFIXES)


def exact(value: float) -> str:
    """A count in full: 1,234,567."""
    return f"{round(value):,}"


def size(value: float) -> str:
    """A number of bytes with a decimal prefix: 1.23 GB."""
    return scaled(value, 1000, [f"{_SPACE}{prefix}B" for prefix in _PREFIXES])


def rate(per_second: float) -> str:
    """A rate per second: 1.2k/s."""
    return f"{si(per_second)}/s"


def share(part: float) -> str:
    """A part of 1 as a percentage."""
    percent = part * 100
    text = "under 0.1" if 0 < percent < 0.1 else f"{percent:.1f}" if percent < 10 else f"{percent:.0f}"  # noqa: PLR2004
    return f"{text} %".replace(" ", _SPACE)


def latency(micros: float | None) -> str:
    """A latency: 850 µs, 12.3 ms, 1.24 s, 3 min 20 s."""
    return NOTHING if micros is None else texts.latency(micros / SECOND).replace("us", "µs").replace(" ", _SPACE)


def duration(micros: float) -> str:
    """A length of time in its two largest units: 3 min 20 s, 12 d 4 h."""
    return texts.duration(round(micros / SECOND)).replace(" ", _SPACE)


def moment(micros: float | None) -> str:
    """A time to the second: 2026-11-21 14:05:10."""
    return NOTHING if micros is None else times.moment(micros)


def spoken(micros: float) -> str:
    """A time in a sentence: 14:05:10 on 21 Nov 2026."""
    when = times.datetime_of(micros)
    return f"{when:%H:%M:%S} on {when.day}{_SPACE}{when:%b}{_SPACE}{when.year}"


# What templates can do with a value, in pages and plain sentences alike.

LATENCIES: Final = {
    "confirm": "Publish → confirm", "queue": "Publish → deliver", "ack": "Deliver → acknowledge",
}  # fmt: skip
"""The latencies of a message, by event."""

FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "name": ClientText,
    "short": lambda text, columns: shortened(name_of(text), columns),
    "event": lambda event: LATENCIES.get(event, event),
    "text": lambda text: "" if text is None else ClientText(text),
    "now_or_moment": lambda at: "now" if at is None else moment(at),
    "day": lambda at: moment(at)[:10],
    **{each.__name__: each for each in (count, duration, exact, latency, moment, rate, share, size, si, spoken)},
}  # fmt: skip


_OF_NONE: Final = ("name", "text", "now_or_moment")


def shown(row: Mapping[str, Any], cell: str) -> Any:  # noqa: ANN401 - what a filter makes
    """A value of a row as a page shows it; ``cell`` is the column and the filter, like ``sent_bytes|size``."""
    column, _, name = cell.partition("|")
    value = row[column]
    return NOTHING if value is None and name not in _OF_NONE else FILTERS[name](value)


TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(("jinja",), default_for_string=False),
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
"""The templates beside this file. Those of pages escape what they show."""
TEMPLATES.filters.update(FILTERS)
