"""The listening sockets of several workers: spread by the system, kept while workers come and go."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.addresses import SocketAddress, UnixAddress
from gateway.config.listener_settings import Listener
from gateway.errors import ListenError
from gateway.server.process.worker_sockets import (
    InheritedSockets,
    SocketSet,
    bound_for_workers,
    descriptors_of,
    renumbered,
)

_ADDRESS = SocketAddress("127.0.0.1", 0)
_LISTENER = Listener(tcp=_ADDRESS)


@contextlib.asynccontextmanager
async def _bound(workers: int) -> AsyncIterator[list[SocketSet]]:
    sets = await bound_for_workers([_LISTENER], workers)
    try:
        yield sets
    finally:
        for each in sets:
            each.close()


async def _inherited(sockets: SocketSet) -> list[socket.socket]:
    """A worker's copies, as its process would have them."""
    copies = {
        address: [None if group is None else [socket.fromfd(fd, 2, 1).detach() for fd in group] for group in groups]
        for address, groups in sockets.handed({_ADDRESS: 1}, {}).items()
    }
    return await InheritedSockets(copies).bind(_LISTENER)


def _accepted(listening: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


def _connect(address: tuple[str, int], times: int) -> None:
    for _ in range(times):
        socket.create_connection(address).close()


async def test_a_worker_that_is_away_gets_no_connection_until_its_successor_listens() -> None:
    async with _bound(2) as sets:
        ((first,), (second,)) = [await _inherited(each) for each in sets]
        address = first.getsockname()
        assert second.getsockname() == address
        sets[0].pause()
        _connect(address, 20)
        assert _accepted(second) == 20
        first.listen(100)
        _connect(address, 100)
        # Each gets one with a probability of one half.
        assert 0 < _accepted(first) < 100
        for each in (first, second):
            each.close()


async def test_a_worker_that_is_away_gets_no_connection_at_a_new_listener_either() -> None:
    async with _bound(2) as sets, _bound(2) as more:
        ((first,), (second,)) = [await _inherited(each) for each in more]
        sets[0].pause()
        for own, others in zip(sets, more, strict=True):
            own.take(others)
        _connect(second.getsockname(), 20)
        assert _accepted(second) == 20
        for each in (first, second):
            each.close()


async def test_what_a_dead_worker_did_not_accept_waits_for_its_successor() -> None:
    async with _bound(1) as sets:
        (died,) = await _inherited(sets[0])
        address = died.getsockname()
        _connect(address, 3)
        # The end of a process closes its copy, and no more.
        socket.close(died.detach())
        (successor,) = await _inherited(sets[0])
        assert _accepted(successor) == 3
        successor.close()


async def test_a_worker_that_closes_its_listeners_listens_no_more() -> None:
    async with _bound(1) as sets:
        (listening,) = await _inherited(sets[0])
        address = listening.getsockname()
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


async def test_the_port_of_another_gateway_of_the_same_user_is_taken() -> None:
    async with _bound(2) as sets:
        (listening,) = await _inherited(sets[0])
        taken = Listener(tcp=SocketAddress(*listening.getsockname()))
        with pytest.raises(ListenError, match="the port is taken"):
            await bound_for_workers([taken], 2)
        listening.close()


async def test_workers_share_a_unix_domain_socket_which_one_alone_cannot_end(tmp_path: Path) -> None:
    listener = Listener(unix=UnixAddress(str(tmp_path / "a")))
    sets = await bound_for_workers([listener], 2)
    copies = []
    for each in sets:
        handed = each.handed({listener.address: 1}, {})
        copies += await InheritedSockets(renumbered(handed, map(os.dup, descriptors_of(handed)))).bind(listener)
    first, second = copies

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a"))

    sets[0].pause()
    connect()
    assert (_accepted(first), _accepted(second)) == (1, 0)
    first.close()
    connect()
    assert _accepted(second) == 1
    sets[1].close_shared()
    with pytest.raises(FileNotFoundError):
        connect()
    second.close()
