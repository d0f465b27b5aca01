"""What one client sends in excess: an ERROR for it, a few lines in the log, and nothing that others notice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient, answers_during, encoded, error_text, final_error

pytestmark = pytest.mark.system

_FEW = 512
"""File descriptors."""


@pytest.fixture(scope="module")
def process(broker_url: str) -> Iterator[GatewayProcess]:
    limits = {"transactions": {"max_actions": 10}, "loopback_users": []}
    failed = {"per_login": 8, "delay_after": 7, "delay": "50ms"}
    document = configuration(broker_url, limits, admin="127.0.0.1:0", failed_logins=failed)
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


async def test_four_megabytes_of_header_lines_get_an_error_before_they_are_all_there(process: GatewayProcess) -> None:
    """All of them repeat one header, so `max_headers` does not count them."""
    async with StompClient.logged_in(process.address) as other, within():
        for lines in (b":\n", b"a:\\c\r\n", b"destination:/topic/t\n"):
            async with StompClient.logged_in(process.address) as client:
                client.writer.write(b"SEND\n" + lines * ((4 << 20) // len(lines) - 10))
                assert await final_error(client) == ("Malformed frame", "more than 1000 header lines\n")
            await other.ask("SEND", destination="/topic/t")


async def test_others_are_answered_while_a_client_floods(process: GatewayProcess) -> None:
    many = b"".join(b"h%d:\\c\n" % number for number in range(90))
    sends = b"".join(b"SEND\ndestination:/topic/t\nx:%d\n%b\n\0" % (number, many) for number in range(2000))
    async with (
        StompClient.logged_in(process.address) as other,
        StompClient.logged_in(process.address) as client,
        within(60),
    ):
        # It takes hundreds of milliseconds. A gateway that did all at once would answer about five pairs.
        answers: list[int] = []
        # Once more if it was this process that did nothing meanwhile.
        while len(answers) < 3 and max(answers, default=0) < 15:
            client.writer.write(sends)
            answers.append(await answers_during(client.ask("SEND", destination="/topic/t"), other))
        assert max(answers) >= 15


async def test_a_transaction_beyond_its_bound_is_one_line_in_the_log(process: GatewayProcess) -> None:
    many, admin = 500, AdminClient(process.admin)
    before = (await admin.samples())["stomp_gateway_log_lines_left_out_total", frozenset()]
    async with StompClient.logged_in(process.address) as client, within():
        client.writer.write(
            encoded("BEGIN", transaction="t") + encoded("SEND", destination="/topic/t", transaction="t") * (10 + many)
        )
        for _ in range(many):
            text = error_text(await client.receive())
            assert text == ("Transaction too large", "Too many actions in transaction (limit 10)")
        await client.disconnect()
    session = client.connected["session"]
    (ended,) = [line for line in process.logged("session ended") if line["session"] == session]
    (_,) = [line for line in process.logged("error sent") if line["session"] == session]
    assert ended["errors_left_out"] == many - 1
    after = (await admin.samples())["stomp_gateway_log_lines_left_out_total", frozenset()]
    assert after - before == many - 1


async def test_a_long_login_that_is_refused_is_cut_in_the_log(process: GatewayProcess) -> None:
    async with StompClient.dialled(process.address) as client, within():
        client.write("CONNECT", accept_version="1.2", login="x" * 5000, passcode="wrong")
        await client.expect("ERROR", message="Bad CONNECT")
    lines = await process.until_logged("login refused")
    assert [line["login"] for line in lines] == ["x" * 100]


async def test_wrong_passcodes_at_speed_are_limited_and_others_of_the_address_are_not(process: GatewayProcess) -> None:
    metric, admin = ("stomp_gateway_logins_failed_total", frozenset[tuple[str, str]]()), AdminClient(process.admin)
    async with StompClient.logged_in(process.address) as client, within():
        await client.disconnect()
    before = (await admin.samples())[metric]
    for number in range(10):
        async with StompClient.dialled(process.address) as client, within():
            client.write("CONNECT", accept_version="1.2", login="guest", passcode=f"wrong {number}", receipt="c")
            frame = await client.expect("ERROR", receipt_id="c")
            if number < 8:
                # As with the plugin. The client may try again.
                assert error_text(frame) == ("Bad CONNECT", "Access refused for user 'guest'\n")
            else:
                assert frame["message"] == "Too many failed logins"
                assert re.fullmatch(
                    rb"Too many logins from this address have failed; try again in \d+ seconds.\n", frame.body
                )
                await client.closed()
    assert (await admin.samples())[metric] - before == 8
    reasons = [line["reason"] for line in process.logged("login refused")]
    assert reasons[-2:] == ["too many failed logins"] * 2
    # The same login, from the same address, with the right passcode.
    async with StompClient.logged_in(process.address) as client, within():
        await client.disconnect()


async def silent(address: Address) -> None:
    """From an address of its own a client connects and says nothing, and comes again whenever it is closed."""
    while True:
        reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
        try:
            await reader.read()
        finally:
            writer.transport.abort()


async def test_an_address_that_begins_many_handshakes_keeps_nobody_else_out(broker_url: str, tmp_path: Path) -> None:
    authority, most = Authority.make(tmp_path, "authority"), 20
    certificate, key = authority.sign(tmp_path, "server")
    common = {"max_handshakes": most, "login_timeout": "10min"}
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    listeners = [{"tcp": "127.0.0.1:0", "tls": tls} | common, {"tcp": "localhost:0", "proxy_protocol": True} | common]
    document = configuration(broker_url, {"loopback_users": []}, listeners=listeners, admin="127.0.0.1:0")
    with gateway_process(document) as process:
        await process.until_logged("admin listening")
        over_tls, behind_proxy = listening(process, 2)
        floods = [asyncio.create_task(silent(address)) for address in (over_tls, behind_proxy) for _ in range(most + 5)]

        async def full() -> set[str]:
            return {line["address"] for line in process.logged("too many handshakes")}

        await until(full, lambda addresses: len(addresses) == 2)

        async def log_in(client: contextlib.AbstractAsyncContextManager[StompClient]) -> None:
            async with client as welcome:
                await welcome.disconnect()

        async with within():
            await asyncio.gather(
                log_in(StompClient.logged_in(over_tls, tls=authority.client())),
                log_in(StompClient.logged_in(behind_proxy, preface=b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n")),
            )
            samples = await AdminClient(process.admin).samples()
        for flood in floods:
            flood.cancel()
        await asyncio.wait(floods)
        process.assert_no_internal_errors()
        ended = [line for line in process.logged("too many handshakes") if line["ended"]]
    assert {(line["whose"], line["most"]) for line in ended} == {("The address 127.0.0.2", most)}
    assert samples["stomp_gateway_connections_refused_total", frozenset({("limit", "handshakes")})] >= len(ended) > 1


async def test_more_clients_come_in_than_the_soft_limit_of_file_descriptors_allows(broker_url: str) -> None:
    with contextlib.ExitStack() as gateway:
        # The silent ones are not to leave before the last one comes.
        document = configuration(broker_url, listeners=[{"tcp": "127.0.0.1:0", "login_timeout": "10min"}])
        with soft_limit_of_file_descriptors(_FEW):
            process = gateway.enter_context(gateway_process(document, from_nothing=True))
        async with contextlib.AsyncExitStack() as clients:
            for _ in range(_FEW):
                await clients.enter_async_context(StompClient.dialled(process.address))
            await clients.enter_async_context(StompClient.logged_in(process.address))


@contextlib.contextmanager
def soft_limit_of_file_descriptors(limit: int) -> Iterator[None]:
    """Processes that are started meanwhile begin with this limit."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
