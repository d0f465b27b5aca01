"""Fail-back: on request the links of a virtual host return to the preferred broker, and no session ends for it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.errors import ExitCode
from tests.support.admin import AdminClient
from tests.support.chaos import chaos
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import Frame, StompClient

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Setup:
    """A gateway whose preferred broker is switched off; a proxy on ``port`` switches it on. The other is the broker."""

    process: GatewayProcess
    admin: AdminClient
    port: int
    broker: tuple[str, int]

    async def brokers(self) -> set[str]:
        """The brokers that there are links to."""
        return {link["broker"] for link in (await self.admin.json("/api/links"))["items"]}

    async def sessions_elsewhere(self) -> int:
        """How many sessions have channels on links to other brokers; one with two such links counts twice."""
        links = (await self.admin.json("/api/links"))["items"]
        return sum(link["sessions"] for link in links if link["broker"] != self.preferred)

    @property
    def preferred(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def other(self) -> str:
        return "{}:{}".format(*self.broker)

    async def fail_back(self) -> tuple[int, str]:
        """Run the command; its exit code and what it printed."""
        url = "http://{}:{}".format(*self.process.admin)
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "links", "fail-back", "--url", url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await command.communicate()
        assert command.returncode is not None
        return command.returncode, printed.decode()


@pytest.fixture(params=["shared", "dedicated"])
def setup(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Setup]:
    [port] = free_ports(1)
    upstream = {"urls": [f"amqp://127.0.0.1:{port}", f"amqp://{broker.host}:{broker.amqp_port}"]}
    document = configuration(broker.amqp_url, {"links": request.param}, upstream=upstream, admin="127.0.0.1:0")
    with gateway_process(document, module="tests.support.one_by_one") as process:
        yield Setup(process, AdminClient(process.admin), port, (broker.host, broker.amqp_port))
        process.assert_no_internal_errors()


async def test_new_channels_go_to_the_preferred_broker_and_old_links_end_with_their_channels(setup: Setup) -> None:
    topic = f"/topic/{secrets.token_hex(6)}"
    async with within(3 * PATIENCE), StompClient.logged_in(setup.process.address) as old:
        await old.ask("SUBSCRIBE", id="a", destination=topic)
        # So much that the shared link has a channel of its own, for markers.
        await old.ask("SEND", b"1" * (1 << 20), destination="/topic/elsewhere")
        assert await setup.brokers() == {setup.other}
        async with chaos(setup.broker, port=setup.port):
            code, printed = await setup.fail_back()
            assert (code, "/: 2 links draining" in printed) == (ExitCode.OK, True), printed
            async with StompClient.logged_in(setup.process.address) as new:
                await new.ask("SEND", b"two", destination=topic)
                assert (await old.expect("MESSAGE")).body == b"two"
                assert setup.preferred in await setup.brokers()
                await old.disconnect()
                await until(setup.brokers, lambda brokers: brokers == {setup.preferred})
                await new.disconnect()


async def test_nothing_changes_while_the_preferred_broker_does_not_answer(setup: Setup) -> None:
    async with within(3 * PATIENCE), StompClient.logged_in(setup.process.address) as client:
        await client.ask("SEND", b"x", destination="/topic/elsewhere")
        code, printed = await setup.fail_back()
        assert code == ExitCode.FAILURE
        assert f"{setup.preferred}: connection refused" in printed
        links = (await setup.admin.json("/api/links"))["items"]
        assert [(link["broker"], link["draining"]) for link in links] == [(setup.other, False)]
        await client.disconnect()


async def test_only_a_known_virtual_host_fails_back_and_no_foreign_page_asks_for_it(setup: Setup) -> None:
    path = "/api/links/fail-back"
    assert (await setup.admin.ask(f"{path}?virtual_host=unknown", "POST")).status == 404
    assert (await setup.admin.ask(path, "POST", Origin="http://evil.example")).status == 403


async def test_sessions_move_at_a_quiet_moment_without_noticing_it(setup: Setup) -> None:
    """A producer that never pauses, and a worker: each message comes once and in order."""
    queue = f"/queue/{secrets.token_hex(6)}"
    async with (
        within(60.0),
        StompClient.logged_in(setup.process.address) as producer,
        StompClient.logged_in(setup.process.address) as worker,
        chaos(setup.broker, port=setup.port),
    ):
        await worker.ask("SUBSCRIBE", id="a", destination=queue, ack="client-individual")
        moved = asyncio.Event()
        working = asyncio.create_task(work(worker))
        producing = asyncio.create_task(produce(producer, queue, moved))
        code, printed = await setup.fail_back()
        assert code == ExitCode.OK, printed
        await until(setup.brokers, lambda brokers: brokers == {setup.preferred})
        moved.set()
        sent = await producing
        assert await working == list(range(sent))
        await producer.disconnect()
        await worker.disconnect()


async def produce(client: StompClient, queue: str, enough: asyncio.Event) -> int:
    """Send numbers, many at a time, and wait for their receipts; how many there were. The last message says so."""
    sent = 0
    while not enough.is_set():
        for number in range(sent, sent + 20):
            client.write("SEND", b"%d" % number, destination=queue, receipt=str(number))
        for number in range(sent, sent + 20):
            await client.expect("RECEIPT", receipt_id=str(number))
        sent += 20
    await client.ask("SEND", b"end", destination=queue)
    return sent


async def work(client: StompClient, behind: int = 0) -> list[int]:
    """Receive and acknowledge the numbers up to the last message; so many of them are acknowledged later."""
    found: list[int] = []
    owed: list[Frame] = []
    while True:
        owed.append(message := await client.expect("MESSAGE"))
        is_last = message.body == b"end"
        while len(owed) > (0 if is_last else behind):
            each = owed.pop(0)
            if "ack" in each.headers:
                client.write("ACK", id=each["ack"])
        if is_last:
            return found
        found.append(int(message.body))


async def test_many_busy_sessions_move_and_nothing_is_lost(setup: Setup) -> None:
    """Producers that never pause, and workers; some workers always have a message that they have not acknowledged."""
    moved = asyncio.Event()
    async with within(120.0), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(StompClient.logged_in(setup.process.address)) for _ in range(48)]
        workers, producers = clients[:24], clients[24:]
        queues = [f"/queue/{secrets.token_hex(6)}" for _ in workers]
        for number, (worker, queue) in enumerate(zip(workers, queues, strict=True)):
            mode = "auto" if number % 3 == 1 else "client-individual"
            await worker.ask("SUBSCRIBE", id="a", destination=queue, ack=mode, prefetch_count="10")
        behind = [int(number % 3 == 2) for number, _ in enumerate(workers)]
        working = [asyncio.create_task(work(*each)) for each in zip(workers, behind, strict=True)]
        producing = [asyncio.create_task(produce(*each, moved)) for each in zip(producers, queues, strict=True)]
        await stack.enter_async_context(chaos(setup.broker, port=setup.port))
        code, printed = await setup.fail_back()
        assert code == ExitCode.OK, printed
        # All but the subscriptions of those that always have a message.
        await until(setup.sessions_elsewhere, lambda count: count == sum(behind))
        moved.set()
        sent = await asyncio.gather(*producing)
        assert await asyncio.gather(*working) == [list(range(count)) for count in sent]
        await until(setup.brokers, lambda brokers: brokers == {setup.preferred})
        for client in clients:
            await client.disconnect()


async def test_a_subscription_whose_queue_would_end_with_it_stays(setup: Setup) -> None:
    topic = f"/topic/{secrets.token_hex(6)}"
    async with within(), StompClient.logged_in(setup.process.address) as client, chaos(setup.broker, port=setup.port):
        await client.ask("SUBSCRIBE", id="a", destination=topic)
        await client.ask("SEND", b"one", destination="/topic/elsewhere")
        await setup.fail_back()
        await until(lambda: purposes_of(setup), lambda found: found == {("publish", True), ("consume", False)})
        await client.ask("SEND", b"two", destination="/topic/elsewhere")
        client.write("SEND", b"three", destination=topic)
        assert (await client.expect("MESSAGE")).body == b"three"
        await client.disconnect()


async def purposes_of(setup: Setup) -> set[tuple[str, bool]]:
    """The purposes of the links with channels, and whether each is to the preferred broker."""
    links = (await setup.admin.json("/api/links"))["items"]
    return {(link["purpose"], link["broker"] == setup.preferred) for link in links if link["channels"]}
