"""Sessions that share links do not disturb each other."""

import asyncio
import contextlib
import secrets

import pytest

from gateway.parity.amqp_broker import AmqpBroker
from tests.support.admin import AdminClient
from tests.support.chaos import ChaosProxy, Direction
from tests.support.deadline import until, within
from tests.support.gateway import Address, configuration, gateway_here, gateway_process, parsed, upstream
from tests.support.stomp_client import StompClient, answers_during, encoded

pytestmark = pytest.mark.system


async def _refused(address: Address, queue: str) -> str:
    """SUBSCRIBE with a property that the queue does not have, and return the message of the ERROR."""
    async with StompClient.logged_in(address) as client:
        client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", auto_delete="true", prefetch_count="5")
        return (await client.expect("ERROR"))["message"]


async def test_many_refused_subscriptions_at_once_do_not_disturb_other_sessions(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    """Each refusal closes a channel; with many at once, no answer may be lost."""
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    async with gateway_here(parsed(broker_url)) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address) as bystander:
            await bystander.ask("SUBSCRIBE", id="b", destination=f"/topic/{queue}", prefetch_count="5")
            for _ in range(8):
                said = await asyncio.gather(*(_refused(address, queue) for _ in range(40)))
                assert set(said) == {"precondition_failed"}
            # Without a receipt: MESSAGE and RECEIPT come over different links, in any order.
            bystander.write("SEND", b"still here", destination=f"/topic/{queue}")
            await bystander.expect("MESSAGE", b"still here")
            await bystander.disconnect()


async def _takes(client: StompClient, queue: str) -> bool:
    """SUBSCRIBE to an exclusive queue, and return whether the client got it."""
    client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", exclusive="true", prefetch_count="5", receipt="s")
    frame = await client.receive()
    assert frame.command == "RECEIPT" or frame["message"] == "resource_locked"
    return frame.command == "RECEIPT"


async def test_of_many_sessions_that_want_an_exclusive_queue_at_once_one_gets_it(broker_url: str) -> None:
    async with gateway_here(parsed(broker_url)) as gateway, within(60):
        address = gateway.addresses[0]
        for _ in range(25):
            queue = f"test-{secrets.token_hex(6)}"
            async with contextlib.AsyncExitStack() as stack:
                logged_in = [StompClient.logged_in(address) for _ in range(4)]
                clients = [await stack.enter_async_context(each) for each in logged_in]
                taken = await asyncio.gather(*(_takes(client, queue) for client in clients))
                assert taken.count(True) == 1


async def test_a_neighbour_goes_on_while_another_session_of_its_login_floods(broker_url: str, queue: str) -> None:
    """The flood does not lie in front of the neighbour's messages in the link's buffers."""
    flood = encoded("SEND", b"", destination=f"/topic/{queue}") * 150_000
    with gateway_process(configuration(broker_url)) as process:
        async with (
            StompClient.logged_in(process.address) as flooder,
            StompClient.logged_in(process.address) as neighbour,
            within(60),
        ):
            for client in (flooder, neighbour):
                await client.ask("SEND", destination=f"/topic/{queue}.own")
            flooder.writer.write(flood)
            busy = flooder.ask("SEND", destination=f"/topic/{queue}.own")
            assert await answers_during(busy, _Sender(neighbour, f"/topic/{queue}.own")) > 30
        process.assert_no_internal_errors()


async def test_a_flood_that_begins_behind_another_one_waits_from_its_first_message(
    broker_url: str, proxy: ChaosProxy, queue: str
) -> None:
    """Each new flood would add a turn's messages to those that all others of the login wait for."""
    send = encoded("SEND", b"x" * 1024, destination=f"/topic/{queue}")
    window = {"confirm_window": {"messages": 1_000_000, "bytes": "1GiB"}}
    document = configuration(broker_url, window, admin="127.0.0.1:0", upstream=upstream(proxy.address))
    with gateway_process(document) as process:
        admin = AdminClient(process.admin)
        async with (
            StompClient.logged_in(process.address) as first,
            StompClient.logged_in(process.address) as second,
            within(60),
        ):
            await first.ask("SEND", destination=f"/topic/{queue}")
            proxy.stall(Direction.DOWN)
            first.writer.write(send * 3_000)
            await _held(admin, 1)
            second.writer.write(send * 1_000)
            of_second, of_first = await _held(admin, 2)
            assert of_second < 10
            assert of_first > 100
            proxy.release(Direction.DOWN)
            for client in (first, second):
                await client.ask("SEND", destination=f"/topic/{queue}")
                # While the gateway is stopped below, the proxy does nothing: sessions would keep it for ten seconds.
                await client.disconnect()
        process.assert_no_internal_errors()


async def _held(admin: AdminClient, count: int) -> list[int]:
    """Wait until so many sessions are held for the link; their unconfirmed messages, the fewest first."""
    page = await until(lambda: admin.json("/api/sessions?hold=link-write"), lambda page: page["total"] == count)
    return sorted(item["unconfirmed"] for item in page["items"])


class _Sender:
    """Sends a message where another would begin a transaction."""

    def __init__(self, client: StompClient, destination: str) -> None:
        self._client = client
        self._destination = destination

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        await self._client.ask("SEND", body, destination=self._destination)
