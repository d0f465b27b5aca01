"""Reading a journal while gateways write it. Every line is read once, even if its segment is renamed meanwhile.

A segment keeps its identity when it is finished and renamed, so a reader continues in the finished segment at the byte
that it had reached in the open one. A line that cannot be read is reported and skipped. Only a directory that cannot be
read at all raises.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gateway.errors import GatewayError
from gateway.journal.schema import VERSION, ParsedLine
from gateway.journal.segments import DAY, OPEN_SUFFIX, SHIPPED_SUFFIX, SegmentName

LONGEST_LINE: Final = 1 << 20
"""Bytes of a line that are kept; no gateway writes a longer one."""

_BLOCK: Final = 1 << 20
_BLOCK_BACKWARDS: Final = 1 << 16
_MTIME_RESOLUTION: Final = 2.0  # seconds; that of a directory's modification time on some file systems
_LISTINGS: Final = 5
_ACTIVE_DAYS: Final = 2  # today, and yesterday, whose last segments are still written after midnight


_decoder: Final = msgspec.json.Decoder(ParsedLine)


class UnreadableError(GatewayError):
    """A journal directory that cannot be read; the text says what to do."""


def decode(raw: bytes) -> ParsedLine | str:
    """Parse a line without its LF; returns the line, or why it cannot be read."""
    try:
        line = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    if line.e == "open" and line.v != VERSION:
        return f"schema version {line.v}, where the segment's name says {VERSION}"
    return line


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of this schema version, whether it is open or finished. ``directory`` is that of its day."""

    directory: Path
    name: SegmentName

    @property
    def finished(self) -> Path:
        """Its file when it is finished."""
        return self.directory / str(self.name)

    @property
    def order(self) -> tuple[str, str, str, int, str]:
        """The sort key: boot by boot, and each boot in the order of writing."""
        return self.name.impl, self.name.node, self.name.boot, self.name.number, self.directory.name

    def open(self) -> tuple[BinaryIO, bool] | None:
        """Its file and whether it is finished; None when it is gone, or may not be read."""
        # In this order, because the file may be renamed between the two attempts.
        for path, finished in ((self.directory / self.name.while_open, False), (self.finished, True)):
            try:
                return path.open("rb"), finished
            except OSError:
                continue
        return None


@dataclass
class SegmentListing:
    """The files of a journal directory.

    ``later`` are segments of schema versions that this release does not know; ``unknown`` files are not segments.
    """

    finished: list[Segment] = field(default_factory=list)
    being_written: list[Segment] = field(default_factory=list)
    later: list[Path] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)

    @property
    def segments(self) -> list[Segment]:
        """All that can be read, once each (even if seen under both names), by boot and in the order of writing."""
        return sorted({*self.finished, *self.being_written}, key=lambda each: each.order)

    def add(self, path: Path) -> None:
        """Add a file of a day's directory. Marks of shipped segments are left out."""
        if path.name.startswith(".") and path.name.endswith(SHIPPED_SUFFIX):
            return
        name = SegmentName.read(path.name)
        hidden, unfinished = path.name.startswith("."), path.name.endswith(OPEN_SUFFIX)
        if name is None or hidden != unfinished or _is_odd(path):
            self.unknown.append(path)
        elif name.version != VERSION:
            self.later.append(path)
        else:
            (self.being_written if unfinished else self.finished).append(Segment(path.parent, name))


def _is_odd(path: Path) -> bool:
    """Whether a file is a link, which could lead to any file, or a pipe, on which a reader would wait for ever."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # deleted or renamed since
        return False
    # A directory is not odd: opening it fails, so it is reported as a segment that cannot be read.
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def days(directory: Path) -> list[Path]:
    """The directories of a journal's days, the earliest first.

    Raises `UnreadableError` if the directory does not exist, is not a journal's, or may not be read.
    """
    if DAY.fullmatch(directory.name) and directory.is_dir():
        raise UnreadableError(f"{directory} is one day of a journal. Give the directory above it.")
    try:
        found = [path for path in directory.iterdir() if DAY.fullmatch(path.name) and path.is_dir()]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreadableError(
            f"cannot read the journal {directory}: {reason}. Give the directory that the gateway's journal names."
        ) from error
    return sorted(found)


def list_segments(directory: Path) -> SegmentListing:
    """List a whole journal. Raises `UnreadableError` if the directory cannot be read."""
    listing = SegmentListing()
    for day in days(directory):
        _list_day(day, listing)
    return listing


def _list_day(day: Path, listing: SegmentListing) -> None:
    try:
        paths = sorted(day.iterdir())
    except OSError:  # deleted since, or not readable: the same as empty
        return
    for path in paths:
        listing.add(path)


def raw_lines(file: BinaryIO, *, rest: bool, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Read lines forwards, from the one that begins at byte ``start``.

    Yields each without its LF, cut to `LONGEST_LINE`, and the byte at which the next one begins. ``rest``: the bytes
    after the last LF are a line too, because the segment is finished.
    """
    file.seek(start)
    position, held, held_size = start, b"", 0
    while block := file.read(_BLOCK):
        first, *others = block.split(b"\n")
        if not others:  # the whole block is part of one line
            held = (held + first)[:LONGEST_LINE]
            held_size += len(first)
            continue
        position += held_size + len(first) + 1
        yield (held + first)[:LONGEST_LINE], position
        for line in others[:-1]:
            position += len(line) + 1
            yield line, position
        held = others[-1]
        held_size = len(held)
    if rest and held_size:
        yield held, position + held_size


def raw_lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Read lines backwards, from the one that ends at byte ``end``, without their LF and cut to `LONGEST_LINE`."""
    if end <= 0:
        return
    held = b""
    file.seek(end - 1)
    position = end - 1 if file.read(1) == b"\n" else end  # no empty line after the last LF
    while position > 0:
        size = min(_BLOCK_BACKWARDS, position)
        position -= size
        file.seek(position)
        first, *others = file.read(size).split(b"\n")
        if not others:
            held = (first + held)[:LONGEST_LINE]
            continue
        yield (others[-1] + held)[:LONGEST_LINE]
        yield from reversed(others[:-1])
        held = first
    yield held


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A line and where it was read.

    If the line cannot be read, ``line`` is a text that says why, and ``t`` is the time of the line beside it.
    """

    segment: Segment
    raw: bytes
    line: ParsedLine | str
    t: int


class Follower:
    """Reads what is new in a journal, each time it is asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Segment, int] = {}  # bytes read so far, of segments that are not done
        self._done: set[Segment] = set()
        self._listed: dict[Path, tuple[int, float]] = {}  # by day: when it last changed, and when that was noticed
        self._last: dict[tuple[str, str, str], int] = {}  # by boot: the number of the last segment seen
        self._clocks: dict[tuple[str, str, str], int] = {}  # by boot: the last time, for lines that cannot be read

    def skip(self, segment: Segment, size: int, *, finished: bool = False) -> None:
        """Do not read the first ``size`` bytes of a segment, which end with a line, or nothing if it is finished."""
        if finished:
            self._done.add(segment)
        else:
            self._read[segment] = size

    def new(self) -> Iterator[JournalEntry]:
        """Read what has been written since the last call. The lines of several boots are merged by time.

        Raises `UnreadableError` if the directory cannot be read any more.
        """
        boots: dict[tuple[str, str, str], list[Segment]] = {}
        for segment in self._candidates():
            boots.setdefault(segment.order[:3], []).append(segment)
        return merge(*(self._of_boot(boot, segments) for boot, segments in boots.items()), key=lambda entry: entry.t)

    def _candidates(self) -> list[Segment]:
        """Segments that may have something new."""
        # Known segments that are not done are always included: a listing during a rename may show a segment under
        # neither of its names.
        listing = SegmentListing(being_written=[*self._read])
        active = self._active_days()
        # Each further listing may miss what is renamed during it. A hole that stays is a segment that was deleted.
        for _ in range(_LISTINGS):
            # The latest first: whoever has a segment there has written all that are earlier.
            for day in reversed(active):
                _list_day(day, listing)
            last, has_hole = self._seen_up_to(listing.segments)
            if not has_hole:
                break
        self._last = last
        return [segment for segment in listing.segments if segment not in self._done]

    def _active_days(self) -> list[Path]:
        """Days in whose directories there may be something new."""
        found = days(self._directory)
        active = []
        for day in found:
            try:
                changed = day.stat().st_mtime_ns
            except OSError:
                continue
            now = time.monotonic()
            known, since = self._listed.get(day, (None, now))
            if known != changed:
                self._listed[day], since = (changed, now), now
            if day in found[-_ACTIVE_DAYS:] or now - since < _MTIME_RESOLUTION:
                active.append(day)
        return active

    def _seen_up_to(self, segments: list[Segment]) -> tuple[dict[tuple[str, str, str], int], bool]:
        """By boot the number of the last segment seen, and whether one is missing that came since the last call."""
        seen, has_hole = self._last.copy(), False
        for segment in segments:
            boot, number = segment.order[:3], segment.name.number
            last = seen.get(boot, number)
            has_hole |= number > last + 1
            seen[boot] = max(last, number)
        return seen, has_hole

    def _of_boot(self, boot: tuple[str, str, str], segments: list[Segment]) -> Iterator[JournalEntry]:
        t = self._clocks.get(boot, 0)
        for segment in segments:
            opened = segment.open()
            if opened is None:
                continue
            file, finished = opened
            with file:
                for raw, position in raw_lines(file, rest=finished, start=self._read.get(segment, 0)):
                    line = decode(raw)
                    self._clocks[boot] = t = line.t if isinstance(line, ParsedLine) else t
                    self._read[segment] = position
                    yield JournalEntry(segment, raw, line, t)
            if finished:
                self._done.add(segment)
                self._read.pop(segment, None)
            else:
                self._read.setdefault(segment, 0)
