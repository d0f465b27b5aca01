"""What the broker is told when a channel with unsettled messages closes.

A quorum queue of RabbitMQ 4.3 counts what a closing channel returns toward its delivery-limit, and not what basic.nack
returns. Older releases count both.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from gateway.session import error_frames
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play

OLD, NEW = (4, 2, 9), (4, 3)
UNCOUNTED, COUNTED = ["Basic.Cancel", "Basic.Nack", "Channel.Close"], ["Channel.Close"]
SUBSCRIBE: Final = "SUBSCRIBE\nid:1\nack:{ack}\nprefetch-count:9\ndestination:/queue/q\n\n"


def closing(ending: str, *, version: tuple[int, ...] = NEW, ack: str = "client") -> list[str]:
    """The methods that come when a subscription with an unsettled message ends in a way."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.version = version
        await client.say(SUBSCRIBE.format(ack=ack))
        [subscription] = client.session.subscriptions.all
        if ending != "fail-back":
            subscription.deliver(1, False, b"\0\1q", b"\0\0", b"x")
        broker.methods.clear()
        await _end(ending, client)
        await asyncio.sleep(1)
        methods.extend(broker.methods)

    methods: list[str] = []
    play(scene)
    return methods[: methods.index("Channel.Close") + 1]


async def _end(ending: str, client: BridgedClient) -> None:
    session = client.session
    if ending in ("UNSUBSCRIBE", "DISCONNECT"):
        await client.say(f"{ending}\nid:1\n\n")
    elif ending == "drain":
        session.shut_down()
        client.advance()
    elif ending == "fail-back":
        for link in client.links.all:
            link.drain()
            await client.bridge.leave_link(link)
    elif ending == "client gone":
        client.leave()
    else:
        session.close(error_frames.token_expired())
        client.bridge.release()


@pytest.mark.parametrize("ending", ["UNSUBSCRIBE", "drain", "fail-back", "the gateway ends it"])
def test_what_the_gateway_returns_counts_only_where_the_broker_counts_every_return(ending: str) -> None:
    assert closing(ending) == UNCOUNTED
    assert closing(ending, version=OLD) == closing(ending, version=()) == COUNTED


@pytest.mark.parametrize("ending", ["DISCONNECT", "client gone"])
def test_what_a_client_leaves_counts_unless_it_was_never_asked_to_settle_it(ending: str) -> None:
    assert closing(ending) == closing(ending, ack="client-individual") == COUNTED


def test_under_ack_auto_no_return_counts() -> None:
    """What the client has is settled when it leaves in order; nobody can tell what it has when it is gone."""
    assert closing("client gone", ack="auto") == UNCOUNTED


def test_no_consumer_no_return() -> None:
    """Channels for publishing and for declarations just close."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.version = NEW
        await client.say("SEND\ndestination:/queue/q\nexclusive:true\n\nhi")
        broker.methods.clear()
        client.leave()
        await asyncio.sleep(1)
        assert "Channel.Close" in broker.methods
        assert not {"Basic.Cancel", "Basic.Nack"} & set(broker.methods)

    play(scene)
