"""Writes a configuration as lines of YAML, each with a comment that says where its value came from."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import yaml

from gateway.errors import GatewayError

PLUGIN_DEFAULT: Final = "the plugin's default"

_MAX_COLUMN: Final = 46
"""Comments begin in this column, or after a line that is longer."""


class VariableText(str):
    """A text in the notation of the gateway's configuration: `${NAME}` is a variable, and `$$` a dollar sign."""

    __slots__ = ()


class YamlWriter:
    """The lines so far."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def add(self, indent: int, key: str, value: object = "", source: object = "") -> None:
        """Write a key with its value: a scalar, a list of scalars, or an empty text above a group.

        The key may begin an entry of a list with `- `. A source of None means that the files do not have the setting.
        An empty source makes no comment.
        """
        written = "" if value == "" else f" {scalar(value)}"
        self._lines.append((f"{'  ' * indent}{key}:{written}", PLUGIN_DEFAULT if source is None else str(source)))

    def comment(self, text: str = "") -> None:
        """Write a line that is a comment, or an empty line."""
        self._lines.append((f"# {text}" if text else "", ""))

    def text(self) -> str:
        """The whole file. Comments stand in one column."""
        column = min(max((len(line) for line, comment in self._lines if comment), default=0), _MAX_COLUMN)
        return "".join(f"{line:<{column}}  # {comment}\n" if comment else f"{line}\n" for line, comment in self._lines)


def scalar(value: object) -> str:
    """A value as YAML in one line. The gateway's reader takes `$$` for a dollar sign, so those are doubled."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(scalar(entry) for entry in value)}]"
    if isinstance(value, VariableText):
        return _quoted(value)
    return text_scalar(value.replace("$", "$$")) if isinstance(value, str) else json.dumps(value)


def text_scalar(value: str) -> str:
    """A text as YAML, in quotes unless every reader reads it as that text. Keys have no variables: `$` stays."""
    is_plain = value and not set(value) & set(" #,[]{}&*!|>'\"%@`$?\\") and not value.startswith(("-", ":"))
    if is_plain and value.isascii() and value.isprintable() and not value.endswith(":") and _reads_as_itself(value):
        return value
    return _quoted(value)


def _reads_as_itself(value: str) -> bool:
    try:
        return bool(yaml.safe_load(value) == value)
    except yaml.YAMLError:
        return False


def _quoted(value: str) -> str:
    quoted = yaml.dump(str(value), Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=1 << 30)
    return quoted.strip()


# What is told besides.


class Severity(Enum):
    """How much a remark matters; the value is the heading above the remarks."""

    ACTION = "To do before the gateway can serve as the plugin does"
    DROPPED = "Not carried over"
    NOTE = "Worth knowing"


class MigrateError(GatewayError):
    """The files cannot be migrated. The text lists every mistake in them."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(["nothing is written:", *(f"  {mistake}" for mistake in mistakes)]))


@dataclass
class MigrationReport:
    """Remarks and mistakes, each once, in the order in which they are found.

    `about` is often a `Setting`, whose text is its origin. It is empty for a remark about all files.
    """

    lenient: bool = False
    """Whether an unknown key is a remark instead of a mistake."""
    remarks: dict[Severity, list[str]] = field(default_factory=lambda: {severity: [] for severity in Severity})
    mistakes: list[str] = field(default_factory=list)

    def action(self, about: object, text: str) -> None:
        """Report something that the user must do."""
        self._add(Severity.ACTION, about, text)

    def dropped(self, about: object, text: str) -> None:
        """Report something that the gateway does not have, and the consequence."""
        self._add(Severity.DROPPED, about, text)

    def note(self, about: object, text: str) -> None:
        """Report something that could surprise the user."""
        self._add(Severity.NOTE, about, text)

    def mistake(self, about: object, text: str) -> None:
        """Report something that RabbitMQ itself would refuse, or a key that is not known."""
        line = f"{about}: {text}"
        if line not in self.mistakes:
            self.mistakes.append(line)

    def unknown_key(self, about: object, place: str = "") -> None:
        """Report a key that is not known; `place` is where a key of this name belongs, if there is such a place."""
        if place:
            text = f"It has no effect here: it belongs into {place}. "
            advice = "Move it, delete it, or go on without it by --lenient."
        else:
            text, advice = "This key is not known. ", "Delete it, or go on without it by --lenient."
        if self.lenient:
            self.dropped(about, text + ("Find out what it does, and whether clients need it." if not place else ""))
        else:
            self.mistake(about, text + advice)

    def sections(self, width: int) -> Iterator[tuple[str, list[str]]]:
        """Each heading that has remarks, and the lines of its remarks as items of a list."""
        for severity, remarks in self.remarks.items():
            if remarks:
                yield severity.value, [line for remark in remarks for line in _item(remark, width)]

    def _add(self, severity: Severity, about: object, text: str) -> None:
        remark = f"{about}: {text}" if str(about) else text
        if remark not in self.remarks[severity]:
            self.remarks[severity].append(remark)


def _item(remark: str, width: int) -> list[str]:
    text = " ".join(f"* {remark}".split())
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
