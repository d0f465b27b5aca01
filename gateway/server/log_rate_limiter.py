"""Lines in the log that anybody can cause, without a login: only so many are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_LINES: Final = 10
_LINES_WITHIN: Final = 10.0


class LogRateLimiter:
    """How many lines about strangers a listener writes: 10 in 10 seconds, whatever they are about.

    Args:
        clock: gives seconds, only going forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._lines = 0
        self._left_out = 0

    def left_out(self) -> int | None:
        """Lines left out before this one, which is to be written; None when it is to be left out too."""
        now = self._clock()
        if now - self._since > _LINES_WITHIN:
            self._since, self._lines = now, 0
        if self._lines >= _LINES:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
