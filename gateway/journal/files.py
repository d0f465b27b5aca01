"""The files of a journal directory, and the thread that alone touches them.

Everything that may wait for a disk happens here: writing, fsync, renaming, recovery of what a dead process left, and
deleting what is old. The loop hands over whole chunks of lines and never waits.

A segment is locked (flock) while it is open. A lock dies with its process, whatever its id is afterwards, so a file
``.….open`` without one has been left behind: it is cut to its last whole line and finished. On a network file system
without locks, the segments of other nodes are looked at only when nobody has written to them for long.

A full disk loses nothing that was handed over: what was written in part is taken back, and tried again each second.
Meanwhile the loop sees ``written`` stand still and drops, and counts, what is new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from gateway.journal.segments import SegmentName

log = structlog.get_logger("gateway.journal")

_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750

# Seconds between two tries to write to a disk that is full, and between two looks for old segments.
_RETRY: Final = 1.0
_CLEAN: Final = 600.0

# An open segment of another node is left alone unless nobody has written to it for so many seconds.
_ABANDONED: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Begin:
    """Lines from now on belong to this segment; ``day`` names its directory."""

    name: SegmentName
    day: str


@dataclass(frozen=True, slots=True)
class _Lines:
    octets: bytes
    lines: int


class _Finish:
    """The open segment is complete."""


class _Stop:
    """Nothing more follows."""


class Files:
    """Writes the segments of one boot, in a thread of its own.

    Args:
        directory: of the journal.
        node: whose old segments are deleted.
        retain: seconds that finished segments of the node are kept.
    """

    def __init__(self, directory: Path, node: str, retain: float) -> None:
        self.directory = directory
        # Lines that are in a file. Written by the thread, read by the loop.
        self.written = 0
        self.written_octets = 0
        self._node = node
        self._retain = retain
        self._orders: SimpleQueue[_Begin | _Lines | _Finish | _Stop] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._begin: _Begin | None = None
        self._file = -1
        self._path = Path()
        self._size = 0
        self._is_failing = False
        self._gives_up = threading.Event()
        self._is_done = False
        self._cleaned = 0.0

    # For the loop.

    def start(self) -> None:
        """Make the directory, see that it can be written, and start the thread.

        Raises:
            OSError: when it cannot.
        """
        _make_directory(self.directory)
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=self.directory):
            pass
        self._thread.start()

    def begin(self, name: SegmentName, at: int) -> None:
        """Lines from now on belong to a new segment.

        Args:
            name: its name.
            at: when it begins, microseconds since the epoch.
        """
        day = datetime.fromtimestamp(at // 1_000_000, UTC).strftime("%Y-%m-%d")
        self._orders.put(_Begin(name, day))

    def write(self, octets: bytes, lines: int) -> None:
        """Append whole lines."""
        self._orders.put(_Lines(octets, lines))

    def finish(self) -> None:
        """The segment is complete: make it visible."""
        self._orders.put(_Finish())

    def close(self, within: float) -> bool:
        """Do everything that was asked for, and stop.

        Args:
            within: seconds that the disk may take.

        Returns:
            Whether everything was done.
        """
        self._orders.put(_Stop())
        self._thread.join(within)
        self._gives_up.set()
        self._thread.join(_RETRY)
        return self._is_done

    # The thread.

    def _work(self) -> None:
        while True:
            self._clean()
            try:
                order = self._orders.get(timeout=_CLEAN)
            except Empty:
                continue
            if isinstance(order, _Stop):
                self._is_done = True
                return
            while not self._carried_out(order):
                # What is too old may be what fills the disk.
                self._clean()
                if self._gives_up.wait(_RETRY):
                    return

    def _carried_out(self, order: _Begin | _Lines | _Finish) -> bool:
        try:
            if isinstance(order, _Begin):
                self._begin = order
            elif isinstance(order, _Lines):
                self._append(order)
            else:
                self._finish()
        except OSError as error:
            if not self._is_failing:
                log.error("journal cannot be written", directory=str(self.directory), reason=error.strerror)
            self._is_failing = True
            return False
        if self._is_failing and not isinstance(order, _Begin):
            self._is_failing = False
            log.info("journal is written again", directory=str(self.directory))
        return True

    def _append(self, order: _Lines) -> None:
        if self._file < 0:
            self._open()
        try:
            rest = memoryview(order.octets)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            # No reader may see half of it, and the next try begins anew.
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(order.octets)
        self.written += order.lines
        self.written_octets += len(order.octets)

    def _open(self) -> None:
        if self._begin is None:
            raise AssertionError("lines without a segment")
        folder = self.directory / f"d={self._begin.day}"
        self._path = folder / self._begin.name.while_open
        while True:
            _make_directory(folder)
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _FILE_MODE)
            _lock(file)
            if _is_at(file, self._path):
                break
            # Between opening and locking, another gateway that starts has taken it for one left behind.
            os.close(file)
        os.fchmod(file, _FILE_MODE)
        self._file, self._size = file, 0

    def _finish(self) -> None:
        if self._file < 0:
            return
        os.fsync(self._file)
        if _is_at(self._file, self._path):
            self._path.rename(self._path.with_name(str(SegmentName.read(self._path.name))))
        else:
            log.error("journal segment gone", segment=self._path.name, octets=self._size)
        os.close(self._file)
        self._file = -1
        # It has its name, so a failure now is none of the segment's.
        with contextlib.suppress(OSError):
            sync_directory(self._path.parent)

    def _clean(self) -> None:
        """Finish what others left behind and delete this node's old segments; at first, and now and then."""
        now = time.monotonic()
        if self._cleaned and now - self._cleaned < _CLEAN:
            return
        self._cleaned = now
        with contextlib.suppress(OSError):
            recover(self.directory, self._node)
            delete_old(self.directory, self._node, time.time() - self._retain)


def recover(directory: Path, node: str) -> list[Path]:
    """Finish the segments that dead processes left open: cut them to their last whole line and rename them.

    Args:
        directory: of the journal.
        node: the caller's; its own segments are recovered at once, others' only when they are old.

    Returns:
        The finished segments.
    """
    recovered = []
    for path in sorted(directory.glob("d=*/.*.open")):
        name = SegmentName.read(path.name)
        if name is None:
            continue
        with contextlib.suppress(OSError):
            if name.node != node and time.time() - path.stat().st_mtime < _ABANDONED:
                continue
            finished = _recover_one(path, name)
            if finished is not None:
                recovered.append(finished)
    return recovered


def _recover_one(path: Path, name: SegmentName) -> Path | None:
    file = os.open(path, os.O_RDWR)
    try:
        if not _lock(file) or not _is_at(file, path):
            return None
        whole = _whole_lines(file)
        if not whole:
            path.unlink()
            return None
        lost = os.fstat(file).st_size - whole
        os.ftruncate(file, whole)
        os.fsync(file)
        finished = path.with_name(str(name))
        path.rename(finished)
        sync_directory(path.parent)
    finally:
        os.close(file)
    log.warning("journal segment recovered", segment=finished.name, octets=whole, cut=lost)
    return finished


def _whole_lines(file: int) -> int:
    """Bytes up to the last line feed."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - (1 << 16))
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def delete_old(directory: Path, node: str, before: float) -> int:
    """Delete a node's finished segments, and the days that are empty then.

    Args:
        directory: of the journal.
        node: whose.
        before: seconds since the epoch; what was written last before that goes.

    Returns:
        How many were deleted.
    """
    deleted = 0
    for path in directory.glob("d=*/[!.]*.jsonl"):
        name = SegmentName.read(path.name)
        with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
            if name is not None and name.node == node and path.stat().st_mtime < before:
                path.unlink()
                deleted += 1
    if deleted:
        for folder in directory.glob("d=*"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        log.info("journal segments deleted", directory=str(directory), segments=deleted)
    return deleted


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # This file system knows no locks.
        return True
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that a path leads to."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _make_directory(path: Path) -> None:
    """Make a directory that only its owner and group can look into; one that is there stays as it is."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_DIRECTORY_MODE)


def sync_directory(path: Path) -> None:
    """See that a directory's entries survive a power failure."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
