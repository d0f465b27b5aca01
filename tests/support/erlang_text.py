"""Erlang terms as text: the inverse of the gateway's reader."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gateway.migrate.erlang_terms import RESERVED, Atom, External, Map, Term, Tuple

_PLAIN_ATOM: Final = re.compile(r"[a-zß-öø-ÿ][A-Za-z0-9_@À-ÖØ-öø-ÿ]*")
_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}


def formatted(term: Term) -> str:
    """The text of a term, without a final dot."""
    match term:
        case str():
            text = _quoted(term, '"')
        case bytes():
            text = f"<<{','.join(map(str, term))}>>"
        case int() | float():
            # Erlang wants a fraction before an exponent: 1.0e22, not 1e22.
            text = repr(term) if "." in repr(term) else repr(term).replace("e", ".0e")
        case Atom(name):
            text = _atom(name)
        case External(module, name, arity):
            text = f"fun {_atom(module)}:{_atom(name)}/{arity}"
        case Tuple(items):
            text = f"{{{_joined(items)}}}"
        case Map(pairs):
            text = f"#{{{', '.join(f'{formatted(key)} => {formatted(value)}' for key, value in pairs)}}}"
        case _:
            text = f"[{_joined(term)}]"
    return text


def _joined(terms: Iterable[Term]) -> str:
    return ", ".join(map(formatted, terms))


def _atom(name: str) -> str:
    return name if _PLAIN_ATOM.fullmatch(name) and name not in RESERVED else _quoted(name, "'")


def _quoted(text: str, quote: str) -> str:
    return f"{quote}{''.join(_escaped(character, quote) for character in text)}{quote}"


def _escaped(character: str, quote: str) -> str:
    if character == quote:
        return f"\\{quote}"
    return _ESCAPES.get(character) or (character if character.isprintable() else f"\\x{{{ord(character):x}}}")
