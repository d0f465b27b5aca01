"""The connections between the nodes of a cluster, each through a proxy, so that a node can be cut off from the others.

Nodes find each other through Erlang's port mapper. Each node of a cluster asks a relay of its own, which hands its
questions to the real one, and answers with the port of a proxy to the other node in place of the node's own. Nothing of
this needs root, and a cut is one as by a network that loses everything: no connection ends, and none begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Final, Self

from tests.support.chaos import ChaosProxy, Direction, chaos

# Of the protocol of the port mapper.
_PORT_PLEASE: Final = 122
_PORT: Final = b"\x77\x00"
_NAMES: Final = 110
_HOST: Final = "127.0.0.1"


class Distribution:
    """Relays and proxies of one cluster; made by ``opened``.

    Args:
        stack: what closes them.
    """

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._loop = asyncio.get_running_loop()
        # By the name of who connects, then of whom it connects to and where that listens.
        self._proxies: dict[str, dict[tuple[str, int], ChaosProxy]] = {}
        self._cut: set[str] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls) -> AsyncIterator[Self]:
        """Close everything at the end."""
        async with contextlib.AsyncExitStack() as stack:
            yield cls(stack)

    def relay(self, name: str, mapper: int) -> int:
        """Open a node's relay. Called from another thread than that of the event loop.

        Args:
            name: of the node.
            mapper: the port of the real port mapper.

        Returns:
            The port of the relay.
        """
        return asyncio.run_coroutine_threadsafe(self._opened(_short(name), mapper), self._loop).result()

    def cut(self, name: str) -> None:
        """Let nothing through to a node or from it."""
        self._cut.add(_short(name))
        for proxy in self._of(_short(name)):
            _stall(proxy)

    def heal(self) -> None:
        """Let everything through again."""
        self._cut.clear()
        for proxies in self._proxies.values():
            for proxy in proxies.values():
                proxy.heal()

    def _of(self, name: str) -> Iterator[ChaosProxy]:
        for asker, proxies in self._proxies.items():
            for (other, _), proxy in proxies.items():
                if name in (asker, other):
                    yield proxy

    async def _opened(self, name: str, mapper: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(name, mapper, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, _HOST)
        _ = self._stack.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _answer(
        self, asker: str, mapper: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        size = await reader.readexactly(2)
        request = await reader.readexactly(*struct.unpack("!H", size))
        of_mapper, to_mapper = await asyncio.open_connection(_HOST, mapper)
        try:
            to_mapper.write(size + request)
            if request[0] == _PORT_PLEASE:
                writer.write(await self._redirected(asker, request[1:].decode(), await of_mapper.read()))
                return
            if request[0] == _NAMES:
                # It says which port it listens on, and who asks compares.
                port: int = writer.get_extra_info("sockname")[1]
                writer.write(struct.pack("!I", port) + (await of_mapper.read())[4:])
                return
            # A node keeps this connection for as long as it lives.
            asking = asyncio.create_task(_copy(reader, to_mapper))
            await _copy(of_mapper, writer)
            _ = asking.cancel()
        finally:
            to_mapper.close()

    async def _redirected(self, asker: str, name: str, answer: bytes) -> bytes:
        if not answer.startswith(_PORT) or name == asker:
            return answer
        [port] = struct.unpack("!H", answer[2:4])
        proxy = await self._proxy(asker, name, port)
        return answer[:2] + struct.pack("!H", proxy.address[1]) + answer[4:]

    async def _proxy(self, asker: str, name: str, port: int) -> ChaosProxy:
        proxies = self._proxies.setdefault(asker, {})
        if (name, port) not in proxies:
            proxy = proxies[name, port] = await self._stack.enter_async_context(chaos((_HOST, port)))
            if self._cut & {asker, name}:
                _stall(proxy)
        return proxies[name, port]


def _stall(proxy: ChaosProxy) -> None:
    for direction in Direction:
        proxy.stall(direction)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1024):
            writer.write(data)
            await writer.drain()
    writer.close()


def _short(name: str) -> str:
    return name.partition("@")[0]
