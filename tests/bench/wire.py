"""The load client's side of a STOMP connection, made to cost next to nothing, and the loop that drives several of them.

What is sent was encoded beforehand and goes out in big writes. What arrives lands in one buffer that is never copied;
frames are counted by their NULs. Contents are looked at after the clock has stopped.
"""

import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.bench import payload
from tests.bench.payload import PLAIN, Shape

CHUNK = 256 * 1024
PATIENCE = 20.0
"""Seconds without any progress after which a row is given up."""
_SMALL = 64 * 1024
_RECEIPT_SIZE = 64
_WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ACK_HEADER = re.compile(rb"\nack:([^\n]+)\n")


class RowError(Exception):
    """A row lost something, or a server did not do its part; the message is a sentence for the report."""


class NotMeasurableError(Exception):
    """A row cannot be measured here, through nobody's fault; the message is a sentence for the report."""


@dataclass(frozen=True)
class Account:
    """Where a STOMP server listens and who the client says it is."""

    host: str
    port: int
    login: str
    passcode: str = field(repr=False)
    virtual_host: str
    heart_beat: str = "0,0"

    def connect_frame(self) -> bytes:
        """Return the CONNECT frame: STOMP 1.2."""
        lines = (
            "CONNECT",
            "accept-version:1.2",
            f"host:{self.virtual_host}",
            f"login:{self.login}",
            f"passcode:{self.passcode}",
            f"heart-beat:{self.heart_beat}",
        )
        return "\n".join(lines).encode() + b"\n\n\0"


def tcp_socket(account: Account) -> socket.socket:
    """Open a TCP connection; return the blocking socket.

    Raises:
        RowError: nobody listens there.
    """
    try:
        sock = socket.create_connection((account.host, account.port), timeout=PATIENCE)
    except OSError as error:
        raise RowError(f"nobody listens on {account.host}:{account.port}: {error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def connected_socket(account: Account) -> socket.socket:
    """Open a STOMP session; return the blocking socket.

    Raises:
        RowError: the server refuses, or does not answer.
    """
    return Wire.connect(account)


def await_connected(sock: socket.socket) -> None:
    """Await CONNECTED on a blocking socket.

    Raises:
        RowError: something else came.
    """
    answer = sock.recv(4096)
    while answer and b"\0" not in answer and (more := sock.recv(4096)):
        answer += more
    if b"CONNECTED\n" not in answer:
        raise RowError(f"the answer was {excerpt(answer)}")


class Wire:
    """One STOMP session of the load client. Use it as a context manager: a failed row drops the connection.

    `frames` and `received` count and hold what arrived since the last `expect`. `awaited` is what a frame ends in.
    """

    def __init__(self, account: Account) -> None:
        self.sock = self.connect(account)
        self.sock.setblocking(False)
        self.awaited = b"\0"
        self.frames = 0
        self.filled = 0
        self.buffer = bytearray(CHUNK)
        self._view = memoryview(self.buffer)
        self._payload = memoryview(b"")
        self._sent = 0
        self._allowed = 0

    @classmethod
    def connect(cls, account: Account) -> socket.socket:
        """Open a session; return the blocking socket.

        Raises:
            RowError: the server refuses, or does not answer.
        """
        sock = cls.begin(account)
        try:
            cls.await_begun(sock)
        except (OSError, RowError) as error:
            sock.close()
            raise RowError(f"the session was refused: {error}") from error
        return sock

    @classmethod
    def begin(cls, account: Account) -> socket.socket:
        """Open a TCP connection and say what opens a session; return the blocking socket, see `await_begun`."""
        sock = tcp_socket(account)
        sock.sendall(account.connect_frame())
        return sock

    @classmethod
    def await_begun(cls, sock: socket.socket) -> None:
        """Await the answer to `begin`."""
        await_connected(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.disconnect()
        finally:
            self.sock.close()

    @property
    def received(self) -> bytearray:
        """A copy of what arrived since the last `expect`."""
        return self.buffer[: self.filled]

    @property
    def has_outgoing(self) -> bool:
        """Tell whether something is left that may be written now."""
        return self._sent < self._allowed

    def expect(self, size: int) -> None:
        """Forget what was read and make room for about `size` bytes, so that no reading has to move the buffer."""
        self._view.release()
        self.buffer = bytearray(size + CHUNK)
        self._view = memoryview(self.buffer)
        self.filled = 0
        self.frames = 0

    def load(self, payload: bytes, allowed: int | None = None) -> None:
        """Take `payload` as the next thing to write, of which at first only `allowed` bytes may go (all, if None)."""
        self._payload = memoryview(payload)
        self._sent = 0
        self._allowed = len(payload) if allowed is None else min(allowed, len(payload))

    def allow(self, size: int) -> None:
        """Let the first `size` bytes of the payload be written."""
        self._allowed = min(size, len(self._payload))

    def append(self, more: bytes) -> None:
        """Put `more` behind what is still unwritten."""
        rest = bytes(self._payload[self._sent : self._allowed])
        self.load(rest + more if rest else more)

    def write(self) -> None:
        """Write as much as the socket takes now, at most one chunk."""
        try:
            self._sent += self.sock.send(self._payload[self._sent : min(self._sent + CHUNK, self._allowed)])
        except _WAITS:
            pass
        except OSError as error:
            raise RowError(f"the connection broke while sending ({error}){self.error_clause()}") from error

    def write_blocking(self, size: int) -> None:
        """Write the next `size` bytes of the payload to the socket, which blocks."""
        self.sock.sendall(self._payload[self._sent : self._sent + size])
        self._sent += size

    def write_all(self) -> None:
        """Write the whole payload to the socket, which blocks, however often it was written before."""
        self.sock.sendall(self._payload)

    def read(self) -> int:
        """Read once and return the number of bytes.

        Raises:
            RowError: the server closed the connection.
        """
        if self.filled == len(self.buffer):
            self._grow()
        try:
            count = self.sock.recv_into(self._view[self.filled : self.filled + CHUNK])
        except _WAITS:
            return 0
        except OSError as error:
            raise RowError(f"the connection broke while reading ({error}){self.error_clause()}") from error
        if not count:
            raise RowError(f"the server closed the connection{self.error_clause()}")
        end = self.filled + count
        self.frames += self.count_frames(self.filled, end)
        self.filled = end
        return count

    def count_frames(self, start: int, end: int) -> int:
        """Return how many frames ended between two places of the buffer."""
        return self.buffer.count(self.awaited, max(0, start - len(self.awaited) + 1), end)

    def ask(self, frame: bytes) -> None:
        """Send one frame that has a receipt header and await its RECEIPT; for times when nothing else arrives."""
        self.expect(CHUNK)
        self.load(frame)
        pump({self: 1})
        if b"RECEIPT\n" not in self.received:
            raise RowError(f"instead of a RECEIPT came {excerpt(self.received)}")

    def load_sends(self, destination: str, count: int, *, receipt_on_last: bool = False, shape: Shape = PLAIN) -> int:
        """Take transient messages as the next thing to write; return the size of one, where all are alike."""
        frames = payload.sends(destination, count, receipt_on_last=receipt_on_last, shape=shape)
        self.load(frames)
        return len(frames) // count

    def load_confirmed_sends(self, destination: str, count: int, in_flight: int) -> int:
        """Take persistent messages as the next thing to write, `in_flight` of them at once; return the size of one."""
        frames, size = payload.confirmed_sends(destination, count)
        self.expect(count * _RECEIPT_SIZE)
        self.load(frames, allowed=in_flight * size)
        return size

    def load_subscribe(self, destination: str, *, ack: str, prefetch: int | None = None) -> None:
        """Take a SUBSCRIBE as the next thing to write."""
        headers = {} if prefetch is None else {"prefetch-count": str(prefetch)}
        self.load(subscribe_frame(destination, ack=ack, **headers))

    def subscribe(self, destination: str, identifier: int = 0) -> None:
        """Subscribe with ack:auto and await the RECEIPT, after which no message can be missed."""
        self.ask(subscribe_frame(destination, str(identifier), receipt="subscribed", ack="auto"))

    def acknowledger(self) -> "Callable[[Wire], None]":
        """Return what answers each read with the ACKs of the messages that it completed."""
        return Acknowledger()

    def complaint_about_messages(self, count: int, shape: Shape = PLAIN) -> str | None:
        """Check that messages 0 to `count`-1 have come; return None or what is wrong."""
        return payload.complaint_about_messages(self.received, count, size=shape.size)

    def complaint_about_receipts(self, count: int) -> str | None:
        """Check that the receipts 0 to `count`-1 have come; return None or what is wrong."""
        return payload.complaint_about_receipts(self.received, count)

    def require_last_receipt(self) -> None:
        """Require the receipt of the last message."""
        if not self.received.startswith(b"RECEIPT\nreceipt-id:last\n"):
            raise RowError(f"the last SEND was not answered by its receipt{self.error_clause()}")

    def disconnect(self) -> None:
        """End the session in the orderly way: DISCONNECT, its RECEIPT, close."""
        self.ask(b"DISCONNECT\nreceipt:bye\n\n\0")

    def error_clause(self) -> str:
        """Return a clause with the ERROR that the server sent, or nothing."""
        start = self.buffer.find(b"ERROR\n", 0, self.filled)
        return "" if start < 0 else f"; the server said {excerpt(self.buffer[start : self.filled])}"

    def _grow(self) -> None:
        bigger = bytearray(2 * len(self.buffer))
        bigger[: self.filled] = self.buffer
        self._view.release()
        self.buffer = bigger
        self._view = memoryview(bigger)


class Acknowledger:
    """Answer each read with the ACK frames of all messages that it completed: one pattern, one join, one write."""

    def __init__(self) -> None:
        self._answered = 0

    def __call__(self, wire: Wire) -> None:
        """Append the ACKs of what `wire` has received whole since the last call."""
        complete = wire.buffer.rfind(0, self._answered, wire.filled) + 1
        if complete:
            ids = _ACK_HEADER.findall(wire.buffer, self._answered, complete)
            self._answered = complete
            if ids:
                wire.append(b"ACK\nid:" + b"\n\n\0ACK\nid:".join(ids) + b"\n\n\0")


def subscribe_frame(destination: str, /, identifier: str = "0", **headers: str) -> bytes:
    """Return a SUBSCRIBE frame; a header's underscores become hyphens, and its value is used as it is."""
    lines = [f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items()]
    return f"SUBSCRIBE\nid:{identifier}\ndestination:{destination}\n{''.join(lines)}\n\0".encode()


def pump(goals: Mapping[Wire, int], on_read: Callable[[Wire], None] | None = None, *, nap: float = 0.0) -> None:
    """Write and read until everything is written and every wire has received as many frames as its goal says.

    A server that writes message by message wakes an eager reader for each, and that reader's system calls then take
    from the servers the CPU that is being measured. So the client may rest after small reads, and finds more next.

    Args:
        goals: the connections to drive, and the number of frames that each awaits since its last `expect`.
        on_read: called with the connection after each read.
        nap: seconds of rest after a round that read little; 0 for none.

    Raises:
        RowError: nothing has moved for `PATIENCE` seconds, or a connection is gone.
    """
    wires = {wire.sock.fileno(): wire for wire in goals}
    interest = {number: _interest(wire) for number, wire in wires.items()}
    with select.epoll(len(wires)) as poller:
        for number, mask in interest.items():
            poller.register(number, mask)
        while any(wire.frames < goal or wire.has_outgoing for wire, goal in goals.items()):
            events = poller.poll(PATIENCE)
            if not events:
                raise RowError(_stalled(goals))
            size = 0
            for number, event in events:
                wire = wires[number]
                size += _serve(wire, event, on_read)
                if (mask := _interest(wire)) != interest[number]:
                    interest[number] = mask
                    poller.modify(number, mask)
            if nap and size < _SMALL:
                time.sleep(nap)


def _interest(wire: Wire) -> int:
    return select.EPOLLIN | (select.EPOLLOUT if wire.has_outgoing else 0)


def _serve(wire: Wire, event: int, on_read: Callable[[Wire], None] | None) -> int:
    size = 0
    if event & ~select.EPOLLOUT:
        size = wire.read()
        if on_read is not None:
            on_read(wire)
    if wire.has_outgoing:
        wire.write()
    return size


def _stalled(goals: Mapping[Wire, int]) -> str:
    arrived, wanted = sum(wire.frames for wire in goals), sum(goals.values())
    words = next((words for wire in goals if (words := wire.error_clause())), "")
    return f"only {arrived:,} of {wanted:,} frames came, then nothing for {PATIENCE:.0f} s{words}"


def excerpt(data: bytes | bytearray) -> str:
    """Return the beginning of what a server said, for a report."""
    return repr(bytes(data[:300]).decode("utf-8", "replace"))
