"""A STOMP server whose answers the test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tests.support.gateway import Address

Answer = Callable[[str, Mapping[str, str]], bytes]


def connected(server: str = "false/1", session: str = "session-AAAAAAAAAAAAAAAAAAAAAA") -> bytes:
    """A CONNECTED frame."""
    return f"CONNECTED\nserver:{server}\nsession:{session}\nheart-beat:0,0\nversion:1.2\n\n\0\n".encode()


def receipt(receipt_id: str) -> bytes:
    """A RECEIPT frame."""
    return f"RECEIPT\nreceipt-id:{receipt_id}\n\n\0\n".encode()


@asynccontextmanager
async def false_server(answer: Answer) -> AsyncIterator[Address]:
    """Run a server that answers each frame with the bytes that `answer` returns for its command and headers.

    It closes the connection if `answer` returns no bytes.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = (await reader.readuntil(b"\0"))[:-1].decode().lstrip("\n")
                command, *lines = frame.partition("\n\n")[0].split("\n")
                data = answer(command, dict(line.partition(":")[::2] for line in lines))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield host, port
    finally:
        server.close()
        await server.wait_closed()
