"""When each session of a stopping gateway has its turn."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gateway.server.client.connection import ClientConnection
from gateway.server.process.gateway import drain_clients
from tests.support.virtual_time import run_in_virtual_time


class _Client:
    """Notes when it is drained; ``is_closed``: it has gone by itself."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.is_closed = is_closed
        self.drained_at: float | None = None

    def drain(self) -> None:
        self.drained_at = asyncio.get_running_loop().time()


def drained(clients: list[_Client], spread: float) -> list[float]:
    """When each of those had its turn that had one."""
    run_in_virtual_time(drain_clients(cast("list[ClientConnection]", clients), spread))
    return [client.drained_at for client in clients if client.drained_at is not None]


@pytest.mark.parametrize(("count", "last"), [(1, 0.0), (10, 0.09), (1000, 9.99), (40_000, 9.99975)])
def test_a_hundred_a_second_have_their_turn_and_more_if_there_are_more(count: int, last: float) -> None:
    moments = drained([_Client() for _ in range(count)], spread=10)

    assert len(moments) == count
    assert moments[0] == 0
    assert moments[-1] == pytest.approx(last)
    assert moments[count // 2] == pytest.approx(last * (count // 2) / max(count - 1, 1))


def test_without_a_spread_all_are_told_at_once() -> None:
    assert set(drained([_Client() for _ in range(100)], spread=0)) == {0.0}


def test_clients_that_have_gone_take_no_time() -> None:
    clients = [_Client(is_closed=number != 99) for number in range(100)]

    assert drained(clients, spread=1000) == [0.0]
