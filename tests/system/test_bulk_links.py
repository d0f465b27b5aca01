"""A session that sends much beside others moves to a bulk link and back, and nobody can tell from its messages."""

from __future__ import annotations

import pytest

from gateway.server.client import bulk_sender
from gateway.server.process.gateway import Gateway
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system

AT_ONCE = 500


async def _flood(client: StompClient, queue: str, first: int) -> int:
    """Send many numbers, and wait until the broker has them; the next number."""
    frames = [
        encoded("SEND", b"%d" % number, destination=f"/queue/{queue}", padding="x" * 500)
        for number in range(first, first + AT_ONCE)
    ]
    client.writer.write(b"".join(frames))
    await client.ask("SEND", b"%d" % (first + AT_ONCE), destination=f"/queue/{queue}")
    return first + AT_ONCE + 1


async def test_messages_stay_in_order_while_their_session_moves_to_a_bulk_link_and_back(
    broker_url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_sender, "_HELD", 0.001)
    monkeypatch.setattr(bulk_sender, "_PAUSE", 60.0)
    monkeypatch.setattr(bulk_sender, "_CALM", 1)
    async with gateway_here(parsed(broker_url)) as gateway, within(60):
        address, sent = gateway.addresses[0], 0
        async with StompClient.logged_in(address) as flooder, StompClient.logged_in(address) as neighbour:
            await neighbour.ask("SEND", destination="/topic/elsewhere")
            while "bulk" not in await _purposes(gateway):
                sent = await _flood(flooder, queue, sent)
            # Also on the bulk link itself.
            sent = await _flood(flooder, queue, sent)
            await until(lambda: _purposes(gateway), lambda purposes: "bulk" not in purposes)
            sent = await _flood(flooder, queue, sent)
            await neighbour.ask("SUBSCRIBE", id="s", destination=f"/queue/{queue}")
            bodies = [int((await neighbour.expect("MESSAGE")).body) for _ in range(sent)]
            assert bodies == list(range(sent))
            await neighbour.disconnect()
            await flooder.disconnect()


async def _purposes(gateway: Gateway) -> list[str]:
    return [link.purpose for link in gateway.pool.links]
