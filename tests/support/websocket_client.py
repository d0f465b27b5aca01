"""A STOMP client over WebSocket for tests, in control of every byte; the library checks what the server sends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, cast

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Close, Opcode
from websockets.frames import Frame as Piece
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tests.support.deadline import PATIENCE
from tests.support.stomp_client import (
    Address,
    ConnectionOverError,
    Frame,
    StompClient,
    checked,
    encoded,
    open_connection,
)

_READ: Final = 1 << 16


class RefusedError(Exception):
    """The server did not switch to WebSocket.

    Args:
        response: what it said.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class WebSocketClient:
    """One WebSocket connection to a STOMP server.

    Args:
        reader: the socket's incoming half.
        writer: its outgoing half.
        protocol: of the library.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: ClientProtocol) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = protocol
        self.response: Response | None = None
        self._pieces: list[Piece] = []
        self._receipts = itertools.count(1)

    @classmethod
    @contextlib.asynccontextmanager
    async def dialled(
        cls,
        address: Address | Path,
        *,
        path: str = "/ws",
        subprotocols: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        compression: bool = False,
        receive_buffer: int = 0,
        preface: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[Self]:
        """Open a WebSocket without logging in, and abort it at the end.

        Args:
            address: of the server.
            path: of the URL.
            subprotocols: to be offered.
            headers: more of them, such as the page's Origin.
            compression: whether to offer it.
            receive_buffer: bytes that the kernel may keep for a client that does not read; 0 for the system's default.
            preface: sent in the clear before anything else.
            tls: to speak TLS to a server whose certificate names localhost.

        Raises:
            RefusedError: the server did not switch to WebSocket.
        """
        reader, writer = await open_connection(address, receive_buffer or _READ, receive_buffer, preface, tls)
        host = "localhost" if isinstance(address, Path) else f"{address[0]}:{address[1]}"
        protocol = ClientProtocol(
            parse_uri(f"ws://{host}{path}"),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            extensions=[ClientPerMessageDeflateFactory()] if compression else None,
            max_size=None,
        )
        client = cls(reader, writer, protocol)
        try:
            await client._handshake(headers or {})
            yield client
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @classmethod
    @contextlib.asynccontextmanager
    async def logged_in(
        cls, address: Address, *, frame: Mapping[str, str] | None = None, **how: object
    ) -> AsyncIterator[Self]:
        """Connect and log in; ``how`` is for ``dialled``, ``frame`` are headers of CONNECT."""
        async with cls.dialled(address, **how) as client:  # type: ignore[arg-type]
            await client.connect(**(frame or {}))
            yield client

    async def _handshake(self, headers: Mapping[str, str]) -> None:
        request = self.protocol.connect()
        request.headers.update(headers)
        self.protocol.send_request(request)
        self.flush()
        async with asyncio.timeout(PATIENCE):
            while not (events := self.protocol.events_received()):
                if not await self._read():
                    raise ConnectionOverError
        self.response, *rest = cast("list[Response]", events)
        self._pieces += cast("list[Piece]", rest)
        if self.response.status_code != 101:
            raise RefusedError(self.response)
        if self.protocol.handshake_exc is not None:
            raise self.protocol.handshake_exc

    # Out.

    def send(self, data: bytes, *, binary: bool = False) -> None:
        """Send a message."""
        (self.protocol.send_binary if binary else self.protocol.send_text)(data)
        self.flush()

    def write(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame of STOMP, in a message of its own; see ``encoded``."""
        self.send(encoded(command, body, **headers), binary=True)

    def send_close(self, code: int = 1000) -> None:
        """Send a close frame."""
        self.protocol.send_close(code)
        self.flush()

    def flush(self) -> None:
        """Send what the library has prepared."""
        for data in self.protocol.data_to_send():
            if data and not self.writer.is_closing():
                self.writer.write(data)

    async def connect(self, **headers: str) -> Frame:
        """Log in, and return CONNECTED."""
        self.write("CONNECT", **{"accept_version": "1.2", "host": "/"} | headers)
        return await self.expect("CONNECTED")

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame and wait for its receipt; nothing else may come before it."""
        receipt = f"receipt-{next(self._receipts)}"
        self.write(command, body, **headers, receipt=receipt)
        await self.expect("RECEIPT", receipt_id=receipt)

    # In.

    async def _read(self) -> bool:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = await self.reader.read(_READ)
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        self.flush()
        return bool(data)

    async def piece(self) -> Piece:
        """The next frame of WebSocket, whatever it is.

        Raises:
            TimeoutError: none came in time.
            ConnectionOverError: the server closed the connection.
        """
        async with asyncio.timeout(PATIENCE):
            while not self._pieces:
                is_open = await self._read()
                self._pieces += cast("list[Piece]", self.protocol.events_received())
                if not is_open and not self._pieces:
                    raise ConnectionOverError
        return self._pieces.pop(0)

    async def message(self) -> Piece:
        """The next message; pings are passed over."""
        while (piece := await self.piece()).opcode in (Opcode.PING, Opcode.PONG):
            pass
        return piece

    async def receive(self) -> Frame:
        """The next message, which must be one frame of STOMP; heart-beats are passed over.

        Raises:
            ConnectionOverError: the server closed.
        """
        while (piece := await self.message()).data == b"\n":
            pass
        if piece.opcode is Opcode.CLOSE:
            self._pieces.insert(0, piece)
            raise ConnectionOverError(str(Close.parse(piece.data)))
        assert piece.opcode in (Opcode.TEXT, Opcode.BINARY)
        if piece.opcode is Opcode.TEXT:
            bytes(piece.data).decode()
        stream = asyncio.StreamReader()
        stream.feed_data(bytes(piece.data))
        stream.feed_eof()
        frame = await StompClient(stream, self.writer).receive()
        assert stream.at_eof(), "more than one frame in a message"
        return frame

    async def expect(self, command: str, body: bytes | None = None, /, **headers: str) -> Frame:
        """Receive a frame, and check what is given.

        Raises:
            AssertionError: it is another one.
        """
        return checked(await self.receive(), command, body, headers)

    async def closed(self) -> int:
        """Wait for the server's close frame, before which nothing but heart-beats may come, and the connection's end.

        Returns:
            The code in it.
        """
        while (piece := await self.message()).data == b"\n":
            pass
        assert piece.opcode is Opcode.CLOSE, piece
        async with asyncio.timeout(PATIENCE):
            while self.protocol.state is not State.CLOSED:
                await self._read()
        return Close.parse(piece.data).code
