"""A listening socket that the event loop watches all the time, but not in vain."""

import asyncio
import socket

from gateway.server.listen.listening_sockets import WatchedSocket
from tests.support.deadline import within


async def test_connections_that_nobody_accepts_now_cost_nothing_and_are_accepted_later() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        watched = WatchedSocket(listening)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(3)]
        async with within():
            first, name = await watched.accept()
            assert (name, first.gettimeout()) == (clients[0].getsockname(), 0.0)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not loop.remove_reader(listening)
            later = [await watched.accept() for _ in range(2)]
        assert [name for _, name in later] == [client.getsockname() for client in clients[1:]]
        watched.close()
        assert not loop.remove_reader(listening)
        for each in (first, *(connection for connection, _ in later), *clients):
            each.close()
