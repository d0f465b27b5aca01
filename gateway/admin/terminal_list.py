"""`stomp-gateway sessions` and `links`: lists, one session in full, and closing a session."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

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

_BUSIEST_FIRST: Final = "-messages_published"


def list_sessions(options: Namespace) -> None:
    """Print the sessions that the options choose.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer.
    """
    columns = chosen_columns(options.columns, {**SESSIONS, **PLUGIN_COLUMNS}, DEFAULT_SESSION_COLUMNS)
    query = {"hold": options.hold, "sort": _order(options, SESSIONS) or _BUSIEST_FIRST}
    _print(_listed("sessions", options, query), columns, as_json=options.json)


def list_links(options: Namespace) -> None:
    """Print the links that the options choose.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer.
    """
    columns = chosen_columns(options.columns, LINKS, DEFAULT_LINK_COLUMNS)
    _print(_listed("links", options, {"sort": _order(options, LINKS)}), columns, as_json=options.json)


def show_session(options: Namespace) -> None:
    """Print all that is known of one session.

    Raises:
        AdminError: there is no such session, or the gateway does not answer.
    """
    item = AdminApi(options).ask(f"sessions/{quoted(options.id)}")
    if options.json:
        print(_harmless_json(item))
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
    """Close one session.

    Raises:
        AdminError: there is no such session, it may not be closed, or the gateway does not answer.
    """
    AdminApi(options).ask(f"sessions/{quoted(options.id)}", {"reason": options.reason}, method="DELETE")
    print(f"closed: {clean(options.id)}")


def fail_back(options: Namespace) -> None:
    """Have the links of a virtual host, or of all, drained that are not on their preferred broker.

    Raises:
        AdminError: a preferred broker or the gateway does not answer, or there is no such virtual host.
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
    """The lines of a table, the titles first.

    Not a `rich.table.Table`, which takes a second for each thousand rows.
    """
    now = time.time()
    rows = [[column.title for column in columns], *([column.show(item, now) for column in columns] for item in items)]
    widths = [max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for column, text, width in zip(columns, row, widths, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if column.is_number else text + space)
        yield "  ".join(cells).rstrip()


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
        print(_harmless_json(items))
        return
    for line in table(columns, items):
        print(line)


def _harmless_json(value: object) -> str:
    """JSON in ASCII without control characters, which a terminal would obey."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")
