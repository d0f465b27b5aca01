"""Selectors: each text is parsed once, and then applied to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from gateway.errors import SelectorError
from gateway.message_selectors.terms import Evaluate

LONGEST_SELECTOR: Final = 2048
"""In bytes. It bounds the time to parse a selector, and to apply it."""

# Prefixes of selectors: ActiveMQ's, for a conversion that the gateway always does; Artemis', for names with hyphens.
_CONVERTING: Final = "convert_string_expressions:"
_HYPHENATED: Final = "hyphenated_props:"


class Selector:
    """A parsed selector. ``evaluate`` returns True, False or None (unknown) for the headers of a message."""

    __slots__ = ("__weakref__", "_evaluate")

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def matches(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it selects a message with these headers. Of several headers with one name, the first counts."""
        return self._evaluate(dict(reversed(headers))) is True


# The selectors in use, by text. The sessions of an application mostly subscribe with the same few.
_IN_USE: Final = WeakValueDictionary[bytes, Selector]()

# The errors of the texts that were refused last, so that a client that tries again costs little.
_REFUSED: Final[dict[bytes, str]] = {}
_MOST_REFUSED: Final = 64


def prepare_selectors() -> None:
    """Load the parser, so that no SUBSCRIBE waits for it."""
    from gateway.message_selectors.selector_parser import prepare  # noqa: PLC0415

    prepare()


def read_selector(text: bytes) -> Selector | None:
    """Parse a selector. Returns None for a text of spaces only, which selects everything.

    Raises:
        SelectorError: it is malformed, too long or too deep.
    """
    if len(text) > LONGEST_SELECTOR:
        raise SelectorError(f"it has {len(text)} bytes, and {LONGEST_SELECTOR} are allowed")
    known = _IN_USE.get(text)
    if known is not None:
        return known
    if text in _REFUSED:
        raise SelectorError(_REFUSED[text])
    try:
        selector = _read(text)
    except SelectorError as error:
        if len(_REFUSED) >= _MOST_REFUSED:
            _REFUSED.clear()
        _REFUSED[text] = str(error)
        raise
    if selector is not None:
        _IN_USE[text] = selector
    return selector


def _read(text: bytes) -> Selector | None:
    try:
        condition = text.decode().strip()
    except UnicodeDecodeError as error:
        raise SelectorError("it is not UTF-8") from error
    hyphens = False
    while condition.startswith((_CONVERTING, _HYPHENATED)):
        hyphens |= condition.startswith(_HYPHENATED)
        condition = condition.partition(":")[2].strip()
    if not condition:
        return None
    # Imported here, because few gateways have selectors, and the library takes a tenth of a second to load.
    from gateway.message_selectors.selector_parser import parse  # noqa: PLC0415

    return Selector(parse(condition, hyphens=hyphens))
