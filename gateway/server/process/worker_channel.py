"""Calls from the supervisor to a worker, over a Unix socket pair, in pickled frames.

Pickle is safe here: both ends are the same program of the same user, and nobody else can reach the pair. End of file
means that the other side has ended.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog

from gateway.errors import GatewayError
from gateway.server.fault_boundary import cancelled

log = structlog.get_logger("gateway.workers")

_LENGTH: Final = struct.Struct("!Q")

# The most file descriptors of one message. Linux permits 253.
_AT_ONCE: Final = 200

Answer = Callable[[str, tuple[Any, ...]], Awaitable[object]]
"""Carries out a call, by its name and its arguments."""


class WorkerError(GatewayError):
    """A worker could not do what it was asked. The text says why."""


class WorkerGoneError(WorkerError):
    """The worker has ended, or does not answer."""


async def _read(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401 - anything that is sent
    """The next frame; None at the end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - see the module
    except (asyncio.IncompleteReadError, OSError):
        return None


def _packed(frame: object) -> bytes:
    data = pickle.dumps(frame)
    return _LENGTH.pack(len(data)) + data


def pass_descriptors(channel: socket.socket, descriptors: Sequence[int]) -> None:
    """Pass open files to the process at the other end of a Unix socket."""
    for start in range(0, len(descriptors), _AT_ONCE):
        _ = socket.send_fds(channel, [b"x"], descriptors[start : start + _AT_ONCE])


def passed_descriptors(channel: socket.socket, count: int) -> list[int]:
    """Receive ``count`` open files from the other end.

    Raises:
        OSError: it has ended.
    """
    found: list[int] = []
    while len(found) < count:
        data, descriptors, *_ = socket.recv_fds(channel, 1, _AT_ONCE)
        if not data:
            raise ConnectionResetError
        found += descriptors
    return found


class WorkerCalls:
    """The supervisor's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._number = 0
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._is_closed = False
        self._reading = asyncio.create_task(self._read_all(reader), name="answers of a worker")
        # Also if it is cancelled before it has seen the end.
        self._reading.add_done_callback(lambda _: self._end_pending())

    @classmethod
    async def over(cls, channel: socket.socket) -> WorkerCalls:
        """Use this end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=channel))

    async def call(self, name: str, *arguments: object, within: float | None = None) -> Any:  # noqa: ANN401 - any answer
        """Call a worker, and return its answer.

        Raises:
            WorkerGoneError: it has ended, or did not answer within ``within`` seconds.
            WorkerError: it could not do it.
        """
        if self._is_closed:
            raise WorkerGoneError("the worker has ended")
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            self._writer.write(_packed((number, name, arguments)))
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            raise WorkerGoneError("the worker does not answer") from None
        finally:
            del self._pending[number]

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        while (frame := await _read(reader)) is not None:
            number, is_done, value = frame
            answer = self._pending.get(number)
            if answer is None or answer.done():
                continue
            if is_done:
                answer.set_result(value)
            else:
                answer.set_exception(WorkerError(value))

    def _end_pending(self) -> None:
        self._is_closed = True
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(WorkerGoneError("the worker has ended"))

    async def close(self) -> None:
        """End all calls: the worker has ended, or is about to."""
        self._writer.close()
        await cancelled(self._reading)


async def answer_calls(channel: socket.socket, answer: Answer) -> None:
    """The worker's end: carry out calls, several at a time, until the supervisor has ended."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while (call := await _read(reader)) is not None:
            task = asyncio.create_task(_carry_out(call, answer, writer), name=f"call {call[1]}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        writer.close()


async def _carry_out(call: tuple[int, str, tuple[Any, ...]], answer: Answer, writer: asyncio.StreamWriter) -> None:
    number, name, arguments = call
    try:
        frame = _packed((number, True, await answer(name, arguments)))
    except GatewayError as error:
        frame = _packed((number, False, str(error)))
    except Exception as error:
        log.error("internal error", exc_info=error)
        frame = _packed((number, False, "internal error"))
    writer.write(frame)
