"""Writes a configuration as lines of YAML, each with a comment that says where its value came from."""

import json
from typing import Final

import yaml

from gateway.migrate.broker_settings import Setting, VariableText

PLUGIN_DEFAULT: Final = "the plugin's default"

_MAX_COLUMN: Final = 46
"""Comments begin in this column, or behind a line that is longer."""


class YamlWriter:
    """The lines so far."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def add(self, indent: int, key: str, value: object = "", source: Setting | str | None = "") -> None:
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
