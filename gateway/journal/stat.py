"""`stomp-gateway journal stat`: counts what is in a journal."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TextIO

import msgspec
from msgspec import Struct

from gateway.journal.reading import Segment, list_segments, raw_lines
from gateway.journal.schema import VERSION
from gateway.texts import aligned, byte_size, counted, printable
from gateway.times import moment

_MAX_DESTINATIONS: Final = 20
_MAX_BOOTS: Final = 50
_PROGRESS_AFTER: Final = 1.0  # seconds
_PROGRESS_EVERY: Final = 0.5  # seconds


class _CountedLine(Struct, gc=False):
    """The fields that are counted, and no others, because most of the time goes into decoding."""

    e: str
    t: int
    q: int
    vh: str | None = None
    d: str | None = None
    b: int | None = None
    n: int | None = None
    x: str | None = None
    w: float | None = None
    cnt: dict[str, int] | None = None
    v: int | None = None
    gw: str | None = None


@dataclass
class BootStat:
    """One run of one gateway. The fields are those of a boot in the output of --json.

    ``skipped`` counts the numbers between the first and the last line that no line has, and ``repeated`` the lines
    whose number, or a higher one, came before.
    """

    impl: str
    node: str
    boot: str
    gateway_version: str | None = None
    first_us: int | None = None
    last_us: int | None = None
    first_number: int | None = None
    next_number: int | None = None
    closed: bool = False
    being_written: bool = False
    segments: int = 0
    lines: int = 0
    bad_lines: int = 0
    dropped: int = 0
    skipped: int = 0
    repeated: int = 0

    @property
    def missing(self) -> int:
        """Lines that are lost, assuming that each unreadable line has one of the skipped numbers."""
        return max(0, self.skipped - self.bad_lines)

    def expect(self, number: int, expected: int | None) -> None:
        """Note a line whose number is not the expected one."""
        if expected is None:
            self.first_number = number
        elif number > expected:
            self.skipped += number - expected
        else:
            self.repeated += 1


@dataclass
class DestinationStat:
    """Messages of one destination. A sampled line counts by its weight."""

    virtual_host: str | None
    destination: str
    sent: float = 0
    sent_bytes: float = 0
    delivered: float = 0
    delivered_bytes: float = 0


@dataclass
class Contents:
    """What is in a journal."""

    finished: int = 0
    being_written: int = 0
    unreadable: int = 0
    later: list[str] = field(default_factory=list)
    unknown: int = 0
    size: int = 0
    """Bytes."""
    lines: int = 0
    bad_lines: int = 0
    events: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    boots: list[BootStat] = field(default_factory=list)
    destinations: dict[tuple[str | None, str], DestinationStat] = field(default_factory=dict)

    def span(self) -> tuple[int, int] | None:
        """The times of the first and the last line, in microseconds since the epoch."""
        first = [boot.first_us for boot in self.boots if boot.first_us is not None]
        last = [boot.last_us for boot in self.boots if boot.last_us is not None]
        return (min(first), max(last)) if first and last else None


def stat(options: Namespace) -> None:
    """Count what is in a journal and print it. Raises `UnreadableError` if the directory cannot be read."""
    contents = contents_of(options.directory, _Progress(sys.stderr))
    print(json.dumps(as_json(contents), indent=2) if options.json else "\n".join(as_text(contents)))


class _Progress:
    """Shows on a terminal, twice a second, how many segments and bytes have been read."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = time.monotonic() + _PROGRESS_AFTER if out.isatty() else float("inf")
        self._shown = False

    def at(self, number: int, total: int, read: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_EVERY
        self._shown = True
        self._out.write(f"\r\033[Kreading: {number} of {total} segments, {byte_size(read)}")
        self._out.flush()

    def end(self) -> None:
        if self._shown:
            self._out.write("\r\033[K")
            self._out.flush()


def contents_of(directory: Path, progress: _Progress | None = None) -> Contents:
    """Count what is in a journal. Raises `UnreadableError` if the directory cannot be read."""
    listing = list_segments(directory)
    writing, segments = set(listing.being_written), listing.segments
    contents = Contents(
        finished=len(listing.finished),
        being_written=len(writing - set(listing.finished)),
        later=[str(path.relative_to(directory)) for path in listing.later],
        unknown=len(listing.unknown),
    )
    boots: dict[tuple[str, str, str], BootStat] = {}
    try:
        for number, segment in enumerate(segments):
            key = segment.order[:3]
            boot = boots.setdefault(key, BootStat(*key))
            boot.being_written |= segment in writing
            if progress:
                progress.at(number, len(segments), contents.size)
            _count_segment(segment, boot, contents)
    finally:
        if progress:
            progress.end()
    contents.boots = sorted(boots.values(), key=lambda each: (each.first_us or 0, each.node, each.boot))
    return contents


def _count_segment(segment: Segment, boot: BootStat, contents: Contents) -> None:
    opened = segment.open()
    if opened is None:
        contents.unreadable += 1
        return
    file, finished = opened
    boot.segments += 1
    lines, bad, position, first_us, last_us = 0, 0, 0, boot.first_us, boot.last_us
    expected = boot.next_number
    events = contents.events
    decoder = msgspec.json.Decoder(_CountedLine)
    with file:
        for raw, position in raw_lines(file, rest=finished):  # noqa: B007 - the last one is needed
            lines += 1
            try:
                line = decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            if line.e == "open" and line.v != VERSION:
                bad += 1
                continue
            if line.q != expected:
                boot.expect(line.q, expected)
            expected = line.q + 1 if expected is None or line.q >= expected else expected
            if first_us is None or line.t < first_us:
                first_us = line.t
            if last_us is None or line.t > last_us:
                last_us = line.t
            events[line.e] += 1
            if line.e in _COUNTED_EVENTS:
                _count_line(line, boot, contents)
    boot.first_us, boot.last_us, boot.next_number = first_us, last_us, expected
    boot.lines += lines
    boot.bad_lines += bad
    contents.lines += lines
    contents.bad_lines += bad
    contents.size += position


_COUNTED_EVENTS: Final = frozenset(("open", "close", "drop", "err", "send", "dlv", "stat"))


def _count_line(line: _CountedLine, boot: BootStat, contents: Contents) -> None:
    if line.e == "open":
        boot.gateway_version = line.gw
    elif line.e == "close":
        boot.closed = True
    elif line.e == "drop":
        boot.dropped += line.n or 0
    elif line.e == "err":
        contents.errors[line.x or ""] += 1
    else:
        key = line.vh, line.d or ""
        destination = contents.destinations.get(key)
        if destination is None:
            destination = contents.destinations[key] = DestinationStat(*key)
        _count_messages(line, destination)


def _count_messages(line: _CountedLine, destination: DestinationStat) -> None:
    weight = 1 if line.w is None else line.w
    if line.e == "send":
        destination.sent += weight
        destination.sent_bytes += weight * (line.b or 0)
    elif line.e == "dlv":
        destination.delivered += weight
        destination.delivered_bytes += weight * (line.b or 0)
    else:
        counts = line.cnt or {}
        destination.sent += counts.get("send", 0)
        destination.sent_bytes += counts.get("send_bytes", 0)
        destination.delivered += counts.get("dlv", 0)
        destination.delivered_bytes += counts.get("dlv_bytes", 0)


def _busiest(contents: Contents) -> list[DestinationStat]:
    busy = [each for each in contents.destinations.values() if each.sent or each.delivered]
    return sorted(busy, key=lambda each: (-(each.sent + each.delivered), each.destination, each.virtual_host or ""))


def as_json(contents: Contents) -> dict[str, object]:
    """The counts for another program. Times are microseconds since the epoch."""
    span = contents.span()
    return {
        "segments": {
            "finished": contents.finished,
            "being_written": contents.being_written,
            "unreadable": contents.unreadable,
            "of_later_versions": contents.later,
            "other_files": contents.unknown,
        },
        "bytes": contents.size,
        "lines": contents.lines,
        "bad_lines": contents.bad_lines,
        "first_us": span and span[0],
        "last_us": span and span[1],
        "events": dict(contents.events.most_common()),
        "sessions": {"begun": contents.events["conn"], "ended": contents.events["end"]},
        "errors": dict(contents.errors.most_common()),
        "boots": [asdict(boot) | {"missing": boot.missing} for boot in contents.boots],
        "destinations": [asdict(each) for each in _busiest(contents)],
    }


def as_text(contents: Contents) -> Iterator[str]:
    """The counts for people, line by line."""
    open_segments = f", {contents.being_written} being written" if contents.being_written else ""
    yield f"segments      {contents.finished} finished{open_segments}, {byte_size(contents.size)}"
    span = contents.span()
    yield f"time          {f'{moment(span[0])} to {moment(span[1])} (UTC)' if span else 'no lines'}"
    bad = f", {contents.bad_lines:,} of them cannot be read" if contents.bad_lines else ""
    yield f"lines         {contents.lines:,}{bad}"
    yield f"sessions      {contents.events['conn']:,} begun, {contents.events['end']:,} ended"
    yield from _not_counted(contents)
    if contents.boots:
        yield from ("", *_boots(contents.boots))
    for title, counter in (("events", contents.events), ("errors", contents.errors)):
        if counter:
            yield from ("", title)
            yield from (f"  {printable(name):<28} {number:>12,}" for name, number in counter.most_common())
    if busy := _busiest(contents):
        yield from ("", *_destinations(busy))


def _not_counted(contents: Contents) -> Iterator[str]:
    if contents.unreadable:
        yield f"unreadable    {counted(contents.unreadable, 'segment')} could not be opened: may this user read them?"
    if contents.later:
        yield (
            f"later         {counted(len(contents.later), 'segment')} of a later schema version not counted; "
            "use the release that wrote them"
        )
    if contents.unknown:
        yield f"other files   {contents.unknown}, not looked at"


def _boots(boots: list[BootStat]) -> Iterator[str]:
    yield f"boots ({len(boots)})"
    rows = [("  node", "boot", "version", "first", "last", "lines", "")]
    for boot in boots[-_MAX_BOOTS:]:
        first, last = (moment(t) if t is not None else "-" for t in (boot.first_us, boot.last_us))
        version = printable(boot.gateway_version or "-")
        rows.append((f"  {boot.node}", boot.boot, version, first, last, f"{boot.lines:,}", ", ".join(_marks(boot))))
    yield from aligned(rows, figures=(5,))
    if len(boots) > _MAX_BOOTS:
        yield f"  and {len(boots) - _MAX_BOOTS} earlier ones (--json has all)"


def _marks(boot: BootStat) -> Iterator[str]:
    yield "closed" if boot.closed else "being written" if boot.being_written else "did not close: running, or killed"
    if boot.first_number:
        yield f"begins at line {boot.first_number:,}"
    if boot.missing:
        yield f"{boot.missing:,} MISSING"
    if boot.repeated:
        yield f"{boot.repeated:,} REPEATED"
    if boot.dropped:
        yield f"{boot.dropped:,} dropped"
    if boot.bad_lines:
        yield f"{boot.bad_lines:,} bad"


def _destinations(busy: list[DestinationStat]) -> Iterator[str]:
    rows = [("destinations", "sent", "", "delivered", "")]
    for each in busy[:_MAX_DESTINATIONS]:
        name = printable(f"  {each.destination} ({each.virtual_host or '?'})")
        sent, delivered = f"{each.sent:,.0f}", f"{each.delivered:,.0f}"
        rows.append((name, sent, byte_size(each.sent_bytes), delivered, byte_size(each.delivered_bytes)))
    yield from aligned(rows, figures=range(1, 5))
    if len(busy) > _MAX_DESTINATIONS:
        yield f"  and {len(busy) - _MAX_DESTINATIONS} more (--json has all)"
