"""A server that speaks STOMP, but not as it should."""

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
    """Run a server that answers each frame by what `answer` makes of its command and headers.

    Args:
        answer: returns the bytes to send; none at all to close the connection.
    """

    async def serve(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = (await incoming.readuntil(b"\0"))[:-1].decode().lstrip("\n")
                command, *lines = frame.partition("\n\n")[0].split("\n")
                octets = answer(command, dict(line.partition(":")[::2] for line in lines))
                if not octets:
                    break
                outgoing.write(octets)
                await outgoing.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            outgoing.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield host, port
    finally:
        server.close()
        await server.wait_closed()
