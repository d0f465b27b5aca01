"""Starting and stopping the command: a clean shutdown, a quick second start, a port that is taken."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path

import pytest
import yaml

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.admin import AdminClient
from tests.support.chaos import ChaosProxy, Direction
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import ROOT, configuration, gateway_process, upstream
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system


async def test_what_was_sent_before_the_signal_is_confirmed_before_the_end(
    broker: Broker, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    with gateway_process(configuration(broker.amqp_url, upstream=upstream(proxy.address))) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            await client.ask("SEND", b"first", destination=f"/queue/{queue}")
            # The broker's confirms arrive only when the gateway is draining.
            proxy.stall(Direction.DOWN)
            for number in range(200):
                client.write(
                    "SEND", b"x", destination=f"/queue/{queue}", persistent="true", receipt=f"under way {number}"
                )
            await until(lambda: amqp.count(queue), lambda count: count == 201)
            process.terminate()
            await process.until_logged("draining")
            proxy.release(Direction.DOWN)
            for number in range(200):
                await client.expect("RECEIPT", receipt_id=f"under way {number}")
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK


async def test_unacknowledged_messages_go_back_when_the_gateway_stops(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    with gateway_process(configuration(broker_url)) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            await client.ask("SUBSCRIBE", id="a", ack="client-individual", destination=f"/queue/{queue}")
            for _ in range(5):
                client.write("SEND", b"x", destination=f"/queue/{queue}")
            first, *_ = await client.messages(5)
            client.write("ACK", id=first["ack"])
            client.write("ACK", id="nonsense", receipt="behind")
            await client.expect("ERROR")
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
    assert await amqp.count(queue) == 4


async def test_an_open_transaction_ends_with_the_gateway(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    with gateway_process(configuration(broker_url)) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            await client.ask("SEND", b"outside", destination=f"/queue/{queue}")
            client.write("BEGIN", transaction="t")
            client.write("SEND", b"inside", destination=f"/queue/{queue}", transaction="t")
            await client.ask("BEGIN", transaction="behind")
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
    assert await amqp.count(queue) == 1


async def test_a_client_that_has_not_logged_in_is_sent_the_error_too(broker_url: str) -> None:
    """It also keeps its side of the connection open. Other tests close it, since the gateway waits seconds for that."""
    with gateway_process(configuration(broker_url)) as process:
        async with StompClient.dialled(process.address) as client, within(3 * PATIENCE):
            client.write("SEND", b"early", destination="/queue/never")
            await client.expect("ERROR", message="Illegal command")
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            assert await process.exit_code(PATIENCE) == ExitCode.OK


async def test_a_broker_that_hangs_does_not_keep_the_gateway_from_stopping(
    broker: Broker, proxy: ChaosProxy, queue: str
) -> None:
    document = configuration(broker.amqp_url, upstream=upstream(proxy.address), drain_timeout=1)
    with gateway_process(document) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            await client.ask("SEND", b"first", destination=f"/queue/{queue}")
            proxy.stall(Direction.DOWN)
            client.write("SEND", b"second", destination=f"/queue/{queue}", receipt="never")
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            assert await process.exit_code(PATIENCE) == ExitCode.OK


async def test_a_client_that_does_not_read_does_not_keep_the_gateway_from_stopping(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    total = 5000
    with gateway_process(configuration(broker_url, drain_timeout=1)) as process:
        async with StompClient.logged_in(process.address, receive_buffer=32 * 1024) as client, within(3 * PATIENCE):
            frame = encoded("SEND", b"x" * 4096, destination=f"/queue/{queue}")
            client.writer.write(frame * (total - 1))
            await client.ask("SEND", b"x" * 4096, destination=f"/queue/{queue}")
            client.write("SUBSCRIBE", id="a", ack="client", destination=f"/queue/{queue}")
            await client.expect("MESSAGE")
            process.terminate()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
    await until(lambda: amqp.count(queue), lambda count: count == total)


@pytest.mark.parametrize("client_buffer", ["1MiB", "64MiB"])  # less and more than all there is
async def test_nothing_is_lost_under_auto_when_the_gateway_stops_before_a_slow_client(
    broker_url: str, amqp: AmqpBroker, queue: str, client_buffer: str
) -> None:
    """Messages that the gateway holds and that did not reach the client are not settled."""
    total = 5000
    document = configuration(broker_url, drain_timeout=1, defaults={"client_buffer": client_buffer})
    with gateway_process(document) as process:
        async with StompClient.logged_in(process.address, receive_buffer=32 * 1024) as client, within(3 * PATIENCE):
            frame = encoded("SEND", b"x" * 4096, destination=f"/queue/{queue}")
            client.writer.write(frame * (total - 1))
            await client.ask("SEND", b"x" * 4096, destination=f"/queue/{queue}")
            client.write("SUBSCRIBE", id="a", ack="auto", destination=f"/queue/{queue}")
            await client.expect("MESSAGE")
            # The gateway holds as many messages as it takes without settling (auto_ack_window).
            await until(lambda: amqp.count(queue), lambda count: count is not None and count <= total - 2000)
            process.terminate()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
            received = 1
            rest = b""
            # The client reads again: what reached its socket is there.
            try:
                while data := await client.reader.read(1 << 20):
                    rest += data
            except ConnectionError:
                pass
            received += rest.count(b"\0\nMESSAGE\n") + rest.endswith(b"\0\n")
    # The broker may still be putting back what the gateway had not settled.
    await until(lambda: amqp.count(queue), lambda count: count is not None and count + received >= total)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_and_sigint_stop_an_idle_gateway_at_once(broker_url: str, number: signal.Signals) -> None:
    with gateway_process(configuration(broker_url, drain_timeout=600), module="tests.support.waits_long") as process:
        process.child.send_signal(number)
        assert await process.exit_code(PATIENCE) == ExitCode.OK


async def test_sessions_end_one_after_the_other_and_work_until_their_turn(broker_url: str, queue: str) -> None:
    """With so many of them the last one has its turn after three seconds."""
    with gateway_process(configuration(broker_url)) as process:
        async with contextlib.AsyncExitStack() as stack, within(3 * PATIENCE):
            entering = (stack.enter_async_context(StompClient.logged_in(process.address)) for _ in range(300))
            clients = [await client for client in entering]
            first_frames = [asyncio.create_task(client.receive(30)) for client in clients]
            process.terminate()
            await asyncio.wait(first_frames, return_when="FIRST_COMPLETED")
            # The listener went first: nobody new has to be sent away.
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*process.address)
            told = [frame.done() for frame in first_frames]
            for client, is_told in zip(clients, told, strict=True):
                if not is_told:
                    client.write("SEND", b"x", destination=f"/queue/{queue}", receipt="still at work")
            frames = await asyncio.gather(*first_frames)
            for client in clients:
                client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
    commands = [frame.command for frame in frames]
    # Some had their turn before their SEND arrived.
    assert commands.count("RECEIPT") > 150
    assert [frame["message"] for frame in frames if frame.command == "ERROR"].count("Shutting down") >= 1


async def test_no_proxy_sees_a_ready_gateway_when_its_listener_closes_and_a_second_signal_ends_at_once(
    broker_url: str, queue: str
) -> None:
    with gateway_process(configuration(broker_url, drain_delay="10min", admin="127.0.0.1:0")) as process:
        await process.until_logged("admin listening")
        admin = AdminClient(process.admin)
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            assert (await admin.ask("/readyz")).status == 200
            process.terminate()
            await process.until_logged("drain announced")
            assert (await admin.ask("/readyz")).json == {"ready": False, "reasons": ["draining"]}
            await client.ask("SEND", b"x", destination=f"/queue/{queue}")
            async with StompClient.logged_in(process.address) as late:
                await late.ask("SEND", b"x", destination=f"/queue/{queue}")
            assert process.logged("draining") == []
            process.terminate()
            assert await process.exit_code(PATIENCE) == -signal.SIGTERM


async def test_a_second_ctrl_c_ends_a_drain_at_once(broker: Broker, proxy: ChaosProxy, queue: str) -> None:
    document = configuration(broker.amqp_url, upstream=upstream(proxy.address), drain_timeout=600)
    with gateway_process(document) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            await client.ask("SEND", b"first", destination=f"/queue/{queue}")
            proxy.stall(Direction.DOWN)
            client.write("SEND", b"second", destination=f"/queue/{queue}", receipt="never")
            process.child.send_signal(signal.SIGINT)
            await process.until_logged("draining")
            process.child.send_signal(signal.SIGINT)
            assert await process.exit_code(PATIENCE) == ExitCode.INTERRUPTED


async def test_after_the_delay_the_gateway_drains(broker_url: str) -> None:
    with gateway_process(configuration(broker_url, drain_delay="50ms")) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
        assert [len(process.logged(event)) for event in ("drain announced", "draining")] == [1, 1]


async def test_the_next_gateway_can_use_the_port_at_once(broker_url: str) -> None:
    # A port that the system gives to nobody meanwhile.
    [port] = free_ports(1)
    document = configuration(broker_url, listeners=[{"tcp": f"127.0.0.1:{port}"}])
    with gateway_process(document) as process:
        async with StompClient.logged_in(process.address) as client, within(3 * PATIENCE):
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            client.hang_up()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
            with gateway_process(document) as next_process:
                async with StompClient.logged_in(next_process.address) as next_client:
                    await next_client.disconnect()


async def test_a_port_that_is_taken_is_an_error_of_one_sentence(broker_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump(configuration(broker_url, listeners=[{"tcp": address}])))
        child = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "gateway", "serve", "--config", str(file)], cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        async with within(3 * PATIENCE):
            _, said = await child.communicate()
    assert child.returncode == ExitCode.LISTEN
    text = said.decode().strip()
    assert address in text
    assert "the port is taken" in text
    assert "\n" not in text
