"""How long a gateway keeps its finished segments in a directory, and how many bytes of them.

Segments that are to be shipped are kept until they are, whatever their age. Only the limit in bytes is stronger: then
those that are shipped go first, and what goes unshipped is lost, counted and logged.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.journal.segments import DAYS, SHIPPED_SUFFIX, SegmentName, mark_name, of_gateway

log = structlog.get_logger("gateway.journal")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A finished segment of the gateway."""

    path: str
    size: int
    written_at: float
    is_needed: bool


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

    def segment_finished(self) -> None:
        """There is one more: delete what is too much now. What is too old can wait."""
        if self.retain_bytes is not None:
            _ = self.apply()

    def apply(self) -> int:
        """Delete what is too old or too much; the number of deleted segments."""
        segments, being_written = self._found()
        before = time.time() - self.retain
        going = [segment for segment in segments if segment.written_at < before and not segment.is_needed]
        kept = [segment for segment in segments if segment.written_at >= before or segment.is_needed]
        if self.retain_bytes is not None:
            excess = being_written + sum(segment.size for segment in kept) - self.retain_bytes
            going += _oldest(kept, excess)
        gone = [segment for segment in going if _deleted(segment.path)]
        self._report(gone)
        if self._drop_orphans() or gone:
            for folder in self.directory.glob(DAYS):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return len(gone)

    def _found(self) -> tuple[list[_Kept], int]:
        """The gateway's finished segments, and the bytes of those that are being written."""
        segments, being_written = [], 0
        for folder in self.directory.glob(DAYS):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                found = {entry.name: entry for entry in entries}
                for name, entry in found.items():
                    parsed = SegmentName.read(name)
                    if parsed is None or not self._is_ours(parsed):
                        continue
                    with contextlib.suppress(OSError):  # another process has renamed or deleted it
                        state = entry.stat()
                        if name.startswith("."):
                            being_written += state.st_size
                        else:
                            is_needed = self.ships and mark_name(name) not in found
                            segments.append(_Kept(entry.path, state.st_size, state.st_mtime, is_needed))
        return segments, being_written

    def _is_ours(self, name: SegmentName) -> bool:
        return name.impl == self.impl and of_gateway(name.node) == of_gateway(self.node)

    def _report(self, gone: list[_Kept]) -> None:
        unshipped = [segment for segment in gone if segment.is_needed]
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


def _oldest(segments: list[_Kept], excess: int) -> Iterator[_Kept]:
    """So many that they are this many bytes together; those that are needed come last."""
    for segment in sorted(segments, key=lambda each: (each.is_needed, each.written_at, each.path)):
        if excess <= 0:
            return
        yield segment
        excess -= segment.size


def _deleted(path: str) -> bool:
    """Delete a segment; False if another process has done it, or it cannot be deleted."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
