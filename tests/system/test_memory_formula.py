"""Memory is what docs/limits.md says: with 2,000 sessions, after they have gone, and after floods."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import AdminClient
from tests.support.deadline import until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient, encoded, final_error

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
FORMULA = re.compile(r"\*\*(\d+) MB \+ (\d+) kB . sessions \+ (\d+) kB . subscriptions\*\*")
SESSIONS, SUBSCRIPTIONS = 2000, 500
AT_ONCE = 50
STRANGERS = 1500
UNFINISHED = b"CONNECT\naccept-version:1.2\n" + b"".join(b"h%d:%b\n" % (number, b"x" * 900) for number in range(60))


def formula(sessions: int, subscriptions: int) -> int:
    """Bytes of memory that the page promises."""
    found = FORMULA.search(PAGE.read_text())
    assert found is not None
    base, each_session, each_subscription = map(int, found.groups())
    return base * 1_000_000 + (each_session * sessions + each_subscription * subscriptions) * 1000


@pytest.fixture
def process(broker_url: str) -> Iterator[GatewayProcess]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        with gateway_process(
            configuration(broker_url, {"journal": {"level": "session"}}, admin="127.0.0.1:0"), from_nothing=True
        ) as process:
            yield process
            process.assert_no_internal_errors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def flood(process: GatewayProcess) -> None:
    """Clients that send and leave in excess."""
    send = b"SEND\ndestination:/topic/t\n"
    async with StompClient.logged_in(process.address) as client:
        client.writer.write(send + b":\n" * 2_000_000)
        assert (await final_error(client)).message == "Malformed frame"
    async with StompClient.logged_in(process.address) as client:
        client.writer.write(b"\n" * 8_000_000)
        client.writer.write(encoded("SEND", destination="/topic/t") * 50_000)
        headers = b"".join(b"h%d:%b\n" % (number, b"\\c" * 40_000) for number in range(40))
        client.writer.write(send + headers + b"\n\0")
        client.writer.write(encoded("BEGIN", transaction="t"))
        # The last 2,000 are more than a transaction may have.
        client.writer.write(encoded("SEND", b"x" * 500, destination="/topic/t", transaction="t") * 12_000)
        client.write("ABORT", transaction="t", receipt="end")
        while (await client.receive(30)).command != "RECEIPT":
            pass
    before = process.memory
    strangers = [await asyncio.open_connection(*process.address) for _ in range(STRANGERS)]
    for _, writer in strangers:
        writer.write(UNFINISHED)
    # All of it is there, not just some of it in sockets.
    await until(lambda: memory(process), lambda size: size > before + STRANGERS * len(UNFINISHED) * 3 // 4)
    for _, writer in strangers:
        writer.transport.abort()


async def fleet(process: GatewayProcess) -> int:
    """Many sessions come, are counted, and go; the memory with all of them."""
    async with contextlib.AsyncExitStack() as stack:
        clients: list[StompClient] = []
        for _ in range(SESSIONS // AT_ONCE):
            logins = [stack.enter_async_context(StompClient.logged_in(process.address)) for _ in range(AT_ONCE)]
            clients += await asyncio.gather(*logins)
        for start in range(0, SUBSCRIPTIONS, AT_ONCE):
            await asyncio.gather(
                *(each.ask("SUBSCRIBE", id="1", destination="/topic/t") for each in clients[start : start + AT_ONCE])
            )
        return process.memory


async def sessions(process: GatewayProcess) -> float:
    samples = await AdminClient(process.admin).samples()
    return samples["stomp_gateway_sessions", frozenset({("virtual_host", "/")})]


async def memory(process: GatewayProcess) -> int:
    return process.memory


async def returned(process: GatewayProcess, most: int) -> int:
    """The memory once it is below ``most`` and falls no more.

    What the strangers sent comes back some seconds after they have gone, bit by bit.
    """
    sizes = [most, most]

    async def look() -> int:
        sizes.append(process.memory)
        return sizes[-1]

    return await until(look, lambda size: size < most and sizes[-2] - size < 100_000)


async def test_memory_is_bounded_by_the_formula(process: GatewayProcess) -> None:
    async with within(240):
        assert await fleet(process) < formula(SESSIONS, SUBSCRIPTIONS)
        await until(lambda: sessions(process), lambda count: not count)
        most = process.memory + 5_000_000
        # The second round uses the memory of the first.
        for _ in range(2):
            await flood(process)
            most = min(most, 5_000_000 + await returned(process, most))
