"""A configuration being written: lines of YAML, each with a comment that says where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import yaml

_WIDEST: Final = 46
"""Comments stand in this column, or behind what is longer."""


@dataclass(frozen=True)
class Variable:
    """A text for the file in which `${NAME}` is a variable."""

    text: str


@dataclass(frozen=True)
class _Line:
    text: str
    comment: str


@dataclass
class Sheet:
    """The lines so far."""

    lines: list[_Line] = field(default_factory=list)

    def add(self, indent: int, key: str, value: object = "", comment: str = "") -> None:
        """A key with its value.

        Args:
            indent: steps of two spaces; a key that begins with `- ` is the first of a list's entry.
            key: written as it is.
            value: a scalar, a list of scalars, or nothing at all where a group follows.
            comment: where it came from.
        """
        written = "" if value == "" else f" {scalar(value)}"
        self.lines.append(_Line(f"{'  ' * indent}{key}:{written}", comment))

    def remark(self, text: str = "") -> None:
        """A line that is a comment; an empty one is an empty line."""
        self.lines.append(_Line(f"# {text}" if text else "", ""))

    def text(self) -> str:
        """The whole file."""
        return "".join(f"{line}\n" for line in self._aligned())

    def _aligned(self) -> Iterator[str]:
        widths = [len(line.text) for line in self.lines if line.comment]
        column = min(max(widths, default=0), _WIDEST)
        for line in self.lines:
            yield f"{line.text:<{column}}  # {line.comment}" if line.comment else line.text


def scalar(value: object) -> str:
    """A value as YAML, in one line, as the gateway's reader takes it: a dollar sign is written twice."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(scalar(entry) for entry in value)}]"
    if isinstance(value, Variable):
        return f'"{_double_quoted(value.text)}"'
    if isinstance(value, str):
        return _text(value.replace("$", "$$"))
    return json.dumps(value)


def _text(value: str) -> str:
    """Plain where nobody could read it otherwise."""
    plain = value and not set(value) & set(" #,[]{}&*!|>'\"%@`$?\\") and not value.startswith(("-", ":"))
    if plain and value.isascii() and value.isprintable() and not value.endswith(":") and _reads_as_itself(value):
        return value
    return f'"{_double_quoted(value)}"'


def _reads_as_itself(value: str) -> bool:
    try:
        return bool(yaml.safe_load(value) == value)
    except yaml.YAMLError:
        return False


def _double_quoted(value: str) -> str:
    quoted = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=1 << 30)
    return quoted.strip()[1:-1]


def key_text(value: str) -> str:
    """A text as a key. Variables do not stand in keys, so a dollar sign is itself there."""
    return _text(value)


def wrapped(text: str, width: int = 100) -> Iterable[str]:
    """The lines of a comment."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line
