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
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from gateway.admin.terminal_api import MOST_IN_A_PAGE, AdminApi, AdminError, Item
from gateway.admin.terminal_columns import SESSIONS
from gateway.admin.terminal_text import NOTHING, clean, count, cut, duration, latency, octets, rate, table, width
from gateway.errors import ExitCode, UsageError

_SHORTEST: Final = 0.1
_LONGEST: Final = 86_400
_BATCH_ROWS: Final = 20
_BATCH_WIDTH: Final = 200
_USUAL_COLUMNS: Final = 80
_USUAL_LINES: Final = 24
_BUSIEST: Final = ("-messages_published", "-messages_delivered")

_BEGIN: Final = "\x1b[?1049h\x1b[?25l"  # the alternative screen, without a cursor
_END: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _REST = "\x1b[H", "\x1b[K\n", "\x1b[J"
_BOLD, _REVERSED, _PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[m"

# The columns of sessions in their order, and the order in which a narrow window does without.
_COLUMNS: Final = (
    "login", "virtual_host", "peer", "version", "holds", "subscriptions", "unacknowledged", "unconfirmed", "IN/s",
    "OUT/s", "id",
)  # fmt: skip
_LEAST_IMPORTANT: Final = ("version", "subscriptions", "unconfirmed", "id", "virtual_host", "holds", "unacknowledged")
_LONGEST_NAME: Final = 30
_COUNTED: Final = ("sessions", "connections", "subscriptions", "links", "channels")


@dataclass(frozen=True, slots=True)
class Look:
    """What a gateway said at one moment (monotonic, in seconds); ``is_whole`` when no session was left out."""

    at: float
    overview: Item
    sessions: dict[str, Item]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Busy:
    """A session with its messages per second; None where they are not known yet."""

    item: Item
    came: float | None
    went: float | None

    @property
    def order(self) -> tuple[float, int]:
        """The busiest first; of equal ones, who has done more."""
        done = self.item["messages_published"] + self.item["messages_delivered"]
        return -(self.came or 0) - (self.went or 0), -done


def top(options: Namespace) -> None:
    """Show looks at a gateway until somebody ends it, or one look.

    Raises:
        UsageError: an option cannot be meant so.
        AdminError: the gateway does not answer at the beginning, or to the one look.
    """
    if not _SHORTEST <= options.interval <= _LONGEST or (options.limit is not None and options.limit < 0):
        raise UsageError(f"give an --interval of {_SHORTEST:g} to {_LONGEST} seconds, and a --limit of 0 or more.")
    api = AdminApi.of(options)
    first = look(api, options)
    if options.once or not sys.stdout.isatty():
        time.sleep(options.interval)
        rows = _BATCH_ROWS if options.limit is None else options.limit
        print("\n".join(frame(first, look(api, options), rows, _BATCH_WIDTH)))
        return
    with _screen():
        _watch(api, options, first)


def look(api: AdminApi, options: Namespace) -> Look:
    """Ask once.

    Args:
        api: whom.
        options: virtual_host and login of the sessions.

    Raises:
        AdminError: the gateway does not answer.
    """
    sessions: dict[str, Item] = {}
    query = {"virtual_host": options.virtual_host, "login": options.login, "page_size": MOST_IN_A_PAGE}
    total = 0
    overview = api.ask("overview")
    at = time.monotonic()
    for order in _BUSIEST:
        answer = api.ask("sessions", {**query, "sort": order})
        sessions |= {item["id"]: item for item in answer["items"]}
        total = answer["total"]
        if total <= MOST_IN_A_PAGE:
            break
    return Look(at, overview, sessions, total <= len(sessions))


def frame(before: Look, now: Look, rows: int, columns: int) -> list[str]:
    """The lines of one picture.

    Args:
        before: an earlier look.
        now: the latest one.
        rows: sessions at most.
        columns: places in a line at most.
    """
    busy = sorted(_busy(before, now), key=lambda each: each.order)
    lines = [*_figures(before, now), "", *_sessions(busy[:rows], columns)]
    if len(busy) > rows:
        lines.append(f"and {count(len(busy) - rows)} more")
    return [cut(line, columns) for line in lines]


def _busy(before: Look, now: Look) -> Iterator[Busy]:
    passed = now.at - before.at
    same = before.overview["started_at"] == now.overview["started_at"] and passed > 0
    nothing: Item = {"messages_published": 0, "messages_delivered": 0}
    for name, item in now.sessions.items():
        # Whoever was not there at a whole look has done all of it since.
        earlier = before.sessions.get(name, nothing if before.is_whole else None)
        if earlier is None or not same:
            yield Busy(item, None, None)
        else:
            came, went = (max(0, item[key] - earlier[key]) / passed for key in nothing)
            yield Busy(item, came, went)


def _figures(before: Look, now: Look) -> list[str]:
    new, old, passed = now.overview, before.overview, now.at - before.at
    same = old["started_at"] == new["started_at"] and passed > 0

    def per_second(name: str) -> float | None:
        return max(0, new["totals"][name] - old["totals"][name]) / passed if same else None

    def flow(messages: str, bodies: str) -> str:
        size = per_second(bodies)
        return f"{rate(per_second(messages)):>10}  {NOTHING if size is None else octets(size) + '/s':>12}"

    confirm: Any = new["confirm_latency_seconds"]
    latencies = f"   confirm p50 {latency(confirm['p50'])}, p99 {latency(confirm['p99'])}" if confirm else ""
    acknowledged = f"   acknowledged {rate(per_second('messages_acknowledged'))}"
    redelivered = f"   redelivered {rate(per_second('messages_redelivered'))}"
    readiness = ["ready"] if new["ready"] else ["NOT READY: " + clean("; ".join(map(str, new["reasons"])))]
    name = f"stomp-gateway {clean(str(new['version']))} on {clean(str(new['node']))}"
    return [
        "   ".join([name, f"up {duration(new['uptime_seconds'])}", *readiness]),
        "   ".join(f"{counted} {count(new[counted])}" for counted in _COUNTED),
        f"in   {flow('messages_published', 'published_bytes')}   unconfirmed {count(new['unconfirmed'])}{latencies}",
        f"out  {flow('messages_delivered', 'delivered_bytes')}   unacknowledged {count(new['unacknowledged'])}"
        f"{acknowledged}{redelivered}",
        f"holds  {_counts(new['holds'])}",
        f"errors {rate(per_second('errors'))}   {_counts(new['errors'])}",
    ]


def _counts(counts: dict[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{clean(name)} {count(number)}" for name, number in largest if number) or "none"


def _sessions(busy: list[Busy], columns: int) -> list[str]:
    if not busy:
        return ["no session"]
    shown = [name for name in _COLUMNS]
    for name in (*_LEAST_IMPORTANT, None):
        lines = _table(busy, shown)
        if name is None or max(map(width, lines)) <= columns:
            return lines
        shown.remove(name)
    return []


def _table(busy: list[Busy], names: list[str]) -> list[str]:
    titles = [SESSIONS[name].title if name in SESSIONS else name for name in names]
    numbers = [name not in SESSIONS or SESSIONS[name].is_number for name in names]
    rows = [[_cell(each, name) for name in names] for each in busy]
    return table(titles, rows, numbers)


def _cell(each: Busy, name: str) -> str:
    if name not in SESSIONS:
        return rate(each.came if name == "IN/s" else each.went).removesuffix("/s")
    text = SESSIONS[name].show(each.item, 0.0)
    return text if name in ("id", "peer") else cut(text, _LONGEST_NAME)


def _watch(api: AdminApi, options: Namespace, first: Look) -> None:
    before = now = first
    trouble: AdminError | None = None
    while True:
        _draw(before, now, trouble, options.limit)
        if _ended(options.interval):
            return
        try:
            before, now, trouble = now, look(api, options), None
        except AdminError as error:
            trouble = error


def _draw(before: Look, now: Look, trouble: AdminError | None, limit: int | None) -> None:
    columns, height = os.get_terminal_size(sys.stdout.fileno())  # now: the window may have changed
    # Some do not know their size, like the serial console of a machine, or a container's without a window yet.
    columns, height = columns or _USUAL_COLUMNS, height or _USUAL_LINES
    warning = [cut(f"NO ANSWER, what follows is old: {trouble}", columns)] if trouble else []
    fit = max(0, height - 10 - len(warning))
    lines = (warning + frame(before, now, fit if limit is None else min(limit, fit), columns))[: height - 1]
    sys.stdout.write(_HOME + "".join(_dressed(line) + _LINE_END for line in lines) + _REST)
    sys.stdout.flush()


def _dressed(line: str) -> str:
    if line.startswith((SESSIONS[_COLUMNS[0]].title, "NO ANSWER")):
        return _REVERSED + line + _PLAIN
    return _BOLD + line + _PLAIN if line.startswith("stomp-gateway ") else line


def _ended(seconds: float) -> bool:
    """Wait for the next look; whether somebody pressed q meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0] and os.read(sys.stdin.fileno(), 64)[:1] in (b"q", b"Q", b""):
            return True
    return False


@contextmanager
def _screen() -> Iterator[None]:
    """The alternative screen and single keys; whatever happens, the terminal is as before afterwards."""
    stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
    settings = None if stdin is None else termios.tcgetattr(stdin)
    former = signal.signal(signal.SIGTERM, _terminated)
    try:
        if stdin is not None:
            tty.setcbreak(stdin)
        sys.stdout.write(_BEGIN)
        yield
    finally:
        sys.stdout.write(_END)
        sys.stdout.flush()
        if stdin is not None and settings is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTERM, former)


def _terminated(_: int, __: FrameType | None) -> None:
    raise SystemExit(ExitCode.TERMINATED)
