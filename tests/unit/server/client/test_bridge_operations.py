"""A session's operations, and what happens on its channels, from the side of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pamqp.frame
import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.server.broker.link import Link
from gateway.session.context import Hold
from tests.support.scripted_broker import (
    BEFORE_ANSWERS,
    BridgedClient,
    ScriptedBroker,
    answer_without_queue,
    play,
    usual_answer,
)

SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/queue/x\n\n"


def subscribes(count: int) -> list[str]:
    return [f"SUBSCRIBE\nid:{n}\ndestination:/topic/{n}\nreceipt:{n}\n\n" for n in range(count)]


def receipts(client: BridgedClient) -> list[int]:
    return [int(frame.partition(b"receipt-id:")[2]) for frame in client.output.split(b"\0") if b"RECEIPT" in frame]


def test_subscribes_in_a_row_reach_the_broker_together() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(*subscribes(3), seconds=BEFORE_ANSWERS)
        assert broker.methods.count("Basic.Consume") == 3
        assert receipts(client) == []
        await asyncio.sleep(1)
        assert receipts(client) == [0, 1, 2]

    play(scene)


def test_the_broker_may_answer_subscribes_in_any_order() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        held: list[Callable[[], None]] = []

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Queue.Bind) and not held:
                answer = pamqp.frame.marshal(commands.Queue.BindOk(), broker.channel)
                held.append(lambda: broker.tell(link, answer))
                return None
            return usual_answer(method)

        broker.script = script
        await client.say(*subscribes(3))
        assert receipts(client) == []
        held[0]()
        await asyncio.sleep(1)
        assert receipts(client) == [0, 1, 2]

    play(scene)


def test_subscribes_under_way_when_the_link_is_lost_come_back() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(*subscribes(20), seconds=0.003)
        broker.lose()
        await asyncio.sleep(20)
        assert receipts(client) == list(range(20))
        assert not client.session.holds

    play(scene)


def test_subscribes_that_find_the_link_full_wait_together_for_one_more() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.channel_max, broker.link_latency = 5, 1
        await client.say(*subscribes(20), seconds=20)
        assert receipts(client) == list(range(20))
        assert [link.channels for link in broker.links] == [5, 5, 5, 5]
        assert not client.session.holds

    play(scene)


def test_a_session_that_ends_with_subscribes_under_way_closes_all_its_channels() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(*subscribes(20), seconds=0.003)
        client.leave()
        await asyncio.sleep(5)
        assert broker.methods.count("Channel.Close") == broker.methods.count("Channel.Open") > 8
        assert client.released == ["login", "links"]
        assert not any(link.channels for link in broker.links)

    play(scene)


@pytest.mark.parametrize("are_gone", [False, True], ids=["one disconnects", "two are gone"])
def test_few_channels_close_at_a_time(are_gone: bool) -> None:
    """Those of one session that ends, or of all together whose clients are gone; others have their turn meanwhile."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        other = BridgedClient(broker, client.session.settings, client)
        await other.connect()
        for each in (client, other):
            await each.say(*subscribes(20))
        answers: list[Callable[[], None]] = []

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Channel.Close):
                channel = broker.channel
                answers.append(lambda: broker.tell(link, pamqp.frame.marshal(commands.Channel.CloseOk(), channel)))
                return None
            return usual_answer(method)

        broker.script = script
        if are_gone:
            client.leave()
            other.leave()
        else:
            await client.say("DISCONNECT\n\n")
        closed = 0
        while answers or not closed:
            await asyncio.sleep(1)
            assert len(answers) == min(4, (40 if are_gone else 20) - closed)
            for answer in answers[:]:
                answers.remove(answer)
                answer()
                closed += 1
            await asyncio.sleep(0.1)
        assert closed == (40 if are_gone else 20)

    play(scene)


def test_a_session_that_ends_while_its_link_is_dialled_leaves_no_channel() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.link_latency = 1
        await client.say(*subscribes(3), seconds=0.5)
        client.leave()
        await asyncio.sleep(5)
        assert [link.channels for link in broker.links] == [0]
        assert client.released == ["login", "links"]

    play(scene)


def test_a_refused_subscribe_closes_its_channel_and_deletes_the_queue_that_it_has_declared() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        refusal = commands.Channel.Close(403, "ACCESS_REFUSED - exchange", 50, 20)
        broker.script = lambda link, method: refusal if method.name == "Queue.Bind" else usual_answer(method)
        await client.say("SUBSCRIBE\nid:1\ndestination:/topic/t\n\n", seconds=0.05)
        assert broker.methods.count("Queue.Delete") == 1
        await asyncio.sleep(1)
        assert not any(link.channels for link in broker.links)

    play(scene)


def test_an_unsubscribe_that_deletes_its_queue_waits_for_the_broker_and_closes_the_channel() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        headers = "id:1\ndestination:/topic/t\ndurable:true\n"
        await client.say(f"SUBSCRIBE\n{headers}\n")
        broker.methods.clear()
        await client.say(f"UNSUBSCRIBE\n{headers}receipt:1\n\n")
        assert broker.methods == ["Basic.Cancel", "Queue.Delete", "Channel.Close"]
        assert receipts(client) == [1]

    play(scene)


def test_a_broker_without_a_queue_any_more_cancels_the_consumer_and_the_channel_is_closed() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        link = next(link for link in broker.links if link.purpose == "consume")
        broker.script = lambda link, method: answer_without_queue(method)
        broker.tell(link, pamqp.frame.marshal(commands.Basic.Cancel("s1"), 1))
        await asyncio.sleep(1)
        assert b"ERROR" in client.output
        assert link.channels == 0

    play(scene)


def test_publishing_is_held_while_the_link_is_full_and_goes_on_afterwards() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\nhi")
        link = next(link for link in broker.links if link.purpose == "publish")
        link.set_writing_paused(True)
        assert client.session.holds == {Hold.LINK_WRITE}
        link.set_writing_paused(False)
        assert not client.session.holds

    play(scene)


def test_the_loss_of_the_publishing_link_leaves_the_subscriptions_alone() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE, "SEND\ndestination:/topic/t\n\nhi")
        broker.methods.clear()
        broker.lose(*(link for link in broker.links if link.purpose == "publish"))
        await asyncio.sleep(5)
        assert "Basic.Consume" not in broker.methods
        assert broker.methods.count("Basic.Publish") == 1

    play(scene)
