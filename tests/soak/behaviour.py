"""The sessions of a soak. Each connects again when it ends; what it did not ask for is an error."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.peers import GONE
from tests.soak.samples import Latency
from tests.soak.verdict import CAME_AGAIN, LOST_WITH_THE_BROKER
from tests.support.stomp_client import Address, Frame, StompClient
from tests.support.websocket_client import WebSocketClient

_PAUSE: Final = (6.0, 10.0)
"""Seconds between the messages of a session."""
_ANSWER_WITHIN: Final = 60.0
"""Seconds in which a CONNECTED, a RECEIPT or a message must come, restart of the broker or not."""
_SILENT_AT_MOST: Final = 18.0
"""Seconds without a heart-beat; the WebSocket client gives up after 20."""
_HEARTBEAT: Final = "10000,10000"
_BEAT_EVERY: Final = 8.0
_COMES_BACK_AFTER: Final = (0.5, 3.0)
_PER_TRANSACTION: Final = 3
_SIZES: Final = (20, 200, 2000)
"""Bytes of bodies; few, because the gateway keeps 64 header blocks of a session, and content-length is in them."""

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


class UnaskedError(Exception):
    """The gateway sent an ERROR, or something else that a session did not ask for; or it did not answer."""


class Conversation:
    """One session. A task of its own reads the frames, so that every wait can have a deadline.

    Args:
        client: its connection, logged in.
        heed: takes each MESSAGE.
    """

    def __init__(self, client: Client, heed: Callable[[Frame], None]) -> None:
        self._client = client
        self._heed = heed
        self._receipts = itertools.count(1)
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    @contextlib.asynccontextmanager
    async def with_heed(cls, client: Client, heed: Callable[[Frame], None]) -> AsyncIterator[Conversation]:
        """A conversation for the time of a ``with`` block."""
        conversation = cls(client, heed)
        try:
            yield conversation
        finally:
            _ = conversation._reading.cancel()
            _ = await asyncio.gather(conversation._reading, return_exceptions=True)

    def write(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame."""
        self._client.write(command, body, **headers)

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame, and wait for its RECEIPT."""
        receipt = str(next(self._receipts))
        answered = self._awaited[receipt] = asyncio.get_running_loop().create_future()
        self.write(command, body, **headers, receipt=receipt)
        if not await self.comes(answered):
            raise UnaskedError(f"no RECEIPT of {command} within {_ANSWER_WITHIN:g} s")

    async def comes(self, awaited: asyncio.Future[None]) -> bool:
        """Wait for what the next frames bring; whether it came in time."""
        return await self._wait({awaited, self._reading}, _ANSWER_WITHIN, awaited)

    async def pause(self, seconds: float) -> None:
        """Do nothing, but heed what comes."""
        _ = await self._wait({self._reading}, seconds)

    async def _wait(
        self, waiting: set[asyncio.Future[None]], seconds: float, awaited: asyncio.Future[None] | None = None
    ) -> bool:
        _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if awaited is not None and awaited.done():
            return True
        if self._reading.done():
            self._reading.result()
        return False

    async def _read(self) -> None:
        while True:
            frame = await _next_frame(self._client)
            answered = self._awaited.pop(frame.headers.get("receipt-id", ""), None)
            if frame.command == "MESSAGE":
                self._heed(frame)
            elif frame.command == "RECEIPT" and answered is not None:
                answered.set_result(None)
            else:
                raise UnaskedError(_shown(frame))


class Promises:
    """Which messages have a receipt, and which came."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._given: set[str] = set()

    def receipted(self, name: str) -> None:
        """Note that a message has a receipt."""
        self._given.add(name)

    def delivered(self, name: str) -> bool:
        """Note that a message came; whether it did so for the first time."""
        is_first = name not in self._kept
        self._kept.add(name)
        return is_first

    def missing(self) -> list[str]:
        """The messages that have a receipt and did not come."""
        return sorted(self._given - self._kept)


class Sessions:
    """All sessions of one process.

    Args:
        doors: of the gateway.
        begun: the moment that counts as zero, by ``time.time``.
        chance: of everything.
    """

    def __init__(self, doors: Doors, begun: float, chance: random.Random) -> None:
        self.tally = Tally()
        self.promises = Promises()
        self.there: set[int] = set()
        self._doors = doors
        self._begun = begun
        self._chance = chance
        self._is_sending = True
        # Of ten sessions: three idle, three that send to themselves, a pair over a queue, one that comes and goes, one
        # with transactions.
        self._kinds: Sequence[Callable[[Client, int], Awaitable[None]]] = (
            self._idle, self._idle, self._idle, self._echo, self._echo, self._echo, self._queue, self._queue,
            self._coming_and_going, self._transactions,
        )  # fmt: skip

    def now(self) -> float:
        """Seconds since the soak began."""
        return time.time() - self._begun

    def send_no_more(self) -> None:
        """Take what comes, but send nothing new."""
        self._is_sending = False

    async def run(self, number: int) -> None:
        """One session for ever; its number decides what it does and how it connects."""
        kind = self._kinds[number % len(self._kinds)]
        while True:
            try:
                async with self._connected(number) as client:
                    self.there.add(number)
                    await kind(client, number)
            except UnaskedError as error:
                self._failed(number, str(error))
            except GONE as gone:
                self._failed(number, f"connection lost: {type(gone).__name__}")
            await asyncio.sleep(self._chance.uniform(*_COMES_BACK_AFTER))

    def _failed(self, number: int, error: str) -> None:
        self.there.discard(number)
        self.tally.errors.append((self.now(), error))

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
            try:
                async with asyncio.timeout(_ANSWER_WITHIN):
                    frame = await _next_frame(client)
            except TimeoutError:
                raise UnaskedError(f"no CONNECTED within {_ANSWER_WITHIN:g} s") from None
            if frame.command != "CONNECTED":
                raise UnaskedError(_shown(frame))
            beating = asyncio.create_task(_beat(client))
            try:
                yield client
            finally:
                _ = beating.cancel()

    async def _pause(self, talk: Conversation) -> None:
        await talk.pause(self._chance.uniform(*_PAUSE))
        while not self._is_sending:
            await talk.pause(_PAUSE[1])

    # What sessions do.

    async def _idle(self, client: Client, _number: int) -> None:
        """Heart-beats come, and nothing else."""
        while True:
            try:
                async with asyncio.timeout(_SILENT_AT_MOST):
                    if isinstance(client, StompClient):
                        came = await client.reader.readexactly(1)
                    else:
                        came = bytes((await client.message()).data)
            except TimeoutError:
                raise UnaskedError(f"no heart-beat within {_SILENT_AT_MOST:g} s") from None
            if came != b"\n":
                rest = await client.reader.readuntil(b"\n") if isinstance(client, StompClient) else b""
                raise UnaskedError(f"to an idle session: {(came + rest)[:200]!r}")

    async def _echo(self, client: Client, number: int) -> None:
        """Send to a topic and wait for the message, which may be lost if the broker ends."""
        topic = f"/topic/soak-{number}"
        awaited: dict[str, asyncio.Future[None]] = {}

        def heed(frame: Frame) -> None:
            came = awaited.pop(_name_in(frame), None)
            if came is None:
                self._came_again()
            else:
                came.set_result(None)

        async with Conversation.with_heed(client, heed) as talk:
            await talk.ask("SUBSCRIBE", id="s", destination=topic)
            for turn in map(str, itertools.count()):
                await self._pause(talk)
                came = awaited[turn] = asyncio.get_running_loop().create_future()
                begun = self.now()
                talk.write("SEND", _named(turn, self._chance.choice(_SIZES)), destination=topic)
                if await talk.comes(came):
                    self._note("echo", begun)
                else:
                    self.tally.errors.append((begun, f"{LOST_WITH_THE_BROKER} is lost"))

    async def _queue(self, client: Client, number: int) -> None:
        """Send to the queue of a pair with a receipt, and take messages from there."""
        queue = f"/queue/soak-{number // len(self._kinds)}"
        async with self._taking(client, queue) as talk:
            while True:
                await self._pause(talk)
                begun = self.now()
                name = f"{number} at {begun:.3f}"
                await talk.ask("SEND", _named(name, 200), destination=queue, persistent="true")
                self.promises.receipted(name)
                self._note("sent", begun)

    async def _transactions(self, client: Client, number: int) -> None:
        """Send to a queue of its own, several messages in each transaction."""
        queue = f"/queue/soak-transactions-{number}"
        async with self._taking(client, queue) as talk:
            while True:
                await self._pause(talk)
                begun = self.now()
                names = [f"{number} at {begun:.3f}, {part}" for part in range(_PER_TRANSACTION)]
                talk.write("BEGIN", transaction="t")
                for name in names:
                    talk.write("SEND", _named(name, 100), destination=queue, persistent="true", transaction="t")
                await talk.ask("COMMIT", transaction="t")
                for name in names:
                    self.promises.receipted(name)
                self._note("committed", begun)

    async def _coming_and_going(self, client: Client, number: int) -> None:
        async with Conversation.with_heed(client, lambda _frame: self._came_again()) as talk:
            await talk.ask("SUBSCRIBE", id="s", destination=f"/topic/soak-{number}")
            await self._pause(talk)
            await talk.ask("DISCONNECT")
        self.tally.counts["came and went"] += 1

    @contextlib.asynccontextmanager
    async def _taking(self, client: Client, queue: str) -> AsyncIterator[Conversation]:
        """Subscribe to a queue, and acknowledge what comes."""

        def heed(frame: Frame) -> None:
            client.write("ACK", id=frame["ack"])
            self.tally.counts["taken"] += 1
            if not self.promises.delivered(_name_in(frame)):
                self._came_again()

        async with Conversation.with_heed(client, heed) as talk:
            await talk.ask("SUBSCRIBE", id="s", destination=queue, ack="client-individual", prefetch_count="10")
            yield talk

    def _came_again(self) -> None:
        self.tally.errors.append((self.now(), CAME_AGAIN))

    def _note(self, what: str, begun: float) -> None:
        self.tally.counts[what] += 1
        self.tally.latencies.append(Latency(begun, self.now() - begun))


def done_per_second(sessions: int) -> Mapping[str, float]:
    """What so many sessions do each second while the broker answers at once."""
    each = sessions / 10 / (sum(_PAUSE) / 2)
    come_and_go = sessions / 10 / ((sum(_PAUSE) + sum(_COMES_BACK_AFTER)) / 2)
    return {
        "echo": 3 * each, "sent": 2 * each, "committed": each, "came and went": come_and_go,
        "taken": (2 + _PER_TRANSACTION) * each,
    }  # fmt: skip


def _named(name: str, size: int) -> bytes:
    """A body that tells which message it is; headers repeat as those of a producer do, so that caches fill at once."""
    return name.encode() + b"\n" + b"x" * size


def _name_in(frame: Frame) -> str:
    return frame.body.partition(b"\n")[0].decode()


async def _next_frame(client: Client) -> Frame:
    """The next frame, however long it takes."""
    if isinstance(client, StompClient):
        return await client.receive(86_400)
    while True:
        with contextlib.suppress(TimeoutError):  # its patience is for tests
            return await client.receive()


def _shown(frame: Frame) -> str:
    return f"{frame.command} {frame.headers.get('message', '')} {frame.body[:200]!r}"


async def _beat(client: Client) -> None:
    """Send heart-beats."""
    while True:
        await asyncio.sleep(_BEAT_EVERY)
        if isinstance(client, StompClient):
            client.writer.write(b"\n")
        else:
            client.send(b"\n", binary=True)
