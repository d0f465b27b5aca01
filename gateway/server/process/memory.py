"""When Python's garbage collector runs, and when the C library gives memory back to the system.

A collection stops the event loop: with 1,500 sessions for 100 ms and more. Python's own rule collects everything each
time when a quarter more objects live than before, so in the middle of a flood of logins. Here it looks only at what is
new: once a second what has outlived a collection is frozen. Its reference count still frees it. Sessions are in no
reference cycle (see `Session.forget`), so there is little that only a collection could free.

What clients sent is freed when they go, but the C library keeps what lies below something that lives on: after 1,900
clients with half a CONNECT each, 200 MB. ``malloc_trim`` of glibc gives back every whole page that is free. Other C
libraries do not have it; with them nothing is done here.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable, Collection
from typing import Final

from gateway.server.paced_work import PeriodicTimer

# Everything is collected when there are twice as many blocks of memory as after the last time, and so many more. What
# lies in reference cycles by then, such as closed links, has at most some 50 MB.
_MORE: Final = 500_000

# A client that is there is no garbage: that many blocks of memory are its own.
_OF_CLIENT: Final = 300

# After so many new objects Python collects those, in about a millisecond, and never the older ones by itself.
_NEW: Final = 2000
_NEVER: Final = 1 << 30
_COLLECTION_INTERVAL: Final = 1.0  # seconds


# So many clients are worth it, and so many seconds after the first look that saw as many, most of those who go together
# are gone. This also bounds how often it is done. For 200 MB it takes 30 ms.
_MANY: Final = 200
_WAIT: Final = 5.0

# From glibc's malloc.h: how many free bytes at the end of the heap are kept, and from which size on a block is not part
# of the heap, and so goes back as a whole.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT: Final = 8 << 20
_LARGE_BLOCK: Final = 4 << 20


def collect_all() -> None:
    """Collect everything, what is frozen too."""
    gc.unfreeze()
    _ = gc.collect()


class GarbageCollection:
    """Freezes once a second what is not new. ``clients`` are those that are there, in a live view.

    ``blocks`` counts the blocks of memory in use.
    """

    def __init__(self, clients: Collection[object], blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._clients = clients
        self._blocks = blocks
        self._most = 0

    def start(self) -> None:
        """Take over from Python's own rule. To be called when all that the program consists of is there."""
        gc.set_threshold(_NEW, _NEVER, _NEVER)
        self.sweep()

    def sweep(self) -> None:
        """Called about once a second."""
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
    """Decide from now on when garbage is collected, until the timer is stopped; ``clients`` is a live view."""
    garbage_collection = GarbageCollection(clients)
    garbage_collection.start()
    return PeriodicTimer(_COLLECTION_INTERVAL, garbage_collection.sweep)


def find_trim() -> Callable[[int], int] | None:
    """The C library's ``malloc_trim``; None if it has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def keep_freed() -> None:
    """Let the C library keep some of what is freed. Nothing is done if it cannot.

    glibc gives a large block back to the system at once, and the next read of a client would have every page of its
    block made anew by the kernel: with bodies of 64 KiB that took a fifth of all time.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, _KEPT)
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


class MemoryTrim:
    """Calls ``trim`` some seconds after many clients have ended, in a thread, where it does not stop the event loop.

    ``ended`` counts the clients that have ended, ``is_idle`` tells that there are none now: only then is all garbage
    collected, because that stops the event loop.
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
        """Called about once a second."""
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
