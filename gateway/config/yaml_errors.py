"""What the YAML parser says, in plain words: the commonest errors have sentences of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import yaml
from yaml.reader import ReaderError

from gateway.errors import Mistake

# Where the parser begins a new line.
_LINE_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_QUOTED: Final = re.compile(r"(['\"])(.*?)\1")


class YamlSyntaxError(Exception):
    """The text is not YAML, so nothing else can be said about it."""

    def __init__(self, sentence: str, suggestion: str | None = None, place: tuple[int, int] | None = None) -> None:
        """``place``: line and column, counted from 0."""
        super().__init__(sentence)
        line, column = (place[0] + 1, place[1] + 1) if place else (None, None)
        self.mistake = Mistake("", sentence, suggestion, line, column)


@dataclass(frozen=True)
class _Saying:
    """Plain words for an error of the parser, if all three patterns are found."""

    problem: str
    """In what the parser says: what it was doing, and what it found."""
    sentence: str
    advice: str
    line: str = ""
    """In the line that the error is in."""
    before: str = ""
    """In the last line before it that is not empty."""
    at_start: bool = False
    """The place is where the parser began, not where it gave up."""

    def fits(self, said: str, line: str, before: str) -> bool:
        """Whether these are the words for it."""
        return all(map(re.search, (self.problem, self.line, self.before), (said, line, before)))


_SECOND_DOCUMENT: Final = (
    "A second YAML document begins here, and a configuration is one document.",
    "Delete the line with --- or ..., or put what follows it into a file of its own.",
)

# The first that fits counts.
_SAYINGS: Final = (
    _Saying(
        "", "An IPv6 address needs quotes.", 'Put it in quotes, with its port: "[::]:61613".',
        line=r":\s+\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\](:|\s|$)",
    ),
    _Saying("", "A star that is a key needs quotes.", 'Write "*".', line=r"(^|[\s{,])\*\s*:"),
    _Saying("character '\\\\t'", "YAML does not allow a tab here.", "Write spaces."),
    _Saying(
        "character '[@`%>|]' that cannot|undefined (alias|tag)|scanning an? (alias|anchor|tag|directive|block scalar)",
        "Text that starts with one of * & ! | > @ % ` needs quotes.", "Put it in quotes.",
    ),
    _Saying(
        "sequence entries are not allowed", "A list begins on a line of its own, below its key.",
        "Put the dash on the next line, or write [one, two].",
    ),
    _Saying(
        "expected the node content, but found '[]},]'", "A value belongs here, or the { or [ was not opened.",
        "Write { } and [ ] in pairs, with one comma between entries.",
    ),
    _Saying("another document|<document end>", *_SECOND_DOCUMENT),
    _Saying("<document start>", *_SECOND_DOCUMENT, before=r"^\.\.\."),
    _Saying(
        "flow.*but got '[{[]'", "Inside { } and [ ], text with braces or brackets needs quotes.",
        'Write "/queue/{login}.*" or "${NAME}", quotes included.',
    ),
    _Saying(
        "flow.*but got ':'", "Text that holds a colon and a space needs quotes.",
        "Put it in quotes; or close the { or [ before it.", line=r"[{\[].*:\s.*:\s",
    ),
    _Saying(
        "flow node.*stream end", "The file ends here, and a { or [ in it is not closed.", "Write { } and [ ] in pairs.",
    ),
    _Saying(
        "flow (mapping|sequence).*but got",
        "The { or [ that opens here is not closed where it should be, or a comma is missing.",
        "Write { } and [ ] in pairs, with a comma after each entry.", at_start=True,
    ),
    _Saying(
        "quoted scalar.*end of stream", "The quote that opens here is not closed.",
        "Close it; in single quotes, write '' for an apostrophe.", at_start=True,
    ),
    _Saying(
        "escape character|expected escape sequence", "In double quotes a backslash begins an escape, and this is none.",
        "Use single quotes, or write two backslashes for one.",
    ),
    _Saying(
        "<block end>.*'<scalar>'", "The quoted text before this has ended already.",
        "Put all of the text into the quotes; in single quotes, write '' for an apostrophe.",
    ),
    _Saying(
        "block collection.*<block end>.*'\\?'", "Here is a key, and the lines above it in this column are a list.",
        "Begin it with a dash, or in the column of the key that it belongs beside.",
    ),
    _Saying(
        "<block end>|expected '<document start>'", "The indentation does not fit the lines above.",
        "Begin all keys of one mapping in the same column, and all dashes of one list.",
    ),
    _Saying(
        "mapping values are not allowed", "Text that holds a colon and a space needs quotes.", "Put it in quotes.",
        line=r":\s.*:(\s|$)",
    ),
    _Saying(
        "mapping values are not allowed|could not find expected ':'",
        "A key ends with a colon and a space, an entry of a list begins with a dash and a space.",
        "Write the space in the line before.", before=r"^\s*(- *)?[\w.-]+:[^\s:/]\S*$",
    ),
    _Saying(
        "could not find expected ':'",
        "A key ends with a colon and a space, an entry of a list begins with a dash and a space.",
        "Write key: value, or - entry.", at_start=True,
    ),
    _Saying(
        "mapping values are not allowed",
        "The indentation does not fit: the key in the line before has a value already.",
        "Begin this key in the column of that one, or delete the value there.",
    ),
)  # fmt: skip


def yaml_syntax_error(error: yaml.YAMLError, text: str) -> YamlSyntaxError:
    """What the parser has raised for this text, in plain words."""
    if isinstance(error, ReaderError):
        place = text.count("\n", 0, error.position), error.position - text.rfind("\n", 0, error.position) - 1
        return YamlSyntaxError("YAML does not allow the character here.", "Delete it.", place)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return YamlSyntaxError("This is not valid YAML.")
    lines = _LINE_BREAK.split(text)
    before = next((line for line in reversed(lines[: mark.line]) if line.strip()), "")
    said = f"{error.context or ''}: {error.problem or ''}"
    for saying in _SAYINGS:
        if saying.fits(said, lines[mark.line], before):
            start = error.context_mark if saying.at_start and error.context_mark else mark
            return YamlSyntaxError(saying.sentence, saying.advice, (start.line, start.column))
    problem = _QUOTED.sub(_without_secrets, error.problem or "it cannot be parsed")
    return YamlSyntaxError(f"This is not valid YAML: {problem}.", None, (mark.line, mark.column))


def _without_secrets(quoted: re.Match[str]) -> str:
    # The parser quotes the text. A quote longer than one character that is not a <token> may be part of a passcode.
    return quoted[0] if len(quoted[2]) <= len("\\t") or quoted[2].startswith("<") else "(text)"
