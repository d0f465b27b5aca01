"""Connections to the gateway that look alike: our own over TCP and over WebSocket, and stomp.py's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import stomp
from stomp.exception import StompException
from websockets.exceptions import InvalidState

from tests.chaos.schedule import Transport
from tests.support.stomp_client import Address, ConnectionOverError, Frame, StompClient
from tests.support.websocket_client import RefusedError, WebSocketClient

logging.getLogger("stomp.py").setLevel(logging.CRITICAL)  # it complains of every connection that is cut

LOGIN: Final = {"login": "guest", "passcode": "guest", "host": "/"}

GONE: Final = (
    ConnectionOverError, RefusedError, InvalidState, OSError, asyncio.IncompleteReadError, StompException
)  # fmt: skip
"""What using a peer raises when its connection is gone."""


class Peer(Protocol):
    """A STOMP connection before its login. The names of headers are STOMP's."""

    async def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a frame."""

    async def receive(self) -> Frame:
        """The next frame.

        Raises:
            ConnectionOverError: the connection is gone.
        """


@contextlib.asynccontextmanager
async def dialled(transport: Transport, address: Address, trust: ssl.SSLContext) -> AsyncIterator[Peer]:
    """Open a connection, over TLS to a server that is to be trusted, and abort it at the end.

    Raises:
        any of `GONE`: the gateway is not there.
    """
    if transport in (Transport.TCP, Transport.TLS):
        async with StompClient.dialled(address, tls=trust if transport is Transport.TLS else None) as client:
            yield _TcpPeer(client)
    elif transport is Transport.WEBSOCKET:
        async with WebSocketClient.dialled(address) as websocket:
            yield _WebSocketPeer(websocket)
    else:
        async with _stomp_py(address) as peer:
            yield peer


class _TcpPeer:
    def __init__(self, client: StompClient) -> None:
        self._client = client

    async def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self._client.write(command, body, **headers)
        await self._client.writer.drain()

    async def receive(self) -> Frame:
        return await self._client.receive(seconds=3600)


class _WebSocketPeer:
    def __init__(self, client: WebSocketClient) -> None:
        self._client = client

    async def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self._client.write(command, body, **headers)
        await self._client.writer.drain()

    async def receive(self) -> Frame:
        while True:
            with contextlib.suppress(TimeoutError):  # its patience is for tests that expect something
                return await self._client.receive()


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Hands frames from stomp.py's thread to the event loop; None for the end."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def _hand_over(self, frame: Frame | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.frames.put_nowait, frame)

    def on_connected(self, frame: Any) -> None:  # noqa: ANN401 - stomp.py has no types
        self._take(frame)

    def on_message(self, frame: Any) -> None:  # noqa: ANN401
        self._take(frame)

    def on_receipt(self, frame: Any) -> None:  # noqa: ANN401
        self._take(frame)

    def on_error(self, frame: Any) -> None:  # noqa: ANN401
        self._take(frame)

    def on_disconnected(self) -> None:
        self._hand_over(None)

    def _take(self, frame: Any) -> None:  # noqa: ANN401
        body = frame.body or b""
        self._hand_over(Frame(frame.cmd, dict(frame.headers), body.encode() if isinstance(body, str) else body))


class _StompPyPeer:
    def __init__(self, connection: Any, listener: _Listener, writing: ThreadPoolExecutor) -> None:  # noqa: ANN401
        self._connection = connection
        self._listener = listener
        self._writing = writing

    async def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        # stomp.py writes to a blocking socket.
        await asyncio.get_running_loop().run_in_executor(self._writing, self._write, command, dict(headers), body)

    def _write(self, command: str, headers: dict[str, str], body: bytes) -> None:
        if body:
            headers["content-length"] = str(len(body))
        self._connection.send_frame(command, headers, body)

    async def receive(self) -> Frame:
        frame = await self._listener.frames.get()
        if frame is None:
            raise ConnectionOverError
        return frame


@contextlib.asynccontextmanager
async def _stomp_py(address: Address) -> AsyncIterator[_StompPyPeer]:
    connection = stomp.StompConnection12([address], auto_decode=False, reconnect_attempts_max=1, timeout=10)
    listener = _Listener()
    connection.set_listener("chaos", listener)
    writing = ThreadPoolExecutor(1)
    try:
        await asyncio.get_running_loop().run_in_executor(writing, connection.transport.start)
        plain = connection.transport.socket
        if plain is None:
            raise ConnectionOverError
        # Otherwise each frame of several waits for the answer to the one before.
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield _StompPyPeer(connection, listener, writing)
    finally:
        # A write that hangs ends with the socket.
        connection.transport.disconnect_socket()
        writing.shutdown(wait=False)
