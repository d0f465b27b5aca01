r"""Reads the lines of rabbitmq.conf, of the form `key = value`, and of the files that it includes.

As in RabbitMQ, `#` begins a comment anywhere, except in a value in single quotes (since RabbitMQ 4.0; before, quotes
belonged to the value). In a key, `\.` is a dot that does not separate words. The last line of a key counts. `$(name)`
is the value of another key, or else of an environment variable; `$(<file)` is the text of a file. `include file`
stands for the lines of that file, or of all files in a directory whose names fit: `include conf.d/*.conf`. Names of
files are relative to the directory of the file that has them.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gateway.errors import UsageError
from gateway.migrate.broker_settings import Origin, printable, shown
from gateway.migrate.migration_report import MigrationReport
from gateway.migrate.text_files import read_text

_SETTING: Final = re.compile(r"[ \t]*(?P<key>(?:\\\.|[A-Za-z0-9_-]|\.)+)[ \t]*=[ \t]*(?P<value>.*)")
_QUOTED: Final = re.compile(r"'(?P<inside>[^']*)'[ \t]*(?:#.*)?")
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]*(?P<file>[A-Za-z0-9_.*\\/-]+)[ \t]*(?:#.*)?")
_REFERENCE: Final = re.compile(r"\$\((?P<name>[^()]*)\)")
_OF_FILE: Final = re.compile(r"\$\(<(?P<file>.+)\)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_REFERRED: Final = 64 << 10
"""Characters. References could multiply the length of a value without end."""
_MAX_INCLUDED: Final = 200
"""Files. Two lines of each of a few files could include more without end."""


MAIN_FILE: Final = "rabbitmq.conf"
FORGOTTEN: Final = f"RabbitMQ reads this file beside {MAIN_FILE}, and it is not among these files. Give it as well."


@dataclass(frozen=True)
class ConfFile:
    """A file in the form of rabbitmq.conf."""

    path: Path
    name: str
    """As remarks call it."""
    text: str


@dataclass(frozen=True)
class ConfLine:
    """A setting in one line: the value without its quotes, but still with each `$(name)`."""

    origin: Origin
    value: str
    is_quoted: bool


@dataclass
class ConfReader:
    """Reads files with all that they include."""

    report: MigrationReport
    given: Sequence[str] = ()
    """The names, without directories, of the files on the command line: what is there need not be included."""
    read: list[Path] = field(default_factory=list)
    """The files that lines include or take a value from."""
    _open: list[Path] = field(default_factory=list)
    _included: list[Path] = field(default_factory=list)

    def lines(self, file: ConfFile) -> Iterator[ConfLine]:
        """The settings of a file. A line of another form is reported as a mistake."""
        self._open.append(file.path.resolve())
        for number, line in enumerate(file.text.split("\n"), 1):
            bare = line.rstrip(" \t\r")
            if not bare or bare.lstrip(" \t").startswith("#"):
                continue
            if include := _INCLUDE.fullmatch(bare):
                yield from self._included_lines(file, number, include["file"])
            elif found := self._line(file, number, bare):
                yield found
        self._open.pop()

    def report_forgotten(self, files: Sequence[ConfFile]) -> None:
        """Report what RabbitMQ reads without being told, in conf.d beside rabbitmq.conf, and what was not read here."""
        read = {*self._included, *(file.path.resolve() for file in files)}
        for file in files:
            if file.path.name == MAIN_FILE:
                for other in sorted((file.path.parent / "conf.d").glob("*.conf")):
                    if other.resolve() not in read:
                        self.report.action(f"conf.d/{printable(other.name)}", FORGOTTEN)

    def _line(self, file: ConfFile, number: int, text: str) -> ConfLine | None:
        setting, place = _SETTING.fullmatch(text), f"{file.name}:{number}"
        if setting is None or not all(setting["key"].replace("\\.", "x").split(".")):
            self.report.mistake(place, "This is not of the form key = value.")
            return None
        key, quoted = setting["key"], _QUOTED.fullmatch(setting["value"])
        value = quoted["inside"] if quoted else setting["value"].partition("#")[0].rstrip(" \t")
        if not value and not quoted:
            self.report.mistake(place, f"{key} has no value.")
            return None
        origin = Origin(file.name, number, key)
        if of_file := _OF_FILE.fullmatch(value):
            value = self._text_of(file.path.parent / of_file["file"].strip(), origin)
        return ConfLine(origin, value, quoted is not None)

    def _text_of(self, file: Path, place: object) -> str:
        """The text of a file that a line names, without its last line's end; a mistake if it cannot be read."""
        self.read.append(file)
        try:
            return re.sub(r"[\n\r]\Z", "", read_text(file))
        except UsageError as error:
            self.report.mistake(place, str(error))
            return ""

    def _included_lines(self, file: ConfFile, number: int, included: str) -> Iterator[ConfLine]:
        place = f"{file.name}:{number} include"
        folder = os.path.dirname(included)
        directory, pattern = file.path.parent / folder, os.path.basename(included)
        found = sorted(fnmatch.filter(_names(directory), pattern))
        given = fnmatch.filter([name for name in self.given if name != file.path.name], pattern)
        if not found and not given and not ("*" in pattern and directory.is_dir()):
            text = f"There is no {shown(included)} here, and RabbitMQ passes over what is not there. If the broker's "
            self.report.action(place, f"{text}machine has it, run this command there, or bring the file as well.")
        for name in found:
            path = directory / name
            self._included.append(path.resolve())
            if path.resolve() in self._open:
                self.report.mistake(place, f"{shown(name)} includes itself; RabbitMQ would read it for ever.")
            elif not path.is_file():
                self.report.mistake(place, f"{shown(name)} is no file, and RabbitMQ does not start with that.")
            elif len(self._included) > _MAX_INCLUDED:
                self.report.mistake(place, f"More than {_MAX_INCLUDED} files are included.")
                return
            else:
                yield from self.lines(ConfFile(path, printable(os.path.join(folder, name)), self._text_of(path, place)))


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def effective_lines(lines: Iterable[ConfLine], report: MigrationReport) -> list[ConfLine]:
    """The last line of each key, with the values of other keys in place of `$(key)`. Variables stay."""
    last: dict[str, ConfLine] = {}
    for line in lines:
        last.pop(line.origin.key, None)
        last[line.origin.key] = line
    return [replace(line, value=_with_other_keys(line, last, report)) for line in last.values()]


def _with_other_keys(line: ConfLine, lines: Mapping[str, ConfLine], report: MigrationReport) -> str:
    names = variables(line.value)
    if sum(len(lines[name].value) for name in names if name in lines) > _MAX_REFERRED:
        report.mistake(line.origin, "With the values of the keys that it refers to, it is too long.")
        return ""

    def replacement(match: re.Match[str]) -> str:
        name = match["name"].strip()
        other = lines.get(name)
        if other is None:
            if not _VARIABLE.fullmatch(name):
                report.mistake(line.origin, "It refers to something that is neither a key nor a variable.")
            return f"$({name})"
        if _REFERENCE.search(other.value):
            sentence = "It refers to a key that refers to something else. Write out one of the two."
            report.mistake(line.origin, sentence)
            return ""
        return other.value

    return _REFERENCE.sub(replacement, line.value)


def variables(value: str) -> list[str]:
    """Names of the environment variables that a value refers to."""
    return [match["name"].strip() for match in _REFERENCE.finditer(value)]


def with_variables(value: str, replacement: Mapping[str, str]) -> str:
    """A value with the variables that are known replaced by theirs."""
    return _REFERENCE.sub(lambda match: replacement.get(match["name"].strip(), match[0]), value)
