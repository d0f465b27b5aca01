"""Elements of HTML and SVG as text. What is no markup is escaped, so that nothing from a client can become any."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from gateway.pipeline.report.text import name_of, shortened, shown

_EMPTY: Final = frozenset({"path", "rect", "circle", "line", "polygon", "meta", "link", "br", "col", "use"})
LONGEST_TITLE: Final = 2000
"""Columns of a name in a title: one that is longer is an attack or an accident."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *content: str | None, **attributes: str | float | None) -> Markup:
    """An element.

    Args:
        name: of the element.
        content: texts, which are escaped, and markup, which is not; None is left out.
        attributes: ``class_`` means class, ``stroke_width`` means stroke-width; None is left out.
    """
    opening = name + "".join(
        f' {_key(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None
    )
    if name in _EMPTY:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(content)}</{name}>")


def joined(content: Iterable[str | None]) -> Markup:
    """Texts and markup one after the other."""
    return Markup("".join(_escaped(part) for part in content if part is not None))


def named(text: str | None, columns: int = 60) -> Markup:
    """A name from a client, cut to so many columns, whole in its title, its direction kept to itself."""
    whole = name_of(text)
    short = shortened(whole, columns)
    return tag("bdi", short, title=None if short == whole else shortened(whole, LONGEST_TITLE))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else escape(shown(text))


def _key(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(shown(value))
    return str(value) if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".")
