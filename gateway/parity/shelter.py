"""Work that must not stop half-way, and the signals that would stop it."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import ParamSpec, TypeVar

from gateway.errors import GatewayError

_ResultT = TypeVar("_ResultT")
_ArgumentsP = ParamSpec("_ArgumentsP")


class TerminatedError(GatewayError):
    """SIGTERM ended the work; it has tidied up."""


async def to_the_end(work: Coroutine[object, object, _ResultT]) -> _ResultT:
    """Await something that must not stop half-way, however often the caller is cancelled meanwhile.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work is done all the same.
    """
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # nobody else asks for it
        raise asyncio.CancelledError
    return task.result()


def uninterrupted(
    function: Callable[_ArgumentsP, Coroutine[object, object, _ResultT]],
) -> Callable[_ArgumentsP, Coroutine[object, object, _ResultT]]:
    """Make a coroutine function one that is carried out to its end, also when its caller is cancelled."""

    @wraps(function)
    async def sheltered(*arguments: _ArgumentsP.args, **named: _ArgumentsP.kwargs) -> _ResultT:
        return await to_the_end(function(*arguments, **named))

    return sheltered


async def until_terminated(work: Awaitable[_ResultT]) -> _ResultT:
    """Await something that SIGTERM cancels, as Ctrl-C does; a second SIGTERM ends the process at once.

    Outside the main thread, which alone gets signals, it is only awaited.

    Raises:
        TerminatedError: SIGTERM came, and the work has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return await work
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    terminated = False

    def stop() -> None:
        nonlocal terminated
        terminated = True
        loop.remove_signal_handler(signal.SIGTERM)
        if task:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await work
    except asyncio.CancelledError:
        if terminated:
            raise TerminatedError("ended by SIGTERM") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
