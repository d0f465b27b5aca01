"""The files of a journal directory, and the one thread that writes them.

Everything that may wait for a disk happens here: writing, fsync, renaming, recovering what a dead process left open,
and deleting what is old. The event loop hands over whole chunks of lines and never waits.

A segment is locked (flock) while it is open. A lock ends with its process, even if another process gets the same id, so
an open segment without a lock was left behind: it is cut to its last whole line and finished. On a network file system
without locks, the segments of other nodes are recovered only when they have not been written for long.

A full disk loses nothing that was handed over: a chunk that was written in part is taken back and tried again each
second. Meanwhile the event loop sees ``pending`` grow, and drops and counts new events.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final

import structlog

from gateway.journal.segments import DAYS, SegmentName, SegmentRetention, end_of_lines
from gateway.times import datetime_of

log = structlog.get_logger("gateway.journal")

_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750

# Seconds between two attempts to write to a full disk.
_RETRY: Final = 1.0
CLEAN_INTERVAL: Final = 600.0
"""Seconds between two searches for segments that are old, or that dead processes left open."""

# Seconds without a write after which an open segment of another node counts as abandoned.
_ABANDONED: Final = 3600.0


class _SegmentFile:
    """The file of the segment that is being written; opened, and locked, when it is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        while (file := self._opened()) is None:
            pass
        self._file = file

    def _opened(self) -> int | None:
        """The open file; None if another gateway, which is starting, takes it for an abandoned one and recovers it."""
        make_directory(self._path.parent)
        # An attempt that fails must close the file, because its lock would keep all further attempts out.
        with contextlib.ExitStack() as on_failure:
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _FILE_MODE)
            on_failure.callback(os.close, file)
            if lock(file) is False or not _is_at(file, self._path):
                return None
            os.fchmod(file, _FILE_MODE)
            on_failure.pop_all()
        return file

    def append(self, data: bytes) -> None:
        """Write all of it, or nothing."""
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            # No reader may see half a chunk, and the next attempt writes it from its beginning.
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def finish(self) -> None:
        """Make it visible under its final name."""
        os.fsync(self._file)
        if _is_at(self._file, self._path):
            self._path.rename(self._path.with_name(str(SegmentName.read(self._path.name))))
        else:
            log.error("journal segment gone", segment=self._path.name, bytes=self._size)
        os.close(self._file)
        # The segment is complete, so a failure here must not repeat the steps above.
        with contextlib.suppress(OSError):
            sync_directory(self._path.parent)


class Files:
    """Writes the segments of one boot, in a thread of its own, and keeps finished ones for as long as is wanted.

    In the thread it calls ``on_finished`` when a segment is finished.
    """

    def __init__(self, retention: SegmentRetention, on_finished: Callable[[], None]) -> None:
        self.retention = retention
        self._on_finished = on_finished
        # Lines and bytes: the event loop alone sets the first two, the thread alone the other two.
        self._ordered = self._ordered_bytes = 0
        self._written = self._written_bytes = 0
        # The thread's tasks; None stops it.
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Where the next lines go, while their segment is open. The event loop alone sets it.
        self._path = Path()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._segment: _SegmentFile | None = None
        self._is_failing = False
        self._gives_up = threading.Event()
        self._is_done = False
        self._cleaned = 0.0

    # For the event loop.

    def probe(self) -> None:
        """Make the directory. Raises `OSError` if it cannot be written."""
        make_directory(self.retention.directory)
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=self.retention.directory):
            pass

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def pending(self) -> int:
        """Lines that are not in a file yet."""
        return self._ordered - self._written

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not in a file yet."""
        return self._ordered_bytes - self._written_bytes

    def begin(self, name: SegmentName, at: int) -> None:
        """Start a new segment, whose first event happened at ``at`` (microseconds since the epoch)."""
        self._path = self.retention.directory / f"day={datetime_of(at):%Y-%m-%d}" / name.while_open

    def write(self, data: bytes, lines: int) -> None:
        """Append ``lines`` whole lines."""
        self._ordered += lines
        self._ordered_bytes += len(data)
        self._orders.put(partial(self._append, self._path, data, lines))

    def finish(self) -> None:
        """Make the segment visible: it is complete."""
        self._orders.put(self._finish)

    def close(self, within: float) -> bool:
        """Carry out all orders within that many seconds, and stop. Returns whether everything was done."""
        self._orders.put(None)
        self._thread.join(within)
        self._gives_up.set()
        self._thread.join(_RETRY)
        return self._is_done

    # In the thread.

    def _work(self) -> None:
        while True:
            self._clean()
            try:
                order = self._orders.get(timeout=CLEAN_INTERVAL)
            except Empty:
                continue
            if order is None:
                self._is_done = True
                return
            while not self._carry_out(order):
                # Old segments may be what fills the disk. (Most of these calls do nothing, see there.)
                self._clean()
                if self._gives_up.wait(_RETRY):
                    return

    def _carry_out(self, order: Callable[[], None]) -> bool:
        try:
            order()
        except OSError as error:
            if not self._is_failing:
                log.error("journal cannot be written", directory=str(self.retention.directory), reason=error.strerror)
            self._is_failing = True
            return False
        if self._is_failing:
            self._is_failing = False
            log.info("journal is written again", directory=str(self.retention.directory))
        return True

    def _append(self, path: Path, data: bytes, lines: int) -> None:
        if self._segment is None:
            self._segment = _SegmentFile(path)
        self._segment.append(data)
        self._written += lines
        self._written_bytes += len(data)

    def _finish(self) -> None:
        if self._segment is not None:
            self._segment.finish()
            self._segment = None
            self._on_finished()
            if self.retention.retain_bytes is not None:  # what is too old can wait
                with contextlib.suppress(OSError):
                    self.retention.apply()

    def _clean(self) -> None:
        """Recover what other processes left open and delete this node's old segments, every ten minutes."""
        now = time.monotonic()
        if self._cleaned and now - self._cleaned < CLEAN_INTERVAL:
            return
        self._cleaned = now
        with contextlib.suppress(OSError):
            _ = recover(self.retention.directory, self.retention.node)
        with contextlib.suppress(OSError):
            self.retention.apply()


def recover(directory: Path, node: str | None) -> dict[Path, OSError]:
    """Finish the segments that dead processes left open: cut them to their last whole line and rename them.

    Those of this gateway's node are recovered at once, those of other nodes only when they are old. If a person asks,
    ``node`` is None: then all that nobody has locked are recovered at once, whoever wrote them.

    Returns those that cannot be finished now, and why: ENOLCK says that this file system has no locks.
    """
    failed: dict[Path, OSError] = {}
    for path in sorted(directory.glob(f"{DAYS}/.*.open")):
        name = SegmentName.read(path.name)
        if name is None:
            continue
        try:
            is_old = time.time() - path.stat().st_mtime >= _ABANDONED
            if node in (None, name.node) or is_old:
                _recover_one(path, name, needs_lock=node is None and not is_old)
        except FileNotFoundError:
            pass  # its gateway, or another process, has finished it meanwhile
        except OSError as error:
            failed[path] = error
    return failed


def _recover_one(path: Path, name: SegmentName, *, needs_lock: bool) -> None:
    with _opened_to_finish(path) as file:
        is_locked = lock(file.fileno())
        if is_locked is False or not _is_at(file.fileno(), path):
            return
        if is_locked is None and needs_lock:
            raise OSError(errno.ENOLCK, "the file system has no locks, so it is finished an hour after its last line")
        if not file.writable():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        size = end_of_lines(file)
        if not size:
            path.unlink()
            return
        lost = os.fstat(file.fileno()).st_size - size
        os.ftruncate(file.fileno(), size)
        os.fsync(file.fileno())
        finished = path.with_name(str(name))
        path.rename(finished)
        sync_directory(path.parent)
    log.warning("journal segment recovered", segment=finished.name, bytes=size, cut=lost)


def _opened_to_finish(path: Path) -> BinaryIO:
    """The file to write; if that is not permitted, to read, which suffices to see that somebody else writes it."""
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")


def lock(file: int) -> bool | None:
    """Lock an open file until it is closed, or its process ends.

    Returns False if another one has locked it, None if this file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that has this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def make_directory(path: Path) -> None:
    """Make a directory for its owner and group alone; leave one that exists as it is."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_DIRECTORY_MODE)


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive a power failure."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
