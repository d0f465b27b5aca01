"""`stomp-gateway sessions` and `links`: lists on a terminal, one session in full, and its end."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.admin.terminal_api import AdminApi, Item, quoted
from gateway.admin.terminal_columns import (
    LINKS,
    PLUGIN_COLUMNS,
    SESSIONS,
    USUAL_OF_LINKS,
    USUAL_OF_SESSIONS,
    Column,
    chosen,
)
from gateway.admin.terminal_text import NOTHING, clean, count, octets, table
from gateway.errors import UsageError

_BUSIEST_FIRST: Final = "-messages_published"


def list_sessions(options: Namespace) -> None:
    """Print the sessions that are asked for.

    Raises:
        UsageError: an option cannot be meant so.
        AdminError: the gateway does not answer.
    """
    columns = chosen(options.columns, {**SESSIONS, **PLUGIN_COLUMNS}, USUAL_OF_SESSIONS)
    query = {
        "virtual_host": options.virtual_host,
        "login": options.login,
        "hold": options.hold,
        "q": options.search,
        "sort": _BUSIEST_FIRST if options.sort is None else _order(options, SESSIONS),
    }
    items = list(AdminApi.of(options).each("sessions", query, _limit(options)))
    _print(items, columns, as_json=options.json)


def list_links(options: Namespace) -> None:
    """Print the links that are asked for.

    Raises:
        UsageError: an option cannot be meant so.
        AdminError: the gateway does not answer.
    """
    columns = chosen(options.columns, LINKS, USUAL_OF_LINKS)
    query = {
        "virtual_host": options.virtual_host,
        "login": options.login,
        "q": options.search,
        "sort": None if options.sort is None else _order(options, LINKS),
    }
    items = list(AdminApi.of(options).each("links", query, _limit(options)))
    _print(items, columns, as_json=options.json)


def show_session(options: Namespace) -> None:
    """Print all that is known of one session.

    Raises:
        AdminError: there is no such session, or the gateway does not answer.
    """
    item = AdminApi.of(options).ask(f"sessions/{quoted(options.id)}")
    if options.json:
        print(harmless_json(item))
        return
    now = time.time()
    for name, column in SESSIONS.items():
        print(f"{name:<19} {column.show(item, now)}")
    journal = item["journal"]
    place = f"session {journal['session']} of boot {clean(str(journal['boot']))}" if journal else NOTHING
    print(f"{'journal':<19} {place}")
    _print_part("subscriptions", item["subscriptions_list"], _SUBSCRIPTIONS)
    _print_part("sends", item["sends"], _SENDS)


def close_session(options: Namespace) -> None:
    """Close one session, and say so.

    Raises:
        AdminError: there is no such session, it may not be closed, or the gateway does not answer.
    """
    AdminApi.of(options).ask(f"sessions/{quoted(options.id)}", {"reason": options.reason}, method="DELETE")
    print(f"closed: {clean(options.id)}")


def harmless_json(value: object) -> str:
    """JSON in ASCII without control characters: safe on a terminal, and the same for a program."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")


def _field(name: str) -> Column:
    return Column(name.upper(), lambda item, _: NOTHING if item[name] is None else clean(str(item[name])), "")


def _number(name: str) -> Column:
    return Column(name.upper(), lambda item, _: count(item[name]), "", is_number=True)


def _octets(name: str) -> Column:
    return Column("OCTETS", lambda item, _: octets(item[name]), "", is_number=True)


_SUBSCRIPTIONS: Final = (
    _field("id"), _field("destination"), _field("ack"), _field("queue"), _number("delivered"), _number("redelivered"),
    _number("unacknowledged"), _octets("delivered_bytes"),
)  # fmt: skip
_SENDS: Final = (_field("destination"), _field("kind"), _number("messages"), _octets("bytes"))


def _order(options: Namespace, columns: Mapping[str, Column]) -> str:
    """Numbers largest first, texts and moments from the smallest; `--reverse` turns that round."""
    if options.sort not in columns or options.sort == "holds":
        known = ", ".join(name for name in columns if name != "holds")
        raise UsageError(f"--sort {clean(options.sort)}: there are {known}.")
    column = columns[options.sort]
    largest_first = column.is_number and column.title != "SINCE"
    return f"{'-' * (largest_first != options.reverse)}{options.sort}"


def _limit(options: Namespace) -> int:
    if options.limit < 0:
        raise UsageError(f"--limit {options.limit}: give a number of lines, 0 for all.")
    return int(options.limit)


def _print(items: Sequence[Item], columns: Sequence[Column], *, as_json: bool) -> None:
    if as_json:
        print(harmless_json(items))
        return
    now = time.time()
    rows = [[column.show(item, now) for column in columns] for item in items]
    for line in table([column.title for column in columns], rows, [column.is_number for column in columns]):
        print(line)


def _print_part(title: str, items: Sequence[Item], columns: Sequence[Column]) -> None:
    if items:
        print(f"\n{title}")
        _print(items, columns, as_json=False)
