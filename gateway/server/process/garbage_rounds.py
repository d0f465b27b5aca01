"""When Python looks for garbage: seldom among the sessions that stay.

Sessions and their parts refer to each other, so Python finds those that have ended only by looking at all objects. That
takes a tenth of a second for a thousand sessions, in which nobody is served, and by itself Python does it whenever a
quarter more objects live: again and again while clients connect. (docs/adr/0026-garbage-in-rounds.md)
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

# So many new sessions are put aside, since the search among them takes some hundredths of a second.
_NEW: Final = 100

# So many sessions, and so large a part of those that are open, may have ended before all are looked at.
_ENDED: Final = 200
_PART: Final = 4

# All are looked at after so many seconds in any case, if some were put aside: other things than sessions end, too.
_LONGEST: Final = 600.0


class GarbageRounds:
    """Puts objects aside while sessions begin, and looks at all of them once many have ended.

    ``opened`` and ``ended`` count sessions since the start; ``clock`` is in seconds.
    """

    def __init__(self, opened: Callable[[], int], ended: Callable[[], int], clock: Callable[[], float]) -> None:
        self._opened = opened
        self._ended = ended
        self._clock = clock
        self._seen_opened = self._seen_ended = 0
        # When all were looked at, and whether some were put aside since.
        self._looked_at = clock()
        self._are_aside = False

    def start(self) -> None:
        """Put aside what the process consists of."""
        gc.collect()
        gc.freeze()

    def sweep(self) -> None:
        """Called about once a second."""
        opened, ended, now = self._opened(), self._ended(), self._clock()
        gone, new = ended - self._seen_ended, opened - self._seen_opened
        is_long_ago = self._are_aside and now - self._looked_at > _LONGEST
        if gone >= max(_ENDED, (opened - ended) // _PART) or is_long_ago:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._seen_ended, self._looked_at, self._are_aside = ended, now, False
        elif new >= _NEW:
            # Without what has just become garbage.
            gc.collect(1)
            gc.freeze()
            self._are_aside = True
        else:
            return
        self._seen_opened = opened
