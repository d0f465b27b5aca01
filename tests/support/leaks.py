"""What an asynchronous test may leave behind in its event loop: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

# Closing is not instantaneous: transports and tasks get a few rounds of the loop, in seconds, to go away by themselves.
_GRACE: Final = 1.0
_LOOK_AGAIN: Final = 0.02


async def leaks() -> list[str]:
    """Describe what is left in the running loop after a moment's grace: tasks, transports, timers. Empty when clean."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GRACE
    while found := list(_left(loop)):
        if loop.time() > deadline:
            break
        await asyncio.sleep(_LOOK_AGAIN)
    return found


def _left(loop: Any) -> Iterator[str]:  # noqa: ANN401 - asyncio shows its insides to nobody, and this is where leaks are
    for task in asyncio.all_tasks(loop):
        if task is not asyncio.current_task() and not task.done():
            yield f"task {task!r}"
    for transport in list(getattr(loop, "_transports", {}).values()):
        if not transport.is_closing():
            yield f"transport {transport!r}"
    own = getattr(loop, "_ssock", None)
    selector = getattr(loop, "_selector", None)
    for key in list(selector.get_map().values()) if selector is not None and selector.get_map() else ():
        if key.fileobj is not own and key.fd != (own.fileno() if own else -1):
            yield f"socket watched {key!r}"
    for timer in list(getattr(loop, "_scheduled", ())):
        if not timer.cancelled():
            yield f"timer {timer!r}"
