"""stompman beyond the conversations of all libraries."""

from __future__ import annotations

import asyncio
import secrets

import pytest
import stompman

from deploy.local.ports import free_ports
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import Address, GatewayProcess, configuration

pytestmark = pytest.mark.system


def client(address: Address, errors: asyncio.Queue[stompman.ErrorFrame], attempts: int = 1) -> stompman.Client:
    server = stompman.ConnectionParameters(*address, "guest", "guest")
    return stompman.Client(
        [server],
        on_error_frame=errors.put_nowait,
        connect_retry_attempts=attempts,
        connection_confirmation_timeout=int(PATIENCE),  # its two seconds are short on a busy machine
    )


async def test_a_refused_send_leaves_others_in_flight_alone(gateway_address: Address) -> None:
    """An ERROR without `receipt-id` would fail every unanswered send of this library; the gateway's has one."""
    async with within(), client(gateway_address, asyncio.Queue()) as sender:
        refused, sent = await asyncio.gather(
            sender.send(b"x", "/nonsense/x", receipt_timeout=PATIENCE),
            sender.send(b"x", "/topic/nobody", receipt_timeout=PATIENCE),
            return_exceptions=True,
        )
    assert sent is None
    assert isinstance(refused, stompman.SendReceiptError)
    assert refused.frame is not None
    assert refused.frame.headers["message"] == "Unknown destination"


async def test_it_connects_and_subscribes_again_after_the_gateway_was_killed(broker_url: str) -> None:
    (port,) = free_ports(1)
    document = configuration(broker_url, listeners=[{"tcp": f"127.0.0.1:{port}"}])
    destination = f"/queue/test-{secrets.token_hex(6)}"
    arguments = {"x-expires": "60000"}
    messages: asyncio.Queue[stompman.AckableMessageFrame] = asyncio.Queue()

    async def receive(message: stompman.AckableMessageFrame) -> None:
        messages.put_nowait(message)

    gateway = await asyncio.to_thread(GatewayProcess, document)
    try:
        async with within(), client(gateway.address, asyncio.Queue(), attempts=20) as consumer:
            subscription = await consumer.subscribe_with_manual_ack(
                destination, receive, headers=arguments, receipt_timeout=PATIENCE
            )
            await consumer.send(b"unfinished", destination, headers={"persistent": "true", **arguments})
            first = await messages.get()
            gateway.child.kill()
            await asyncio.to_thread(gateway.stop)
            gateway = await asyncio.to_thread(GatewayProcess, document)
            again = await messages.get()
            await again.ack()
            await consumer.send(b"next", destination, headers=arguments, receipt_timeout=PATIENCE)
            following = await messages.get()
            await following.ack()
            await subscription.unsubscribe()
    finally:
        await asyncio.to_thread(gateway.stop)
    assert (first.body, again.body, following.body) == (b"unfinished", b"unfinished", b"next")
    assert first.headers.get("redelivered") == "false"
    assert again.headers.get("redelivered") == "true"
