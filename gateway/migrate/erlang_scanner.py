"""Splits the text of Erlang terms into tokens, by the lexical grammar of the Erlang reference manual.

Variables, and tokens that only code has, are errors. No error repeats quoted text, as it may be a passcode.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.errors import GatewayError

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
class Token:
    """One token and where it begins."""

    kind: str
    """atom, string, integer, float, a reserved word, or the sign itself; empty at the end of the text."""
    value: str | int | float
    line: int
    column: int


def scan(text: str) -> Iterator[Token]:
    """The tokens of a text; the last one has the kind "". Raises TermSyntaxError."""
    at, line, line_start = 0, 1, 0
    while at < len(text):
        column = at - line_start + 1
        try:
            kind, value, end = _token(text, at)
        except ValueError as error:
            raise TermSyntaxError(str(error), line, column) from None
        if kind:
            yield Token(kind, value, line, column)
        newline = text.rfind("\n", at, end)
        if newline >= 0:
            line += text.count("\n", at, end)
            line_start = newline + 1
        at = end
    yield Token("", "", line, at - line_start + 1)


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
        raise ValueError("A character is missing behind $.")
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
