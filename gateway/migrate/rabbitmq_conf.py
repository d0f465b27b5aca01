r"""Reads rabbitmq.conf with all that it includes, and translates its lines to the Erlang form, as the broker does.

A line is `key = value`. As in RabbitMQ, `#` begins a comment anywhere, except in a value in single quotes (since
RabbitMQ 4.0; before, quotes belonged to the value). In a key, `\.` is a dot that does not separate words. The last line
of a key counts. `$(name)` is the value of another key, or else of an environment variable; `$(<file)` is the text of a
file. `include file` stands for the lines of that file, or of all files in a directory whose names fit:
`include conf.d/*.conf`. Names of files are relative to the directory of the file that has them.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gateway.errors import UsageError
from gateway.migrate.broker_settings import BrokerSettings, Origin, Setting, entries, shown
from gateway.migrate.conf_schema import PROPERTY_LISTS, RABBIT, KeyMapping, last_word, mapping_of, right_key
from gateway.migrate.erlang_terms import Atom, Term, Tuple
from gateway.migrate.output import MigrationReport, VariableText
from gateway.texts import printable

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_ADDRESS: Final = re.compile(r"(?P<ip>.+):(?P<port>[0-9]{1,5})")
_IP: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_UNIX: Final = re.compile(r"(?:unix|local):/.*:0")
_CREDENTIALS: Final = ("login", "passcode")
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
_MAX_SIZE: Final = 4 << 20
_LATIN_1: Final = re.compile(rb"(?:[^\n]*\n)?[^\n]*%[^\n]*coding[:=]\s*latin-1")


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


def read_text(file: Path) -> str:
    """The text. Raises UsageError, with the file's name, if it cannot be read or is no text."""
    name = printable(str(file))
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from None
    if len(data) > _MAX_SIZE:
        raise UsageError(f"{name} is larger than any configuration ({_MAX_SIZE >> 20} MiB).")
    try:
        return data.decode("latin-1" if _LATIN_1.match(data) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        text = f"{name}: line {line}, byte {column}: This is not UTF-8. Save the file as UTF-8."
        raise UsageError(text) from None


# From lines to the Erlang form.


def settings_of_conf(
    files: Sequence[ConfFile], report: MigrationReport, environment: Mapping[str, str]
) -> BrokerSettings:
    """Read rabbitmq.conf, or several files like it in the broker's order, as one."""
    reader = ConfReader(report, [file.path.name for file in files])
    lines = [line for file in files for line in reader.lines(file)]
    reader.report_forgotten(files)
    settings = BrokerSettings(report, files=reader.read)
    grouped: dict[tuple[str, str], list[tuple[KeyMapping, Setting]]] = {}
    for line in effective_lines(lines, report):
        key = line.origin.key
        mapping = mapping_of(key)
        if mapping is not None:
            try:
                setting = Setting(_term(line, mapping, report, environment), line.origin)
            except ValueError as error:
                report.mistake(line.origin, str(error))
            else:
                grouped.setdefault((mapping.app, mapping.key), []).append((mapping, setting))
        elif (place := right_key(key)) or key.partition(".")[0] in ("stomp", "web_stomp"):
            report.unknown_key(line.origin, f"the key {shown(place)}" if place else "")
        else:
            settings.foreign += 1
    for (app, key), found in grouped.items():
        settings.put(app, key, _joined(found))
    return settings


# Values. The text of a ValueError is for the user.


def _term(line: ConfLine, mapping: KeyMapping, report: MigrationReport, environment: Mapping[str, str]) -> Term:
    """The term that the broker makes of a line's value."""
    value = line.value
    if mapping.property_name in _CREDENTIALS:
        if variables(value):
            return _variable_text(value)
    else:
        value = with_variables(value, environment)
        if names := variables(value):
            raise ValueError(f"The environment variable {shown(names[0])} is not set. Set it as for the broker.")
    if line.is_quoted and mapping.value_type == "string":
        report.note(line.origin, "The quotes are left out, as RabbitMQ 4.0 does; before, they belonged to the value.")
    return _converted(value, mapping)


def _variable_text(value: str) -> VariableText:
    """A login or passcode whose variables the gateway itself resolves, so that the file does not contain it."""
    text = value.replace("$", "$$").replace("$$(", "$(")
    return VariableText(with_variables(text, {name: f"${{{name}}}" for name in variables(text)}))


def _converted(value: str, mapping: KeyMapping) -> Term:
    if mapping.value_type == "string":
        return value
    if mapping.value_type == "integer":
        if _WHOLE.fullmatch(value):
            return int(value)
        if value == "infinity" and mapping.key == "max_connections":
            return Atom(value)
        raise ValueError("A whole number belongs here.")
    if mapping.value_type in ("address", "none") and value == "none":
        return Atom(value)
    if mapping.value_type == "address":
        return _address(value, mapping)
    if mapping.value_type == "none":
        raise ValueError("The only value here is none; anything else has a name after another dot.")
    if mapping.value_type != "atom" and value not in ("true", "false"):
        raise ValueError("This is either true or false.")
    return Atom(value)


def _address(value: str, mapping: KeyMapping) -> Term:
    if _WHOLE.fullmatch(value):
        return int(value)
    match = _ADDRESS.fullmatch(value)
    is_unix = mapping.app == RABBIT and _UNIX.fullmatch(value)
    if match is None or not (is_unix or _IP.fullmatch(match["ip"])):
        raise ValueError("A port or ip:port belongs here; an IPv6 address without brackets, as in ::1:61613.")
    return Tuple((match["ip"], int(match["port"])))


# Lines that make up one key in the Erlang form.


def _joined(found: list[tuple[KeyMapping, Setting]]) -> Setting:
    mapping, first = found[0]
    for other, setting in found:
        if other.value_type == "none":
            return Setting({} if (mapping.app, mapping.key) in PROPERTY_LISTS else (), setting.origin)
    if mapping.property_name is not None:
        return Setting(_properties(found), first.origin)
    settings = [setting for _, setting in found]
    if mapping.value_type == "name":
        origins = [setting.origin for setting in settings if setting.value == Atom("true")]
        settings = [Setting(last_word(origin.key), origin) for origin in origins]
    return Setting(tuple(settings), first.origin) if mapping.in_list else settings[-1]


def _properties(found: list[tuple[KeyMapping, Setting]]) -> dict[str, Setting]:
    properties: dict[str, Setting] = {}
    for mapping, setting in found:
        name = str(mapping.property_name)
        if mapping.in_list:
            earlier = properties.get(name)
            origin = setting.origin if earlier is None else earlier.origin
            properties[name] = Setting((*entries(earlier), setting), origin)
        else:
            properties[name] = setting
    listener = properties.pop("listener", None)
    return properties if listener is None else _with_listener(listener, properties, found[0][0].key)


def _with_listener(listener: Setting, properties: dict[str, Setting], key: str) -> dict[str, Setting]:
    """A `listener` replaces ip and port, and without TLS the whole property list."""
    if listener.value == Atom("none"):
        return {}
    others = {name: other for name, other in properties.items() if key != "tcp_config" and name not in ("ip", "port")}
    if isinstance(listener.value, Tuple):
        ip, port = listener.value.items
        return others | {"ip": Setting(ip, listener.origin), "port": Setting(port, listener.origin)}
    return others | {"port": listener}
