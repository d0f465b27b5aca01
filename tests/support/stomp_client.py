"""A STOMP client for tests: asynchronous, in control of every byte, and independent of the gateway's own code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from tests.support.deadline import PATIENCE

Address = tuple[str, int]

_ESCAPES: Final = {b"\\n": b"\n", b"\\r": b"\r", b"\\c": b":", b"\\\\": b"\\"}
_ESCAPED: Final = re.compile(rb"\\[nrc\\]")
_TO_ESCAPE: Final = {byte: escape for escape, byte in _ESCAPES.items()}
_UNSAFE: Final = re.compile(rb"[\n\r:\\]")
_READ_AHEAD: Final = 1 << 20
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, repr=False)
class Frame:
    """A frame from the server, unescaped."""

    command: str
    headers: dict[str, str]
    body: bytes

    def __getitem__(self, name: str) -> str:
        return self.headers[name]

    def __repr__(self) -> str:
        # A failing test shows it; a body may have megabytes.
        rest = "..." if len(self.body) > _SHOWN else ""
        return f"<{self.command} {self.headers} {self.body[:_SHOWN]!r}{rest}>"


class ConnectionOverError(Exception):
    """The server closed the connection where a frame was expected."""


def encoded(command: str, body: bytes = b"", /, **headers: str) -> bytes:
    """A frame as bytes. A header's name is given with underscores for its hyphens.

    Args:
        command: the frame's.
        body: sent with its content-length, unless it is empty.
        **headers: unescaped.
    """
    lines = [command.encode()]
    for name, value in headers.items():
        lines.append(_escape(name.replace("_", "-").encode()) + b":" + _escape(value.encode()))
    if body:
        lines.append(b"content-length:%d" % len(body))
    return b"\n".join(lines) + b"\n\n" + body + b"\0"


def checked(frame: Frame, command: str, body: bytes | None, headers: Mapping[str, str]) -> Frame:
    """The same frame; see `StompClient.expect`."""
    assert frame.command == command, frame
    for name, value in headers.items():
        assert frame.headers.get(name.replace("_", "-")) == value, frame
    if body is not None:
        assert frame.body == body, frame
    return frame


async def open_connection(
    address: Address | Path, limit: int, receive_buffer: int, preface: bytes, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection, with TLS if a context is given; see ``StompClient.dialled``.

    Args:
        address: of the server; a path is that of its Unix-domain socket.
        limit: bytes that asyncio may read ahead; few for a client that does not read.
        receive_buffer: of the socket, in bytes; 0 for the system's default.
        preface: sent before TLS begins.
        tls: for a server whose certificate names localhost.
    """
    place = str(address) if isinstance(address, Path) else address
    connection = socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET)
    connection.setblocking(False)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does it only for its own sockets
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_connect(connection, place)
            if preface:
                await asyncio.get_running_loop().sock_sendall(connection, preface)
    except BaseException:
        connection.close()
        raise
    name = None if tls is None else "localhost"
    return await asyncio.open_connection(sock=connection, limit=limit, ssl=tls, server_hostname=name)


class StompClient:
    """One connection to a STOMP server.

    Args:
        reader: its incoming half.
        writer: its outgoing half.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.connected: Frame = Frame("", {}, b"")
        self._receipts = itertools.count(1)

    @classmethod
    @contextlib.asynccontextmanager
    async def dialled(
        cls,
        address: Address | Path,
        *,
        receive_buffer: int = 0,
        preface: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[Self]:
        """Open a connection without logging in, and abort it at the end.

        Args:
            address: of the server; a path is that of its Unix-domain socket.
            receive_buffer: bytes that the kernel may keep for a client that does not read; 0 for the system's default.
            preface: sent in the clear before anything else, as a proxy in front of the server does.
            tls: to speak TLS to a server whose certificate names localhost.
        """
        reader, writer = await open_connection(address, receive_buffer or _READ_AHEAD, receive_buffer, preface, tls)
        client = cls(reader, writer)
        try:
            yield client
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @classmethod
    @contextlib.asynccontextmanager
    async def logged_in(
        cls,
        address: Address | Path,
        *,
        version: str = "1.2",
        receive_buffer: int = 0,
        preface: bytes = b"",
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> AsyncIterator[Self]:
        """Connect and log in; see ``dialled`` and ``connect``."""
        async with cls.dialled(address, receive_buffer=receive_buffer, preface=preface, tls=tls) as client:
            await client.connect(version=version, **headers)
            yield client

    async def connect(self, *, version: str = "1.2", **headers: str) -> Frame:
        """Log in, and return CONNECTED."""
        self.write("CONNECT", accept_version=version, **headers)
        self.connected = await self.expect("CONNECTED")
        return self.connected

    # Out.

    def write(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame, without waiting for anything; see ``encoded``."""
        self.writer.write(encoded(command, body, **headers))

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame and wait for its receipt; nothing else may come before it."""
        receipt = f"receipt-{next(self._receipts)}"
        self.write(command, body, **headers, receipt=receipt)
        await self.expect("RECEIPT", receipt_id=receipt)

    async def disconnect(self) -> None:
        """Send DISCONNECT, and wait for its receipt and the end of the connection."""
        await self.ask("DISCONNECT")
        await self.closed()

    # In.

    async def receive(self, seconds: float = PATIENCE) -> Frame:
        """The next frame from the server; heart-beats are passed over.

        Raises:
            TimeoutError: none came in time.
            ConnectionOverError: the server closed the connection.
        """
        async with asyncio.timeout(seconds):
            try:
                return await self._receive()
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise ConnectionOverError(str(error)) from None

    async def _receive(self) -> Frame:
        line = b"\n"
        while line == b"\n":
            line = await self.reader.readuntil(b"\n")
        command = line[:-1].decode()
        headers: dict[str, str] = {}
        while (line := await self.reader.readuntil(b"\n")) != b"\n":
            name, _, value = line[:-1].partition(b":")
            headers.setdefault(_unescape(name).decode(), _unescape(value).decode())
        length = headers.get("content-length")
        body = await self.reader.readuntil(b"\0") if length is None else await self.reader.readexactly(int(length) + 1)
        assert body[-1:] == b"\0"
        # The line feed behind NUL belongs to the frame; another one would be a heart-beat.
        assert await self.reader.readexactly(1) == b"\n"
        return Frame(command, headers, body[:-1])

    async def expect(self, command: str, body: bytes | None = None, /, **headers: str) -> Frame:
        """Receive a frame, and check what is given.

        Raises:
            AssertionError: it is another one.
        """
        return checked(await self.receive(), command, body, headers)

    async def messages(self, count: int) -> list[Frame]:
        """Receive so many MESSAGE frames."""
        return [await self.expect("MESSAGE") for _ in range(count)]

    async def closed(self) -> None:
        """Wait until the server has closed the connection; it may send heart-beats before, and no frame."""
        async with asyncio.timeout(PATIENCE):
            rest = b""
            with contextlib.suppress(ConnectionError):
                rest = await self.reader.read()
            assert not rest.strip(b"\n"), rest[:1000]

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        with contextlib.suppress(OSError):  # the server may have closed first
            self.writer.write_eof()

    def hang_up(self) -> None:
        """Close the connection without DISCONNECT, once everything written is on its way."""
        self.writer.close()


def _escape(data: bytes) -> bytes:
    return _UNSAFE.sub(lambda found: _TO_ESCAPE[found[0]], data)


def _unescape(data: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], data)


# What a server says in an ERROR.


class ErrorText(NamedTuple):
    """The message header and the body of an ERROR."""

    message: str
    body: str


def error_text(frame: Frame) -> ErrorText:
    """The text of a frame that must be an ERROR."""
    assert frame.command == "ERROR", frame
    return ErrorText(frame["message"], frame.body.decode())


async def final_error(client: StompClient) -> ErrorText:
    """Wait until the server closes the connection, and return the text of the one ERROR that it sent.

    Frames before the ERROR are ignored. So is a RECEIPT after it, which RabbitMQ's plugin sends even then.
    """
    errors = []
    try:
        while True:
            frame = await client.receive()
            if frame.command == "ERROR":
                errors.append(error_text(frame))
    except ConnectionOverError:
        pass
    assert len(errors) == 1, errors
    return errors[0]


# What a client notices of another one that keeps the gateway busy.


class Asking(Protocol):
    """A client that sends frames with a receipt."""

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame and wait for its receipt."""


async def answers_during(busy: Coroutine[None, None, None], other: Asking) -> int:
    """Count the BEGIN and ABORT pairs of one client that are answered until another client gets its own answer.

    Args:
        busy: waits for the answer to the busy client.
        other: sends the pairs meanwhile.
    """
    done = asyncio.ensure_future(busy)
    answers = 0
    while not done.done():
        await other.ask("BEGIN", transaction=f"t{answers}")
        await other.ask("ABORT", transaction=f"t{answers}")
        answers += 1
    await done
    return answers
