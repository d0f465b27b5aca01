"""Erlang terms as Python values, and their text.

Numbers, strings, binaries and lists are Python's own (`int`, `float`, `str`, `bytes`, `list`); the others have a class
here. A string stays a `str`, although to Erlang it is a list of numbers: people wrote it as text. Lines are remembered
where people point at them, and count for nothing when terms are compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

RESERVED: Final = frozenset(
    "after and andalso band begin bnot bor bsl bsr bxor case catch cond div end fun if let not of or orelse receive "
    "rem try when xor".split()
)
"""Words that are no atoms unless quoted; without `maybe` and `else`, which not all releases of Erlang reserve."""

_PLAIN_ATOM: Final = re.compile(r"[a-zß-öø-ÿ][A-Za-z0-9_@À-ÖØ-öø-ÿ]*")
_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}


@dataclass(frozen=True)
class Atom:
    """An atom."""

    name: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Tuple:
    """A tuple."""

    items: tuple[Term, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Map:
    """A map, as the pairs that were written."""

    pairs: tuple[tuple[Term, Term], ...]


@dataclass(frozen=True)
class Improper:
    """A list with a tail that is no list: `[a | b]`."""

    items: tuple[Term, ...]
    tail: Term


@dataclass(frozen=True)
class External:
    """A function by its name: `fun module:name/arity`."""

    module: str
    name: str
    arity: int


Term: TypeAlias = "Atom | Tuple | Map | Improper | External | int | float | str | bytes | list[Term]"


def printed(term: Term) -> str:
    """The text of a term, without a final dot. Read again, it is the same term."""
    if isinstance(term, str):
        return f'"{_escaped(term, chr(34))}"'
    if isinstance(term, bytes):
        return f"<<{','.join(map(str, term))}>>"
    if isinstance(term, (int, float)):
        return _number(term)
    if isinstance(term, Atom):
        return _atom(term.name)
    if isinstance(term, External):
        return f"fun {_atom(term.module)}:{_atom(term.name)}/{term.arity}"
    return _compound(term)


def _compound(term: Tuple | Map | Improper | list[Term]) -> str:
    if isinstance(term, Tuple):
        return f"{{{_joined(term.items)}}}"
    if isinstance(term, Map):
        return f"#{{{', '.join(f'{printed(key)} => {printed(value)}' for key, value in term.pairs)}}}"
    if isinstance(term, Improper):
        return f"[{_joined(term.items)} | {printed(term.tail)}]"
    return f"[{_joined(term)}]"


def _joined(terms: tuple[Term, ...] | list[Term]) -> str:
    return ", ".join(map(printed, terms))


def _number(number: float) -> str:
    text = repr(number)
    if "e" in text and "." not in text:
        # Erlang wants a fraction before an exponent: 1.0e22, not 1e22.
        text = text.replace("e", ".0e")
    return text


def _atom(name: str) -> str:
    if _PLAIN_ATOM.fullmatch(name) and name not in RESERVED:
        return name
    return f"'{_escaped(name, chr(39))}'"


def _escaped(text: str, quote: str) -> str:
    return "".join(_escaped_character(character, quote) for character in text)


def _escaped_character(character: str, quote: str) -> str:
    if character == quote:
        return f"\\{quote}"
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else f"\\x{{{ord(character):x}}}"
