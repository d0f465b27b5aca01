"""`stomp-gateway top`: a gateway's figures and its busiest sessions, again and again."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gateway.admin.listing import MAX_PAGE_SIZE
from gateway.admin.terminal_api import AdminApi, AdminError, missing_workers, silence_of
from gateway.admin.terminal_commands import cut, table
from gateway.admin.terminal_output import NOTHING, SESSIONS, Column, Item, clean, rate
from gateway.errors import ExitCode, UsageError
from gateway.texts import byte_size, count, duration, latency

_MIN_INTERVAL: Final = 0.1
_MAX_INTERVAL: Final = 86_400
_BATCH_ROWS: Final = 20
_BATCH_WIDTH: Final = 200
_USUAL_WIDTH: Final = 80
_USUAL_HEIGHT: Final = 24
_LINES_WITHOUT_SESSIONS: Final = 10

# If there are more sessions than one page takes, only the first page in each of these orders is read.
_BUSIEST: Final = ("-messages_published", "-messages_delivered")
_RATES: Final = {"messages_published": "published_per_second", "messages_delivered": "delivered_per_second"}
_COUNTED: Final = ("sessions", "connections", "subscriptions", "links", "channels")
_MAX_NAME_WIDTH: Final = 30


def _short(name: str) -> Column:
    column = SESSIONS[name]
    return replace(column, show=lambda item, now: cut(column.show(item, now), _MAX_NAME_WIDTH))


def _rate(name: str, title: str) -> Column:
    return Column(title, lambda item, _: rate(item[name]).removesuffix("/s"), is_number=True)


_COLUMNS: Final = {
    "login": _short("login"),
    "virtual_host": _short("virtual_host"),
    "peer": SESSIONS["peer"],
    "version": SESSIONS["version"],
    "holds": _short("holds"),
    "subscriptions": SESSIONS["subscriptions"],
    "unacknowledged": SESSIONS["unacknowledged"],
    "unconfirmed": SESSIONS["unconfirmed"],
    "published_per_second": _rate("published_per_second", "IN/s"),
    "delivered_per_second": _rate("delivered_per_second", "OUT/s"),
    "id": SESSIONS["id"],
}
# The columns that a narrow window leaves out, in this order.
_LEAST_IMPORTANT: Final = ("version", "subscriptions", "unconfirmed", "id", "virtual_host", "holds", "unacknowledged")


@dataclass(frozen=True, slots=True)
class TopSample:
    """What a gateway answered at one moment.

    ``taken_at`` is in seconds of the monotonic clock. ``is_complete`` means that ``sessions`` has all of them. Those of
    ``missing_workers`` are not in it.
    """

    taken_at: float
    overview: Item
    sessions: dict[str, Item]
    is_complete: bool
    missing_workers: frozenset[int] = frozenset()


def top(options: Namespace) -> None:
    """Show samples of a gateway until the user quits, or one sample where there is no terminal to redraw.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer at the beginning.
    """
    if not _MIN_INTERVAL <= options.interval <= _MAX_INTERVAL or (options.limit is not None and options.limit < 0):
        raise UsageError(
            f"give an --interval of {_MIN_INTERVAL:g} to {_MAX_INTERVAL} seconds, and a --limit of 0 or more."
        )
    api = AdminApi(options)
    first = take_sample(api, options)
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
    if options.once or not console.is_terminal or console.is_dumb_terminal:
        time.sleep(options.interval)
        rows = _BATCH_ROWS if options.limit is None else options.limit
        for line in screen_lines(first, take_sample(api, options), rows, _BATCH_WIDTH):
            print(line.plain)
        return
    with (
        _single_keys(),
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        _watch(live, api, options, first)


def take_sample(api: AdminApi, options: Namespace) -> TopSample:
    """The gateway's figures and the sessions that the options choose. Raises `AdminError` if it does not answer."""
    sessions: dict[str, Item] = {}
    query = {"virtual_host": options.virtual_host, "login": options.login, "page_size": MAX_PAGE_SIZE}
    missing: frozenset[int] = frozenset()
    total = 0
    overview = api.ask("overview")
    taken_at = time.monotonic()
    for order in _BUSIEST:
        answer = api.ask("sessions", {**query, "sort": order})
        sessions |= {item["id"]: item for item in answer["items"]}
        missing |= frozenset(missing_workers(answer))
        total = answer["total"]
        if total <= MAX_PAGE_SIZE:
            break
    return TopSample(taken_at, overview, sessions, total <= len(sessions) and not missing, missing)


def screen_lines(before: TopSample, now: TopSample, max_rows: int, width: int) -> list[Text]:
    """The lines that show a sample, with rates since the one before. The width is in cells of a terminal."""
    sessions = sorted(_with_rates(before, now), key=_busiest_first)
    title, *figures = _figures(before, now)
    titles, *rows = _table(sessions[:max_rows], width) if sessions else ["no session"]
    if len(sessions) > max_rows:
        rows.append(f"and {count(len(sessions) - max_rows)} more")
    lines = [(title, "bold"), *((line, "") for line in (*figures, "")), (titles, "reverse" if sessions else "")]
    return [Text(cut(line, width), style, no_wrap=True) for line, style in (*lines, *((row, "") for row in rows))]


def _seconds_between(before: TopSample, now: TopSample) -> float | None:
    """None if the gateway restarted, so that its counts began again at 0."""
    passed = now.taken_at - before.taken_at
    return passed if before.overview["started_at"] == now.overview["started_at"] and passed > 0 else None


def _with_rates(before: TopSample, now: TopSample) -> Iterator[Item]:
    passed = _seconds_between(before, now)
    for identity, item in now.sessions.items():
        # A session that a complete sample did not have has begun since, so that its counts began at 0.
        earlier = before.sessions.get(identity, dict.fromkeys(_RATES, 0) if before.is_complete else None)
        if earlier is None or passed is None:
            yield {**item, **dict.fromkeys(_RATES.values())}
        else:
            yield {**item, **{name: max(0, item[key] - earlier[key]) / passed for key, name in _RATES.items()}}


def _busiest_first(item: Item) -> tuple[float, int]:
    """The order of rates, and of counts where those are equal."""
    return -sum(item[name] or 0 for name in _RATES.values()), -sum(item[name] for name in _RATES)


def _figures(before: TopSample, now: TopSample) -> list[str]:
    new, old, passed = now.overview, before.overview, _seconds_between(before, now)

    def per_second(name: str) -> float | None:
        return None if passed is None else max(0, new["totals"][name] - old["totals"][name]) / passed

    def flow(messages: str, bodies: str) -> str:
        size = per_second(bodies)
        return f"{rate(per_second(messages)):>10}  {NOTHING if size is None else byte_size(size) + '/s':>12}"

    confirm = new["confirm_latency_seconds"]
    latencies = f"   confirm p50 {latency(confirm['p50'])}, p99 {latency(confirm['p99'])}" if confirm else ""
    acknowledged = f"   acknowledged {rate(per_second('messages_acknowledged'))}"
    redelivered = f"   redelivered {rate(per_second('messages_redelivered'))}"
    silence = [f"{silence_of(now.missing_workers).upper()}, so sessions are missing"] if now.missing_workers else []
    name = f"stomp-gateway {clean(str(new['version']))} on {clean(str(new['node']))}"
    return [
        "   ".join([name, f"up {duration(new['uptime_seconds'])}", *silence, _readiness(new)]),
        "   ".join(f"{counted} {count(new[counted])}" for counted in _COUNTED),
        f"in   {flow('messages_published', 'published_bytes')}   unconfirmed {count(new['unconfirmed'])}{latencies}",
        f"out  {flow('messages_delivered', 'delivered_bytes')}   unacknowledged {count(new['unacknowledged'])}"
        f"{acknowledged}{redelivered}",
        f"holds  {_counts(new['holds'])}",
        f"errors {rate(per_second('errors'))}   {_counts(new['errors'])}",
    ]


def _readiness(overview: Item) -> str:
    if not overview["ready"]:
        return "NOT READY: " + clean("; ".join(map(str, overview["reasons"])))
    down = overview["virtual_hosts_down"]
    return "NO BROKER FOR " + clean(", ".join(down)) if down else "ready"


def _counts(counts: dict[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{clean(name)} {count(number)}" for name, number in largest if number) or "none"


def _table(sessions: list[Item], width: int) -> list[str]:
    """The sessions in as many columns as fit."""
    shown = dict(_COLUMNS)
    lines = list(table([*shown.values()], sessions))
    for name in _LEAST_IMPORTANT:
        if max(map(cell_len, lines)) <= width:
            break
        del shown[name]
        lines = list(table([*shown.values()], sessions))
    return lines


def _watch(live: Live, api: AdminApi, options: Namespace, first: TopSample) -> None:
    before = now = first
    error: AdminError | None = None
    while True:
        # Asked for each time, since the window may change. A serial console or a container may not know its size.
        width, height = os.get_terminal_size(sys.stdout.fileno())
        width, height = live.console.size = (width or _USUAL_WIDTH, height or _USUAL_HEIGHT)
        warning = [] if error is None else [Text(cut(f"NO ANSWER, what follows is old: {error}", width), "reverse")]
        fit = max(0, height - _LINES_WITHOUT_SESSIONS - len(warning))
        lines = screen_lines(before, now, fit if options.limit is None else min(options.limit, fit), width)
        live.update(Group(*warning, *lines), refresh=True)
        if _is_quit_pressed(options.interval):
            return
        try:
            before, now, error = now, take_sample(api, options), None
        except AdminError as failure:
            error = failure


def _is_quit_pressed(seconds: float) -> bool:
    """Wait that many seconds, or until the user presses q; return whether q was pressed."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0] and os.read(sys.stdin.fileno(), 64)[:1] in (b"q", b"Q", b""):
            return True
    return False


@contextmanager
def _single_keys() -> Iterator[None]:
    """Get each key as it is pressed, and restore the terminal however this ends, SIGTERM included."""
    stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
    settings = None if stdin is None else termios.tcgetattr(stdin)
    former = signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        if stdin is not None:
            tty.setcbreak(stdin)
        yield
    finally:
        if stdin is not None and settings is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTERM, former)


def _exit_on_sigterm(_: int, __: FrameType | None) -> None:
    raise SystemExit(ExitCode.TERMINATED)
