"""`stomp-gateway journal tail`: the last lines of a journal, and new ones, as text."""

from __future__ import annotations

import heapq
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, groupby, islice
from math import inf
from pathlib import Path
from typing import Final, get_args

from gateway.errors import UsageError
from gateway.journal.histogram import percentile
from gateway.journal.reading import Follower, JournalEntry, Segment, decode, list_segments, raw_lines_backwards
from gateway.journal.schema import AnyLine, ParsedLine, SessionTotals
from gateway.journal.segments import end_of_lines
from gateway.texts import byte_size, latency, printable
from gateway.times import datetime_of

BAD: Final = "bad"
"""What --event calls a line that cannot be read."""

EVENTS: Final = (*(str(kind.__struct_config__.tag) for kind in get_args(AnyLine)), BAD)
"""The values of --event."""

_NEAR_END: Final = 1000  # lines
_POLL: Final = 0.25  # seconds
_MAX_CLIENT_WIDTH: Final = 24
_MAX_RAW_WIDTH: Final = 200
_MAX_BUCKET_DIGITS: Final = 3


def tail(options: Namespace) -> None:
    """Print the last lines of a journal, and with ``follow`` new ones until interrupted.

    Raises `UsageError` if the value of an option makes no sense, `UnreadableError` if the directory cannot be read.
    """
    wanted = _filter(options)
    follower = Follower(options.directory)
    printer = Printer(as_json=options.json)
    for entry in last_entries(options.directory, options.lines, wanted, follower):
        printer.show(entry)
    sys.stdout.flush()
    while options.follow:
        for entry in follower.new():
            if wanted(entry):
                printer.show(entry)
        sys.stdout.flush()
        time.sleep(_POLL)


def _filter(options: Namespace) -> LineFilter:
    if options.lines < 0:
        raise UsageError(f"--lines {options.lines}: give a number of lines, 0 for none.")
    events = frozenset(name.strip() for name in options.event.split(",")) if options.event else None
    if events and (unknown := sorted(events - set(EVENTS))):
        raise UsageError(f"--event {', '.join(unknown)}: there are {', '.join(EVENTS)}.")
    return LineFilter(events, options.session, options.destination, options.user)


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Chooses lines. A line without a field that is asked for does not pass. ``destination`` is a shell pattern."""

    events: frozenset[str] | None = None
    session: int | None = None
    destination: str | None = None
    user: str | None = None

    def __call__(self, entry: JournalEntry) -> bool:
        """Whether a line passes."""
        line = entry.line
        if not isinstance(line, ParsedLine):
            return BAD in self.events if self.events else (self.session, self.destination, self.user) == (None,) * 3
        return (
            (self.events is None or line.e in self.events)
            and (self.session is None or line.c == self.session)
            and (self.user is None or line.u == self.user)
            and (self.destination is None or (line.d is not None and fnmatchcase(line.d, self.destination)))
        )


# The last lines.


@dataclass(frozen=True, slots=True)
class _SegmentPart:
    """A segment up to the byte ``end`` that it had when the journal was listed.

    ``last`` is the time of its last line, infinite if no line near the end can be read.
    """

    segment: Segment
    end: int
    last: float

    def backwards(self) -> Iterator[JournalEntry]:
        """Its lines, the last one first."""
        opened = self.segment.open()
        if opened is None:
            return
        t = 0 if self.last == inf else int(self.last)
        with opened[0] as file:
            for raw in raw_lines_backwards(file, self.end):
                line = decode(raw)
                t = line.t if isinstance(line, ParsedLine) else t
                yield JournalEntry(self.segment, raw, line, t)


def last_entries(
    directory: Path, lines: int, wanted: Callable[[JournalEntry], bool], follower: Follower
) -> list[JournalEntry]:
    """At most ``lines`` last wanted lines of a journal, by time. The follower then skips everything that was read.

    Raises `UnreadableError` if the directory cannot be read.
    """
    kept: list[JournalEntry] = []  # the last one first
    is_complete = lines == 0
    by_day = groupby(sorted(list_segments(directory).segments, key=_day, reverse=True), key=_day)
    for _, segments in by_day:
        if is_complete:
            _skip(segments, follower)
            continue
        parts = [part for segment in segments if (part := _part(segment, follower))]
        before = kept
        # The number decides if a boot's segment ends and the next one begins in the same microsecond.
        for part in sorted(parts, key=lambda each: (each.last, each.segment.name.number), reverse=True):
            if len(kept) == lines and part.last < kept[-1].t:
                break  # all further segments are older than what is kept
            entries = islice(filter(wanted, part.backwards()), lines)
            # It is stable: of lines with the same time, those that were read first stay first.
            kept = heapq.nlargest(lines, chain(kept, entries), key=lambda entry: entry.t)
        # A day's segments may hold lines of the next day, so one day that adds no line must be read before stopping.
        is_complete = len(kept) == lines and kept == before
    return kept[::-1]


def _day(segment: Segment) -> str:
    return segment.directory.name


def _skip(segments: Iterable[Segment], follower: Follower) -> None:
    for segment in segments:
        if segment.finished.exists():
            follower.skip(segment, 0, finished=True)
        else:
            _part(segment, follower)


def _part(segment: Segment, follower: Follower) -> _SegmentPart | None:
    opened = segment.open()
    if opened is None:
        return None
    file, finished = opened
    with file:
        end = file.seek(0, 2) if finished else end_of_lines(file)
        parsed = (decode(raw) for raw in islice(raw_lines_backwards(file, end), _NEAR_END))
        last = next((line.t for line in parsed if isinstance(line, ParsedLine)), inf)
    follower.skip(segment, end, finished=finished)
    return _SegmentPart(segment, end, last)


# Lines as text.


class Printer:
    """Writes lines to standard output, as they are in the journal (``as_json``) or as text for people."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._day = ""
        self._nodes: set[str] = set()
        self._client_width = 0

    def show(self, entry: JournalEntry) -> None:
        """Write one line."""
        if self._as_json:
            print(entry.raw.decode("utf-8", "replace"))
            return
        when = datetime_of(entry.t)
        if (day := str(when.date())) != self._day:
            self._day = day
            print(f"-- {day} (UTC)")
        node = entry.segment.name.node
        self._nodes.add(node)
        place = f"{printable(node)}  " if len(self._nodes) > 1 else ""
        print(f"{when:%H:%M:%S.%f}  {place}{self._line(entry)}".rstrip())

    def _line(self, entry: JournalEntry) -> str:
        line = entry.line
        if not isinstance(line, ParsedLine):
            raw = printable(entry.raw[:_MAX_RAW_WIDTH].decode("utf-8", "replace"))
            return f"{'':6}  {'':{self._client_width}}  {'BAD':<5} {printable(line)}: {raw}"
        number = "" if line.c is None else f"#{line.c}"
        client = "" if line.vh is None and line.u is None else printable(f"{line.u or ''}@{line.vh or ''}")
        self._client_width = width = max(self._client_width, min(len(client), _MAX_CLIENT_WIDTH))
        return f"{number:>6}  {client:{width}}  {printable(line.e).upper():<5} {printable(describe(entry, line))}"


def describe(entry: JournalEntry, line: ParsedLine) -> str:
    """What a line says beyond its time, session, user and event."""
    texts = _TEXTS.get(line.e)
    if texts is None:  # an event of a later gateway
        return entry.raw[:_MAX_RAW_WIDTH].decode("utf-8", "replace")
    return _joined(*texts(line))


def _joined(*texts: str) -> str:
    return " ".join(filter(None, texts))


def _took(line: ParsedLine) -> str:
    return "" if line.l is None else f"in {latency(line.l / 1e6)}"


def _weight(line: ParsedLine) -> str:
    return "" if line.w is None or line.w == 1 else f"(stands for {line.w:g})"


def _subscription(line: ParsedLine) -> str:
    durable = f"durable as {line.sn}" if line.sn and line.e == "sub" else line.sn or ""
    return _joined(f"id {line.s}" if line.s is not None else "", durable)


def _unacked(number: int) -> str:
    return f"{number} unacknowledged" if number else ""


def _open(line: ParsedLine) -> Iterable[str]:
    return (
        f"segment {line.seg} of boot {line.boot}, {line.impl} {line.gw} on {line.node}, pid {line.pid}",
        f"configuration {line.cfg}" if line.cfg else "",
    )


def _conn(line: ParsedLine) -> Iterable[str]:
    heart_beats = f"heart-beats {line.hb}" if line.hb and line.hb != "0,0" else ""
    return f"STOMP {line.ver}" if line.ver else "", "TLS" if line.tls else "", _source(line), _took(line), heart_beats


def _source(line: ParsedLine) -> str:
    return f"from {line.ip}" if line.ip else ""


def _end(line: ParsedLine) -> Iterable[str]:
    total = line.f or SessionTotals()
    received = f"{total.frames_in} frames ({byte_size(total.bytes_in)}) in"
    sent = f"{total.frames_out} ({byte_size(total.bytes_out)}) out"
    return line.x or "", f"after {latency(total.us / 1e6)},", f"{received}, {sent}", _unacked(total.unacked)


def _sub(line: ParsedLine) -> Iterable[str]:
    prefetch = f"prefetch {line.pf}" if line.pf else ""
    marks = ("auto-delete" if line.ad else "", "exclusive" if line.ex else "")
    return line.d or "", _subscription(line), f"ack {line.am}", prefetch, *marks


def _send(line: ParsedLine) -> Iterable[str]:
    marks = ("persistent" if line.p else "", "transaction" if line.tx else "", "receipt" if line.rc else "")
    headers = (f"{name}={value}" for name, value in (line.hv or {}).items())
    return line.d or "", byte_size(line.b or 0), *marks, *headers, _weight(line)


def _dlv(line: ParsedLine) -> Iterable[str]:
    marks = ("redelivered" if line.r else "", "" if line.ql is None else f"published {latency(line.ql / 1e6)} before")
    return line.d or "", _subscription(line), f"message {line.m}", byte_size(line.b or 0), *marks, _weight(line)


def _ack(line: ParsedLine) -> Iterable[str]:
    number = 1 if line.n is None else line.n
    which = f"message {line.m}" if number == 1 else f"{number} messages up to {line.m}"
    return line.d or "", _subscription(line), which, line.x or "", _took(line), _weight(line)


def _stat(line: ParsedLine) -> Iterable[str]:
    counts = line.cnt or {}
    texts = [f"{name} {number}" for name, number in counts.items() if not name.endswith("_bytes")]
    sizes = [f"{name[:-6]} {byte_size(number)}" for name, number in counts.items() if name.endswith("_bytes")]
    return line.d or "", _subscription(line), ", ".join(texts + sizes + list(_latencies(line.h or {})))


def _latencies(histogram: dict[str, int]) -> Iterator[str]:
    by_name: dict[str, Counter[int]] = {}
    for key, number in histogram.items():
        name, _, bucket = key.partition(":")
        if bucket.isdecimal() and len(bucket) <= _MAX_BUCKET_DIGITS:
            by_name.setdefault(name, Counter())[int(bucket)] += number
    for name, counts in by_name.items():
        p50, p99 = percentile(counts, 0.5), percentile(counts, 0.99)
        if p50 is not None and p99 is not None:
            yield f"{name} p50 {latency(p50 / 1e6)}, p99 {latency(p99 / 1e6)}"


_TEXTS: Final[dict[str, Callable[[ParsedLine], Iterable[str]]]] = {
    "open": _open,
    "close": lambda _: ("the boot ended in good order",),
    "drop": lambda line: (f"{line.n} events were not written",),
    "conn": _conn,
    "end": _end,
    "use": lambda line: (line.x or "", f"STOMP {line.ver}" if line.ver else ""),
    "sub": _sub,
    "unsub": lambda line: (line.d or "", _subscription(line), line.x or "", _unacked(line.n or 0)),
    "send": _send,
    "conf": lambda line: (line.d or "", f"message {line.m}", line.x or "", _took(line), _weight(line)),
    "dlv": _dlv,
    "ack": _ack,
    "nack": _ack,
    "err": lambda line: (line.x or "", _source(line)),
    "audit": lambda line: (line.x or "", _source(line)),
    "blk": lambda line: (line.d or "", line.s or "", f"{line.x} for {latency((line.l or 0) / 1e6)}"),
    "stat": _stat,
}
