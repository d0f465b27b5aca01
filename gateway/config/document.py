"""A YAML text as plain values, with the line of everything in it.

PyYAML parses; this module walks its nodes, because its own construction keeps neither the lines nor duplicate keys.
Variables are expanded here: `${NAME}` in any value becomes the environment's text, `$$` becomes `$`.
No mistake repeats a value from the text, since any value may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from gateway.config.mistakes import BRACES_ADVICE, Finding, Trail, may_stand_alone
from gateway.config.yaml_errors import YamlSyntaxError, yaml_syntax_error

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[^}]*)(?P<end>\}?))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CIRCULAR_ALIAS = ("This YAML alias refers to a place that it is part of.", "Write the keys out.")
_WORD_IN_BRACES = ("Within { } stands key: value, and here is text without a colon.", BRACES_ADVICE)
_NO_SPACE = ("A space belongs behind this colon, or the text needs quotes.", 'Write key: value, or key: "text".')
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
        raise yaml_syntax_error(error, text) from None
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
            raise YamlSyntaxError(f"This file has more than {_MAX_VALUES} values, those behind aliases counted.")
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
