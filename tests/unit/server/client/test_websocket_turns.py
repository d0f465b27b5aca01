"""Over WebSocket, too, who floods waits for its turn and who sends little does not."""

from __future__ import annotations

import asyncio
import struct

import pytest

from gateway.config.loader import parse
from gateway.server.client.connection import ClientConnection
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.websocket import StompProtocol, WebSocketConnection
from gateway.server.paced_work import PacedWork
from tests.support.stomp_client import encoded
from tests.unit.server.client.test_connection import BusyRounds, Connections, Wire

_REQUEST = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v12.stomp\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Plain(Wire):
    """The socket below."""

    def is_closing(self) -> bool:
        return False


def _message(data: bytes) -> bytes:
    """One message of WebSocket, with a mask of zeros."""
    size = len(data)
    length = bytes((0x80 | size,)) if size < 126 else struct.pack("!BH", 0xFE, size)
    return b"".join((b"\x82", length, bytes(4), data))


def _opened(connections: Connections) -> tuple[WebSocketConnection, ClientConnection, Plain]:
    """A client after its handshake."""
    clients: list[ClientConnection] = []
    listener = parse("listeners: [{websocket: '127.0.0.1:0'}]", environment={}).listeners[0]

    def make_client(accepted: AcceptedConnection) -> StompProtocol:
        clients.append(ClientConnection(connections._context, listener, accepted))
        return clients[-1]

    accepted = AcceptedConnection(Peer("10.1.1.1", 1000), connections.clock.now, connections.log_limiter)
    connection = WebSocketConnection(listener, accepted, make_client, set(), connections.turns)
    wire = Plain()
    connection.connection_made(wire)
    connection.data_received(_REQUEST)
    wire.reading.clear()
    return connection, clients[0], wire


@pytest.mark.parametrize("in_one", [True, False], ids=["one message", "many messages"])
async def test_who_floods_over_websocket_waits_for_its_turn(in_one: bool) -> None:
    turns = BusyRounds()
    connections = Connections(turns=turns)
    flood, flooder, wire = _opened(connections)
    quiet, neighbour, _ = _opened(connections)
    frame = encoded("ACK")
    flood.data_received(_message(frame * 5000) if in_one else _message(frame) * 5000)
    quiet.data_received(_message(frame) * 9)
    assert (flooder.session.traffic.frames_received, wire.reading[-1]) == (0, False)
    assert neighbour.session.traffic.frames_received == 9
    # Not even unpacked.
    assert flooder.stats.bytes_in == 0
    turns.next_round()
    assert (flooder.session.traffic.frames_received, wire.reading[-1]) == (5000, True)
    for each in (flood, quiet):
        each.connection_lost(None)


async def test_unpacking_ends_with_the_time_of_the_turn() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.003
        return now

    connections = Connections(turns=PacedWork(clock))
    flood, flooder, wire = _opened(connections)
    flood.data_received(_message(b"SEND\nx:" + b"y" * 5_000) + _message(b"y" * 5_000) * 10)
    assert 0 < flooder.stats.bytes_in <= 16 << 10
    assert wire.reading[-1] is False
    for _ in range(100):
        await asyncio.sleep(0)
    assert (flooder.stats.bytes_in, wire.reading[-1]) == (55_007, True)
    flood.connection_lost(None)


async def test_messages_of_websocket_are_unpacked_in_small_parts_once_they_are_seen_to_be_small() -> None:
    turns = BusyRounds()
    connections = Connections(turns=turns)
    flood, flooder, _ = _opened(connections)
    messages = _message(encoded("ACK")) * 15_000
    taken: list[int] = []
    take = flooder.data_received

    def note(data: bytes) -> None:
        taken.append(len(data))
        take(data)

    flooder.data_received = note  # type: ignore[method-assign]
    flood.data_received(messages)
    turns.next_round()
    assert sum(taken) == len(encoded("ACK")) * 15_000
    assert max(taken[1:]) < 2048
    flood.connection_lost(None)
