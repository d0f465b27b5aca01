"""What all clients of a run have in common: they log in, wait for receipts, and come back when their session ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.peers import GONE, LOGIN, Peer, dialled
from tests.chaos.recording import Began, Ended, Recording
from tests.chaos.schedule import Schedule, Transport
from tests.support.stomp_client import Address, ConnectionOverError, Frame

_COMES_BACK_AFTER: Final = 0.1

GAVE_UP: Final = "gave up waiting"
"""What ends the session of a client that had no answer for long."""


class Talk:
    """One session: frames out, and frames in by a task of its own.

    Args:
        peer: its connection.
        heed: takes every frame that is not a RECEIPT or an ERROR.
    """

    def __init__(self, peer: Peer, heed: Callable[[Frame], None]) -> None:
        self._peer = peer
        self._heed = heed
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self._reading: asyncio.Task[None] | None = None
        self.error = ""
        self.over = asyncio.Event()

    async def log_in(self, version: str) -> None:
        """Send CONNECT, wait for CONNECTED, and read on."""
        await self._peer.write("CONNECT", {**LOGIN, "accept-version": version})
        frame = await self._peer.receive()
        if frame.command != "CONNECTED":
            self.error = _text(frame)
            raise ConnectionOverError(self.error)
        self._reading = asyncio.create_task(self._read())

    async def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a frame."""
        if self.over.is_set():
            raise ConnectionOverError
        await self._peer.write(command, headers, body)

    async def ask(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> asyncio.Future[None]:
        """Send a frame with a receipt. The future is done when the RECEIPT comes, and fails when the session ends."""
        receipt = f"r{next(self._numbers)}"
        answer = asyncio.get_running_loop().create_future()
        # Nobody has to wait for it.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[receipt] = answer
        await self.write(command, {**headers, "receipt": receipt}, body)
        return answer

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self.error = GAVE_UP
        self._end()

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        self._end()

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._peer.receive())
        except GONE:
            self._end()

    def _take(self, frame: Frame) -> None:
        if frame.command == "RECEIPT":
            waiting = self._waiting.pop(frame.headers["receipt-id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        elif frame.command == "ERROR":
            # The session may go on, but this client connects again.
            self.error = _text(frame)
            raise ConnectionOverError(self.error)
        else:
            self._heed(frame)

    def _end(self) -> None:
        self.over.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionOverError())
        self._waiting.clear()


def _text(frame: Frame) -> str:
    return f"{frame.headers.get('message')}: {frame.body.decode(errors='replace').strip()}"


@dataclass(frozen=True)
class Scene:
    """What the clients of a run share: schedule, recording and clock, where they connect to, and whom they trust.

    ``at_commit`` has what is to happen when a client is about to write its next COMMIT.
    """

    schedule: Schedule
    recording: Recording
    addresses: Mapping[str, Address]
    trust: ssl.SSLContext
    clock: Callable[[], float]
    is_cluster: bool = False
    at_commit: dict[str, Callable[[], None]] = field(default_factory=dict)


class ChaosClient(ABC):
    """A client that records what it sees, and connects again until its work is done.

    Args:
        scene: of the run.
        name: in the recording.
        transport: how it connects.
        version: the only one that it speaks.
    """

    def __init__(self, scene: Scene, name: str, transport: Transport, version: str) -> None:
        self.scene = scene
        self.name = name
        self.connection = 0
        self.is_leaving = False
        self._transport = transport
        self._version = version
        self._talk: Talk | None = None

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it need not connect again."""

    @abstractmethod
    async def converse(self, talk: Talk) -> None:
        """Do the work of one session, as far as it gets."""

    def heed(self, frame: Frame) -> None:  # noqa: B027 - most clients get none
        """Take a MESSAGE."""

    async def run(self) -> None:
        """Work until it is done."""
        while not self.is_done:
            self.connection += 1
            with contextlib.suppress(*GONE):
                async with self._session() as talk:
                    await self.converse(talk)
            if not self.is_done:
                await asyncio.sleep(_COMES_BACK_AFTER)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Talk]:
        self.is_leaving = False
        async with dialled(self._transport, self.scene.addresses[self.name], self.scene.trust) as peer:
            talk = self._talk = Talk(peer, self.heed)
            try:
                await talk.log_in(self._version)
                self.scene.recording.add(Began(self.scene.clock(), self.name, self.connection))
                yield talk
            finally:
                await talk.close()
                ended = Ended(self.scene.clock(), self.name, self.connection, talk.error, self.is_leaving)
                self.scene.recording.add(ended)

    def give_up(self) -> None:
        """End the session, and connect again."""
        if self._talk is not None:
            self._talk.give_up()

    async def leave(self, talk: Talk) -> None:
        """End a session in good order."""
        done = await talk.ask("DISCONNECT", {})
        await done
        self.is_leaving = True
