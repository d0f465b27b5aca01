"""When Python's garbage collector runs, and what it looks at.

A collection stops the event loop: with 1,500 sessions for 100 ms and more. Python's own rule collects everything each
time when a quarter more objects live than before, so in the middle of a flood of logins. Here it looks only at what is
new: once a second what has outlived a collection is frozen. Its reference count still frees it. Sessions are in no
circle (see `Session.forget`), so there is little that only a collection could free.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection
from typing import Final

# Everything is collected when there are twice as many blocks of memory as after the last time, and so many more. What
# lies in circles by then, such as closed links, has at most some 50 MB.
_MORE: Final = 500_000

# A client that is there is no garbage: that many blocks of memory are its own.
_OF_CLIENT: Final = 300

# After so many new objects Python collects those, in about a millisecond, and never the older ones by itself.
_NEW: Final = 2000
_NEVER: Final = 1 << 30


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
