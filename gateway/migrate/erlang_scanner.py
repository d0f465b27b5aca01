"""Splits the text of Erlang terms into tokens, by the lexical grammar of the Erlang reference manual.

Variables, and tokens that only code has, are errors. No message repeats a quoted text: it may be a passcode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from gateway.errors import GatewayError

RESERVED: Final = frozenset(
    "after and andalso band begin bnot bor bsl bsr bxor case catch cond div end fun if let not of or orelse receive "
    "rem try when xor".split()
)
"""Words that are not atoms unless quoted. `maybe` and `else` are missing: not every release of Erlang reserves them."""

_MAX_DIGITS: Final = 4000
"""Python refuses to read longer numbers, because that takes quadratic time."""
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
    """The tokens of a text; the last one has the kind "".

    Raises:
        TermSyntaxError: a part of the text is not a token.
    """
    return _Scanner(text).tokens()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        """Where the current token begins, until all of it is read: errors name this place."""
        self._line = 1
        self._line_start = 0

    def tokens(self) -> Iterator[Token]:
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                self._fail("This character cannot stand here.")
            line, column, start = self._line, self._at - self._line_start + 1, self._at
            kind, value = self._token(match)
            self._count_lines(start)
            if kind:
                yield Token(kind, value, line, column)
        yield Token("", "", self._line, self._at - self._line_start + 1)

    def _token(self, match: re.Match[str]) -> tuple[str, str | int | float]:
        """A token's kind and value; the position moves behind it. White space has the kind ""."""
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
            number = self._number(kind, piece.replace("_", ""))
            self._at = match.end()
            return ("float" if kind == "float" else "integer"), number
        self._at = match.end()
        if kind == "space":
            return "", ""
        return ("atom" if kind == "word" and piece not in RESERVED else piece), piece

    def _number(self, kind: str, digits: str) -> float:
        if len(digits) > _MAX_DIGITS:
            self._fail("This number is too long.")
        if kind == "integer":
            return int(digits)
        if kind == "float":
            number = float(digits)
            return number if number != float("inf") else self._fail("This number is too large.")
        base, _, rest = digits.partition("#")
        if not 2 <= int(base) <= 36:  # noqa: PLR2004 - the bases that Erlang has
            self._fail("The base of a number is 2 to 36.")
        try:
            return int(rest, int(base))
        except ValueError:
            self._fail("This number has a digit that its base does not have.")

    def _quoted(self, quote: str) -> tuple[str, str]:
        if _TRIPLE_QUOTE.match(self._text, self._at):
            self._fail('Strings in three quotes are not read here. Write it between single ".')
        pieces: list[str] = []
        at = self._at + 1
        while True:
            if match := _PLAIN[quote].match(self._text, at):
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
        character, self._at = (self._text[at], at + 1) if self._text[at] != "\\" else self._escape(at)
        return ord(character)

    def _escape(self, at: int) -> tuple[str, int]:
        """The character that an escape means, and the position behind it."""
        match = _ESCAPE.match(self._text, at)
        if match is None:
            self._fail("The quote that begins here never ends.")
        if match["other"] is not None:
            if match["other"] == "x":
                self._fail(r"A character by its number is written \x41 or \x{20AC}.")
            return _SHORT_ESCAPES.get(match["other"], match["other"]), match.end()
        if match["control"] is not None:
            return chr(ord(match["control"]) & _CONTROL), match.end()
        code = int(match["octal"], 8) if match["octal"] else int(match["code"] or match["hex"], 16)
        if code >= _CODE_POINTS or 0xD800 <= code < 0xE000:  # noqa: PLR2004 - surrogates are not characters
            self._fail("There is no character of this number.")
        return chr(code), match.end()

    def _count_lines(self, start: int) -> None:
        """Count the line breaks between a position and the current one."""
        newline = self._text.rfind("\n", start, self._at)
        if newline >= 0:
            self._line += self._text.count("\n", start, self._at)
            self._line_start = newline + 1

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._line, self._at - self._line_start + 1)
