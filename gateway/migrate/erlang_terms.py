"""Reads Erlang terms into Python values, as `file:consult/1` reads those that a configuration can have.

Numbers, strings, binaries and lists become Python's own (`int`, `float`, `str`, `bytes`, `list`); the others have a
class here. A string becomes a `str`, although Erlang sees a list of numbers: the author of the file meant text. A
binary has texts and bytes, and a list ends with `]`, not with a tail: what only programs write is a mistake, and so are
variables. No mistake repeats quoted text, as it may be a passcode.
"""

import math
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias, TypeVar

from gateway.errors import GatewayError

_MAX_DEPTH: Final = 100
"""Configurations nest a handful of terms, and Python's stack is limited."""
_SCALARS: Final = ("integer", "float", "+", "-", "atom", "string", "<<")
_DESCRIPTIONS: Final = {
    "integer": "a number", "float": "a number", "string": "a string", "atom": "an atom", ".": "a dot",
}  # fmt: skip
_ODD_SEGMENT: Final = 'A binary here has texts and bytes: <<"text">>, <<"text"/utf8>> or <<1,2,3>>.'


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
class External:
    """A function by its name: `fun module:name/arity`."""

    module: str
    name: str
    arity: int


Term: TypeAlias = "Atom | Tuple | Map | External | int | float | str | bytes | list[Term]"

T = TypeVar("T")


# Tokens, by the lexical grammar of the Erlang reference manual.


RESERVED: Final = frozenset(
    "after and andalso band begin bnot bor bsl bsr bxor case catch cond div end fun if let not of or orelse receive "
    "rem try when xor".split()
)
"""Words that are atoms only in quotes. `maybe` and `else` are missing: not every release of Erlang reserves them."""

_MAX_DIGITS: Final = 4000
"""Python refuses to read longer numbers, because the time grows with the square of their length."""
_CONTROL: Final = 31

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[\s\x00-\x20\x80-\xa0]+|%[^\n]*)
    | (?P<float>[0-9]+(?:_[0-9]+)*\.[0-9]+(?:_[0-9]+)*(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?)
    | (?P<based>[0-9]+(?:_[0-9]+)*\#[0-9A-Za-z]+(?:_[0-9A-Za-z]+)*)
    | (?P<integer>[0-9]+(?:_[0-9]+)*)
    | (?P<word>[a-zß-öø-ÿ][A-Za-z0-9_@À-ÖØ-öø-ÿ]*)
    | (?P<variable>[A-Z_À-ÖØ-Þ][A-Za-z0-9_@À-ÖØ-öø-ÿ]*)
    | (?P<quote>["'])
    | (?P<character>\$)
    | (?P<end>\.(?=[\s%]|\Z))
    | (?P<sign><<|>>|=>|[{}\[\](),|:/+\-#])
    """,
    re.VERBOSE,
)
_PLAIN: Final = {'"': re.compile(r'[^\\"]+'), "'": re.compile(r"[^\\']+")}
_ESCAPE: Final = re.compile(r"\\(?:x\{(?P<code>[0-9A-Fa-f]{1,8})\}|x(?P<hex>[0-9A-Fa-f]{2})|(?P<octal>[0-7]{1,3})"
                            r"|\^(?P<control>.)|(?P<other>.))", re.DOTALL)  # fmt: skip
_SHORT_ESCAPES: Final = {
    "b": "\b", "d": "\x7f", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "s": " ", "t": "\t", "v": "\v",
}  # fmt: skip
_TRIPLE_QUOTE: Final = re.compile(r'"""[ \t]*\n')


class TermSyntaxError(GatewayError):
    """The text is not an Erlang term. `sentence` says why without quoting it; line and column count from 1."""

    def __init__(self, sentence: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {sentence}")
        self.sentence = sentence
        self.line = line
        self.column = column


@dataclass(frozen=True)
class _Token:
    """One token and where it begins."""

    kind: str
    """atom, string, integer, float, a reserved word, or the sign itself; empty at the end of the text."""
    value: str | int | float
    line: int
    column: int


def _scan(text: str) -> Iterator[_Token]:
    """The tokens of a text; the last one has the kind "". Raises TermSyntaxError."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]  # of lines
    at = 0
    while at < len(text):
        line = bisect_right(starts, at)
        column = at - starts[line - 1] + 1
        try:
            kind, value, at = _token(text, at)
        except ValueError as error:
            raise TermSyntaxError(str(error), line, column) from None
        if kind:
            yield _Token(kind, value, line, column)
    yield _Token("", "", len(starts), at - starts[-1] + 1)


# The functions below raise a `ValueError` with a sentence for the user.


def _token(text: str, at: int) -> tuple[str, str | int | float, int]:
    """A token's kind, value and end. White space has the kind ""."""
    match = _TOKEN.match(text, at)
    if match is None:
        raise ValueError("This character cannot stand here.")
    kind, piece = str(match.lastgroup), match[0]
    if kind == "quote":
        return _quoted(text, at)
    if kind == "character":
        return "integer", *_character(text, at + 1)
    if kind == "variable":
        raise ValueError(
            "A word that begins with a capital letter or _ is a variable. If it is an atom, put it in quotes."
        )
    value: str | int | float = piece
    if kind in ("integer", "based", "float"):
        value = _number(kind, piece.replace("_", ""))
        kind = "float" if kind == "float" else "integer"
    elif kind == "space":
        kind = ""
    else:
        kind = "atom" if kind == "word" and piece not in RESERVED else piece
    return kind, value, match.end()


def _number(kind: str, digits: str) -> int | float:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("This number is too long.")
    if kind == "integer":
        return int(digits)
    if kind == "float":
        if math.isinf(float(digits)):
            raise ValueError("This number is too large.")
        return float(digits)
    base, _, rest = digits.partition("#")
    if not 2 <= int(base) <= 36:  # noqa: PLR2004 - the bases that Erlang has
        raise ValueError("The base of a number is 2 to 36.")
    try:
        return int(rest, int(base))
    except ValueError:
        raise ValueError("This number has a digit that its base does not have.") from None


def _quoted(text: str, at: int) -> tuple[str, str, int]:
    if _TRIPLE_QUOTE.match(text, at):
        raise ValueError('Strings in three quotes are not read here. Write it between single ".')
    quote, pieces, at = text[at], [], at + 1
    while not text.startswith(quote, at):
        if match := _PLAIN[quote].match(text, at):
            pieces.append(match[0])
            at = match.end()
        else:
            character, at = _escaped(text, at)
            pieces.append(chr(character))
    return ("string" if quote == '"' else "atom"), "".join(pieces), at + 1


def _character(text: str, at: int) -> tuple[int, int]:
    if at >= len(text):
        raise ValueError("A character is missing after $.")
    return (ord(text[at]), at + 1) if text[at] != "\\" else _escaped(text, at)


def _escaped(text: str, at: int) -> tuple[int, int]:
    """The code of the character that an escape means, and the end of the escape."""
    match = _ESCAPE.match(text, at)
    if match is None:
        raise ValueError("The quote that begins here never ends.")
    if match["other"] == "x":
        raise ValueError(r"A character by its number is written \x41 or \x{20AC}.")
    if match["other"] is not None:
        return ord(_SHORT_ESCAPES.get(match["other"], match["other"])), match.end()
    if match["control"] is not None:
        return ord(match["control"]) & _CONTROL, match.end()
    code = int(match["octal"], 8) if match["octal"] else int(match["code"] or match["hex"], 16)
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:  # noqa: PLR2004 - surrogates are not characters
        raise ValueError("There is no character of this number.")
    return code, match.end()


# Terms.


def read_terms(text: str) -> list[Term]:
    """All terms of a text, each of which ends with a dot. Raises TermSyntaxError."""
    return _TermParser(text).terms()


class _TermParser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _scan(text)
        self._token = next(self._tokens)
        self._depth = 0

    def terms(self) -> list[Term]:
        found: list[Term] = []
        while self._token.kind:
            found.append(self._term())
            if not self._skip("."):
                self._fail_unexpected("A dot is missing after the term.")
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
        return b"".join(self._separated("<<", self._segment, ">>")) if token.kind == "<<" else self._number()

    def _compound(self) -> Term:
        token = self._token
        if token.kind == "{":
            return Tuple(tuple(self._separated("{", self._term, "}")), token.line)
        if token.kind == "[":
            return self._separated("[", self._term, "]")
        if self._skip("("):
            term = self._term()
            self._take(")")
            return term
        if self._skip("#"):
            return Map(tuple(self._separated("{", self._pair, "}")))
        if self._skip("fun"):
            return self._function()
        self._fail_unexpected("The text ends in the middle of a term.")

    def _separated(self, opening: str, read: Callable[[], T], closing: str) -> list[T]:
        """What stands between two signs, with commas between."""
        self._take(opening)
        found: list[T] = []
        if not self._skip(closing):
            found.append(read())
            while self._skip(","):
                found.append(read())
            self._take(closing)
        return found

    def _pair(self) -> tuple[Term, Term]:
        key = self._term()
        self._take("=>")
        return key, self._term()

    def _function(self) -> Term:
        module = self._function_name()
        self._take(":")
        name = self._function_name()
        self._take("/")
        if self._token.kind != "integer":
            self._fail("The number of the function's arguments belongs here.")
        return External(module, name, int(self._next().value))

    def _function_name(self) -> str:
        if self._token.kind != "atom":
            self._fail("Only a function's name can stand in such a file: fun module:name/1.")
        return str(self._next().value)

    def _number(self) -> int | float:
        sign = -1 if self._token.kind == "-" else 1
        if self._token.kind in ("+", "-"):
            self._next()
        if self._token.kind not in ("integer", "float"):
            self._fail("A number belongs after the sign.")
        value = self._next().value
        assert not isinstance(value, str)  # noqa: S101 - the kind says so
        return sign * value

    def _strings(self) -> str:
        """Strings that stand side by side are one string."""
        pieces = []
        while self._token.kind == "string":
            pieces.append(str(self._next().value))
        return "".join(pieces)

    def _segment(self) -> bytes:
        """A text in Latin-1 or, with /utf8, in UTF-8; or a byte. Configurations have no other segments."""
        token = self._token
        value = self._strings() if token.kind == "string" else self._number()
        encoding = str(self._next().value) if self._skip("/") else ""
        try:
            if isinstance(value, str) and encoding in ("", "utf8"):
                return value.encode(encoding or "latin-1")
            if isinstance(value, int) and not encoding:
                return bytes([value])
        except ValueError:
            pass
        raise TermSyntaxError(_ODD_SEGMENT, token.line, token.column)

    # Tokens.

    def _next(self) -> _Token:
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

    def _take(self, kind: str) -> None:
        if not self._skip(kind):
            found = f"there is {self._described()}" if self._token.kind else "the text ends"
            self._fail(f"{kind} belongs here, and {found}.")

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._token.line, self._token.column)

    def _fail_unexpected(self, sentence_at_end: str) -> NoReturn:
        self._fail(f"There is {self._described()} where it cannot stand." if self._token.kind else sentence_at_end)

    def _described(self) -> str:
        """The next token for a message: only its kind, as its value may be a secret."""
        return _DESCRIPTIONS.get(self._token.kind, self._token.kind)
