"""The reader of Erlang terms: what `file:consult/1` reads.

Tuples, lists, maps, strings that stand side by side, binaries with all segments that a literal may have, names of
functions, signs before numbers, and a dot behind each term.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NoReturn

from gateway.migrate.scan import TermSyntaxError, Token, scan
from gateway.migrate.terms import Atom, External, Improper, Map, Term, Tuple

_DEEPEST: Final = 100
"""Configurations nest a handful of terms; Python's own stack ends somewhere."""
_MOST_BITS: Final = 1 << 23
"""A megabyte: a segment's size is a number that anybody can write."""
_FLOATS: Final = {16: "e", 32: "f", 64: "d"}
_TYPES: Final = ("integer", "float", "binary", "bytes", "utf8", "utf16", "utf32")
_KNOWN: Final = frozenset((*_TYPES, "big", "little", "native", "signed", "unsigned", "unit"))
_ENCODINGS: Final = {"utf8": "utf-8", "utf16": "utf-16", "utf32": "utf-32"}


def read_terms(text: str) -> list[Term]:
    """All terms of a text, each with a dot behind it.

    Raises:
        TermSyntaxError: the text is something else.
    """
    return _Reader(text).terms()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = scan(text)
        self._token = next(self._tokens)
        self._depth = 0

    def terms(self) -> list[Term]:
        found: list[Term] = []
        while self._token.kind:
            found.append(self._term())
            if self._token.kind != ".":
                self._fail("A dot is missing behind the term." if not self._token.kind else _unexpected(self._token))
            self._next()
        return found

    def _term(self) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("This is nested too deeply.")
        term = self._any()
        self._depth -= 1
        return term

    def _any(self) -> Term:
        token = self._token
        kind = token.kind
        if kind in ("integer", "float", "+", "-"):
            return self._number()
        if kind == "atom":
            self._next()
            return Atom(str(token.value), token.line)
        if kind == "string":
            return self._strings()
        if kind == "<<":
            return self._binary()
        return self._bracketed(token)

    def _bracketed(self, token: Token) -> Term:
        if token.kind == "(":
            self._next()
            term = self._term()
            self._take(")")
            return term
        if token.kind == "{":
            self._next()
            return Tuple(tuple(self._until("}")), token.line)
        if token.kind == "[":
            return self._list()
        if token.kind == "#":
            return self._map()
        if token.kind == "fun":
            return self._function()
        self._fail("The text ends in the middle of a term." if not token.kind else _unexpected(token))

    def _until(self, closing: str) -> list[Term]:
        """Terms between commas, and what closes them."""
        if self._token.kind == closing:
            self._next()
            return []
        found = self._several()
        self._take(closing)
        return found

    def _several(self) -> list[Term]:
        found = [self._term()]
        while self._token.kind == ",":
            self._next()
            found.append(self._term())
        return found

    def _list(self) -> Term:
        self._take("[")
        if self._token.kind == "]":
            self._next()
            return []
        found = self._several()
        if self._token.kind != "|":
            self._take("]")
            return found
        self._next()
        tail = self._term()
        self._take("]")
        if isinstance(tail, list):
            return found + tail
        return (
            Improper((*found, *tail.items), tail.tail) if isinstance(tail, Improper) else Improper(tuple(found), tail)
        )

    def _map(self) -> Term:
        self._take("#")
        self._take("{")
        pairs: list[tuple[Term, Term]] = []
        while self._token.kind != "}":
            if pairs:
                self._take(",")
            key = self._term()
            self._take("=>")
            pairs.append((key, self._term()))
        self._next()
        return Map(tuple(pairs))

    def _function(self) -> Term:
        self._take("fun")
        module = self._name()
        self._take(":")
        name = self._name()
        self._take("/")
        if self._token.kind != "integer":
            self._fail("The number of the function's arguments belongs here.")
        return External(module, name, int(self._next().value))

    def _name(self) -> str:
        if self._token.kind != "atom":
            self._fail("Only a function's name can stand in such a file: fun module:name/1.")
        return str(self._next().value)

    def _number(self) -> int | float:
        sign = 1
        if self._token.kind in ("+", "-"):
            sign = -1 if self._next().kind == "-" else 1
        if self._token.kind not in ("integer", "float"):
            self._fail("A number belongs behind the sign.")
        value = self._next().value
        assert not isinstance(value, str)  # noqa: S101 - the kind says so
        return sign * value

    def _strings(self) -> str:
        pieces = []
        while self._token.kind == "string":
            pieces.append(str(self._next().value))
        return "".join(pieces)

    # Binaries. Segments need not end at an octet's end, only all of them together.

    def _binary(self) -> bytes:
        start = self._take("<<")
        bits: list[str] = []
        total = 0
        while self._token.kind != ">>":
            if bits:
                self._take(",")
            bits.append(self._segment())
            total += len(bits[-1])
            if total > _MOST_BITS:
                raise TermSyntaxError("This binary is too large.", start.line, start.column)
        self._next()
        joined = "".join(bits)
        if len(joined) % 8:
            raise TermSyntaxError("A binary here must have whole octets.", start.line, start.column)
        return int(joined or "0", 2).to_bytes(len(joined) // 8, "big")

    def _segment(self) -> str:
        token = self._token
        value: Term
        if token.kind == "string":
            value = self._strings()
        elif token.kind == "<<":
            value = self._term()
        else:
            value = self._number()
        size = self._size()
        types = self._types()
        try:
            return _bits(value, size, types)
        except (ValueError, OverflowError, struct.error):
            sentence = "This segment of a binary has a size or a type that its value does not fit."
            raise TermSyntaxError(sentence, token.line, token.column) from None

    def _size(self) -> int | None:
        if self._token.kind != ":":
            return None
        self._next()
        if self._token.kind != "integer":
            self._fail("A size in bits belongs here.")
        return int(self._next().value)

    def _types(self) -> dict[str, int]:
        """Words behind the slash of a segment; `unit` has a number."""
        found: dict[str, int] = {}
        while self._token.kind == ("-" if found else "/"):
            self._next()
            word = str(self._token.value) if self._token.kind == "atom" else ""
            if word not in _KNOWN:
                self._fail("A segment of a binary has no such type; utf8 is one.")
            self._next()
            if word == "unit":
                self._take(":")
                if self._token.kind != "integer":
                    self._fail("A number belongs behind unit.")
                found[word] = int(self._next().value)
            else:
                found[word] = 1
        return found

    # Tokens.

    def _next(self) -> Token:
        token = self._token
        if token.kind:
            self._token = next(self._tokens)
        return token

    def _take(self, kind: str) -> Token:
        if self._token.kind != kind:
            got = "the text ends" if not self._token.kind else f"there is {_shown(self._token)}"
            self._fail(f"{kind} belongs here, and {got}.")
        return self._next()

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._token.line, self._token.column)


def _shown(token: Token) -> str:
    """A sign as it is. Of anything else only the kind: it may be a secret."""
    words = {"integer": "a number", "float": "a number", "string": "a string", "atom": "an atom", ".": "a dot"}
    return words.get(token.kind, token.kind)


def _unexpected(token: Token) -> str:
    return f"There is {_shown(token)} where it cannot stand."


def _bits(value: Term, size: int | None, types: dict[str, int]) -> str:
    """A segment as zeros and ones."""
    kinds = [word for word in _TYPES if word in types]
    kind = kinds[0] if kinds else ("binary" if isinstance(value, bytes) else "integer")
    if len(kinds) > 1:
        raise ValueError
    little = "little" in types or "native" in types
    if isinstance(value, bytes):
        return _of_binary(value, kind, size, types.get("unit", 8))
    parts = [ord(character) for character in value] if isinstance(value, str) else [value]
    if (size or 0) * types.get("unit", 1) * len(parts) > _MOST_BITS:
        raise ValueError
    return "".join(_of_number(part, kind, size, types.get("unit"), little=little) for part in parts)


def _of_binary(value: bytes, kind: str, size: int | None, unit: int) -> str:
    length = len(value) * 8 if size is None else size * unit
    if kind not in ("binary", "bytes") or length > len(value) * 8:
        raise ValueError
    return _octet_bits(value)[:length]


def _of_number(value: object, kind: str, size: int | None, unit: int | None, *, little: bool) -> str:
    if kind in _ENCODINGS:
        if not isinstance(value, int) or size is not None or unit is not None:
            raise ValueError
        suffix = "" if kind == "utf8" else ("-le" if little else "-be")
        return _octet_bits(chr(value).encode(_ENCODINGS[kind] + suffix))
    if not isinstance(value, (int, float)):
        raise ValueError
    if kind == "float":
        code = _FLOATS.get((64 if size is None else size) * (unit or 1))
        if code is None or not math.isfinite(value):
            raise ValueError
        return _octet_bits(struct.pack(("<" if little else ">") + code, value))
    if kind != "integer" or not isinstance(value, int):
        raise ValueError
    length = (8 if size is None else size) * (unit or 1)
    text = f"{value & ((1 << length) - 1):0{length}b}" if length else ""
    return text if not little else _little(text)


def _little(text: str) -> str:
    """The octets of a number in the other order; a rest of less than an octet is its last piece."""
    whole = len(text) % 8
    octets = [text[start : start + 8] for start in range(whole, len(text), 8)]
    return "".join(reversed(octets)) + text[:whole]


def _octet_bits(octets: bytes) -> str:
    return "".join(f"{octet:08b}" for octet in octets)
