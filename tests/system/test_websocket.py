"""STOMP over WebSocket: the same sessions as on TCP, one frame in each message, and a close code at the end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import pytest
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame as Piece
from websockets.frames import Opcode

from gateway.parity.amqp_broker import AmqpBroker
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import ConnectionOverError, StompClient, answers_during, encoded
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

CONNECT = encoded("CONNECT", accept_version="1.2", host="/")
LISTENERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "binary": {"frame": "binary"},
    "compressed": {"compression": True, "login_timeout": 60},  # what comes before a login takes its time here
    "small": {"max_frame_size_unauthenticated": 1024, "max_headers": 1000},
    "hasty": {"login_timeout": 3, "ping_interval": 0},
    "watchful": {"ping_interval": 0.5, "idle_timeout": 2},
    "idle": {"ping_interval": 0, "idle_timeout": 3},
    "crowded": {"max_connections": 2},
}
LARGEST = 2 << 20


class Gateway:
    """A gateway with a listener of each kind."""

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process
        found = listening(process, len(LISTENERS) + 2)
        self.address = dict(zip(LISTENERS, found, strict=False))
        self.tcp, self.crowded_tcp = found[-2:]


@pytest.fixture(scope="module")
def gateway(broker_url: str) -> Iterator[Gateway]:
    listeners = [{"websocket": "127.0.0.1:0", **keys} for keys in LISTENERS.values()]
    listeners += [{"tcp": "127.0.0.1:0"}, {"tcp": "127.0.0.1:0", "max_connections": 2, "proxy_protocol": True}]
    defaults = {"max_frame_size": LARGEST, "client_buffer": "64KiB", "slow_consumer_timeout": 2}
    with gateway_process(configuration(broker_url, defaults, listeners=listeners), from_nothing=True) as process:
        yield Gateway(process)


@pytest.fixture
def plain(gateway: Gateway) -> Address:
    return gateway.address["plain"]


# Messages and frames.


async def test_a_conversation_has_a_frame_in_each_message(plain: Address, queue: str) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client-individual")
        bodies = [
            b"",
            b"one",
            b"\0\n",
            b"two\0\n\0\n",
            b"MESSAGE\n\ncontent-length:3\n\n\0\n",
            b"\n\0\n",
            b"content-length:9",
        ]
        for body in bodies:
            client.write("SEND", body, destination=f"/queue/{queue}")
        for body in bodies:
            message = await client.expect("MESSAGE", body)
            client.write("ACK", id=message["ack"])
        client.write("BEGIN", transaction="t")
        client.write("SEND", b"in it", destination=f"/queue/{queue}", transaction="t")
        client.write("COMMIT", transaction="t")
        await client.expect("MESSAGE", b"in it")


async def test_text_and_binary_and_fragments_are_the_same_stream(plain: Address, queue: str) -> None:
    """It may be cut anywhere, and several frames may share a message."""
    body = "grüße, 你好".encode()
    stream = b"\n" + CONNECT + b"\n" + encoded("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
    stream += encoded("SEND", body, destination=f"/queue/{queue}") * 3 + b"\n"
    async with WebSocketClient.dialled(plain) as client:
        for position in range(0, len(stream), 7):
            client.send(stream[position : position + 7], binary=True)
        await client.expect("CONNECTED")
        for _ in range(3):
            await client.expect("MESSAGE", body)
        # One byte to a fragment, umlauts and all, and a ping between them.
        text = encoded("SEND", body, destination=f"/queue/{queue}") * 2
        client.protocol.send_text(text[:1], fin=False)
        for byte in text[1:-1]:
            client.protocol.send_continuation(bytes([byte]), fin=False)
        client.protocol.send_ping(b"there?")
        client.protocol.send_continuation(text[-1:], fin=True)
        client.flush()
        pieces = [await client.piece() for _ in range(3)]
        assert sum(body in piece.data for piece in pieces) == 2
        assert [bytes(piece.data) for piece in pieces if piece.opcode is Opcode.PONG] == [b"there?"]


@pytest.mark.parametrize(("listener", "kind"), [("plain", Opcode.TEXT), ("binary", Opcode.BINARY)])
async def test_a_body_that_is_not_utf8_comes_in_a_binary_message(
    gateway: Gateway, queue: str, listener: str, kind: Opcode
) -> None:
    async with WebSocketClient.logged_in(gateway.address[listener]) as client:
        await client.ask("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        for body, expected in ((b"a", kind), ("ü".encode(), kind), (b"\xff\xfe", Opcode.BINARY), (b"b", kind)):
            client.write("SEND", body, destination=f"/queue/{queue}")
            piece = await client.message()
            assert (piece.opcode, body in piece.data) == (expected, True)


async def test_a_heart_beat_is_a_message_of_one_line_feed(plain: Address) -> None:
    async with WebSocketClient.dialled(plain) as client:
        await client.connect(heart_beat="0,100")
        for _ in range(2):
            piece = await client.message()
            assert (piece.opcode, piece.data) == (Opcode.TEXT, b"\n")


async def test_compressed_messages(gateway: Gateway, queue: str) -> None:
    body = b"line\n" * 200_000
    async with WebSocketClient.logged_in(gateway.address["compressed"], compression=True) as client:
        assert client.response is not None
        assert "server_max_window_bits=12" in client.response.headers["Sec-WebSocket-Extensions"]
        await client.ask("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        for _ in range(5):
            client.write("SEND", body, destination=f"/queue/{queue}")
        for _ in range(5):
            await client.expect("MESSAGE", body)


async def test_compressed_input_waits_while_the_session_is_busy(gateway: Gateway, queue: str) -> None:
    """All in one write: the gateway stops in the middle of it, logs in, and goes on."""
    bodies = [os.urandom(20_000) for _ in range(5)]
    async with WebSocketClient.dialled(gateway.address["compressed"], compression=True) as client:
        client.protocol.send_binary(CONNECT)
        client.protocol.send_binary(encoded("SUBSCRIBE", id="0", destination=f"/queue/{queue}"))
        for body in bodies:
            client.protocol.send_binary(encoded("SEND", body, destination=f"/queue/{queue}"))
        client.writer.write(b"".join(client.protocol.data_to_send()))
        await client.expect("CONNECTED")
        for body in bodies:
            await client.expect("MESSAGE", body)


async def test_compression_is_off_unless_asked_for(plain: Address) -> None:
    async with WebSocketClient.logged_in(plain, compression=True) as client:
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers


async def test_a_thousand_small_messages_and_a_megabyte(plain: Address, queue: str) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        await client.ask("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        for number in range(1000):
            client.write("SEND", b"%d" % number, destination=f"/queue/{queue}")
        for number in range(1000):
            await client.expect("MESSAGE", b"%d" % number)
        body = os.urandom(1 << 20)
        client.write("SEND", body, destination=f"/queue/{queue}")
        await client.expect("MESSAGE", body)


# The end.


async def test_the_receipt_of_disconnect_comes_before_the_close_frame(plain: Address) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        await client.ask("DISCONNECT")
        assert await client.closed() == 1000


async def test_a_close_frame_does_not_overtake_the_frames_before_it(plain: Address, queue: str) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        for _ in range(100):
            client.write("SEND", b"x", destination=f"/queue/{queue}")
        client.write("SEND", b"x", destination=f"/queue/{queue}", receipt="last")
        client.send_close(1001)
        await client.expect("RECEIPT", receipt_id="last")
        assert await client.closed() == 1001


@pytest.mark.parametrize(
    ("data", "message", "code"),
    [
        (b"SEND\nnonsense\n\n\0", "Malformed frame", 1007),
        (encoded("CONNECT", accept_version="1.2"), "Illegal command", 1002),
        (encoded("SUBSCRIBE", id="0", destination="/amq/queue/no-such-queue"), "not_found", 1000),
    ],
)
async def test_the_error_comes_before_the_close_frame(plain: Address, data: bytes, message: str, code: int) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        client.send(data)
        await client.expect("ERROR", message=message)
        assert await client.closed() == code


async def test_frames_before_a_violation_are_processed(plain: Address, queue: str) -> None:
    async with WebSocketClient.logged_in(plain) as client:
        client.protocol.send_binary(encoded("SEND", b"x", destination=f"/queue/{queue}", receipt="before"))
        client.protocol.send_text(b"\xff")
        client.send(encoded("SEND", b"x", destination=f"/queue/{queue}", receipt="behind"))
        await client.expect("RECEIPT", receipt_id="before")
        await client.expect("ERROR", b"A text message of WebSocket is not UTF-8\n", message="Malformed frame")
        assert await client.closed() == 1007


VIOLATIONS = {
    "control-frame-too-long": (b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126), 1002),
    "control-frame-in-fragments": (b"\x09\x80\0\0\0\0", 1002),
    "no-mask": (b"\x81\x01\n", 1002),
    "reserved-bit": (b"\xc1\x81\0\0\0\0\n", 1002),
    "reserved-opcode": (b"\x83\x81\0\0\0\0\n", 1002),
    "continuation-of-nothing": (b"\x80\x81\0\0\0\0\n", 1002),
    "text-within-a-message": (b"\x01\x81\0\0\0\0\n\x81\x81\0\0\0\0\n", 1002),
    "utf8-cut-at-the-end": (b"\x01\x81\0\0\0\0\xc3\x80\x80\0\0\0\0", 1007),
    "too-large": (b"\x82\xff" + (2**40).to_bytes(8) + bytes(4), 1009),
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_violations_of_websocket_are_told_and_closed(plain: Address, name: str) -> None:
    data, code = VIOLATIONS[name]
    async with WebSocketClient.logged_in(plain) as client:
        client.writer.write(data)
        await client.expect("ERROR", message="Malformed frame")
        assert await client.closed() == code


@pytest.mark.parametrize("fragments", [1, 50])
async def test_the_limit_of_messages_is_lower_before_the_login(gateway: Gateway, fragments: int) -> None:
    limit, small = 1024 + 4096, gateway.address["small"]
    for size, code in ((limit, None), (limit + 1, 1009)):
        async with WebSocketClient.dialled(small) as client:
            data = b"\n" * size
            pieces = [data[begin : begin + size // fragments] for begin in range(0, size, size // fragments)]
            client.protocol.send_text(pieces[0], fin=len(pieces) == 1)
            for piece in pieces[1:]:
                client.protocol.send_continuation(piece, fin=piece is pieces[-1])
            if code is None:
                await client.connect()
                client.send(b"\n" * (limit + 1))
                await client.ask("BEGIN", transaction="t")
            else:
                client.send(b"")
                await client.expect("ERROR", message="Malformed frame")
                assert await client.closed() == code


async def test_the_limit_of_compressed_messages_is_their_decompressed_size(gateway: Gateway) -> None:
    async with WebSocketClient.logged_in(gateway.address["compressed"], compression=True) as client:
        client.send(b"\n" * (LARGEST + 4096))
        await client.ask("BEGIN", transaction="t")
        client.send(b"\n" * (LARGEST + 4097))
        await client.expect("ERROR", message="Malformed frame")
        assert await client.closed() == 1009


async def test_decompression_bombs_use_bounded_memory(gateway: Gateway) -> None:
    """Before the login; one read of the compressed input would decompress to two hundred megabytes."""
    deflate = PerMessageDeflate(False, False, 15, 15)
    async with WebSocketClient.dialled(gateway.address["compressed"], compression=True) as client:
        bomb = b"".join(
            Piece(Opcode.TEXT, b"\n" * 69_000).serialize(mask=True, extensions=[deflate]) for _ in range(3000)
        )
        before = gateway.process.peak_memory
        client.writer.write(bomb)
        # The gateway has read it when the client can log in after it.
        client.protocol.extensions = [deflate]
        await client.connect()
    grown = gateway.process.peak_memory - before
    assert grown < 32 << 20, grown


async def test_a_shutdown_sends_an_error_and_a_close_frame(broker_url: str) -> None:
    listeners = [{"websocket": "127.0.0.1:0", "login_timeout": 600}]
    document = configuration(broker_url, listeners=listeners, drain_timeout=600)
    with gateway_process(document, module="tests.support.waits_long") as process:
        reader, writer = await asyncio.open_connection(*process.address)
        async with within(3 * PATIENCE), WebSocketClient.logged_in(process.address) as client:
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            assert await client.closed() == 1001
        # A connection without a handshake does not delay the shutdown.
        async with within():
            assert await reader.read() == b""
        writer.close()
        assert await process.exit_code(PATIENCE) == 0


# Time.


async def test_every_wait_for_a_client_has_a_time_limit(gateway: Gateway) -> None:
    """All at the same time, since each takes seconds."""
    async with within(2 * PATIENCE), asyncio.TaskGroup() as clients:
        for client in (_half_a_request, _no_login, _no_sign_of_life, _signs_of_life, _no_answer_to_the_close_frame):
            clients.create_task(client(gateway))


async def _half_a_request(gateway: Gateway) -> None:
    """The time to log in includes the handshake."""
    reader, writer = await asyncio.open_connection(*gateway.address["hasty"])
    writer.write(b"GET /ws HTTP/1.1\r\nHost: a\r\n")
    assert await reader.read() == b""
    writer.close()


async def _no_login(gateway: Gateway) -> None:
    async with WebSocketClient.dialled(gateway.address["hasty"]) as client:
        await client.expect("ERROR", message="Login timeout")
        assert await client.closed() == 1000


async def _no_sign_of_life(gateway: Gateway) -> None:
    async with WebSocketClient.logged_in(gateway.address["idle"]) as silent:
        await silent.expect("ERROR", message="Heart-beat timeout")
        assert await silent.closed() == 1000


async def _signs_of_life(gateway: Gateway) -> None:
    """Pongs, which the library sends; the second ping comes later than `idle_timeout`."""
    async with WebSocketClient.logged_in(gateway.address["watchful"]) as client:
        for _ in range(2):
            assert (await client.piece()).opcode is Opcode.PING
        await client.ask("BEGIN", transaction="t")


async def _no_answer_to_the_close_frame(gateway: Gateway) -> None:
    async with WebSocketClient.logged_in(gateway.address["plain"]) as client:
        client.write("DISCONNECT")
        # The test reads the bytes, and the client does not answer.
        await client.reader.read()


# Pressure.


async def test_connections_beyond_the_limit_are_closed_at_once(gateway: Gateway) -> None:
    crowded = gateway.address["crowded"]
    async with WebSocketClient.logged_in(crowded), WebSocketClient.logged_in(crowded):
        assert not await _is_let_in(crowded)
    await until(lambda: _is_let_in(crowded), bool)
    assert gateway.process.logged("too many connections")


async def test_tcp_connections_beyond_the_limit_are_closed_at_once(gateway: Gateway) -> None:
    """A connection with a wrong PROXY header does not count."""
    crowded, preface = gateway.crowded_tcp, b"PROXY TCP4 127.0.0.1 10.2.2.2 1000 2000\r\n"

    async def is_let_in() -> bool:
        try:
            async with StompClient.dialled(crowded, preface=preface) as client:
                client.write("CONNECT", accept_version="1.2", login="guest", passcode="guest")
                return (await client.receive()).command == "CONNECTED"
        except (ConnectionOverError, ConnectionError):
            # A connection that is closed before its CONNECT is read may be reset, and its ERROR lost.
            return False

    for _ in range(5):
        async with StompClient.dialled(crowded, preface=b"nonsense of more than 15 bytes\r\n") as stranger:
            await stranger.closed()
    async with (
        StompClient.dialled(crowded, preface=preface),
        StompClient.logged_in(crowded, preface=preface, login="guest", passcode="guest"),
    ):
        assert not await is_let_in()
    await until(is_let_in, bool)


async def _is_let_in(address: Address) -> bool:
    try:
        async with WebSocketClient.logged_in(address):
            return True
    except RefusedError as refusal:
        return refusal.response.status_code != HTTPStatus.SERVICE_UNAVAILABLE
    except (ConnectionOverError, ConnectionError):
        # A connection that is closed before its request is read may be reset, and the answer lost.
        return False


async def test_a_client_that_reads_nothing_is_closed_and_its_messages_stay(
    gateway: Gateway, queue: str, amqp: AmqpBroker
) -> None:
    body = bytes(50_000)
    async with WebSocketClient.logged_in(gateway.address["plain"], receive_buffer=4096) as slow:
        slow.write("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        async with StompClient.logged_in(gateway.tcp, login="guest", passcode="guest") as sender:
            for _ in range(200):
                sender.write("SEND", body, destination=f"/queue/{queue}")
            await sender.ask("SEND", b"last", destination=f"/queue/{queue}")
        await until(lambda: _ended(gateway, "slow-consumer"), bool)
    async with StompClient.logged_in(gateway.tcp, login="guest", passcode="guest") as reader:
        reader.write("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        while (await reader.expect("MESSAGE")).body != b"last":
            pass


async def _ended(gateway: Gateway, reason: str) -> bool:
    return any(line["reason"] == reason for line in gateway.process.logged("session ended"))


async def test_pings_of_a_client_that_reads_nothing_use_bounded_memory(gateway: Gateway) -> None:
    ping = Piece(Opcode.PING, b"x" * 125).serialize(mask=True)
    async with WebSocketClient.logged_in(gateway.address["plain"], receive_buffer=4096) as client:
        before = gateway.process.memory
        # On a slow machine the gateway gives such a client up before it has sent all.
        with suppress(ConnectionError):
            for _ in range(100):
                client.writer.write(ping * 2000)
                async with within():
                    await client.writer.drain()
        grown = gateway.process.memory - before
        assert grown < 10 << 20, grown


async def test_pings_instead_of_an_answer_to_the_close_frame_use_bounded_memory(gateway: Gateway) -> None:
    pings = Piece(Opcode.PING, b"x" * 125).serialize(mask=True) * 2000
    async with WebSocketClient.logged_in(gateway.address["plain"]) as client:
        before = gateway.process.memory
        client.protocol.send_binary(encoded("DISCONNECT", receipt="last"))
        client.writer.writelines(client.protocol.data_to_send())
        for _ in range(60):
            client.writer.write(pings)
            async with within():
                await client.writer.drain()
        grown = gateway.process.memory - before
        assert grown < 10 << 20, grown
        await client.expect("RECEIPT", receipt_id="last")


async def test_a_client_that_sends_very_many_small_messages_does_not_block_others(gateway: Gateway) -> None:
    """The gateway needs a while for hundreds of thousands of WebSocket frames; meanwhile it answers others."""
    async with (
        WebSocketClient.logged_in(gateway.address["plain"]) as busy,
        WebSocketClient.logged_in(gateway.address["plain"]) as other,
    ):
        busy.writer.write(Piece(Opcode.TEXT, b"").serialize(mask=True) * 300_000)
        assert await answers_during(busy.ask("BEGIN", transaction="t"), other) > 5


# Both transports, and many clients.


async def test_websocket_and_tcp_sessions_exchange_messages(gateway: Gateway, queue: str) -> None:
    """Messages go from one transport to the other, in both directions. The log shows the transport."""
    async with (
        WebSocketClient.logged_in(gateway.address["plain"]) as browser,
        StompClient.logged_in(gateway.tcp, login="guest", passcode="guest") as service,
    ):
        await service.ask("SUBSCRIBE", id="0", destination=f"/queue/{queue}")
        browser.write("SEND", b"question", destination=f"/queue/{queue}", reply_to="/temp-queue/mine")
        question = await service.expect("MESSAGE", b"question")
        service.write("SEND", b"answer", destination=question["reply-to"])
        await browser.expect("MESSAGE", b"answer", subscription="/temp-queue/mine")
    lines = gateway.process.logged("session started")
    assert {line.get("transport") for line in lines} == {"websocket", None}


async def test_five_hundred_browsers_at_once(plain: Address, queue: str) -> None:
    at_once = asyncio.Semaphore(100)

    async def run(number: int, all_subscribed: asyncio.Barrier) -> None:
        async with WebSocketClient.dialled(plain) as client:
            async with at_once:
                # Longer than the test: nobody here sends any.
                await client.connect(heart_beat="200000,200000")
                await client.ask("SUBSCRIBE", id="0", destination=f"/topic/{queue}.{number}")
            await all_subscribed.wait()
            async with at_once:
                client.write("SEND", b"%d" % number, destination=f"/topic/{queue}.{(number + 1) % 500}")
                await client.expect("MESSAGE", b"%d" % ((number - 1) % 500))

    all_subscribed = asyncio.Barrier(500)
    async with within(6 * PATIENCE), asyncio.TaskGroup() as clients:
        for number in range(500):
            clients.create_task(run(number, all_subscribed))


def test_the_error_reaches_a_client_that_is_still_sending(gateway: Gateway) -> None:
    """An ERROR in the middle of an upload, read only afterwards."""
    with socket.create_connection(gateway.address["plain"]) as client:
        client.settimeout(PATIENCE)
        client.sendall(
            b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        client.sendall(b"\x82\xff" + (1 << 30).to_bytes(8) + bytes(4) + bytes(300_000))
        seen = b""
        while data := client.recv(65536):
            seen += data
        assert b"message:Malformed frame" in seen
        assert b"\x88" in seen[seen.index(b"message:Malformed frame") :]
