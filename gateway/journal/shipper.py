"""Ships a journal: puts every finished segment of a directory to one place, once, and marks it.

One process at a time does so for a directory, whoever wrote there: a lock decides, and ends with its process. What is
put is put only if it is not there, so a process that is killed between putting and marking does no harm. A place that
does not answer is tried again, in longer and longer intervals, for as long as it takes: what waits is in the journal.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final, Protocol

import structlog

from gateway.errors import GatewayError
from gateway.journal.files import lock, sync_directory
from gateway.journal.segments import DAYS, SegmentFile, mark_of, segment_files

log = structlog.get_logger("gateway.journal")

LOCK_NAME: Final = ".ship.lock"

# Seconds: between two looks at the directory when nobody says that a segment is finished, and before the first new
# attempt after a failure; before the later ones at the most; between two attempts while the process ends; and how long
# a day that has just changed is listed again, since its next change may have the same time.
_LOOK: Final = 10.0
_LAST_RETRY: Final = 300.0
_ENDING_RETRY: Final = 0.2
_UNSETTLED: Final = 3.0

_FILE_MODE: Final = 0o640


class ShipError(GatewayError):
    """Segments cannot be shipped now; the text says why, without secrets."""


class SegmentError(ShipError):
    """One segment cannot be shipped, which says nothing about others."""


class SegmentDiffersError(SegmentError):
    """The place has another segment of this name."""


class ShipTarget(Protocol):
    """A place for segments."""

    def put(self, name: str, data: bytes) -> None:
        """Put a segment under its name, ``day=<day>/<file>``, if it is not there. Returns when it is kept safely.

        Raises `ShipError` if that is not possible now.
        """

    def close(self) -> None:
        """Let go of connections, which the next `put` opens again."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The segments that are not shipped yet. ``oldest_at`` is when the oldest one was finished, as Unix time."""

    segments: int = 0
    bytes: int = 0
    oldest_at: float | None = None

    @property
    def oldest_age(self) -> float:
        """In seconds; 0 if nothing waits."""
        return 0.0 if self.oldest_at is None else max(0.0, time.time() - self.oldest_at)

    def __add__(self, other: Waiting) -> Waiting:
        oldest_at = min((at for at in (self.oldest_at, other.oldest_at) if at is not None), default=None)
        return Waiting(self.segments + other.segments, self.bytes + other.bytes, oldest_at)


@dataclass(frozen=True, slots=True)
class ShipStats:
    """The segments and bytes that were shipped, the attempts that failed, and what is not shipped yet."""

    segments: int = 0
    bytes: int = 0
    errors: int = 0
    waiting: Waiting = Waiting()

    def __add__(self, other: ShipStats) -> ShipStats:
        return ShipStats(
            self.segments + other.segments, self.bytes + other.bytes, self.errors + other.errors,
            self.waiting + other.waiting,
        )  # fmt: skip


class _Outbox:
    """The finished segments of a directory that have no mark."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Days where nothing waits, and when they had last changed: they are not listed again until they change.
        self._empty: dict[Path, int] = {}

    def segments(self, *, marked_too: bool = False) -> list[SegmentFile]:
        """The segments to ship, the oldest first; with ``marked_too`` all finished ones."""
        found: list[SegmentFile] = []
        days = list(self._directory.glob(DAYS))
        for day in days:
            with contextlib.suppress(OSError):  # somebody has deleted it
                changed = day.stat()
                if self._empty.get(day) == changed.st_mtime_ns and not marked_too:
                    continue
                waiting = [each for each in segment_files(day, shipped_too=marked_too) if not each.is_open]
                found += waiting
                if not waiting and time.time() - changed.st_mtime > _UNSETTLED:
                    self._empty[day] = changed.st_mtime_ns
        self._empty = {day: self._empty[day] for day in days if day in self._empty}
        return sorted(found, key=lambda segment: (segment.written_at, segment.name))


def _waiting(segments: Sequence[SegmentFile]) -> Waiting:
    oldest_at = min((segment.written_at for segment in segments), default=None)
    return Waiting(len(segments), sum(segment.size for segment in segments), oldest_at)


class Shipper:
    """Ships one directory to one target.

    In a gateway it has a thread, from `start` to `close`. Without one, `ship_now` ships what is there.
    """

    def __init__(self, directory: Path, target: ShipTarget) -> None:
        # Replaced and never changed: other threads read it.
        self.stats = ShipStats()
        self._directory = directory
        self._target = target
        self._outbox = _Outbox(directory)
        # Segments that are not tried again before a time of the monotonic clock, because of what they are.
        self._aside_until: dict[str, float] = {}
        self._aside = Waiting()
        self._thread = threading.Thread(target=self._work, name="ship journal", daemon=True)
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._gives_up = threading.Event()
        # Attempts in a row that have failed, and why the last one did.
        self._failures = 0
        self._reason = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """A segment is finished."""
        self._woken.set()

    def end(self) -> None:
        """Stop when what is finished by now is shipped."""
        self._ending.set()
        self._woken.set()

    def close(self, within: float) -> bool:
        """The same within that many seconds, or not at all. Returns whether everything was shipped."""
        self.end()
        self._thread.join(max(within, 0.0))
        self._gives_up.set()
        return not self._thread.is_alive() and not self.stats.waiting.segments

    def ship_now(self, *, again: bool = False) -> None:
        """Ship what is finished by now, without the thread; ``again``: also what is marked.

        Raises `ShipError` if something was not shipped, `OSError` if the directory cannot be read or written.
        """
        with self._locked() as is_ours:
            if not is_ours:
                raise ShipError(f"another process is shipping {self._directory}")
            try:
                errors = list(filter(None, map(self._ship_or_set_aside, self._outbox.segments(marked_too=again))))
            finally:
                self._target.close()
        if len(errors) > 1:
            raise SegmentError(f"{len(errors)} segments were not shipped; the first: {errors[0]}")
        if errors:
            raise errors[0]

    # In the thread.

    def _work(self) -> None:
        retry_at = 0.0
        while not self._gives_up.is_set():
            segments = self._look()
            if segments and (self._ending.is_set() or time.monotonic() >= retry_at):
                retry_at = time.monotonic() + self._attempt(segments)
            elif self._ending.is_set():
                break
            self._pause(retry_at - time.monotonic())

    def _pause(self, before_retry: float) -> None:
        """Wait until it is time for another look."""
        if before_retry <= 0:
            self._woken.wait(_LOOK)
            if not self._ending.is_set():
                self._woken.clear()
        elif self._ending.is_set():
            self._gives_up.wait(_ENDING_RETRY)
        else:
            # A segment that is finished meanwhile would wait anyway.
            self._ending.wait(min(before_retry, _LOOK))

    def _look(self) -> list[SegmentFile]:
        """Count what waits; returns what can be shipped."""
        segments, now = self._outbox.segments(), time.monotonic()
        aside = {segment.name for segment in segments if self._aside_until.get(segment.name, 0.0) > now}
        self._aside = _waiting([segment for segment in segments if segment.name in aside])
        ready = [segment for segment in segments if segment.name not in aside]
        self._count_waiting(_waiting(ready))
        return ready

    def _count_waiting(self, ready: Waiting) -> None:
        self.stats = replace(self.stats, waiting=ready + self._aside)

    def _attempt(self, segments: Sequence[SegmentFile]) -> float:
        """Ship these; the seconds before the next attempt."""
        try:
            with self._locked() as is_ours:
                if not is_ours:
                    return _LOOK
                ready = _waiting(segments)
                for segment, following in zip_longest(segments, segments[1:]):
                    if self._gives_up.is_set():
                        break
                    # Another process may have shipped it, before this one had the lock.
                    if not mark_of(segment.path).exists():
                        _ = self._ship_or_set_aside(segment)
                    oldest_at = None if following is None else following.written_at
                    ready = Waiting(ready.segments - 1, ready.bytes - segment.size, oldest_at)
                    self._count_waiting(ready)
        except (ShipError, OSError) as error:
            self._failed(str(error) if isinstance(error, ShipError) else error.strerror or str(error))
        except Exception as error:
            log.error("internal error", exc_info=error)
            self._failed("internal error")
        else:
            if self._failures:
                log.info("journal is shipped again", directory=str(self._directory))
            self._failures, self._reason = 0, ""
            return 0.0
        finally:
            self._target.close()
        # Not all gateways at the same moment.
        return min(_LOOK * (1 << min(self._failures - 1, 10)), _LAST_RETRY) * random.uniform(0.8, 1.2)  # noqa: S311

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self.stats += ShipStats(errors=1)
        if reason != self._reason:
            log.error("journal cannot be shipped", directory=str(self._directory), reason=reason)
        self._reason = reason

    # In any thread.

    def _ship_or_set_aside(self, segment: SegmentFile) -> SegmentError | None:
        """Ship it; if that cannot be because of this segment alone, set it aside and return why."""
        try:
            self._ship(segment)
        except SegmentError as error:
            self.stats += ShipStats(errors=1)
            if segment.name not in self._aside_until:
                log.error("journal segment refused", segment=segment.name, reason=str(error))
            self._aside += _waiting([segment])
            is_for_ever = isinstance(error, SegmentDiffersError)
            self._aside_until[segment.name] = math.inf if is_for_ever else time.monotonic() + _LAST_RETRY
            return error
        return None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether this process is the one that ships the directory."""
        file = os.open(self._directory / LOCK_NAME, os.O_CREAT | os.O_RDWR, _FILE_MODE)
        try:
            yield lock(file) is not False
        finally:
            os.close(file)

    def _ship(self, segment: SegmentFile) -> None:
        try:
            data = segment.path.read_bytes()
        except FileNotFoundError:
            return  # it was deleted meanwhile
        except OSError as error:
            raise SegmentError(f"{segment.name} cannot be read: {error.strerror or error}") from error
        self._target.put(segment.name, data)
        os.close(os.open(mark_of(segment.path), os.O_CREAT | os.O_WRONLY, _FILE_MODE))
        sync_directory(segment.path.parent)
        self.stats += ShipStats(1, len(data))
