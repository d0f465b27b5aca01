"""Input from clients: in pieces of any size, up to the last byte, and within the limits."""

from __future__ import annotations

import asyncio

import pytest

from gateway.parity.amqp_broker import AmqpBroker
from tests.support.deadline import until, within
from tests.support.gateway import Address, configuration, gateway_here, gateway_process, parsed
from tests.support.stomp_client import ConnectionOverError, StompClient, answers_during, encoded

pytestmark = pytest.mark.system

MIB = 1 << 20


async def test_a_client_that_sends_byte_by_byte(gateway_address: Address, queue: str) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.dialled(gateway_address) as client, within():
        data = encoded("CONNECT", accept_version="1.2") + encoded("SUBSCRIBE", id="a", destination=destination)
        data += encoded("SEND", b"one\0two", destination=destination, receipt="sent")
        for byte in data:
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
        await client.expect("CONNECTED", version="1.2")
        frames = {frame.command: frame for frame in [await client.receive(), await client.receive()]}
        assert frames["MESSAGE"].body == b"one\0two"
        assert frames["RECEIPT"]["receipt-id"] == "sent"


async def test_many_frames_in_one_write(gateway_address: Address, queue: str) -> None:
    destination = f"/queue/{queue}"
    sends = [encoded("SEND", b"%d" % number, destination=destination) for number in range(50)]
    async with StompClient.dialled(gateway_address) as client, within():
        client.writer.write(
            encoded("CONNECT", accept_version="1.2")
            + encoded("SUBSCRIBE", id="a", destination=destination)
            + b"".join(sends)
        )
        await client.expect("CONNECTED")
        assert [message.body for message in await client.messages(50)] == [b"%d" % number for number in range(50)]


# How a connection ends.


async def test_half_close_stores_every_message_and_answers_every_receipt(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        for number in range(500):
            client.write("SEND", b"x" * 1000, destination=f"/queue/{queue}", persistent="true", receipt=str(number))
        client.half_close()
        receipts = [(await client.expect("RECEIPT"))["receipt-id"] for _ in range(500)]
        assert receipts == [str(number) for number in range(500)]
        await client.closed()
    assert await amqp.count(queue) == 500


async def test_half_close_after_messages_without_receipts_loses_none(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        for _ in range(500):
            client.write("SEND", b"x" * 1000, destination=f"/queue/{queue}")
        client.half_close()
        await client.closed()
    await until(lambda: amqp.count(queue), lambda count: count == 500)


async def test_a_connection_closed_right_behind_its_messages_loses_none(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        for _ in range(2000):
            client.write("SEND", b"x" * 1000, destination=f"/queue/{queue}")
        client.hang_up()
        await client.writer.wait_closed()
    await until(lambda: amqp.count(queue), lambda count: count == 2000)


async def test_disconnect_answers_the_receipts_of_messages_sent_right_before(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        for number in range(500):
            client.write("SEND", b"x", destination=f"/queue/{queue}", persistent="true", receipt=str(number))
        client.write("DISCONNECT", receipt="end")
        receipts = [(await client.expect("RECEIPT"))["receipt-id"] for _ in range(501)]
        assert receipts == [*(str(number) for number in range(500)), "end"]
        await client.closed()
    assert await amqp.count(queue) == 500


@pytest.mark.parametrize("ack", ["auto", "client-individual"])
async def test_unsubscribe_right_behind_subscribe_loses_nothing(
    gateway_address: Address, amqp: AmqpBroker, queue: str, ack: str
) -> None:
    total = 3000
    destination = f"/queue/{queue}"
    received: set[bytes] = set()
    async with StompClient.logged_in(gateway_address) as client, within(60):
        for number in range(total):
            client.write("SEND", b"%d" % number, destination=destination)
        await client.ask("SEND", b"last", destination=destination)
        for round_ in range(10):
            client.write("SUBSCRIBE", id="a", ack=ack, destination=destination)
            client.write("UNSUBSCRIBE", id="a", receipt=f"over {round_}")
            while (frame := await client.receive()).command == "MESSAGE":
                if ack == "auto":
                    assert frame.body not in received, "delivered again though it was settled"
                    received.add(frame.body)
            assert frame["receipt-id"] == f"over {round_}"
        await client.disconnect()
    await until(lambda: amqp.count(queue), lambda count: count == total + 1 - len(received))


async def test_unacknowledged_messages_of_a_client_that_leaves_are_requeued(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.logged_in(gateway_address) as client, within():
        for _ in range(10):
            client.write("SEND", b"x", destination=destination)
        client.write("SUBSCRIBE", id="a", ack="client-individual", destination=destination)
        first, *_ = await client.messages(10)
        await client.ask("ACK", id=first["ack"])
    assert await until(lambda: amqp.count(queue), lambda count: count == 9) == 9


async def test_a_transaction_stays_open_for_as_long_as_the_configuration_says(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    max_age, loop = 3, asyncio.get_running_loop()
    config = parsed(broker_url, {"transactions": {"max_age": max_age}})
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        began = loop.time()
        client.writer.write(
            encoded("BEGIN", transaction="short")
            + encoded("SEND", b"kept", destination=f"/queue/{queue}", transaction="short")
            + encoded("BEGIN", transaction="long")
        )
        await client.ask("COMMIT", transaction="short")
        assert await amqp.count(queue) == 1
        error = await client.expect("ERROR", message="Transaction expired")
        # Until then it was open.
        assert loop.time() - began >= max_age
        assert b'"long"' in error.body
        client.write("COMMIT", transaction="long", receipt="never")
        await client.expect("ERROR", message="Bad transaction", receipt_id="never")
        await client.disconnect()


# Limits.


async def test_a_frame_above_the_limit_before_login_is_an_error(gateway_address: Address) -> None:
    async with StompClient.dialled(gateway_address) as client, within():
        client.write("CONNECT", accept_version="1.2", login="x" * 70_000)
        error = await client.expect("ERROR")
        assert "65536" in error.body.decode()
        await client.closed()


async def test_a_sender_far_above_the_limit_still_receives_the_error(gateway_address: Address) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        client.write("SEND", b"x" * (20 * MIB), destination="/queue/never")
        error = await client.expect("ERROR")
        assert str(4 * MIB) in error.body.decode()
        await client.closed()


async def test_the_limit_grows_with_the_login(gateway_address: Address, queue: str) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        await client.ask("SEND", b"x" * 70_000, destination=f"/queue/{queue}")


async def test_login_timeout_ends_a_connection_that_sends_no_frame(broker_url: str) -> None:
    config = parsed(broker_url, listeners=[{"tcp": "127.0.0.1:0", "login_timeout": "2s"}])
    async with gateway_here(config) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as early:
            async with StompClient.dialled(gateway.addresses[0]) as client:
                client.writer.write(b"\n")
                await client.expect("ERROR", message="Login timeout")
                await client.closed()
            # The timeout does not apply to a client that is logged in, although it came before the other one.
            await early.ask("BEGIN", transaction="t")
            await early.disconnect()


# Heart-beats.


async def test_the_gateway_sends_heart_beats(gateway_address: Address) -> None:
    async with StompClient.logged_in(gateway_address, heart_beat="0,1000") as client, within():
        assert client.connected["heart-beat"] == "1000,0"
        loop = asyncio.get_running_loop()
        took: list[float] = []
        # A machine that stands still for a moment may delay some of them.
        while len(took) < 3 and min(took, default=4.0) > 3.5:
            start = loop.time()
            assert await client.reader.readexactly(3) == b"\n\n\n"
            took.append(loop.time() - start)
        assert min(took) <= 3.5


async def test_the_gateway_ends_a_connection_that_promised_heart_beats_and_sends_none(gateway_address: Address) -> None:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    # It must take so long. A machine that stands still for a moment may make it longer.
    async with within(60):
        while len(took) < 3 and min(took, default=6.0) > 5:
            start = loop.time()
            async with StompClient.logged_in(gateway_address, heart_beat="1000,0") as client:
                assert client.connected["heart-beat"] == "0,1000"
                await client.expect("ERROR", message="Heart-beat timeout")
                took.append(loop.time() - start)
                await client.closed()
    assert 2 <= min(took) <= 5


async def test_a_client_that_sends_heart_beats_stays_connected(gateway_address: Address) -> None:
    loop = asyncio.get_running_loop()
    # A silent one would be gone after six seconds; this one may be late by some.
    async with StompClient.logged_in(gateway_address, heart_beat="2000,1000") as client, within():
        until_time = loop.time() + 7
        while loop.time() < until_time:
            # The gateway's own heart-beats are the clock: one each half second.
            assert await client.reader.readexactly(1) == b"\n"
            client.writer.write(b"\n")
        await client.disconnect()


async def test_without_heart_beats_there_are_none(gateway_address: Address) -> None:
    async with StompClient.logged_in(gateway_address, heart_beat="0,0") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await client.reader.readexactly(1)
        await client.disconnect()


# Unusual bodies.


@pytest.fixture(scope="module")
def odd_bodies() -> list[bytes]:
    return [b"", b"\0", b"\0\0\0", b"\n", b"a\0b\nc\r\n", bytes(range(256)) * 5000]


async def test_bodies_arrive_as_they_were_sent(gateway_address: Address, queue: str, odd_bodies: list[bytes]) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        client.write("SUBSCRIBE", id="a", destination=f"/queue/{queue}")
        for body in odd_bodies:
            client.write("SEND", body, destination=f"/queue/{queue}")
        messages = await client.messages(len(odd_bodies))
        assert [message.body for message in messages] == odd_bodies
        # An empty body has no content-length. The client reads all other bodies by it, so it is right.
        assert "content-length" not in messages[0].headers


async def test_a_body_of_many_amqp_frames_both_ways(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    body = bytes(range(256)) * (5 * MIB // 256)
    with gateway_process(configuration(broker_url, {"max_frame_size": "6MiB"})) as process:
        async with StompClient.logged_in(process.address) as client, within(60):
            for _ in range(3):
                client.write("SEND", body, destination=f"/queue/{queue}", persistent="true", receipt="big")
            for _ in range(3):
                await client.expect("RECEIPT")
            await client.ask("SUBSCRIBE", id="a", ack="client-individual", destination=f"/queue/{queue}")
            for message in await client.messages(3):
                assert message.body == body
                client.write("ACK", id=message["ack"])
            await client.disconnect()
    assert await amqp.count(queue) == 0


async def test_a_frame_cut_off_by_the_end_of_the_connection_is_not_sent(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        await client.ask("SEND", b"whole", destination=f"/queue/{queue}")
        client.writer.write(encoded("SEND", b"cut off", destination=f"/queue/{queue}")[:-3])
        client.half_close()
        with pytest.raises(ConnectionOverError):
            await client.receive()
    assert await amqp.count(queue) == 1


async def test_a_client_that_sends_very_many_frames_does_not_block_others(gateway_address: Address) -> None:
    """The gateway needs a while for a hundred thousand frames; meanwhile it answers others."""
    async with (
        StompClient.logged_in(gateway_address) as busy,
        StompClient.logged_in(gateway_address) as other,
        within(60),
    ):
        # A gateway that did all at once would answer a few pairs.
        answers: list[int] = []
        # Once more if it was this process that did nothing meanwhile.
        while len(answers) < 3 and max(answers, default=0) < 15:
            busy.writer.write((encoded("BEGIN", transaction="t") + encoded("ABORT", transaction="t")) * 50_000)
            answers.append(await answers_during(busy.ask("BEGIN", transaction="last"), other))
            await busy.ask("ABORT", transaction="last")
        assert max(answers) >= 15


async def test_subscribes_sent_before_a_half_close_have_their_receipts_in_order(gateway_address: Address) -> None:
    frames = [encoded("SUBSCRIBE", id=str(n), destination="/topic/t", receipt=f"r{n}") for n in range(30)]
    async with StompClient.logged_in(gateway_address) as client, within():
        client.writer.write(b"".join(frames))
        client.writer.write_eof()
        received = [await client.receive() for _ in frames]
        assert [frame.headers["receipt-id"] for frame in received] == [f"r{n}" for n in range(30)]
        await client.closed()


async def test_very_many_frames_sent_before_half_close_are_all_processed(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    total = 5000
    async with StompClient.logged_in(gateway_address) as client, within():
        client.writer.write(encoded("SEND", b"x", destination=f"/queue/{queue}") * total)
        await client.writer.drain()
        client.writer.write_eof()
        await client.closed()
    await until(lambda: amqp.count(queue), lambda count: count == total)
