"""When Python's garbage collector runs, and when the C library returns memory to the system.

A collection stops the event loop: with 1,500 sessions for 100 ms and more. By its own rule, Python collects everything
whenever there are a quarter more objects, so in the middle of a flood of logins. Here, only new objects are collected:
once a second, those that outlived a collection are frozen. Reference counts still free them. Sessions are in no
reference cycle (see `Session.forget`), so only a collection could free little.

After clients have gone, the C library keeps freed memory below anything that is still in use: after 1,900 clients with
half a CONNECT each, 200 MB. ``malloc_trim`` of glibc returns every free page. Other C libraries do not have it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable, Collection
from typing import Final

from gateway.server.paced_work import PeriodicTimer

# Everything is collected when there are twice as many memory blocks as after the last time, and this many more. Until
# then, reference cycles, such as closed links, take at most about 50 MB.
_MORE: Final = 500_000

# The memory blocks of a client, which are not garbage.
_OF_CLIENT: Final = 300

# After this many new objects, Python collects them, in about a millisecond. It never collects older ones by itself.
_NEW: Final = 2000
_NEVER: Final = 1 << 30
_COLLECTION_INTERVAL: Final = 1.0  # seconds


# The least number of clients that have ended, and the wait in seconds after that, in which others may go with them. It
# also bounds how often memory is trimmed. For 200 MB that takes 30 ms.
_MANY: Final = 200
_WAIT: Final = 5.0

# From glibc's malloc.h: the free bytes that are kept at the end of the heap, and the least size of a block that is not
# part of the heap, and so is returned as a whole.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT: Final = 8 << 20
_LARGE_BLOCK: Final = 4 << 20


def collect_all() -> None:
    """Collect everything, including frozen objects."""
    gc.unfreeze()
    _ = gc.collect()


class GarbageCollection:
    """Freezes older objects once a second. ``clients``: a live view. ``blocks``: counts the memory blocks in use."""

    def __init__(self, clients: Collection[object], blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._clients = clients
        self._blocks = blocks
        self._most = 0

    def start(self) -> None:
        """Replace Python's own rule. Call it after the start of the program."""
        gc.set_threshold(_NEW, _NEVER, _NEVER)
        self.sweep()

    def sweep(self) -> None:
        """Call it about once a second."""
        if self._count() > self._most:
            collect_all()
            self._most = self._twice()
        else:
            self._most = min(self._most, self._twice())
            _ = gc.collect(0)
        gc.freeze()

    def _twice(self) -> int:
        return 2 * max(self._count(), 0) + _MORE

    def _count(self) -> int:
        return self._blocks() - _OF_CLIENT * len(self._clients)


def collect_garbage(clients: Collection[object]) -> PeriodicTimer:
    """Control the garbage collector until the timer is stopped. ``clients``: a live view."""
    garbage_collection = GarbageCollection(clients)
    garbage_collection.start()
    return PeriodicTimer(_COLLECTION_INTERVAL, garbage_collection.sweep)


def find_trim() -> Callable[[int], int] | None:
    """The C library's ``malloc_trim``; None if it has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def keep_freed() -> None:
    """Let the C library keep some of the freed memory, if it can.

    glibc returns a large block to the system at once, and then the kernel has to make every page anew for a client's
    next read: with bodies of 64 KiB, that took a fifth of all time.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, _KEPT)
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


class MemoryTrim:
    """Calls ``trim`` in a thread some seconds after many clients have ended.

    ``ended``: counts the clients that have ended. ``is_idle``: whether there are no clients. Only then is all garbage
    collected first, because that stops the event loop.
    """

    def __init__(
        self,
        ended: Callable[[], int],
        is_idle: Callable[[], bool],
        clock: Callable[[], float],
        trim: Callable[[int], int] | None,
    ) -> None:
        self._is_idle = is_idle
        self._ended = ended
        self._clock = clock
        self._trim = trim
        self._ended_before = 0
        self._due: float | None = None
        self._trimming: asyncio.Future[int] | None = None

    def sweep(self) -> None:
        """Call it about once a second."""
        if self._trim is None or (self._trimming is not None and not self._trimming.done()):
            return
        now, ended = self._clock(), self._ended()
        if self._due is None:
            if ended - self._ended_before >= _MANY:
                self._due = now + _WAIT
        elif now >= self._due:
            self._ended_before, self._due = ended, None
            if self._is_idle():
                collect_all()
            self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)

    async def close(self) -> None:
        """Wait for the thread."""
        if self._trimming is not None:
            await asyncio.wait([self._trimming])
