"""Segments, the files of a journal: their names and directories, and for how long finished ones are kept.

While a segment is written, its name begins with a dot and ends with ``.open``, and the pipeline ignores it. When it is
finished, it is renamed and never changed again. Its path tells all that a reader must know before opening it::

    day=2026-11-21/gateway-orders1-5f0c1a2b3c4d5e6f-4711-000003.v1.jsonl

This is the day (UTC) on which it was begun, what wrote it, the node, the boot, the process id, the segment's number in
the boot, and the schema version. A reader of version 1 looks for ``*.v1.jsonl`` and never sees a later version.

Earlier releases named the directory ``d=2026-11-21``, and all readers take both names. Programs that take such names
for columns, as DuckDB does, would put the day in the place of the field ``d`` of the lines.

A segment that was shipped has a mark beside it: an empty file, with its name between a dot and ``.shipped``. Those that
are to be shipped are kept until they are, whatever their age. Only the limit in bytes is stronger: then those that are
shipped go first, and what goes unshipped is lost, counted and logged.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import structlog

log = structlog.get_logger("gateway.journal")

OPEN_SUFFIX: Final = ".open"
SHIPPED_SUFFIX: Final = ".shipped"
PATTERN: Final = "*.v1.jsonl"
"""A glob for all finished segments of this version, below a day's directory."""

DAYS: Final = "d*=*"
"""A glob for the directories of days."""
DAY: Final = re.compile(r"(?:day|d)=([0-9]{4}-[0-9]{2}-[0-9]{2})")
"""The name of such a directory."""

_BLOCK: Final = 1 << 16
_WORKER: Final = re.compile(r"\.w[0-9]+\Z")
_NAME: Final = re.compile(
    r"(?P<impl>[a-z]+)-(?P<node>[A-Za-z0-9._-]+)-(?P<boot>[0-9a-f]{16})-(?P<pid>[0-9]+)-(?P<number>[0-9]{6,})"
    r"\.v(?P<version>[0-9]+)\.jsonl"
)


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a segment's name."""

    impl: str
    node: str
    boot: str
    pid: int
    number: int
    version: int = 1

    def __str__(self) -> str:
        return f"{self.impl}-{self.node}-{self.boot}-{self.pid}-{self.number:06d}.v{self.version}.jsonl"

    @property
    def while_open(self) -> str:
        """Its name while it is written."""
        return f".{self}{OPEN_SUFFIX}"

    @classmethod
    def read(cls, name: str) -> SegmentName | None:
        """Parse a file name, finished or not; None if it is not a segment's."""
        found = _NAME.fullmatch(name.removeprefix(".").removesuffix(OPEN_SUFFIX))
        if found is None:
            return None
        return cls(
            found["impl"], found["node"], found["boot"], int(found["pid"]), int(found["number"]), int(found["version"])
        )


def mark_of(segment: Path) -> Path:
    """Where the mark of a finished segment is, once it is shipped."""
    return segment.with_name(mark_name(segment.name))


def mark_name(segment: str) -> str:
    """The same, of names."""
    return f".{segment}{SHIPPED_SUFFIX}"


def worker_node(node: str, worker: int) -> str:
    """The name under which one of several workers writes: the boots of one name follow each other."""
    return f"{node}.w{worker}"


def of_gateway(node: str) -> str:
    """The gateway's name, from the one under which it or one of its workers writes."""
    return _WORKER.sub("", node)


def end_of_lines(file: BinaryIO) -> int:
    """The position after the last LF of an open segment; what follows is a line that was written in part."""
    position = file.seek(0, 2)
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            return position + found + 1
    return 0


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment in the directory of its day. ``is_shipped``: it has its mark."""

    path: Path
    parsed: SegmentName
    size: int
    written_at: float
    is_shipped: bool

    @property
    def name(self) -> str:
        """As it is shipped: with its day."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def is_open(self) -> bool:
        """Whether it is being written, or its writer was killed."""
        return self.path.name.startswith(".")


def segment_files(day: Path, *, shipped_too: bool = True) -> Iterator[SegmentFile]:
    """The segments in the directory of a day, whoever writes them. Raises `OSError` if that is gone."""
    with os.scandir(day) as entries:
        found = {entry.name: entry for entry in entries}
    for name, entry in found.items():
        parsed, is_shipped = SegmentName.read(name), mark_name(name) in found
        if parsed is not None and (shipped_too or not is_shipped):
            with contextlib.suppress(OSError):  # another process has renamed or deleted it
                state = entry.stat()
                yield SegmentFile(day / name, parsed, state.st_size, state.st_mtime, is_shipped)


@dataclass
class SegmentRetention:
    """Deletes what is too old or too much of one gateway's segments, and of its workers'.

    ``impl`` is what writes them: a gateway and a tap of one node leave each other's alone. Segments are too old
    ``retain`` seconds after they were last written. ``retain_bytes`` bounds them together, with those that are being
    written. ``ships``: those that have no mark are still needed.
    """

    directory: Path
    impl: str
    node: str
    retain: float
    retain_bytes: int | None = None
    ships: bool = False
    lost: int = 0
    """Segments that were deleted before they were shipped."""

    def apply(self) -> int:
        """Delete what is too old or too much; the number of deleted segments."""
        ours = list(self._ours())
        before = time.time() - self.retain
        finished = [segment for segment in ours if not segment.is_open]
        going = [segment for segment in finished if segment.written_at < before and not self._needs(segment)]
        if self.retain_bytes is not None:
            excess = sum(segment.size for segment in ours) - sum(segment.size for segment in going) - self.retain_bytes
            going += self._oldest(set(finished).difference(going), excess)
        gone = [segment for segment in going if _deleted(segment.path)]
        self._report(gone)
        if self._drop_orphans() or gone:
            for folder in self.directory.glob(DAYS):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return len(gone)

    def _ours(self) -> Iterator[SegmentFile]:
        """The gateway's segments."""
        for day in self.directory.glob(DAYS):
            with contextlib.suppress(OSError):
                for segment in segment_files(day):
                    name = segment.parsed
                    if name.impl == self.impl and of_gateway(name.node) == of_gateway(self.node):
                        yield segment

    def _needs(self, segment: SegmentFile) -> bool:
        return self.ships and not segment.is_shipped

    def _oldest(self, segments: Iterable[SegmentFile], excess: int) -> Iterator[SegmentFile]:
        """The oldest ones, up to this many bytes in total; those that are still needed come last."""
        for segment in sorted(segments, key=lambda each: (self._needs(each), each.written_at, each.path)):
            if excess <= 0:
                return
            yield segment
            excess -= segment.size

    def _report(self, gone: list[SegmentFile]) -> None:
        unshipped = [segment for segment in gone if self._needs(segment)]
        if unshipped:
            self.lost += len(unshipped)
            log.error(
                "journal segments lost", directory=str(self.directory), segments=len(unshipped),
                bytes=sum(segment.size for segment in unshipped),
            )  # fmt: skip
        if len(gone) > len(unshipped):
            log.info("journal segments deleted", directory=str(self.directory), segments=len(gone) - len(unshipped))

    def _drop_orphans(self) -> bool:
        """Delete marks whose segments are gone, whoever deleted those. Returns whether there were any."""
        found = False
        for mark in self.directory.glob(f"{DAYS}/.*{SHIPPED_SUFFIX}"):
            segment = mark.with_name(mark.name.removeprefix(".").removesuffix(SHIPPED_SUFFIX))
            if not segment.exists():
                found = True
                mark.unlink(missing_ok=True)
        return found


def _deleted(path: Path) -> bool:
    """Delete a segment; False if another process has done it, or it cannot be deleted."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
