"""Segments, the files of a journal: their names and directories.

While a segment is written, its name begins with a dot and ends with ``.open``, and the pipeline ignores it. When it is
finished, it is renamed and never changed again. Its path tells all that a reader must know before opening it::

    day=2026-11-21/gateway-orders1-5f0c1a2b3c4d5e6f-4711-000003.v1.jsonl

This is the day (UTC) on which it was begun, what wrote it, the node, the boot, the process id, the segment's number in
the boot, and the schema version. A reader of version 1 looks for ``*.v1.jsonl`` and never sees a later version.

Earlier releases named the directory ``d=2026-11-21``, and all readers take both names. Programs that take such names
for columns, as DuckDB does, would put the day in the place of the field ``d`` of the lines.

A segment that was shipped has a mark beside it: an empty file, with its name between a dot and ``.shipped``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

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
