"""A second process on the way to a server, which only copies bytes: `python -m tests.bench.proxy PORT HOST:PORT`.

No gateway can answer sooner than the plugin behind this: it reads each socket as soon as there is something, writes at
once, and looks at nothing. It runs on the gateway's event loop.
"""

import asyncio
import sys
from typing import cast

import uvloop

from deploy.local.ports import LOOPBACK


class _End(asyncio.Protocol):
    """One end of a connection; `other` is the end that gets what this one reads, None until there is one."""

    def __init__(self, other: "_End | None" = None) -> None:
        self.other = other
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of it.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        assert self.other is not None
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        assert self.other is not None
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class _Client(_End):
    """The client's end."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._server = host, port
        # What the client says before the server is reached: its first frame, after which it waits for an answer.
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialling = asyncio.ensure_future(self._dial())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        else:
            super().data_received(data)

    async def _dial(self) -> None:
        try:
            _, server = await asyncio.get_running_loop().create_connection(lambda: _End(self), *self._server)
        except OSError:
            self.transport.abort()
            return
        self.other = server
        super().data_received(self._early)


async def serve(port: int, host: str, server_port: int) -> None:
    """Copy between each client of a port and a connection of its own to the server, until cancelled."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: _Client(host, server_port), LOOPBACK, port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    _host, _, _port = sys.argv[2].rpartition(":")
    uvloop.run(serve(int(sys.argv[1]), _host, int(_port)))
