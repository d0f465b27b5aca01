r"""Reads rabbitmq.conf: lines of the form `key = value`, translated to the Erlang form as the broker does it.

As in RabbitMQ, `#` begins a comment anywhere, except in a value in single quotes (since RabbitMQ 4.0; before, quotes
belonged to the value). In a key, `\.` is a dot that does not separate words. The last line of a key counts. `$(name)`
is the value of another key, or else of an environment variable.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.migrate.broker_settings import BrokerSettings, Origin, Setting, VariableText, entries, shown
from gateway.migrate.conf_schema import PROPERTY_LISTS, RABBIT, KeyMapping, last_word, mapping_of
from gateway.migrate.erlang_terms import Atom, Term, Tuple
from gateway.migrate.migration_report import MigrationReport

_SETTING: Final = re.compile(r"[ \t]*(?P<key>(?:\\\.|[A-Za-z0-9_-]|\.)+)[ \t]*=[ \t]*(?P<value>.*)")
_QUOTED: Final = re.compile(r"'(?P<inside>[^']*)'[ \t]*(?:#.*)?")
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(?P<file>[^ \t#]+)[ \t]*(?:#.*)?")
_REFERENCE: Final = re.compile(r"\$\((?P<name>[^()]*)\)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_REFERRED: Final = 64 << 10
"""Characters. References could multiply the length of a value without end."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_ADDRESS: Final = re.compile(r"(?P<ip>.+):(?P<port>[0-9]{1,5})")
_IP: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_UNIX: Final = re.compile(r"(?:unix|local):/.*:0")
_CREDENTIALS: Final = ("login", "passcode")


@dataclass(frozen=True)
class ConfLine:
    """A setting in one line: the value without its quotes, but still with each `$(name)`."""

    origin: Origin
    value: str
    is_quoted: bool


def settings_of_conf(
    files: Sequence[tuple[str, str]], report: MigrationReport, environment: Mapping[str, str]
) -> BrokerSettings:
    """Read rabbitmq.conf, or several files like it, as one. `files` are names and texts, in the broker's order."""
    lines: list[ConfLine] = []
    for name, text in files:
        others = [os.path.basename(other) for other, _ in files if other != name]
        lines += read_lines(text, name, others, report)
    settings = BrokerSettings(report)
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
        elif key.partition(".")[0] in ("stomp", "web_stomp"):
            report.unknown_key(line.origin)
        else:
            settings.foreign += 1
    for (app, key), found in grouped.items():
        settings.put(app, key, _joined(found))
    return settings


# Lines.


def read_lines(text: str, file: str, other_files: Sequence[str], report: MigrationReport) -> list[ConfLine]:
    """The settings of a file. It is a mistake if the file includes one that is not among the other files."""
    lines: list[ConfLine] = []
    includes: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.rstrip(" \t\r")
        if not bare or bare.lstrip(" \t").startswith("#"):
            continue
        if include := _INCLUDE.fullmatch(bare):
            includes.append((number, include["file"]))
            continue
        setting = _SETTING.fullmatch(bare)
        if setting is None or not all(setting["key"].replace("\\.", "x").split(".")):
            report.mistake(f"{file}:{number}", "This is not of the form key = value.")
            continue
        key, quoted = setting["key"], _QUOTED.fullmatch(setting["value"])
        value = quoted["inside"] if quoted else setting["value"].partition("#")[0].rstrip(" \t")
        if value or quoted:
            lines.append(ConfLine(Origin(file, number, key), value, quoted is not None))
        else:
            report.mistake(f"{file}:{number}", f"{key} has no value.")
    for number, included in includes:
        if not fnmatch.filter(other_files, os.path.basename(included)):
            advice = f"Give {shown(included)} on the command line as well; with --lenient it is passed over."
            tell = report.note if report.lenient else report.mistake
            tell(f"{file}:{number} include", f"This is not followed. {advice}")
    return lines


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


# Values. The text of a ValueError is for the user.


def _term(line: ConfLine, mapping: KeyMapping, report: MigrationReport, environment: Mapping[str, str]) -> Term:
    """The term that the broker makes of a line's value."""
    value = line.value
    if mapping.property_name in _CREDENTIALS:
        if variables(value):
            return _variable_text(value)
    else:
        value = _REFERENCE.sub(lambda match: environment.get(match["name"].strip(), match[0]), value)
        if names := variables(value):
            raise ValueError(f"The environment variable {shown(names[0])} is not set. Set it as for the broker.")
    if line.is_quoted and mapping.value_type == "string":
        report.note(line.origin, "The quotes are left out, as RabbitMQ 4.0 does; before, they belonged to the value.")
    return _converted(value, mapping)


def _variable_text(value: str) -> VariableText:
    """A login or passcode whose variables the gateway itself resolves, so that the file does not contain it."""
    text = value.replace("$", "$$").replace("$$(", "$(")
    return VariableText(_REFERENCE.sub(lambda match: f"${{{match['name'].strip()}}}", text))


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
        raise ValueError("The only value here is none; anything else has a name behind another dot.")
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
