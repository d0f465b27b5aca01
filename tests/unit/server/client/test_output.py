"""What is written to a client, and when messages for it go back to their queues."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.pieces import LARGE, Body, LargeBody
from gateway.server.client.output import AutoAckFlusher, ClientOutput
from tests.support.virtual_time import run_in_virtual_time


class _Stuck(asyncio.Transport):
    """A transport whose client takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.limits: tuple[int | None, int | None] = (None, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high, low

    def get_write_buffer_size(self) -> int:
        return self.waiting


def test_messages_are_dropped_when_sixteen_times_the_buffer_waits() -> None:
    transport = _Stuck()
    output = ClientOutput(transport, over_tls=False)
    output.start(VirtualHost(name="/", client_buffer=1000, slow_consumer_timeout=30))
    assert transport.limits == (1000, 250)
    output.pause(100.0)
    drops = []
    for transport.waiting in (16_000, 16_001):
        drops.append(output.must_drop)
    assert drops == [False, True]
    assert [output.is_slow(now) for now in (130, 130.1)] == [False, True]
    output.resume()
    assert [output.must_drop, output.is_slow(1000)] == [False, False]


class _Open(_Stuck):
    """A transport that never closes by itself, over a socket."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        super().__init__()
        self.aborted_at: list[float] = []
        self._connection = connection

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted_at.append(asyncio.get_running_loop().time())

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - asyncio's own
        return self._connection


def test_a_client_that_does_not_close_is_cut_after_five_seconds() -> None:
    async def close() -> list[float]:
        transport = _Open()
        ClientOutput(transport, over_tls=False).close(None, has_ended=False, is_reading=True)
        await asyncio.sleep(60)
        return transport.aborted_at

    assert run_in_virtual_time(close()) == [5.0]


@pytest.mark.parametrize(("waiting", "has_sent"), [(0, False), (4095, False), (4096, True)])
def test_a_client_whose_bytes_fill_the_kernel_has_sent_some(waiting: int, has_sent: bool) -> None:
    """For how long they have waited, the kernel cannot tell then."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connection, _ = server.accept()
        with connection:
            client.sendall(b"x" * waiting)
            while waiting and len(connection.recv(waiting, socket.MSG_PEEK)) < waiting:
                pass
            output = ClientOutput(_Open(connection), over_tls=False)
            assert output.has_sent_unread(-1) is has_sent


def test_a_client_on_a_unix_domain_socket_may_have_sent_some() -> None:
    """The kernel does not tell when."""
    client, connection = socket.socketpair()
    with client, connection:
        assert ClientOutput(_Open(connection), over_tls=False).has_sent_unread(-1)


class _Settling:
    """A client; its settlement is a fault if it is told so."""

    def __init__(self, *, is_faulty: bool = False) -> None:
        self.settled = 0
        self.faults: list[str] = []
        self._is_faulty = is_faulty

    def settle(self) -> None:
        if self._is_faulty:
            raise ValueError("a fault")
        self.settled += 1

    def failed(self, error: Exception) -> None:
        self.faults.append(str(error))


def test_a_client_whose_settlement_is_a_fault_keeps_no_other_one_from_settling() -> None:
    clients = [_Settling(), _Settling(is_faulty=True), _Settling()]

    async def settle() -> None:
        flusher = AutoAckFlusher()
        for client in clients * 2:
            flusher.schedule(client)
        await asyncio.sleep(1)

    run_in_virtual_time(settle())
    assert [client.settled for client in clients] == [1, 0, 1]
    assert [client.faults for client in clients] == [[], ["a fault"], []]


class _Reset(_Stuck):
    """A transport of uvloop whose client has reset the connection, before anybody is told."""

    def __init__(self, *, is_closed: bool) -> None:
        super().__init__()
        self._is_closed = is_closed

    def is_closing(self) -> bool:
        return self._is_closed

    def write(self, data: object) -> None:
        raise RuntimeError("the handler is closed")


def test_a_client_that_has_just_reset_its_connection_is_no_fault() -> None:
    assert ClientOutput(_Reset(is_closed=True), over_tls=False).write([b"x"]) == 0
    with pytest.raises(RuntimeError):
        ClientOutput(_Reset(is_closed=False), over_tls=False).write([b"x"])


@pytest.mark.parametrize("last", [b"small", b"y" * LARGE])
def test_a_body_in_pieces_is_written_whole_whatever_follows_it(last: bytes) -> None:
    class Written(_Stuck):
        data = b""

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.data += data

    transport = Written()
    output: list[Body] = [b"MESSAGE 1\n", LargeBody([b"x" * LARGE, b"1"]), b"\0\n", b"MESSAGE 2\n", last, b"\0\n"]
    size = ClientOutput(transport, over_tls=False).write(output)
    assert transport.data == b"MESSAGE 1\n" + b"x" * LARGE + b"1\0\nMESSAGE 2\n" + last + b"\0\n"
    assert (size, output) == (len(transport.data), [])
