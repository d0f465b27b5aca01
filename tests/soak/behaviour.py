"""The sessions of a soak. Each connects again when it ends; what it did not ask for is an error."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.peers import GONE
from tests.soak.samples import Latency
from tests.support.stomp_client import Address, Frame, StompClient
from tests.support.websocket_client import WebSocketClient

_PAUSE: Final = (6.0, 10.0)
"""Seconds between the messages of a session."""
_LOST_AFTER: Final = 60.0
_HEARTBEAT: Final = "10000,10000"
_COMES_BACK_AFTER: Final = (0.5, 3.0)

Client = StompClient | WebSocketClient


@dataclass(frozen=True)
class Doors:
    """Where the gateway listens, and whom TLS clients trust."""

    tcp: Address
    tls: Address
    websocket: Address
    context: ssl.SSLContext


@dataclass
class Tally:
    """What the sessions of a process saw since the last report."""

    latencies: list[Latency] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    connected: int = 0


class Sessions:
    """All sessions of one process.

    Args:
        doors: of the gateway.
        begun: the moment that counts as zero, by ``time.time``.
        chance: of everything.
    """

    def __init__(self, doors: Doors, begun: float, chance: random.Random) -> None:
        self.tally = Tally()
        self._doors = doors
        self._begun = begun
        self._chance = chance
        # Of ten sessions: three idle, three that send to themselves, two pairs over a queue, one that comes and goes,
        # one with transactions.
        self._kinds: Sequence[Callable[[Client, str], object]] = (
            self._idle, self._idle, self._idle, self._echo, self._echo, self._echo, self._queue, self._queue,
            self._coming_and_going, self._transactions,
        )  # fmt: skip

    def now(self) -> float:
        """Seconds since the soak began."""
        return time.time() - self._begun

    async def run(self, number: int) -> None:
        """One session for ever; its number decides what it does and how it connects."""
        name = f"soak-{number}"
        kind = self._kinds[number % len(self._kinds)]
        while True:
            error = ""
            try:
                async with self._connected(number) as client:
                    self.tally.connected += 1
                    try:
                        await kind(client, name)  # type: ignore[misc]
                    finally:
                        self.tally.connected -= 1
            except UnaskedError as found:
                error = str(found)
            except GONE as gone:
                error = f"connection lost: {type(gone).__name__}"
            if error:
                self.tally.errors.append((self.now(), error))
            await asyncio.sleep(self._chance.uniform(*_COMES_BACK_AFTER))

    @contextlib.asynccontextmanager
    async def _connected(self, number: int) -> AsyncIterator[Client]:
        opened: contextlib.AbstractAsyncContextManager[Client]
        match number // len(self._kinds) % 4:
            case 0:
                opened = WebSocketClient.dialled(self._doors.websocket)
            case 1:
                opened = StompClient.dialled(self._doors.tls, tls=self._doors.context)
            case _:
                opened = StompClient.dialled(self._doors.tcp)
        async with opened as client:
            client.write("CONNECT", accept_version="1.2", host="/", heart_beat=_HEARTBEAT)
            await _expect(client, "CONNECTED")
            beating = asyncio.create_task(_beat(client))
            try:
                yield client
            finally:
                _ = beating.cancel()

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(*_PAUSE))

    # What sessions do.

    async def _idle(self, client: Client, _name: str) -> None:
        await _expect(client, "nothing")

    async def _echo(self, client: Client, name: str) -> None:
        """Send to a topic and wait for the message, which may be lost if the broker ends."""
        numbers = itertools.count()
        await _ask(client, "SUBSCRIBE", id="s", destination=f"/topic/{name}")
        while True:
            await self._pause()
            number, begun = str(next(numbers)), self.now()
            client.write("SEND", b"x" * self._chance.randint(10, 2000), destination=f"/topic/{name}", number=number)
            try:
                async with asyncio.timeout(_LOST_AFTER):
                    while (await _expect(client, "MESSAGE")).headers.get("number") != number:
                        pass
            except TimeoutError:
                self.tally.errors.append((begun, "a message to a topic is lost"))
            else:
                self._note("echo", begun)

    async def _queue(self, client: Client, name: str) -> None:
        """Send to a queue with a receipt, and take messages from there."""
        queue = f"/queue/soak-{int(name.rpartition('-')[2]) % 20}"
        await _ask(client, "SUBSCRIBE", id="s", destination=queue, ack="client-individual", prefetch_count="10")
        while True:
            await self._pause()
            begun = self.now()
            client.write("SEND", b"y" * 200, destination=queue, persistent="true", receipt="sent")
            while (frame := await _expect(client, "RECEIPT", "MESSAGE")).command == "MESSAGE":
                client.write("ACK", id=frame["ack"])
                self.tally.counts["taken"] += 1
            self._note("sent", begun)

    async def _coming_and_going(self, client: Client, name: str) -> None:
        await _ask(client, "SUBSCRIBE", id="s", destination=f"/topic/{name}")
        await self._pause()
        begun = self.now()
        await _ask(client, "DISCONNECT")
        self._note("came and went", begun, latency=False)

    async def _transactions(self, client: Client, name: str) -> None:
        while True:
            await self._pause()
            begun = self.now()
            client.write("BEGIN", transaction="t")
            for _ in range(3):
                client.write("SEND", b"z" * 100, destination=f"/topic/{name}", transaction="t")
            await _ask(client, "COMMIT", transaction="t")
            self._note("committed", begun)

    def _note(self, what: str, begun: float, *, latency: bool = True) -> None:
        self.tally.counts[what] += 1
        if latency:
            self.tally.latencies.append(Latency(begun, self.now() - begun))


class UnaskedError(Exception):
    """The gateway sent an ERROR, or something else that a session did not ask for."""


async def _ask(client: Client, command: str, **headers: str) -> None:
    client.write(command, **headers, receipt="asked")
    while (await _expect(client, "RECEIPT", "MESSAGE")).command != "RECEIPT":
        pass


async def _expect(client: Client, *commands: str) -> Frame:
    """The next frame, however long it takes; heart-beats tell that the connection lives."""
    while True:
        with contextlib.suppress(TimeoutError):  # the WebSocket client's patience is for tests
            frame = await (client.receive(3600) if isinstance(client, StompClient) else client.receive())
            if frame.command not in commands:
                raise UnaskedError(f"{frame.command} {_shown(frame.headers)} {frame.body[:200]!r}")
            return frame


def _shown(headers: Mapping[str, str]) -> str:
    return headers.get("message", "")


async def _beat(client: Client) -> None:
    """Send heart-beats."""
    while True:
        await asyncio.sleep(8)
        if isinstance(client, StompClient):
            client.writer.write(b"\n")
        else:
            client.send(b"\n", binary=True)
