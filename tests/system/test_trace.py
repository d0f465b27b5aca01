"""`stomp-gateway trace`: an operator sees what clients and the gateway say, and nothing secret."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator

import pytest

from gateway.errors import ExitCode
from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient, encoded
from tests.support.trace_reader import TraceReader
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("trace"), "authority")


@pytest.fixture(scope="module")
def gateway(
    broker_url: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    certificate, key = authority.sign(tmp_path_factory.mktemp("server"), "server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    listeners = [{"tcp": "127.0.0.1:0"}, {"tcp": "127.0.0.1:0", "tls": tls}, {"websocket": "127.0.0.1:0"}]
    document = configuration(broker_url, listeners=listeners, admin="127.0.0.1:0")
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


async def test_a_client_that_cannot_connect_is_seen_by_its_address(gateway: GatewayProcess) -> None:
    """With a wrong passcode; without the NUL behind its frame; and with something that is no STOMP."""
    async with within(6 * PATIENCE), TraceReader.begun(gateway, "--address", "127.0.0.1") as trace:
        async with StompClient.dialled(gateway.address) as client:
            client.write("CONNECT", accept_version="1.2", host="/", login="guest", passcode=SECRET, key=SECRET)
            await client.expect("ERROR", message="Bad CONNECT")
        await trace.until_closed()
        connected, connect, error, closed = trace.items[1:]
        assert (connected["event"], connected["peer"]) == ("connected", connect["peer"])
        assert connect["direction"] == "from-client"
        assert connect["headers"] == {
            "accept-version": "1.2", "host": "/", "login": "guest", "passcode": "***", "key": "***",
        }  # fmt: skip
        assert (error["command"], error["headers"]["message"]) == ("ERROR", "Bad CONNECT")
        assert error["body_bytes"] > 0
        assert closed["session"] == connect["session"]
        async with StompClient.dialled(gateway.address) as client:
            client.writer.write(encoded("CONNECT", login="guest", passcode=SECRET, accept_version="1.2")[:-1])
            client.half_close()
            await client.closed()
        await trace.until_closed()
        unfinished = trace.items[-2]
        assert (unfinished["command"], unfinished["incomplete"]) == ("CONNECT", True)
        async with StompClient.dialled(gateway.address) as client:
            client.writer.write(b"HELO there\r\n" + SECRET.encode() + b"\r\n\r\n")
            await client.expect("ERROR")
        assert (await trace.until_closed())["reason"] == "malformed-frame"
        assert "unreadable" in [item.get("event") for item in trace.items]
        assert SECRET not in json.dumps(trace.items)


async def test_clients_of_a_login_are_seen_in_both_directions_and_no_others(
    gateway: GatewayProcess, authority: Authority, queue: str
) -> None:
    """One that was there before, one with TLS and one over WebSocket; bodies and tokens are not shown."""
    plain, over_tls, websocket = listening(gateway, 3)
    tls = ssl.create_default_context(cafile=str(authority.certificate))
    destination = f"/queue/{queue}"
    async with within(6 * PATIENCE), StompClient.logged_in(plain, heart_beat="0,0") as early:
        async with TraceReader.begun(gateway, "--login", "guest") as trace:
            assert trace.items[0]["clients"] >= 1
            early.write("SEND", SECRET.encode(), destination=destination, api_key=SECRET, colour="blue")
            await early.ask("SUBSCRIBE", id="1", destination=destination)
            await early.messages(1)
            early.write("TOKEN", token=SECRET, receipt="t")
            await early.expect("ERROR")
            await trace.until(lambda item: item.get("command") == "ERROR")
            first = trace.frames
            assert trace.said == ["> SEND", "> SUBSCRIBE", "< RECEIPT", "< MESSAGE", "> TOKEN", "< ERROR"]
            send, message, token = first[0], first[3], first[4]
            assert (send["headers"]["colour"], send["headers"]["api-key"]) == ("blue", "***")
            assert send["body_bytes"] == message["body_bytes"] == len(SECRET)
            assert message["headers"]["subscription"] == "1"
            assert token["headers"] == {"token": "***", "receipt": "t"}
            assert {item["session"] for item in first} == {early.connected["session"]}

            async with StompClient.logged_in(over_tls, tls=tls) as client:
                await client.disconnect()
            await trace.until_closed()
            late = [item for item in trace.items if item.get("session") == client.connected["session"]]
            assert [item.get("command", item.get("event")) for item in late] == [
                "connected", "CONNECT", "CONNECTED", "DISCONNECT", "RECEIPT", "closed",
            ]  # fmt: skip
            async with WebSocketClient.logged_in(websocket) as browser:
                await browser.ask("SEND", b"x", destination=f"/topic/{queue}")
                await trace.until(lambda item: item.get("command") == "RECEIPT")
            assert trace.said[-4:] == ["> CONNECT", "< CONNECTED", "> SEND", "< RECEIPT"]

            await trace.until_closed()
            async with StompClient.dialled(plain) as stranger:
                stranger.write("CONNECT", accept_version="1.2", login="somebody", passcode=SECRET)
                await stranger.expect("ERROR")
            before = len(trace.items)
            await early.ask("UNSUBSCRIBE", id="1")
            await trace.until(lambda item: item.get("command") == "RECEIPT")
            assert [item.get("command") for item in trace.items[before:]] == ["UNSUBSCRIBE", "RECEIPT"]
            assert SECRET not in json.dumps(trace.items)


async def test_the_trace_of_a_session_ends_with_it(gateway: GatewayProcess) -> None:
    async with within(6 * PATIENCE), StompClient.logged_in(gateway.address) as client:
        async with TraceReader.begun(gateway, client.connected["session"]) as trace:
            client.writer.write(b"\n\n\n")
            await client.disconnect()
            assert await trace.ended() == ExitCode.OK
    assert [item["from_client"] for item in trace.items if item.get("event") == "heart-beats"] == [3]
    assert trace.said == ["> DISCONNECT", "< RECEIPT"]
    assert trace.items[-1]["reason"] == "the session has ended"
    started = (await gateway.until_logged("trace started"))[-1]
    assert started["target"] == f"session {client.connected['session']}"


@pytest.mark.parametrize(
    ("query", "status"),
    [("session=none", 404), ("", 400), ("login=a&address=127.0.0.1", 400), ("address=here", 400),
     ("login=a&seconds=3601", 400), ("login=a&colour=blue", 400)],
)  # fmt: skip
async def test_what_makes_no_sense_is_not_traced(gateway: GatewayProcess, query: str, status: int) -> None:
    await gateway.until_logged("admin listening")
    assert (await AdminClient(gateway.admin).ask(f"/api/trace?{query}", "POST")).status == status


async def test_there_are_a_few_traces_at_a_time_and_each_ends_with_its_reader(gateway: GatewayProcess) -> None:
    await gateway.until_logged("admin listening")
    admin = AdminClient(gateway.admin)

    async def ended() -> int:
        return len(gateway.logged("trace ended"))

    before = await ended()
    writers = []
    async with within():
        for _ in range(4):
            reader, writer = await asyncio.open_connection(*gateway.admin)
            writer.write(b"POST /api/trace?login=nobody HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nX-Content-Type-Options: nosniff\r\n" in head
            writers.append(writer)
        assert (await admin.ask("/api/trace?login=nobody", "POST")).status == 409
        for writer in writers:
            writer.close()
        await gateway.until_logged("trace ended", before + 4)
