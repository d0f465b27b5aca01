"""Reads Erlang terms into Python values, as `file:consult/1` reads them.

Numbers, strings, binaries and lists become Python's own (`int`, `float`, `str`, `bytes`, `list`); the others have a
class here. A string becomes a `str`, although Erlang sees a list of numbers: the author of the file meant text.
Binaries may have every kind of segment that a literal can have.
"""

import math
import struct
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias

from gateway.migrate.erlang_scanner import TermSyntaxError, Token, scan

_MAX_DEPTH: Final = 100
"""Configurations nest a handful of terms, and Python's stack is limited."""
_MAX_BITS: Final = 1 << 23
"""One MiB. A few digits in the file can ask for a segment of any size."""
_FLOATS: Final = {16: "e", 32: "f", 64: "d"}
_ENCODINGS: Final = {"utf8": "utf-8", "utf16": "utf-16", "utf32": "utf-32"}
_TYPES: Final = ("integer", "float", "binary", "bytes", *_ENCODINGS)
_SPECIFIERS: Final = frozenset((*_TYPES, "big", "little", "native", "signed", "unsigned", "unit"))
_SCALARS: Final = ("integer", "float", "+", "-", "atom", "string", "<<")
_DESCRIPTIONS: Final = {
    "integer": "a number", "float": "a number", "string": "a string", "atom": "an atom", ".": "a dot",
}  # fmt: skip


@dataclass(frozen=True)
class Atom:
    """An atom. Its line is for messages and does not count in comparisons; the same holds for `Tuple`."""

    name: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Tuple:
    """A tuple."""

    items: "tuple[Term, ...]"
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Map:
    """A map, as the pairs that were written."""

    pairs: "tuple[tuple[Term, Term], ...]"


@dataclass(frozen=True)
class Improper:
    """A list whose tail is not a list: `[a | b]`."""

    items: "tuple[Term, ...]"
    tail: "Term"


@dataclass(frozen=True)
class External:
    """A function by its name: `fun module:name/arity`."""

    module: str
    name: str
    arity: int


Term: TypeAlias = "Atom | Tuple | Map | Improper | External | int | float | str | bytes | list[Term]"


def read_terms(text: str) -> list[Term]:
    """All terms of a text, each of which ends with a dot. Raises TermSyntaxError."""
    return _TermParser(text).terms()


class _TermParser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = scan(text)
        self._token = next(self._tokens)
        self._depth = 0

    def terms(self) -> list[Term]:
        found: list[Term] = []
        while self._token.kind:
            found.append(self._term())
            if not self._skip("."):
                self._fail_unexpected("A dot is missing behind the term.")
        return found

    def _term(self) -> Term:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("This is nested too deeply.")
        term = self._scalar() if self._token.kind in _SCALARS else self._compound()
        self._depth -= 1
        return term

    def _scalar(self) -> Term:
        token = self._token
        if token.kind == "atom":
            self._next()
            return Atom(str(token.value), token.line)
        if token.kind == "string":
            return self._strings()
        return self._binary() if token.kind == "<<" else self._number()

    def _compound(self) -> Term:
        token = self._token
        if self._skip("("):
            term = self._term()
            self._take(")")
            return term
        if self._skip("{"):
            items = self._items("}")
            self._take("}")
            return Tuple(tuple(items), token.line)
        if self._skip("["):
            return self._list()
        if self._skip("#"):
            return self._map()
        if self._skip("fun"):
            return self._function()
        self._fail_unexpected("The text ends in the middle of a term.")

    def _items(self, closing: str) -> list[Term]:
        """Terms between commas, up to the closing sign."""
        if self._token.kind == closing:
            return []
        found = [self._term()]
        while self._skip(","):
            found.append(self._term())
        return found

    def _list(self) -> Term:
        found = self._items("]")
        tail: Term = self._term() if found and self._skip("|") else []
        self._take("]")
        if isinstance(tail, list):
            return found + tail
        if isinstance(tail, Improper):
            return Improper((*found, *tail.items), tail.tail)
        return Improper(tuple(found), tail)

    def _map(self) -> Term:
        self._take("{")
        pairs: list[tuple[Term, Term]] = []
        while not self._skip("}"):
            if pairs:
                self._take(",")
            key = self._term()
            self._take("=>")
            pairs.append((key, self._term()))
        return Map(tuple(pairs))

    def _function(self) -> Term:
        module = self._function_name()
        self._take(":")
        name = self._function_name()
        self._take("/")
        return External(module, name, self._integer("The number of the function's arguments belongs here."))

    def _function_name(self) -> str:
        if self._token.kind != "atom":
            self._fail("Only a function's name can stand in such a file: fun module:name/1.")
        return str(self._next().value)

    def _number(self) -> int | float:
        sign = -1 if self._token.kind == "-" else 1
        if self._token.kind in ("+", "-"):
            self._next()
        if self._token.kind not in ("integer", "float"):
            self._fail("A number belongs behind the sign.")
        value = self._next().value
        assert not isinstance(value, str)  # noqa: S101 - the kind says so
        return sign * value

    def _strings(self) -> str:
        """Strings that stand side by side are one string."""
        pieces = []
        while self._token.kind == "string":
            pieces.append(str(self._next().value))
        return "".join(pieces)

    # Binaries. Only the whole binary must fill its last byte, not each segment: so segments are joined as bits.

    def _binary(self) -> bytes:
        start = self._take("<<")
        bits: list[str] = []
        total = 0
        while not self._skip(">>"):
            if bits:
                self._take(",")
            bits.append(self._segment())
            total += len(bits[-1])
            if total > _MAX_BITS:
                raise TermSyntaxError("This binary is too large.", start.line, start.column)
        if total % 8:
            raise TermSyntaxError("A binary here must have whole bytes.", start.line, start.column)
        return int("".join(bits) or "0", 2).to_bytes(total // 8, "big")

    def _segment(self) -> str:
        token = self._token
        value: Term
        if token.kind == "string":
            value = self._strings()
        else:
            value = self._term() if token.kind == "<<" else self._number()
        size = self._integer("A size in bits belongs here.") if self._skip(":") else None
        specifiers = self._specifiers()
        try:
            return _segment_bits(value, size, specifiers)
        except (ValueError, OverflowError, struct.error):
            sentence = "This segment of a binary has a size or a type that its value does not fit."
            raise TermSyntaxError(sentence, token.line, token.column) from None

    def _specifiers(self) -> dict[str, int]:
        """The words behind the slash of a segment; `unit` has its number, the others have a 1."""
        found: dict[str, int] = {}
        while self._skip("-" if found else "/"):
            word = str(self._token.value) if self._token.kind == "atom" else ""
            if word not in _SPECIFIERS:
                self._fail("A segment of a binary has no such type; utf8 is one.")
            self._next()
            found[word] = 1
            if word == "unit":
                self._take(":")
                found[word] = self._integer("A number belongs behind unit.")
        return found

    # Tokens.

    def _next(self) -> Token:
        token = self._token
        if token.kind:
            self._token = next(self._tokens)
        return token

    def _skip(self, kind: str) -> bool:
        """Skip the next token if it is of this kind, and tell whether it was."""
        is_next = self._token.kind == kind
        if is_next:
            self._next()
        return is_next

    def _take(self, kind: str) -> Token:
        if self._token.kind != kind:
            found = f"there is {self._described()}" if self._token.kind else "the text ends"
            self._fail(f"{kind} belongs here, and {found}.")
        return self._next()

    def _integer(self, sentence: str) -> int:
        if self._token.kind != "integer":
            self._fail(sentence)
        return int(self._next().value)

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._token.line, self._token.column)

    def _fail_unexpected(self, sentence_at_end: str) -> NoReturn:
        self._fail(f"There is {self._described()} where it cannot stand." if self._token.kind else sentence_at_end)

    def _described(self) -> str:
        """The next token for a message: only its kind, as its value may be a secret."""
        return _DESCRIPTIONS.get(self._token.kind, self._token.kind)


def _segment_bits(value: Term, size: int | None, specifiers: dict[str, int]) -> str:
    """A segment as zeros and ones. Raises ValueError, OverflowError or struct.error if the value does not fit."""
    types = [word for word in _TYPES if word in specifiers]
    if len(types) > 1:
        raise ValueError
    unit = specifiers.get("unit")
    if isinstance(value, bytes):
        length = len(value) * 8 if size is None else size * (8 if unit is None else unit)
        if types not in ([], ["binary"], ["bytes"]) or length > len(value) * 8:
            raise ValueError
        return _bits(value)[:length]
    numbers = [ord(character) for character in value] if isinstance(value, str) else [value]
    if (size or 0) * specifiers.get("unit", 1) * len(numbers) > _MAX_BITS:
        raise ValueError
    little = "little" in specifiers or "native" in specifiers
    return "".join(_number_bits(number, types[0] if types else "integer", size, unit, little) for number in numbers)


def _number_bits(number: object, type_: str, size: int | None, unit: int | None, little: bool) -> str:
    if type_ in _ENCODINGS:
        if not isinstance(number, int) or size is not None or unit is not None:
            raise ValueError
        suffix = "" if type_ == "utf8" else ("-le" if little else "-be")
        return _bits(chr(number).encode(_ENCODINGS[type_] + suffix))
    if type_ == "float" and isinstance(number, (int, float)):
        code = _FLOATS.get((64 if size is None else size) * (unit or 1))
        if code is None or not math.isfinite(number):
            raise ValueError
        return _bits(struct.pack(("<" if little else ">") + code, number))
    if type_ != "integer" or not isinstance(number, int):
        raise ValueError
    length = (8 if size is None else size) * (unit or 1)
    bits = f"{number & ((1 << length) - 1):0{length}b}" if length else ""
    if not little:
        return bits
    # Reverse the bytes; bits that do not fill a byte come last.
    rest = length % 8
    return "".join(bits[start : start + 8] for start in reversed(range(rest, length, 8))) + bits[:rest]


def _bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data)
