"""When the C library gives memory back to the system: not at once, but when many clients have gone.

What clients sent is freed when they go, but the C library keeps what lies below something that lives on: after 1,900
clients with half a CONNECT each, 200 MB. ``malloc_trim`` of glibc gives back every whole page that is free. Other C
libraries do not have it; with them nothing is done here.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

from gateway.server.process.garbage_collection import collect_all

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
