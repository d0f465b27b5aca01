"""An event loop whose clock jumps to the next timer, so that a test of a long wait takes no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Final, TypeVar

ResultT = TypeVar("ResultT")

# Virtual seconds. A test that waits for something that never happens would go on for ever, and take ever more memory.
_TOO_LONG: Final = 100_000.0


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: what it was to wait is added to ``now``."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(work: Coroutine[object, object, ResultT]) -> ResultT:
    """Run a coroutine to its end; ``loop.time()`` begins at 0.

    Raises:
        TimeoutError: it has not ended after more than a day.
    """
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(asyncio.wait_for(work, _TOO_LONG))
