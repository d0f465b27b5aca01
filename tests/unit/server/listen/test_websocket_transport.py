"""The transport of a WebSocket client: its frames are those of the library, and pongs do not accumulate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from gateway.config.loader import parse
from gateway.errors import CloseReason
from gateway.server.listen.websocket_transport import WebSocketTransport
from tests.support.deadline import within
from tests.support.gateway import gateway_here
from tests.support.websocket_client import WebSocketClient

SIZES = (0, 1, 125, 126, 127, 65535, 65536, 70000)


class Socket(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


class Stand:
    """A transport that is open, and the client's side of it."""

    def __init__(self, keys: str = "") -> None:
        listener = parse(f"listeners: [{{websocket: '127.0.0.1:0', {keys}}}]", environment={}).listeners[0]
        self.lower = Socket()
        self.protocol = ServerProtocol(state=State.OPEN)
        self.transport = WebSocketTransport(self.lower, self.protocol, listener, 100.0)
        self.client = ClientProtocol(parse_uri("ws://a/"), max_size=None)
        # Its handshake is of no interest here.
        self.client.state = State.OPEN

    def frames(self) -> list[Frame]:
        """What the client got since the last call."""
        data, self.lower.written = self.lower.written, b""
        stream = ServerProtocol(state=State.OPEN)
        stream.side = self.client.side
        stream.max_message_size = None
        stream.receive_data(data)
        assert stream.parser_exc is None
        return [event for event in stream.events_received() if isinstance(event, Frame)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("byte", "opcode"), [(b"x", Opcode.TEXT), (b"\xff", Opcode.BINARY)])
def test_messages_are_those_that_the_library_makes(size: int, byte: bytes, opcode: Opcode) -> None:
    stand = Stand()
    body = byte * size
    expected = Frame(opcode if size else Opcode.TEXT, body).serialize(mask=False)
    assert stand.transport.write_messages([body, body]) == 2 * size
    assert stand.lower.written == 2 * expected


def test_binary_is_binary() -> None:
    stand = Stand("frame: binary")
    stand.transport.write(b"text")
    assert [(frame.opcode, frame.data) for frame in stand.frames()] == [(Opcode.BINARY, b"text")]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CloseReason.DISCONNECT, 1000),
        (CloseReason.SHUTDOWN, 1001),
        (CloseReason.PROTOCOL_ERROR, 1002),
        (CloseReason.MALFORMED_FRAME, 1007),
        (CloseReason.SLOW_CONSUMER, 1008),
        (CloseReason.INTERNAL_ERROR, 1011),
        (CloseReason.LINK_LOST, 1000),
    ],
)
def test_the_close_frame_has_the_reason_and_is_sent_once(reason: CloseReason, code: int) -> None:
    stand = Stand()
    stand.transport.send_close(reason)
    stand.transport.write_eof()
    stand.transport.write(b"too late")
    stand.transport.close()
    (frame,) = stand.frames()
    assert (frame.opcode, frame.data) == (Opcode.CLOSE, code.to_bytes(2) + reason.value.encode())
    assert stand.lower.is_closed


def test_a_client_that_takes_nothing_gets_one_pong_later() -> None:
    stand = Stand()
    stand.transport.is_congested = True
    for number in range(100):
        stand.protocol.receive_data(Frame(Opcode.PING, b"%d" % number).serialize(mask=True))
        stand.transport.flush_pongs()
    assert stand.lower.written == b""
    stand.transport.is_congested = False
    stand.transport.flush_pongs()
    assert [frame.data for frame in stand.frames()] == [b"99"]


def test_a_silent_client_is_pinged_and_then_counts_as_gone() -> None:
    stand = Stand("ping_interval: 10, idle_timeout: 25")
    silent = [stand.transport.is_silent(100.0 + second) for second in range(26)]
    assert [frame.opcode for frame in stand.frames()] == [Opcode.PING] * 2
    assert silent == [False] * 25 + [True]


def test_any_byte_shows_that_the_client_lives() -> None:
    stand = Stand("ping_interval: 10, idle_timeout: 25")
    for second in range(100):
        stand.transport.has_received = second % 9 == 0
        assert not stand.transport.is_silent(100.0 + second)
    assert stand.frames() == []


@pytest.mark.parametrize("why", ["is_paused", "is_congested"])
def test_a_client_that_is_not_read_is_not_silent(why: str) -> None:
    stand = Stand("ping_interval: 10, idle_timeout: 25")
    setattr(stand.transport, why, True)
    assert not any(stand.transport.is_silent(100.0 + second) for second in range(100))
    assert stand.frames() == []
    setattr(stand.transport, why, False)
    # From here on it has all the time that there is.
    assert [stand.transport.is_silent(199.0 + second) for second in (0, 24, 25)] == [False, False, True]


def test_pings_and_the_timeout_can_be_switched_off() -> None:
    stand = Stand("ping_interval: 0, idle_timeout: 0")
    assert not any(stand.transport.is_silent(100.0 + 100 * day) for day in range(100))
    assert stand.frames() == []


async def test_who_closes_before_reading_gets_the_rest_and_the_log_has_no_fault() -> None:
    """On asyncio's own event loop, which ends such a connection within the last write."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    config = parse("listeners: [{websocket: '127.0.0.1:0'}]\ndefaults: {journal: {level: 'off'}}", environment={})
    async with gateway_here(config) as gateway:
        async with WebSocketClient.dialled(gateway.addresses[0], receive_buffer=4096) as client, within():
            (connection,) = gateway.clients
            connection._output.transport.write(bytes(8 << 20))
            client.protocol.send_close(CloseCode.NORMAL_CLOSURE)
            client.flush()
            assert len(await client.reader.read()) > 8 << 20
        await asyncio.sleep(0)
    assert reported == []
