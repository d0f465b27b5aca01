"""Reading a journal while gateways write it: every line once, junk as junk, and no mind about renames.

A segment keeps its identity when it is finished and renamed, so a reader that stands at some byte of an open segment
goes on at that byte of the finished one. Nothing raises on what stands in a file; only a directory that cannot be read
at all does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from gateway.errors import GatewayError
from gateway.journal.schema import VERSION, Totals
from gateway.journal.segments import OPEN_SUFFIX, SegmentName

LONGEST_LINE: Final = 1 << 20
"""Bytes of a line that are kept; what is longer is no line of a gateway."""

_BLOCK: Final = 1 << 20
_BLOCK_BACKWARDS: Final = 1 << 16
_DAY: Final = re.compile(r"d=([0-9]{4}-[0-9]{2}-[0-9]{2})")
_SETTLED_AFTER: Final = 2.0  # seconds; a directory's time of change may be as coarse as that
_LIVELY_DAYS: Final = 2  # a day, and the day before it, whose last segments are still written after midnight


class UnreadableError(GatewayError):
    """A journal directory that cannot be read; the text says what to do."""


class Read(Struct, gc=False):
    """A line of any event, with all fields of the schema; those that are absent are None.

    A field of another type makes the line a bad one; a field that is not listed here is ignored.
    """

    e: str
    t: int
    q: int
    c: int | None = None
    vh: str | None = None
    u: str | None = None
    d: str | None = None
    dk: str | None = None
    s: str | None = None
    sn: str | None = None
    am: str | None = None
    m: int | None = None
    b: int | None = None
    hn: int | None = None
    p: bool | None = None
    tx: bool | None = None
    rc: bool | None = None
    r: bool | None = None
    l: int | None = None  # noqa: E741 - the schema's name
    n: int | None = None
    x: str | None = None
    w: float | None = None
    ip: str | None = None
    tls: bool | None = None
    ver: str | None = None
    hb: str | None = None
    pf: int | None = None
    du: bool | None = None
    ad: bool | None = None
    ex: bool | None = None
    f: Totals | None = None
    cnt: dict[str, int] | None = None
    h: dict[str, int] | None = None
    hv: dict[str, str] | None = None
    v: int | None = None
    node: str | None = None
    boot: str | None = None
    pid: int | None = None
    impl: str | None = None
    gw: str | None = None
    seg: int | None = None
    cfg: str | None = None


_decoder: Final = msgspec.json.Decoder(Read)


def decode(raw: bytes) -> Read | str:
    """Take a line apart.

    Args:
        raw: the line, without its LF.

    Returns:
        The line, or why it is a bad one.
    """
    try:
        line = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    if line.e == "open" and line.v != VERSION:
        return f"schema version {line.v}, where the segment's name says {VERSION}"
    return line


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of this schema version, whatever its file is called just now."""

    directory: Path
    """Of its day."""
    name: SegmentName

    @property
    def finished(self) -> Path:
        """Its file when it is finished."""
        return self.directory / str(self.name)

    @property
    def order(self) -> tuple[str, str, str, int, str]:
        """Sorts the segments of a boot as they were written, and keeps those of a boot together."""
        return self.name.impl, self.name.node, self.name.boot, self.name.number, self.directory.name

    def open(self) -> tuple[BinaryIO, bool] | None:
        """Open its file, under whichever name.

        Returns:
            The file, and whether it is finished; None when it has gone, or may not be read.
        """
        # In this order, because it may be renamed between the attempts.
        for path, finished in ((self.directory / self.name.while_open, False), (self.finished, True)):
            try:
                return path.open("rb"), finished
            except OSError:
                continue
        return None


@dataclass
class Listing:
    """What lies in a journal directory."""

    finished: list[Segment] = field(default_factory=list)
    being_written: list[Segment] = field(default_factory=list)
    later: list[Path] = field(default_factory=list)
    """Segments of schema versions that this release does not know."""
    strange: list[Path] = field(default_factory=list)
    """Files in the days' directories that are no segments."""

    @property
    def segments(self) -> list[Segment]:
        """All that can be read, boot by boot in the order of writing; one that was seen under both names once."""
        return sorted({*self.finished, *self.being_written}, key=lambda each: each.order)

    def add(self, path: Path) -> None:
        """Take up a file of a day's directory."""
        name = SegmentName.read(path.name)
        hidden, unfinished = path.name.startswith("."), path.name.endswith(OPEN_SUFFIX)
        if name is None or hidden != unfinished:
            self.strange.append(path)
        elif name.version != VERSION:
            self.later.append(path)
        else:
            (self.being_written if unfinished else self.finished).append(Segment(path.parent, name))


def days(directory: Path) -> list[Path]:
    """The directories of a journal's days, the earliest first.

    Raises:
        UnreadableError: the directory is not there, is none, or may not be read.
    """
    if _DAY.fullmatch(directory.name) and directory.is_dir():
        raise UnreadableError(f"{directory} is one day of a journal. Give the directory above it.")
    try:
        found = [path for path in directory.iterdir() if _DAY.fullmatch(path.name) and path.is_dir()]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreadableError(
            f"cannot read the journal {directory}: {reason}. Give the directory that the gateway's journal names."
        ) from error
    return sorted(found)


def list_segments(directory: Path) -> Listing:
    """List a whole journal.

    Raises:
        UnreadableError: the directory cannot be read.
    """
    listing = Listing()
    for day in days(directory):
        _list_day(day, listing)
    return listing


def _list_day(day: Path, listing: Listing) -> None:
    try:
        paths = sorted(day.iterdir())
    except OSError:  # gone since, or not to be read: as good as empty
        return
    for path in paths:
        listing.add(path)


def raw_lines(file: BinaryIO, *, rest: bool, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Read lines from an byte on.

    Args:
        file: of a segment.
        rest: what stands behind the last LF is a line too, because nothing more will be written behind it.
        start: byte at which a line begins.

    Yields:
        Each line without its LF, cut to `LONGEST_LINE`, and the byte at which the next one begins.
    """
    file.seek(start)
    position, held, held_octets = start, b"", 0
    while block := file.read(_BLOCK):
        first, *others = block.split(b"\n")
        if not others:  # no end of a line in all of it
            held = (held + first)[:LONGEST_LINE]
            held_octets += len(first)
            continue
        position += held_octets + len(first) + 1
        yield (held + first)[:LONGEST_LINE], position
        for line in others[:-1]:
            position += len(line) + 1
            yield line, position
        held = others[-1]
        held_octets = len(held)
    if rest and held_octets:
        yield held, position + held_octets


def raw_lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Read lines from the last to the first.

    Args:
        file: of a segment.
        end: byte behind a line; nothing behind it is looked at.

    Yields:
        Each line without its LF, cut to `LONGEST_LINE`.
    """
    if end <= 0:
        return
    held = b""
    file.seek(end - 1)
    position = end - 1 if file.read(1) == b"\n" else end  # the last line's LF ends it, and begins no other
    while position > 0:
        octets = min(_BLOCK_BACKWARDS, position)
        position -= octets
        file.seek(position)
        first, *others = file.read(octets).split(b"\n")
        if not others:
            held = (first + held)[:LONGEST_LINE]
            continue
        yield (others[-1] + held)[:LONGEST_LINE]
        yield from reversed(others[:-1])
        held = first
    yield held


def end_of_lines(file: BinaryIO) -> int:
    """The byte behind the last LF of a file."""
    position = file.seek(0, 2)
    while position > 0:
        octets = min(_BLOCK, position)
        position -= octets
        file.seek(position)
        found = file.read(octets).rfind(b"\n")
        if found >= 0:
            return position + found + 1
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A line as it was read."""

    segment: Segment
    raw: bytes
    line: Read | str
    """The line, or why it is a bad one."""
    t: int
    """When, in microseconds since the epoch; of a bad line, that of one beside it."""


class Follower:
    """Reads what is new in a journal, as often as it is asked.

    Args:
        directory: of the journal.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Segment, int] = {}  # up to which byte
        self._done: set[Segment] = set()
        self._listed: dict[Path, tuple[int, float]] = {}  # days: when they last changed, and when that was seen
        self._last: dict[tuple[str, str, str], int] = {}  # of each boot, the last segment that was seen
        self._clocks: dict[tuple[str, str, str], int] = {}  # of each boot, for its bad lines

    def skip(self, segment: Segment, octets: int, *, finished: bool = False) -> None:
        """Take the beginning of a segment as read.

        Args:
            segment: which.
            octets: how many of them, up to the end of a line.
            finished: nothing more will come.
        """
        self._read[segment] = octets
        if finished:
            self._done.add(segment)

    def new(self) -> Iterator[Entry]:
        """Read what has been written since the last time, that of several boots by time.

        Raises:
            UnreadableError: the directory cannot be read any more.
        """
        boots: dict[tuple[str, str, str], list[Segment]] = {}
        for segment in self._candidates():
            boots.setdefault(segment.order[:3], []).append(segment)
        return merge(*(self._of_boot(boot, segments) for boot, segments in boots.items()), key=lambda entry: entry.t)

    def _candidates(self) -> list[Segment]:
        """Segments that may have something new."""
        # Known ones that are not done are asked again wherever they are: a listing that a rename comes in between may
        # show a segment under neither of its names.
        listing = Listing(being_written=[segment for segment in self._read if segment not in self._done])
        lively = self._lively_days()
        for day in lively:
            _list_day(day, listing)
        if self._has_hole(listing.segments):
            for day in lively:
                _list_day(day, listing)
        return [segment for segment in listing.segments if segment not in self._done]

    def _lively_days(self) -> list[Path]:
        """Days in whose directories something may be new."""
        found = days(self._directory)
        lively = []
        for day in found:
            try:
                changed = day.stat().st_mtime_ns
            except OSError:
                continue
            now = time.monotonic()
            known, since = self._listed.get(day, (None, now))
            if known != changed:
                self._listed[day], since = (changed, now), now
            if day in found[-_LIVELY_DAYS:] or now - since < _SETTLED_AFTER:
                lively.append(day)
        return lively

    def _has_hole(self, segments: list[Segment]) -> bool:
        """Whether a boot's segments go on behind one that was never seen, because it was renamed during the listing."""
        hole = False
        for segment in segments:
            boot, number = segment.order[:3], segment.name.number
            last = self._last.get(boot)
            hole |= last is not None and number > last + 1
            self._last[boot] = number if last is None else max(last, number)
        return hole

    def _of_boot(self, boot: tuple[str, str, str], segments: list[Segment]) -> Iterator[Entry]:
        t = self._clocks.get(boot, 0)
        for segment in segments:
            opened = segment.open()
            if opened is None:
                continue
            file, finished = opened
            with file:
                for raw, position in raw_lines(file, rest=finished, start=self._read.get(segment, 0)):
                    line = decode(raw)
                    self._clocks[boot] = t = line.t if isinstance(line, Read) else t
                    self._read[segment] = position
                    yield Entry(segment, raw, line, t)
            self._read.setdefault(segment, 0)
            if finished:
                self._done.add(segment)
