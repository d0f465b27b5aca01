"""The terminal commands that ask a running gateway once: `stomp-gateway sessions`, `links`, `reload` and others.

A command raises `UsageError` if an option has no meaning, and `AdminError` if the gateway does not answer, refuses, or
has no such session.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from rich.cells import cell_len, set_cell_size

from gateway.admin.terminal_api import AdminApi, AdminError, quoted, silence_of
from gateway.admin.terminal_output import (
    DEFAULT_LINK_COLUMNS,
    DEFAULT_SESSION_COLUMNS,
    LINKS,
    NOTHING,
    PLUGIN_COLUMNS,
    SENDS,
    SESSIONS,
    SUBSCRIPTIONS,
    Column,
    Item,
    chosen_columns,
    clean,
)
from gateway.errors import UsageError
from gateway.texts import aligned, byte_size, counted

_BUSIEST_FIRST: Final = "-messages_published"

_ARROWS: Final = {"from-client": ">>", "to-client": "<<"}

# Of a time in ISO 8601: hours to milliseconds.
_TIME: Final = slice(11, 23)


# Lists, one session in full, and what is done with sessions and links.


def list_sessions(options: Namespace) -> None:
    """Print the sessions that the options choose."""
    columns = chosen_columns(options.columns, {**SESSIONS, **PLUGIN_COLUMNS}, DEFAULT_SESSION_COLUMNS)
    query = {"hold": options.hold, "sort": _order(options, SESSIONS) or _BUSIEST_FIRST}
    _print(_listed("sessions", options, query), columns, as_json=options.json)


def list_links(options: Namespace) -> None:
    """Print the links that the options choose."""
    columns = chosen_columns(options.columns, LINKS, DEFAULT_LINK_COLUMNS)
    _print(_listed("links", options, {"sort": _order(options, LINKS)}), columns, as_json=options.json)


def show_session(options: Namespace) -> None:
    """Print all that is known of one session."""
    item = AdminApi(options).ask(f"sessions/{quoted(options.id)}")
    if options.json:
        print(json.dumps(item, indent=2))
        return
    now = time.time()
    for name, column in SESSIONS.items():
        print(f"{name:<19} {column.show(item, now)}")
    journal = item["journal"]
    place = f"session {journal['session']} of boot {clean(str(journal['boot']))}" if journal else NOTHING
    print(f"{'journal':<19} {place}")
    for title, items, columns in (
        ("subscriptions", item["subscriptions_list"], SUBSCRIPTIONS),
        ("sends", item["sends"], SENDS),
    ):
        if items:
            print(f"\n{title}")
            _print(items, columns)


def close_session(options: Namespace) -> None:
    """Close one session."""
    AdminApi(options).ask(f"sessions/{quoted(options.id)}", {"reason": options.reason}, method="DELETE")
    print(f"closed: {clean(options.id)}")


def fail_back(options: Namespace) -> None:
    """Have the links of a virtual host, or of all, drained that are not on their preferred broker.

    Raises `AdminError` also if a preferred broker does not answer, or there is no such virtual host.
    """
    answer = AdminApi(options).ask("links/fail-back", {"virtual_host": options.virtual_host}, method="POST")
    failures = []
    for item in answer["items"]:
        name = clean(item["virtual_host"])
        if item["reason"] is None:
            print(f"{name}: {item['draining']} link{'s'[: item['draining'] != 1]} draining")
        else:
            failures.append(f"{name}: nothing has changed, {clean(item['reason'])}")
    if failures:
        raise AdminError("\n".join(failures))


def table(columns: Sequence[Column], items: Sequence[Item]) -> Iterator[str]:
    """The lines of a table, the titles first."""
    now = time.time()
    rows = [[column.title for column in columns], *([column.show(item, now) for column in columns] for item in items)]
    return aligned(rows, [place for place, column in enumerate(columns) if column.is_number])


def cut(text: str, width: int) -> str:
    """A text cut to ``width`` cells of a terminal; `~` stands for what is left out."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "~"


def _listed(path: str, options: Namespace, query: Mapping[str, object]) -> list[Item]:
    if options.limit < 0:
        raise UsageError(f"--limit {options.limit}: give a number of lines, 0 for all.")
    filters = {"virtual_host": options.virtual_host, "login": options.login, "q": options.search}
    missing: set[int] = set()
    items = list(AdminApi(options).each(path, {**filters, **query}, options.limit, missing.update))
    if missing:
        print(f"{silence_of(missing)}: this list lacks what is there", file=sys.stderr)
    return items


def _order(options: Namespace, columns: Mapping[str, Column]) -> str | None:
    """Numbers are in descending order, texts and times in ascending order, unless `--reverse` is given."""
    if options.sort is None:
        return None
    if options.sort not in columns or options.sort == "holds":
        known = ", ".join(name for name in columns if name != "holds")
        raise UsageError(f"--sort {clean(options.sort)}: there are {known}.")
    column = columns[options.sort]
    largest_first = column.is_number and column.title != "SINCE"
    return f"{'-' * (largest_first != options.reverse)}{options.sort}"


def _print(items: Sequence[Item], columns: Sequence[Column], *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for line in table(columns, items):
        print(line)


# Reload, configuration and log level.


def reload(options: Namespace) -> None:
    """Ask for a reload, and print what has changed, what needs a restart, and what is likely to be wrong.

    Raises `ConfigError` if the configuration has mistakes, and the gateway goes on with its old one.
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
    """Print the configuration that a gateway uses."""
    answer = AdminApi(options).ask("config")
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print(yaml.safe_dump(answer, sort_keys=False), end="")


def log_level(options: Namespace) -> None:
    """Ask for the level, or for another one, and print what holds."""
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
    "trace started": lambda item: (
        f"tracing {item['target']}, {counted(item['clients'], 'client')} now, until {item['until']}"
    ),
    "trace ended": lambda item: (
        f"the trace has ended, {item['reason']}: {counted(item['frames'], 'frame')}, {item['left_out']:,} left out"
    ),
    "connected": lambda item: f"connected from {item['peer']} to {item['listener']}",
    "closed": lambda item: f"closed, {item['reason']}",
    "unreadable": lambda item: f"what comes {item['direction']} cannot be read: {item['reason']}",
    "heart-beats": lambda item: f"heart-beats: {item['from_client']} from the client, {item['to_client']} to it",
    "frames left out": lambda item: f"{counted(item['frames'], 'frame')} left out, because there were too many",
    "clients left out": lambda item: f"{counted(item['clients'], 'client')} not traced, because there were too many",
}


def trace(options: Namespace) -> None:
    """Print what passes until the trace is over. Raises `AdminError` also if the gateway has gone by then."""
    query = {name: getattr(options, name) for name in ("session", "login", "address")}
    api = AdminApi(options)
    item: Mapping[str, Any] = {}
    for item in api.stream("trace", {**query, "seconds": max(1, round(options.duration))}):
        # At once, also into a pipe.
        print(json.dumps(item) if options.json else _line(item), flush=True)
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
        parts.append(f"(and {counted(left_out, 'more header')})")
    if item["body_bytes"]:
        parts.append(f"({byte_size(item['body_bytes'])})")
    if item.get("incomplete"):
        parts.append("INCOMPLETE")
    return " ".join(parts)


def _value(text: str) -> str:
    """A value, in quotes if its end could not be seen."""
    shown = clean(text)
    return f'"{shown}"' if not shown or " " in shown else shown
