"""Sessions that share links do not disturb each other."""

import asyncio
import contextlib
import secrets

import pytest

from gateway.parity import AmqpBroker
from tests.support.deadline import within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import StompClient

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
            await bystander.ask("SEND", b"still here", destination=f"/topic/{queue}")
            assert (await bystander.expect("MESSAGE")).body == b"still here"
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
