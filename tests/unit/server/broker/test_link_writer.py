"""What the AMQP library may do with the socket of a link."""

from __future__ import annotations

import asyncio

from gateway.server.broker.tap import LinkWriter


async def test_a_session_may_write_while_the_library_closes() -> None:
    loop = asyncio.get_running_loop()

    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(read_all, "127.0.0.1", 0) as server:
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        address = server.sockets[0].getsockname()[:2]
        transport, _ = await loop.create_connection(lambda: protocol, *address)
        writer = LinkWriter(transport, protocol, reader, loop)
        # What the library does when it gives a connection up.
        if writer.can_write_eof():
            writer.write_eof()
        writer.close()
        transport.write(b"an acknowledgement")
        await writer.wait_closed()
