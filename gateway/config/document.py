"""A YAML text as plain values, with the line of everything in it.

PyYAML parses; this module walks its nodes, because its own construction keeps neither the lines nor duplicate keys.
Variables are expanded here: `${NAME}` in any value becomes the environment's text, `$$` becomes `$`.
No mistake repeats a value from the text, since any value may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.reader import ReaderError

from gateway.config.mistakes import BRACES_ADVICE, Finding, Trail, may_stand_alone
from gateway.errors import Mistake

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[^}]*)(?P<end>\}?))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CIRCULAR_ALIAS = ("This YAML alias refers to a place that it is part of.", "Write the keys out.")
_WORD_IN_BRACES = ("Within { } stands key: value, and here is text without a colon.", BRACES_ADVICE)
_NO_SPACE = ("A space belongs after this colon, or the text needs quotes.", 'Write key: value, or key: "text".')
_TAG = "tag:yaml.org,2002:"

# Values of a file. YAML's aliases could multiply a few lines to billions.
_MAX_VALUES = 500_000


@dataclass
class Document:
    """What a text holds, and what is wrong with it so far."""

    tree: object = None
    """Dictionaries, lists and scalars, variables expanded; None for an empty text."""
    lines: dict[Trail, int] = field(default_factory=dict)
    """Line of each key and list entry, counted from 1."""
    findings: list[Finding] = field(default_factory=list)
    spoiled: set[Trail] = field(default_factory=set)
    """Places whose value could not be read and was replaced. What validation finds there is left out."""

    def line_of(self, trail: Trail) -> int | None:
        """Line of a place, or of the nearest place around it that the text mentions; None for none below the top."""
        if not trail:
            return self.lines.get(trail)
        while trail and trail not in self.lines:
            trail = trail[:-1]
        return self.lines.get(trail) if trail else None


def read_document(text: str, environment: Mapping[str, str]) -> Document:
    """Parse a YAML text and expand its variables. Raises `YamlSyntaxError` if it is not one YAML document."""
    walker = _Walker(environment)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            walker.document.tree = walker.value(node, ())
    except yaml.YAMLError as error:
        raise _yaml_syntax_error(error, text) from None
    except RecursionError:
        raise YamlSyntaxError("This file is nested too deeply.") from None
    return walker.document


class _Walker:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.document = Document()
        self._environment = environment
        self._scalars = SafeConstructor()
        self._around: list[yaml.Node] = []
        self._values = 0

    def value(self, node: yaml.Node, trail: Trail) -> object:
        self.document.lines.setdefault(trail, node.start_mark.line + 1)
        self._values += 1
        if self._values > _MAX_VALUES:
            raise YamlSyntaxError(f"This file has more than {_MAX_VALUES} values, those of aliases counted.")
        if any(node is outer for outer in self._around):
            return self._spoil(trail, *_CIRCULAR_ALIAS)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, trail)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            return self._spoil(trail, "YAML tags are not used in this file.", "Delete the word with the !.")
        self._around.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, trail)
            return [self.value(entry, (*trail, position)) for position, entry in enumerate(node.value)]
        finally:
            self._around.pop()

    def _mapping(self, node: yaml.MappingNode, trail: Trail) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: list[yaml.Node] = []
        unread: list[tuple[str, int]] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            key = self._key(key_node, trail)
            if key is None:
                continue
            place = (*trail, key)
            line = key_node.start_mark.line + 1
            if _stands_alone(key_node, value_node) and not may_stand_alone(place):
                unread.append((key, line))
                continue
            if key in found:
                first = self.document.lines[place]
                self._find(place, f"This key stands here twice: in lines {first} and {line}.", "Keep one of them.")
            self.document.lines[place] = line
            found[key] = self.value(value_node, place)
        for value_node in merged:
            self._merge(value_node, trail, found)
        for text, line in unread:
            self._text_in_braces(text, line, trail, found)
        if unread and not found:
            self.document.spoiled.add(trail)
        return found

    def _text_in_braces(self, text: str, line: int, trail: Trail, found: dict[str, object]) -> None:
        """Note text that is neither a key nor a value. It may be a secret, so only a known key in it is named."""
        key, colon, _ = text.partition(":")
        place = (*trail, key)
        if not colon:
            self._find(trail, *_WORD_IN_BRACES)
        elif not may_stand_alone(place) or key in found:
            self._find(trail, *_NO_SPACE)
        else:
            self.document.lines[place] = line
            found[key] = self._spoil(place, *_NO_SPACE)

    def _merge(self, node: yaml.Node, trail: Trail, found: dict[str, object]) -> None:
        """Add the keys of YAML's merge key, `<<: *anchor`, that the mapping itself does not have."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                self._find(trail, "The merge key << takes a mapping, or a list of mappings.")
                continue
            if any(source is outer for outer in self._around):
                self._find(trail, *_CIRCULAR_ALIAS)
                continue
            lines = dict(self.document.lines)
            for key, value in self._mapping(source, trail).items():
                found.setdefault(key, value)
            self.document.lines |= lines

    def _key(self, node: yaml.Node, trail: Trail) -> str | None:
        key, place, advice = None, trail, None
        if isinstance(node, yaml.ScalarNode):
            key, place, advice = self._plain(node), (*trail, str(node.value)), f'Put it in quotes: "{node.value}".'
        if key is True and node.value == "on":
            # YAML 1.1 reads `on` as true. Rules have a key of that name, and editors (YAML 1.2) read it as text.
            return "on"
        self.document.lines.setdefault(place, node.start_mark.line + 1)
        if not isinstance(key, str):
            self._find(place, "A key is text, and YAML reads this one as something else.", advice)
            return None
        if "${" in key:
            self._find(place, "Variables stand in values only, not in keys.")
            return None
        return key

    def _scalar(self, node: yaml.ScalarNode, trail: Trail) -> object:
        try:
            value = self._plain(node)
        except yaml.YAMLError:
            return self._spoil(trail, "YAML cannot make sense of this value.", "If it is text, put it in quotes.")
        return self._expanded(value, trail) if isinstance(value, str) else value

    def _plain(self, node: yaml.ScalarNode) -> object:
        # YAML 1.1 reads 10:30 as a number to base 60 and 2024-01-31 as a date. Nobody means that in this file.
        if node.tag == f"{_TAG}timestamp" or (node.tag in (f"{_TAG}int", f"{_TAG}float") and ":" in node.value):
            return str(node.value)
        try:
            return self._scalars.construct_object(node)
        except (ValueError, LookupError):  # of `!!int ''` and `!!bool maybe`, for example
            raise ConstructorError(None, None, "a tag does not fit its value", node.start_mark) from None

    def _expanded(self, text: str, trail: Trail) -> str:
        def replacement(match: re.Match[str]) -> str:
            if match["dollar"]:
                return "$"
            name = match["name"]
            if not match["end"] or not _NAME.fullmatch(name):
                sentence = "A variable is written ${NAME}, with letters, digits and underscores in its name."
                self._spoil(trail, sentence, "For a dollar sign before a brace write $${.")
            elif name not in self._environment:
                sentence = f"The environment variable {name} is not set."
                self._spoil(trail, sentence, "Set it; where no variable is meant, write $$ for each $.")
            return self._environment.get(name, "")

        return _VARIABLE.sub(replacement, text)

    def _find(self, trail: Trail, sentence: str, suggestion: str | None = None) -> None:
        self.document.findings.append(Finding(trail, sentence, suggestion))

    def _spoil(self, trail: Trail, sentence: str, suggestion: str) -> object:
        """Note a mistake, and return None in place of the value that cannot be read."""
        self._find(trail, sentence, suggestion)
        self.document.spoiled.add(trail)
        return None


def _stands_alone(key: yaml.Node, value: yaml.Node) -> bool:
    """Whether a key of a mapping has no colon after it, as in `{user}`."""
    text = str(key.end_mark.buffer)
    between = text[key.end_mark.pointer : value.start_mark.pointer + 1]
    return value.start_mark.pointer == value.end_mark.pointer and ":" not in between


# What the YAML parser says, in plain words: the commonest errors have sentences of their own.

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


def _yaml_syntax_error(error: yaml.YAMLError, text: str) -> YamlSyntaxError:
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
