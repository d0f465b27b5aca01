"""Work that cancellation must not interrupt, and SIGTERM."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Coroutine
from typing import TypeVar

from gateway.errors import GatewayError

_ResultT = TypeVar("_ResultT")


class TerminatedError(GatewayError):
    """SIGTERM ended the work, after it had cleaned up."""


async def finish(work: Coroutine[object, object, _ResultT]) -> _ResultT:
    """Await a coroutine to its end, even if the caller is cancelled. Raises CancelledError only after that."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # retrieve it, or asyncio logs it
        raise asyncio.CancelledError
    return task.result()


async def until_terminated(work: Awaitable[_ResultT]) -> _ResultT:
    """Await `work`, and let SIGTERM cancel it as Ctrl-C does; a second SIGTERM ends the process at once.

    Outside the main thread, which is the only one that gets signals, this only awaits. Raises TerminatedError when the
    work has ended after SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return await work
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        loop.remove_signal_handler(signal.SIGTERM)
        if task:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if terminated:
            raise TerminatedError("ended by SIGTERM") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
