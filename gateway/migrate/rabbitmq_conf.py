"""Translates the lines of rabbitmq.conf to the Erlang form, as the broker does it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.migrate.broker_settings import BrokerSettings, Setting, VariableText, entries, shown
from gateway.migrate.conf_lines import ConfFile, ConfLine, ConfReader, effective_lines, variables, with_variables
from gateway.migrate.conf_schema import PROPERTY_LISTS, RABBIT, KeyMapping, last_word, mapping_of, right_key
from gateway.migrate.erlang_terms import Atom, Term, Tuple
from gateway.migrate.migration_report import MigrationReport

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_ADDRESS: Final = re.compile(r"(?P<ip>.+):(?P<port>[0-9]{1,5})")
_IP: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_UNIX: Final = re.compile(r"(?:unix|local):/.*:0")
_CREDENTIALS: Final = ("login", "passcode")


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
