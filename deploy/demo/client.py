"""A STOMP client for the demonstration, fast enough to keep a gateway busy. It counts what it sends and receives."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, Self

from deploy.demo.tally import Tally
from deploy.local.errors import LocalError

ANSWER_TIMEOUT: Final = 60.0
"""Seconds that an answer may take."""

_SEND_RECEIPT: Final = "s"
_OTHER_RECEIPT: Final = "r"


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame from the gateway. Its headers are still escaped: nothing here needs more."""

    command: str
    headers: dict[str, str]
    body: bytes


def encoded(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A frame as bytes. In the name of a header an underscore stands for a hyphen."""
    lines = [command, *(f"{name.replace('_', '-')}:{value}" for name, value in headers.items())]
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


class Client(asyncio.Protocol):
    """One connection. It queues messages and errors, and counts receipts.

    Args:
        tally: of the virtual host that it connects to.
        version: of STOMP.
    """

    def __init__(self, tally: Tally, version: str) -> None:
        self.messages: deque[Frame] = deque()
        self.errors: deque[Frame] = deque()
        self.unconfirmed = 0
        self._without_receipt = 0
        self.closed = False
        self._tally = tally
        self._version = version
        self._connected = False
        self._receipts: set[str] = set()
        self._numbers = 0
        self._buffer = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._transactions: dict[str, _Transaction] = {}

    @classmethod
    async def connect(cls, address: tuple[str, int], tally: Tally, version: str = "1.2") -> Self:
        """Open a connection without logging in."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(tally, version), *address)
        return client

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's own typing is wider than the truth
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the task that waits for an answer."""
        self.closed = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Split the input into frames."""
        buffer = self._buffer
        buffer += data
        start = 0
        while (end := self._frame_at(start)) is not None:
            start = end
        del buffer[:start]
        self._wake()

    def _frame_at(self, start: int) -> int | None:
        """Handle the frame that begins here, and return its end; None if it is incomplete."""
        buffer = self._buffer
        while buffer.startswith(b"\n", start):  # line ends after frames, and heart-beats
            start += 1
        head = buffer.find(b"\n\n", start)
        if head < 0:
            return None
        command, *lines = buffer[start:head].decode().split("\n")
        headers = {name: value for name, _, value in (line.partition(":") for line in reversed(lines))}
        body = head + 2
        length = headers.get("content-length")
        end = buffer.find(b"\0", body) if length is None else body + int(length)
        if end < 0 or end >= len(buffer):
            return None
        self._handle(Frame(command, headers, bytes(buffer[body:end])))
        return end + 1

    def _handle(self, frame: Frame) -> None:
        self._tally.frames += 1
        match frame.command:
            case "MESSAGE":
                self._tally.add("deliveries")
                if frame.headers.get("redelivered") == "true":
                    self._tally.add("redeliveries")
                self.messages.append(frame)
            case "RECEIPT":
                self._received(frame.headers["receipt-id"])
            case "ERROR":
                self._failed(frame)
            case "CONNECTED":
                self._tally.add("sessions")
                self._connected = True

    def _received(self, receipt: str) -> None:
        if receipt.startswith(_SEND_RECEIPT):
            self.unconfirmed -= 1
            self._tally.add("confirms")
        self._receipts.discard(receipt)

    def _failed(self, frame: Frame) -> None:
        self._tally.error(frame.headers.get("message", ""))
        if frame.headers.get("receipt-id", "").startswith(_SEND_RECEIPT):
            self.unconfirmed -= 1
            self._tally.add("rejections")
        else:
            self.errors.append(frame)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # Waiting.

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition is true; it is checked after each read.

        Raises:
            LocalError: ``what`` did not come within `ANSWER_TIMEOUT`, or an ERROR came, or the connection ended.
        """
        while not condition():
            if self.errors:
                error = self.errors[0]
                raise LocalError(f"The gateway sent an ERROR in place of {what}: {error.headers} {error.body!r}")
            if self.closed:
                raise LocalError(f"The gateway closed the connection in place of {what}.")
            await self._change(what)

    async def _change(self, what: str) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._waiting
        except TimeoutError:
            raise LocalError(f"Waited {ANSWER_TIMEOUT:.0f} s for {what}, in vain.") from None

    async def message(self) -> Frame:
        """The next MESSAGE."""
        if not self.messages:
            await self.until(lambda: self.messages, "a MESSAGE")
        return self.messages.popleft()

    async def error(self) -> Frame:
        """The next ERROR, if one is expected."""
        while not self.errors:
            if self.closed:
                raise LocalError("The gateway closed the connection without the ERROR that was expected.")
            await self._change("an ERROR")
        return self.errors.popleft()

    async def confirmed(self, at_most: int = 0) -> None:
        """Wait until at most so many SENDs lack their RECEIPT."""
        if self.unconfirmed > at_most:
            await self.until(lambda: self.unconfirmed <= at_most, "a RECEIPT")

    # Frames.

    def write(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame."""
        self._tally.frames += 1
        self._transport.write(encoded(command, headers, body))

    def write_raw(self, data: bytes) -> None:
        """Send bytes that need not be a frame."""
        self._transport.write(data)

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame, and wait for its RECEIPT."""
        self._numbers += 1
        receipt = f"{_OTHER_RECEIPT}{self._numbers}"
        self._receipts.add(receipt)
        self.write(command, body, **headers, receipt=receipt)
        await self.until(lambda: receipt not in self._receipts, f"the RECEIPT of {command}")

    async def log_in(self, host: str, login: str, passcode: str, heart_beat: str = "0,0") -> None:
        """CONNECT, and wait for CONNECTED."""
        self.write(
            "CONNECT",
            accept_version=self._version,
            host=host,
            login=login,
            passcode=passcode,
            heart_beat=heart_beat,
        )
        await self.until(lambda: self._connected, "CONNECTED")

    def send(self, destination: str, body: bytes, *, receipt: bool = False, **headers: str) -> None:
        """SEND outside of transactions, with or without asking for a RECEIPT."""
        self._tally.add("sends")
        if receipt:
            self._numbers += 1
            self.unconfirmed += 1
            headers["receipt"] = f"{_SEND_RECEIPT}{self._numbers}"
        else:
            self._without_receipt += 1
        self.write("SEND", body, destination=destination, **headers)

    async def subscribe(self, destination: str, name: str, ack: str = "auto", **headers: str) -> None:
        """SUBSCRIBE, and wait for its RECEIPT: no later message is missed."""
        await self.ask("SUBSCRIBE", destination=destination, id=name, ack=ack, **headers)

    def ack(self, message: Frame, covers: int = 1, transaction: str | None = None) -> None:
        """Acknowledge a message.

        Args:
            message: the last one that the ACK covers.
            covers: how many messages it acknowledges.
            transaction: an open one, or None.
        """
        self._settle("ACK", "acks", message, covers, transaction)

    def nack(self, message: Frame, *, requeue: bool) -> None:
        """Refuse a message."""
        self._settle("NACK", "nacks", message, 1, None, requeue=str(requeue).lower())

    def _settle(
        self, command: str, what: str, message: Frame, covers: int, transaction: str | None, **headers: str
    ) -> None:
        if self._version == "1.2":
            headers["id"] = message.headers["ack"]
        else:
            headers |= {"message-id": message.headers["message-id"], "subscription": message.headers["subscription"]}
        if transaction is None:
            self._tally.add(what, covers)
        else:
            headers["transaction"] = transaction
            self._transactions[transaction].acks += covers
        self.write(command, **headers)

    # Transactions.

    def begin(self, name: str) -> None:
        """BEGIN."""
        self._transactions[name] = _Transaction()
        self.write("BEGIN", transaction=name)

    def send_in(self, name: str, destination: str, body: bytes, **headers: str) -> None:
        """SEND in a transaction."""
        self._transactions[name].sends += 1
        self.write("SEND", body, destination=destination, transaction=name, **headers)

    async def commit(self, name: str) -> None:
        """COMMIT, and wait for the RECEIPT, which means that all its messages are confirmed."""
        held = self._transactions.pop(name)
        await self.ask("COMMIT", transaction=name)
        self._tally.add("sends", held.sends)
        self._tally.add("confirms", held.sends)
        self._tally.add("acks", held.acks)

    async def abort(self, name: str) -> None:
        """ABORT: nothing in it counts."""
        del self._transactions[name]
        await self.ask("ABORT", transaction=name)

    # Slow reading, and the end.

    def pause_reading(self) -> None:
        """Be slow: data waits in the kernel, and then in the gateway."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    async def disconnect(self) -> None:
        """DISCONNECT, and wait for the RECEIPT, which means that all messages are confirmed, and the end."""
        await self.ask("DISCONNECT")
        self._tally.add("confirms", self._without_receipt)
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the gateway has closed the connection."""
        while not self.closed:
            await self._change("the end of the connection")

    def cut(self) -> None:
        """Abort the connection without a DISCONNECT."""
        self.closed = True
        self._transport.abort()


@dataclass
class _Transaction:
    """What a COMMIT will add to the counts."""

    sends: int = 0
    acks: int = 0


@dataclass
class ClientFactory:
    """Connects clients to the gateway and keeps their counts."""

    address: tuple[str, int]
    passcode: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By virtual host."""

    @contextlib.asynccontextmanager
    async def session(
        self, host: str, login: str, version: str = "1.2", heart_beat: str = "0,0"
    ) -> AsyncIterator[Client]:
        """A session that ends with a DISCONNECT, unless it is closed before."""
        async with self.connection(host, version) as client:
            await client.log_in(host, login, self.passcode, heart_beat)
            yield client
            if not client.closed:
                await client.disconnect()

    @contextlib.asynccontextmanager
    async def connection(self, host: str, version: str = "1.2") -> AsyncIterator[Client]:
        """A connection without a login; its errors count for the virtual host."""
        client = await Client.connect(self.address, self.tallies.setdefault(host, Tally()), version)
        try:
            yield client
        finally:
            client.cut()
