"""`stomp-gateway journal tail`: the last lines of a journal, and what comes, in words."""

from __future__ import annotations

import heapq
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import count, groupby, islice
from math import inf
from pathlib import Path
from typing import Final, get_args

from gateway.errors import UsageError
from gateway.journal.histogram import percentile
from gateway.journal.reading import (
    Entry,
    Follower,
    Read,
    Segment,
    decode,
    end_of_lines,
    list_segments,
    raw_lines_backwards,
)
from gateway.journal.schema import AnyLine, Totals

BAD: Final = "bad"
"""What --event calls a line that cannot be read."""

EVENTS: Final = (*(str(kind.__struct_config__.tag) for kind in get_args(AnyLine)), BAD)
"""What --event knows."""

_NEAR: Final = 1000  # lines
_POLL: Final = 0.25  # seconds
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDEST_WHO: Final = 24
_WIDEST_RAW: Final = 200


def tail(options: Namespace) -> None:
    """Print the last lines of a journal, and with ``follow`` what comes, until somebody interrupts.

    Args:
        options: of the command line: directory, lines, follow, event, session, destination, user, json.

    Raises:
        UsageError: an option cannot be meant so.
        UnreadableError: the directory cannot be read.
        BrokenPipeError: nobody reads any more what is printed.
    """
    wanted = _wanted(options)
    follower = Follower(options.directory)
    printer = Printer(as_json=options.json)
    for entry in latest(options.directory, options.lines, wanted, follower):
        printer.show(entry)
    sys.stdout.flush()
    while options.follow:
        for entry in follower.new():
            if wanted(entry):
                printer.show(entry)
        sys.stdout.flush()
        time.sleep(_POLL)


def _wanted(options: Namespace) -> Callable[[Entry], bool]:
    """The choice that the options make."""
    if options.lines < 0:
        raise UsageError(f"--lines {options.lines}: give a number of lines, 0 for none.")
    events = frozenset(name.strip() for name in options.event.split(",")) if options.event else None
    if events and (unknown := sorted(events - set(EVENTS))):
        raise UsageError(f"--event {', '.join(unknown)}: there are {', '.join(EVENTS)}.")
    return Choice(events, options.session, options.destination, options.user)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines somebody wants to see. A line that lacks what is asked for is not wanted."""

    events: frozenset[str] | None = None
    session: int | None = None
    destination: str | None = None
    """A pattern as of a shell."""
    user: str | None = None

    def __call__(self, entry: Entry) -> bool:
        """Whether a line is wanted."""
        line = entry.line
        if not isinstance(line, Read):
            return BAD in self.events if self.events else (self.session, self.destination, self.user) == (None,) * 3
        return (
            (self.events is None or line.e in self.events)
            and (self.session is None or line.c == self.session)
            and (self.user is None or line.u == self.user)
            and (self.destination is None or (line.d is not None and fnmatchcase(line.d, self.destination)))
        )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A segment up to where it went when the journal was listed."""

    segment: Segment
    end: int
    last: float
    """When its last good line was written; infinite when there is none near its end."""


def latest(directory: Path, lines: int, wanted: Callable[[Entry], bool], follower: Follower) -> list[Entry]:
    """The last lines of a journal that are wanted, by time.

    Args:
        directory: of the journal.
        lines: at most so many.
        wanted: the choice.
        follower: goes on behind what was there when this began.

    Raises:
        UnreadableError: the directory cannot be read.
    """
    kept = _Latest(lines, wanted)
    settled = lines == 0
    by_day = groupby(sorted(list_segments(directory).segments, key=_day, reverse=True), key=_day)
    for _, segments in by_day:
        if settled:
            _pass_over(segments, follower)
            continue
        stretches = [stretch for segment in segments if (stretch := _stretch(segment, follower))]
        # A day's segments may hold lines of the next one; those that add nothing have none before them that do.
        settled = not kept.take(stretches) and kept.full
    return kept.by_time()


def _day(segment: Segment) -> str:
    return segment.directory.name


def _pass_over(segments: Iterable[Segment], follower: Follower) -> None:
    for segment in segments:
        if segment.finished.exists():
            follower.skip(segment, 0, finished=True)
        else:
            _stretch(segment, follower)


def _stretch(segment: Segment, follower: Follower) -> _Stretch | None:
    opened = segment.open()
    if opened is None:
        return None
    file, finished = opened
    with file:
        end = file.seek(0, 2) if finished else end_of_lines(file)
        read = (decode(raw) for raw in islice(raw_lines_backwards(file, end), _NEAR))
        last = next((line.t for line in read if isinstance(line, Read)), inf)
    follower.skip(segment, end, finished=finished)
    return _Stretch(segment, end, last)


class _Latest:
    """The last lines that were come upon.

    Args:
        lines: how many to keep.
        wanted: which.
    """

    def __init__(self, lines: int, wanted: Callable[[Entry], bool]) -> None:
        self._lines = lines
        self._wanted = wanted
        self._kept: list[tuple[int, int, Entry]] = []
        self._ages = count(0, -1)  # lines of a boot are come upon backwards

    @property
    def full(self) -> bool:
        """Whether there are enough."""
        return len(self._kept) == self._lines

    def by_time(self) -> list[Entry]:
        """Those that were kept, the earliest first."""
        return [entry for _, _, entry in sorted(self._kept, key=lambda each: each[:2])]

    def take(self, stretches: Iterable[_Stretch]) -> bool:
        """Take up some segments.

        Returns:
            Whether any line of theirs is kept.
        """
        taken = False
        # Of a boot the later segment first, where it stopped and the next one went on in the same microsecond.
        for stretch in sorted(stretches, key=lambda each: (each.last, each.segment.name.number), reverse=True):
            if self.full and stretch.last < self._kept[0][0]:
                break  # what is left is older than all that is kept
            for entry in self._backwards(stretch):
                taken |= self._keep(entry)
        return taken

    def _keep(self, entry: Entry) -> bool:
        item = (entry.t, next(self._ages), entry)
        if not self.full:
            heapq.heappush(self._kept, item)
            return True
        return heapq.heappushpop(self._kept, item) is not item

    def _backwards(self, stretch: _Stretch) -> Iterator[Entry]:
        """The last wanted lines of a segment, from the last one on."""
        opened = stretch.segment.open()
        if opened is None:
            return
        t = 0 if stretch.last == inf else int(stretch.last)
        found = 0
        with opened[0] as file:
            for raw in raw_lines_backwards(file, stretch.end):
                line = decode(raw)
                t = line.t if isinstance(line, Read) else t
                entry = Entry(stretch.segment, raw, line, t)
                if self._wanted(entry):
                    found += 1
                    yield entry
                if found == self._lines:
                    return


class Printer:
    """Writes lines to standard output.

    Args:
        as_json: as they are in the journal, for another program to read; otherwise in words.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._day = ""
        self._nodes: set[str] = set()
        self._who = 0

    def show(self, entry: Entry) -> None:
        """Write one line."""
        if self._as_json:
            print(entry.raw.decode("utf-8", "replace"))
            return
        when = _EPOCH + timedelta(microseconds=min(max(entry.t, 0), _LAST_MOMENT))
        if (day := f"{when:%Y-%m-%d}") != self._day:
            self._day = day
            print(f"-- {day} (UTC)")
        node = entry.segment.name.node
        self._nodes.add(node)
        place = f"{printable(node)}  " if len(self._nodes) > 1 else ""
        print(f"{when:%H:%M:%S.%f}  {place}{self._about(entry)}".rstrip())

    def _about(self, entry: Entry) -> str:
        line = entry.line
        if not isinstance(line, Read):
            raw = printable(entry.raw[:_WIDEST_RAW].decode("utf-8", "replace"))
            return f"{'':6}  {'':{self._who}}  {'BAD':<5} {printable(line)}: {raw}"
        number = "" if line.c is None else f"#{line.c}"
        who = "" if line.vh is None and line.u is None else printable(f"{line.u or ''}@{line.vh or ''}")
        self._who = max(self._who, min(len(who), _WIDEST_WHO))
        return f"{number:>6}  {who:{self._who}}  {printable(line.e).upper():<5} {printable(in_words(entry, line))}"


def in_words(entry: Entry, line: Read) -> str:
    """What a line says beyond its time, session, user and event."""
    words = _WORDS.get(line.e)
    if words is None:  # of a later gateway
        return entry.raw[:_WIDEST_RAW].decode("utf-8", "replace")
    return " ".join(filter(None, words(line)))


def printable(text: str) -> str:
    """A text that does nothing to a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def duration(microseconds: float) -> str:
    """A duration for people, with three figures or so."""
    if microseconds < 1000:  # noqa: PLR2004
        return f"{microseconds:.0f} us"
    if microseconds < 1_000_000:  # noqa: PLR2004
        return f"{microseconds / 1000:.{_places(microseconds / 1000)}f} ms"
    return f"{microseconds / 1e6:.{_places(microseconds / 1e6)}f} s"


def _places(value: float) -> int:
    return 1 if value < 100 else 0  # noqa: PLR2004


def octets(number: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":  # noqa: PLR2004
            return f"{number:.0f} B" if unit == "B" else f"{number:.{_places(number)}f} {unit}"
        number /= 1000
    raise AssertionError


def _took(line: Read) -> str:
    return "" if line.l is None else f"in {duration(line.l)}"


def _weight(line: Read) -> str:
    return "" if line.w is None or line.w == 1 else f"(stands for {line.w:g})"


def _subscription(line: Read) -> str:
    durable = f"durable as {line.sn}" if line.sn and line.e == "sub" else line.sn or ""
    return " ".join(filter(None, (f"id {line.s}" if line.s is not None else "", durable)))


def _unacked(number: int) -> str:
    return f"{number} unacknowledged" if number else ""


def _open(line: Read) -> Iterable[str]:
    return (
        f"segment {line.seg} of boot {line.boot}, {line.impl} {line.gw} on {line.node}, pid {line.pid}",
        f"configuration {line.cfg}" if line.cfg else "",
    )


def _conn(line: Read) -> Iterable[str]:
    source = f"from {line.ip}" if line.ip else ""
    beats = f"heart-beats {line.hb}" if line.hb and line.hb != "0,0" else ""
    return f"STOMP {line.ver}" if line.ver else "", "TLS" if line.tls else "", source, _took(line), beats


def _end(line: Read) -> Iterable[str]:
    total = line.f or Totals()
    return (
        line.x or "",
        f"after {duration(total.us)},",
        f"{total.frames_in} frames ({octets(total.bytes_in)}) in, {total.frames_out} ({octets(total.bytes_out)}) out",
        _unacked(total.unacked),
    )


def _sub(line: Read) -> Iterable[str]:
    prefetch = f"prefetch {line.pf}" if line.pf else ""
    marks = ("auto-delete" if line.ad else "", "exclusive" if line.ex else "")
    return line.d or "", _subscription(line), f"ack {line.am}", prefetch, *marks


def _unsub(line: Read) -> Iterable[str]:
    return line.d or "", _subscription(line), line.x or "", _unacked(line.n or 0)


def _send(line: Read) -> Iterable[str]:
    marks = ("persistent" if line.p else "", "transaction" if line.tx else "", "receipt" if line.rc else "")
    headers = (f"{name}={value}" for name, value in (line.hv or {}).items())
    return line.d or "", octets(line.b or 0), *marks, *headers, _weight(line)


def _conf(line: Read) -> Iterable[str]:
    return line.d or "", f"message {line.m}", line.x or "", _took(line), _weight(line)


def _dlv(line: Read) -> Iterable[str]:
    again = "redelivered" if line.r else ""
    return line.d or "", _subscription(line), f"message {line.m}", octets(line.b or 0), again, _weight(line)


def _ack(line: Read) -> Iterable[str]:
    number = 1 if line.n is None else line.n
    which = f"message {line.m}" if number == 1 else f"{number} messages up to {line.m}"
    return line.d or "", _subscription(line), which, line.x or "", _took(line), _weight(line)


def _stat(line: Read) -> Iterable[str]:
    counts = line.cnt or {}
    texts = [f"{name} {number}" for name, number in counts.items() if not name.endswith("_bytes")]
    both = [f"{name[:-6]} {octets(number)}" for name, number in counts.items() if name.endswith("_bytes")]
    return line.d or "", _subscription(line), ", ".join(texts + both + list(_latencies(line.h or {})))


def _latencies(histogram: dict[str, int]) -> Iterator[str]:
    by_name: dict[str, Counter[int]] = {}
    for key, number in histogram.items():
        name, _, bucket = key.partition(":")
        if bucket.isdecimal() and len(bucket) < _LONGEST_BUCKET:
            by_name.setdefault(name, Counter())[int(bucket)] += number
    for name, counts in by_name.items():
        half, most = percentile(counts, 0.5), percentile(counts, 0.99)
        if half is not None and most is not None:
            yield f"{name} p50 {duration(half)}, p99 {duration(most)}"


_LONGEST_BUCKET: Final = 4  # digits
_LAST_MOMENT: Final = 253_402_300_799_999_999  # the end of the year 9999, in microseconds

_WORDS: Final[dict[str, Callable[[Read], Iterable[str]]]] = {
    "open": _open,
    "close": lambda _: ("the boot ended in good order",),
    "drop": lambda line: (f"{line.n} events were not written",),
    "conn": _conn,
    "end": _end,
    "use": lambda line: (line.x or "", f"STOMP {line.ver}" if line.ver else ""),
    "sub": _sub,
    "unsub": _unsub,
    "send": _send,
    "conf": _conf,
    "dlv": _dlv,
    "ack": _ack,
    "nack": _ack,
    "err": lambda line: (line.x or "", f"from {line.ip}" if line.ip else ""),
    "blk": lambda line: (f"{line.x} for {duration(line.l or 0)}",),
    "stat": _stat,
}
