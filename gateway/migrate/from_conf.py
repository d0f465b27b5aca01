"""From lines of rabbitmq.conf to the Erlang form, as the broker's own translation does it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.migrate.conf import Conf, ConfLine, read_conf, settled, variables, with_variables
from gateway.migrate.keys import PLACES, RABBIT, Place, is_ours, last_word, place_of
from gateway.migrate.remarks import Remarks
from gateway.migrate.settings import Given, Origin, Settings, Template, shown
from gateway.migrate.terms import Atom, Term, Tuple

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_ADDRESS: Final = re.compile(r"(?P<ip>.+):(?P<port>[0-9]{1,5})")
_IP: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_UNIX: Final = re.compile(r"(?:unix|local):/.*:0")
_INFINITE: Final = ("max_connections",)
_CREDENTIALS: Final = ("login", "passcode")


def from_conf(
    files: Sequence[tuple[str, str]], remarks: Remarks, environment: Mapping[str, str], *, lenient: bool
) -> Settings:
    """Read rabbitmq.conf, or several files like it, which count as one: of equal keys the last one.

    Args:
        files: name and text of each, in the broker's order.
        remarks: take what is wrong.
        environment: variables that `$(NAME)` may refer to.
        lenient: unknown keys are a remark, and no mistake.
    """
    confs = [read_conf(text, name) for name, text in files]
    for (name, _), conf in zip(files, confs, strict=True):
        others = [os.path.basename(other) for other, _ in files if other != name]
        _remark(conf, name, others, remarks, lenient=lenient)
    lines, mistakes = settled(line for conf in confs for line in conf.lines)
    for line, sentence in mistakes:
        remarks.mistake(Origin(line.file, line.line, line.key), sentence)
    settings = Settings()
    grouped: dict[tuple[str, str], list[tuple[Place, Given]]] = {}
    for line in lines:
        place = place_of(line.key)
        origin = Origin(line.file, line.line, line.key)
        if place is None:
            settings.foreign += not is_ours(line.key)
            if is_ours(line.key):
                remarks.unknown(origin, lenient=lenient)
            continue
        before = len(remarks.mistakes)
        given = Given(_term(line, place, origin, remarks, environment), origin)
        if len(remarks.mistakes) > before:
            continue  # what stands for a wrong value is not worth a second mistake
        grouped.setdefault((place.app, place.key), []).append((place, given))
    for (app, key), found in grouped.items():
        settings.apps.setdefault(app, {})[key] = _joined(found)
    return settings


def _remark(conf: Conf, file: str, others: Sequence[str], remarks: Remarks, *, lenient: bool) -> None:
    """Lines that are none, and files that it includes and nobody has given."""
    for number, sentence in conf.mistakes:
        remarks.mistake(f"{file}:{number}", sentence)
    for number, included in conf.includes:
        if fnmatch.filter(others, os.path.basename(included)):
            continue
        about, sentence = f"{file}:{number} include", "This is not followed. "
        advice = f"Give {shown(included)} on the command line as well; with --lenient it is passed over."
        (remarks.note if lenient else remarks.mistake)(about, sentence + advice)


def _term(line: ConfLine, place: Place, origin: Origin, remarks: Remarks, environment: Mapping[str, str]) -> Term:
    """A line's value as the term that the broker makes of it; 0 or none where it makes none, and a mistake."""
    value = line.value
    if place.part not in _CREDENTIALS:
        value = with_variables(value, environment)
        for name in variables(value):
            remarks.mistake(origin, f"The environment variable {shown(name)} is not set. Set it as for the broker.")
            return Atom("none")
    elif variables(value):
        return Template(value)
    if line.quoted and place.kind == "text":
        remarks.note(origin, "The quotes are left out, as RabbitMQ 4.0 does; before, they belonged to the value.")
    return _converted(value, place, origin, remarks)


def _converted(value: str, place: Place, origin: Origin, remarks: Remarks) -> Term:
    if place.kind == "text":
        return value
    if place.kind == "number":
        return _number(value, place, origin, remarks)
    if place.kind in ("address", "none") and value == "none":
        return Atom("none")
    if place.kind == "address":
        return _address(value, place, origin, remarks)
    if place.kind == "none":
        remarks.mistake(origin, "The only value here is none; anything else has a name behind another dot.")
    elif place.kind in ("switch", "name") and value not in ("true", "false"):
        remarks.mistake(origin, "This is either true or false.")
    return Atom(value)


def _number(value: str, place: Place, origin: Origin, remarks: Remarks) -> Term:
    if value == "infinity" and place.key in _INFINITE:
        return Atom(value)
    if _WHOLE.fullmatch(value):
        return int(value)
    remarks.mistake(origin, "A whole number belongs here.")
    return 0


def _address(value: str, place: Place, origin: Origin, remarks: Remarks) -> Term:
    if _WHOLE.fullmatch(value):
        return int(value)
    match = _ADDRESS.fullmatch(value)
    is_unix = place.app == RABBIT and _UNIX.fullmatch(value)
    if match is None or not (is_unix or _IP.fullmatch(match["ip"])):
        remarks.mistake(origin, "A port or ip:port belongs here; an IPv6 address without brackets, as in ::1:61613.")
        return Atom("none")
    return Tuple((match["ip"], int(match["port"])), origin.line)


def _joined(found: list[tuple[Place, Given]]) -> Given:
    """The lines of one Erlang key together."""
    first = found[0][1]
    for place, given in found:
        if place.kind == "none":
            return Given({} if _has_parts(place) else (), given.origin)
    place = found[0][0]
    if place.part is not None:
        return Given(_parts(found), first.origin)
    if place.listed:
        return Given(tuple(_listed(found)), first.origin)
    return found[-1][1]


def _has_parts(place: Place) -> bool:
    return any(other.part for other in PLACES.values() if (other.app, other.key) == (place.app, place.key))


def _listed(found: Iterable[tuple[Place, Given]]) -> Iterable[Given]:
    """Entries of a list. Of names those whose value is true."""
    for place, given in found:
        if place.kind != "name":
            yield given
        elif given.value == Atom("true"):
            yield Given(last_word(given.origin.key), given.origin)


def _parts(found: list[tuple[Place, Given]]) -> dict[str, Given]:
    """Parts of a property list. A `listener` stands for its ip and port, and without TLS for the whole list."""
    parts: dict[str, Given] = {}
    for place, given in found:
        name = str(place.part)
        if place.listed:
            below = parts.get(name)
            entries = below.value if below is not None and isinstance(below.value, tuple) else ()
            parts[name] = Given((*entries, given), given.origin if below is None else below.origin)
        else:
            parts[name] = given
    listener = parts.pop("listener", None)
    if listener is None:
        return parts
    if listener.value == Atom("none"):
        return {}
    if found[0][0].key == "tcp_config":
        parts = {}
    for name in ("ip", "port"):
        parts.pop(name, None)
    if isinstance(listener.value, Tuple):
        parts["ip"] = Given(listener.value.items[0], listener.origin)
        parts["port"] = Given(listener.value.items[1], listener.origin)
    else:
        parts["port"] = listener
    return parts
