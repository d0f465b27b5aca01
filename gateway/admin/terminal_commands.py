"""Terminal commands with one question: `stomp-gateway reload`, `config`, `log-level` and `trace`."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from gateway.admin.terminal_api import AdminApi, AdminError
from gateway.admin.terminal_output import byte_size, clean
from gateway.admin.terminal_output import count as counted

_ARROWS: Final = {"from-client": ">>", "to-client": "<<"}

# Of a time in ISO 8601: hours to milliseconds.
_TIME: Final = slice(11, 23)


def reload(options: Namespace) -> None:
    """Ask for a reload, and print what has changed, what needs a restart, and what is likely to be wrong.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
        ConfigError: the configuration has mistakes, and the gateway goes on with its old one.
    """
    answer = AdminApi(options).ask("reload", method="POST")
    if options.json:
        print(json.dumps(answer, indent=2))
        return
    changes, restart = answer["changes"], answer["restart"]
    print("reloaded" if changes else "reloaded: nothing has changed")
    for change in changes:
        print(f"  {clean(change)}")
    if restart:
        print("needs a restart; until then the old value stays in use:")
        for each in restart:
            print(f"  {clean(each['key'])}: {clean(each['in_use'])}")
    # An older gateway names none.
    for warning in answer.get("warnings", ()):
        print(f"warning: {clean(warning)}")


def show_config(options: Namespace) -> None:
    """Print the configuration that a gateway uses.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
    """
    answer = AdminApi(options).ask("config")
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print(yaml.safe_dump(answer, sort_keys=False), end="")


def log_level(options: Namespace) -> None:
    """Ask for the level, or for another one, and print what holds.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
    """
    api = AdminApi(options)
    if options.level is None:
        answer = api.ask("log-level")
    else:
        query = {"level": options.level, "seconds": round(options.duration)}
        answer = api.ask("log-level", query, method="POST")
    if options.json:
        print(json.dumps(answer))
        return
    level, configured, until = (clean(str(answer[key])) for key in ("level", "configured", "until"))
    print(level if answer["until"] is None else f"{level} until {until}, then {configured}")


_EVENTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "trace started": lambda item: f"tracing {item['target']}, {_clients(item['clients'])} now, until {item['until']}",
    "trace ended": lambda item: (
        f"the trace has ended, {item['reason']}: {_frames(item['frames'])}, {counted(item['left_out'])} left out"
    ),
    "connected": lambda item: f"connected from {item['peer']} to {item['listener']}",
    "closed": lambda item: f"closed, {item['reason']}",
    "unreadable": lambda item: f"what comes {item['direction']} cannot be read: {item['reason']}",
    "heart-beats": lambda item: f"heart-beats: {item['from_client']} from the client, {item['to_client']} to it",
    "frames left out": lambda item: f"{_frames(item['frames'])} left out, because there were too many",
    "clients left out": lambda item: f"{_clients(item['clients'])} not traced, because there were too many",
}


def trace(options: Namespace) -> None:
    """Print what passes until the trace is over.

    Raises:
        UsageError: an option has no meaning.
        AdminError: there is no such session, the gateway does not answer, refuses, or has gone.
    """
    query = {name: getattr(options, name) for name in ("session", "login", "address")}
    api = AdminApi(options)
    item: Mapping[str, Any] = {}
    for item in api.stream("trace", {**query, "seconds": max(1, round(options.duration))}):
        # At once, also into a pipe.
        print(json.dumps(item).replace("\x7f", "\\u007f") if options.json else _line(item), flush=True)
    if item.get("event") != "trace ended":
        raise AdminError(f"{api.url}: the gateway has gone, or no longer answers.")


def _line(item: Mapping[str, Any]) -> str:
    begin = clean(f"{item['time'][_TIME]} {item.get('session', '')}".rstrip())
    if "event" in item:
        show = _EVENTS.get(item["event"])
        return f"{begin} -- {clean(item['event'] if show is None else show(item))}"
    parts = [begin, _ARROWS.get(item["direction"], "?"), clean(item["command"]) or "(no whole header block)"]
    parts += [f"{clean(name)}:{_value(value)}" for name, value in item["headers"].items()]
    if left_out := item.get("headers_left_out"):
        parts.append(f"(and {left_out} more headers)")
    if item["body_bytes"]:
        parts.append(f"({byte_size(item['body_bytes'])})")
    if item.get("incomplete"):
        parts.append("INCOMPLETE")
    return " ".join(parts)


def _value(text: str) -> str:
    """A value, in quotes if its end could not be seen."""
    shown = clean(text)
    return f'"{shown}"' if not shown or " " in shown else shown


def _frames(number: int) -> str:
    return f"{counted(number)} frame{'s'[: number != 1]}"


def _clients(number: int) -> str:
    return f"{counted(number)} client{'s'[: number != 1]}"
