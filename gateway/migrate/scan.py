"""Erlang's tokens: from text to atoms, numbers, strings and signs, each with its place.

The lexical grammar of the Erlang reference manual, as far as terms need it; variables, and what only code has, are
mistakes. No message repeats what is quoted in the file: it may be a passcode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from gateway.errors import GatewayError
from gateway.migrate.terms import RESERVED

_MOST_DIGITS: Final = 4000
"""Python refuses to read longer numbers, whose reading takes quadratic time."""
_CODE_POINTS: Final = 0x110000
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
_ESCAPE: Final = re.compile(r"\\(?:x\{(?P<code>[0-9A-Fa-f]{1,8})\}|x(?P<hex>[0-9A-Fa-f]{2})|(?P<octal>[0-7]{1,3})"
                            r"|\^(?P<control>.)|(?P<other>.))", re.DOTALL)  # fmt: skip
_SHORT: Final = {
    "b": "\b", "d": "\x7f", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "s": " ", "t": "\t", "v": "\v",
}  # fmt: skip
_TRIPLE: Final = re.compile(r'"""[ \t]*\n')


class TermSyntaxError(GatewayError):
    """A text that is no Erlang term.

    Args:
        sentence: what is wrong, without quoting the text.
        line: counted from 1.
        column: counted from 1.
    """

    def __init__(self, sentence: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {sentence}")
        self.sentence = sentence
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Token:
    """One token."""

    kind: str
    """atom, string, integer, float, or the sign itself; `.` for a final dot, empty for the end of the text."""
    value: str | int | float
    line: int
    column: int


def scan(text: str) -> Iterator[Token]:
    """The tokens of a text, and one of kind "" in the end.

    Raises:
        TermSyntaxError: something is none.
    """
    return _Scanner(text).tokens()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._line_start = 0

    def tokens(self) -> Iterator[Token]:
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                self._fail("This character cannot stand here.")
            line, column, start = self._line, self._at - self._line_start + 1, self._at
            kind, value = self._token(match)
            self._pass_over(start)
            if kind:
                yield Token(kind, value, line, column)
        yield Token("", "", self._line, self._at - self._line_start + 1)

    def _token(self, match: re.Match[str]) -> tuple[str, str | int | float]:
        """A token's kind and value; the position moves behind it. A kind of "" is space."""
        kind, piece = str(match.lastgroup), match[0]
        if kind == "quote":
            return self._quoted(piece)
        if kind == "character":
            return "integer", self._character()
        if kind == "variable":
            self._fail(
                "A word that begins with a capital letter or _ is a variable. If it is an atom, put it in quotes."
            )
        if kind in ("integer", "based", "float"):
            number = self._number(kind, piece)
            self._at = match.end()
            return ("float" if kind == "float" else "integer"), number
        self._at = match.end()
        if kind == "space":
            return "", ""
        if kind == "word":
            return (piece if piece in RESERVED else "atom"), piece
        return piece, piece

    def _number(self, kind: str, piece: str) -> float:
        digits = piece.replace("_", "")
        if len(digits) > _MOST_DIGITS:
            self._fail("This number is too long.")
        if kind == "based":
            base, _, rest = digits.partition("#")
            try:
                return int(rest, int(base)) if 2 <= int(base) <= 36 else self._fail("The base of a number is 2 to 36.")  # noqa: PLR2004
            except ValueError:
                self._fail("This number has a digit that its base does not have.")
        if kind == "integer":
            return int(digits)
        number = float(digits)
        return number if number != float("inf") else self._fail("This number is too large.")

    def _quoted(self, quote: str) -> tuple[str, str]:
        if _TRIPLE.match(self._text, self._at):
            self._fail('Strings in three quotes are not read here. Write it between single ".')
        pieces: list[str] = []
        at, plain = self._at + 1, re.compile(rf"[^\\{quote}]+")
        while True:
            if match := plain.match(self._text, at):
                pieces.append(match[0])
                at = match.end()
            if at >= len(self._text):
                self._fail("The quote that begins here never ends.")
            if self._text[at] == quote:
                break
            character, at = self._escape(at)
            pieces.append(character)
        self._at = at + 1
        return ("string" if quote == '"' else "atom"), "".join(pieces)

    def _character(self) -> int:
        at = self._at + 1
        if at >= len(self._text):
            self._fail("A character is missing behind $.")
        if self._text[at] != "\\":
            self._at = at + 1
            return ord(self._text[at])
        character, self._at = self._escape(at)
        return ord(character)

    def _escape(self, at: int) -> tuple[str, int]:
        match = _ESCAPE.match(self._text, at)
        if match is None:
            self._fail("The quote that begins here never ends.")
        if match["other"] is not None:
            if match["other"] == "x":
                self._fail(r"A character by its number is written \x41 or \x{20AC}.")
            return _SHORT.get(match["other"], match["other"]), match.end()
        if match["control"] is not None:
            return chr(ord(match["control"]) & _CONTROL), match.end()
        code = int(match["octal"], 8) if match["octal"] else int(match["code"] or match["hex"], 16)
        if code >= _CODE_POINTS or 0xD800 <= code < 0xE000:  # noqa: PLR2004 - surrogates are no characters
            self._fail("There is no character of this number.")
        return chr(code), match.end()

    def _pass_over(self, start: int) -> None:
        """Count the lines from where a token began to where the next one does."""
        newline = self._text.rfind("\n", start, self._at)
        if newline >= 0:
            self._line += self._text.count("\n", start, self._at)
            self._line_start = newline + 1

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._line, self._at - self._line_start + 1)
