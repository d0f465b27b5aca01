r"""The reader of rabbitmq.conf: lines of the form `key = value`.

As RabbitMQ reads them: `#` begins a comment wherever it stands, unless the value is in single quotes (since RabbitMQ
4.0; before, quotes belonged to the value); in a key, `\.` is a dot that separates nothing; a later line of the same
key counts. `$(name)` is the value of another key, or else of an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

_SETTING: Final = re.compile(r"[ \t]*(?P<key>(?:\\\.|[A-Za-z0-9_-]|\.)+)[ \t]*=[ \t]*(?P<value>.*)")
_QUOTED: Final = re.compile(r"'(?P<inside>[^']*)'[ \t]*(?:#.*)?")
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(?P<file>[^ \t#]+)[ \t]*(?:#.*)?")
_REFERENCE: Final = re.compile(r"\$\((?P<name>[^()]*)\)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST: Final = 64 << 10
"""Values that name others can grow without end."""


@dataclass(frozen=True)
class ConfLine:
    """A setting."""

    key: str
    """As it is written."""
    value: str
    """Without quotes, and with each `$(name)` as it is."""
    file: str
    line: int
    """Counted from 1."""
    quoted: bool
    """Whether the value stood in single quotes."""


@dataclass(frozen=True)
class Conf:
    """What a file says."""

    lines: tuple[ConfLine, ...]
    """In the order of the file."""
    includes: tuple[tuple[int, str], ...]
    """Other files that it names, by line."""
    mistakes: tuple[tuple[int, str], ...]
    """Lines that are none, and why."""


def read_conf(text: str, file: str) -> Conf:
    """Read a whole file.

    Args:
        text: without a byte order mark.
        file: its name, for the lines.
    """
    lines: list[ConfLine] = []
    includes: list[tuple[int, str]] = []
    mistakes: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.rstrip(" \t\r")
        if not bare or bare.lstrip(" \t").startswith("#"):
            continue
        if include := _INCLUDE.fullmatch(bare):
            includes.append((number, include["file"]))
            continue
        setting = _SETTING.fullmatch(bare)
        if setting is None or not _words(setting["key"]):
            mistakes.append((number, "This is not of the form key = value."))
            continue
        key, (value, quoted) = setting["key"], _value(setting["value"])
        if not value and not quoted:
            mistakes.append((number, f"{key} has no value."))
            continue
        lines.append(ConfLine(key, value, file, number, quoted))
    return Conf(tuple(lines), tuple(includes), tuple(mistakes))


def _words(key: str) -> bool:
    return all(key.replace("\\.", "x").split("."))


def _value(text: str) -> tuple[str, bool]:
    if quoted := _QUOTED.fullmatch(text):
        return quoted["inside"], True
    return text.partition("#")[0].rstrip(" \t"), False


def settled(lines: Iterable[ConfLine]) -> tuple[list[ConfLine], list[tuple[ConfLine, str]]]:
    """The lines that count, of all files together, and the mistakes among them.

    Args:
        lines: in the order in which the broker reads them.

    Returns:
        Each key once, with what it was given last, the values of other keys in place of `$(key)`; variables stay.
    """
    last: dict[str, ConfLine] = {}
    for line in lines:
        last.pop(line.key, None)
        last[line.key] = line
    mistakes: list[tuple[ConfLine, str]] = []
    return [replace(line, value=_expanded(line, last, mistakes)) for line in last.values()], mistakes


def _expanded(line: ConfLine, lines: Mapping[str, ConfLine], mistakes: list[tuple[ConfLine, str]]) -> str:
    """The value with the values of other keys in it."""
    others = [lines[name] for name in variables(line.value) if name in lines]
    if sum(len(other.value) for other in others) > _LONGEST:
        mistakes.append((line, "With the values of the keys that it refers to, it is too long."))
        return ""

    def replacement(match: re.Match[str]) -> str:
        name = match["name"].strip()
        other = lines.get(name)
        if other is None:
            if not _VARIABLE.fullmatch(name):
                mistakes.append((line, "It refers to something that is neither a key nor a variable."))
            return f"$({name})"
        if _REFERENCE.search(other.value):
            mistakes.append((line, "It refers to a key that refers to something else. Write out one of the two."))
            return ""
        return other.value

    return _REFERENCE.sub(replacement, line.value)


def variables(value: str) -> list[str]:
    """Names of the environment variables that a value refers to."""
    return [match["name"].strip() for match in _REFERENCE.finditer(value)]


def with_variables(value: str, environment: Mapping[str, str]) -> str:
    """The value with those variables in it that are set."""
    return _REFERENCE.sub(lambda match: environment.get(match["name"].strip(), match[0]), value)
