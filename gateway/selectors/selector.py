"""A selector: read once for each text, then asked about messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gateway.errors import SelectorError
from gateway.selectors.terms import Evaluate

LONGEST_SELECTOR: Final = 2048
"""Bytes. It bounds the time that it takes to read a selector, and to ask it."""

# ActiveMQ's name for what is always so here, and Artemis' name for identifiers that may have hyphens.
_CONVERTING: Final = "convert_string_expressions:"
_HYPHENATED: Final = "hyphenated_props:"

# So many are kept: the sessions of an application mostly subscribe with the same few.
_KEPT: Final = 256


class Selector:
    """The meaning of a selector: ``evaluate`` gives True, False or None (unknown) for the headers of a message."""

    __slots__ = ("_evaluate",)

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def matches(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it selects a message with these headers. Of several with one name the first counts."""
        return self._evaluate(dict(reversed(headers))) is True


@lru_cache(_KEPT)
def read_selector(text: bytes) -> Selector | None:
    """Read a selector; None if there is nothing but spaces, which selects everything.

    Raises:
        SelectorError: when it is none, or too long or too deep.
    """
    if len(text) > LONGEST_SELECTOR:
        raise SelectorError(f"it has {len(text)} bytes, and {LONGEST_SELECTOR} are allowed")
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
    # Here, because few gateways are asked for selectors, and the library takes a tenth of a second to load.
    from gateway.selectors.selector_parser import parse  # noqa: PLC0415

    return Selector(parse(condition, hyphens=hyphens))
