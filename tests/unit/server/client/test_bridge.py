"""What a session's bridge does when links are lost, or the broker refuses, at moments that real brokers rarely give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pamqp.frame
import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.link import Link
from gateway.session import ops
from gateway.session.context import Hold, State
from gateway.session.queues import QueueSpec
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, usual_answer
from tests.support.virtual_time import run_in_virtual_time

SEND_EXCLUSIVE = "SEND\ndestination:/queue/x\nexclusive:true\nreceipt:1\n\nhi"
EXCLUSIVE = "destination:/queue/x\nexclusive:true\nauto-delete:true"
SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/queue/x\n\n"

Scene = Callable[[ScriptedBroker, BridgedClient], Coroutine[Any, Any, None]]


def play(scene: Scene, **settings: object) -> None:
    """Play a scene with a client that has logged in; nothing in it may be a fault of the gateway."""

    async def work() -> None:
        broker = ScriptedBroker()
        client = BridgedClient(broker, VirtualHost.model_validate({"name": "/", **settings}))
        await client.connect()
        await scene(broker, client)
        assert client.failures == []

    run_in_virtual_time(work())


def lose_publishing_link_amid_declaration(broker: ScriptedBroker) -> None:
    """The next time that there is a publishing link while a queue is declared, it is lost."""
    lost: list[Link] = []

    def script(link: Link, method: Frame) -> Frame | None:
        publishing = [each for each in broker.links if each.purpose == "publish" and each.closed is None]
        if method.name == "Queue.Declare" and publishing and not lost:
            lost.extend(publishing)
            asyncio.get_running_loop().call_soon(broker.lose, *publishing)
        return usual_answer(method)

    broker.script = script


def test_a_publishing_link_that_is_lost_while_a_queue_is_declared_elsewhere_comes_back() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_EXCLUSIVE)
        broker.lose()
        lose_publishing_link_amid_declaration(broker)
        await client.say(SEND_EXCLUSIVE, seconds=10)
        assert broker.methods.count("Basic.Publish") == 3

    play(scene)


def test_nobody_is_given_a_publishing_channel_that_is_lost_already() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        lose_publishing_link_amid_declaration(broker)
        with pytest.raises(LinkDownError):
            await client.bridge.restorer.restore_publisher(ops.Recover((), True, (QueueSpec("x", exclusive=True),)))

    play(scene)


def test_a_queue_that_is_locked_for_a_while_after_a_loss_is_declared_again() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_EXCLUSIVE)
        refusals = [commands.Channel.Close(405, "RESOURCE_LOCKED - the old connection", 50, 10)]

        def script(link: Link, method: Frame) -> Frame | None:
            return refusals.pop() if method.name == "Queue.Declare" and refusals else usual_answer(method)

        broker.script = script
        broker.methods.clear()
        broker.lose()
        await asyncio.sleep(10)
        assert not refusals
        assert broker.methods.count("Basic.Publish") == 1
        assert not client.session.holds

    play(scene)


def test_a_session_that_ends_while_its_recovery_runs_out_of_time_gives_back_what_it_has() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        broker.script = lambda link, method: None
        broker.lose()
        # The recovery's time is up after 10 seconds, and then it waits for an answer to its clean-up.
        await asyncio.sleep(20)
        client.leave()
        broker.lose()
        await asyncio.sleep(20)
        assert client.released == ["login", "links"]

    play(scene, upstream={"ride_through": 10}, on_queue_conflict="use_existing")


def test_a_session_that_ends_while_its_queue_is_declared_again_leaves_no_queue() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\nexclusive:true\nauto-delete:false\ndestination:/queue/x\n\n")
        asked = asyncio.Event()

        def script(link: Link, method: Frame) -> Frame | None:
            if method.name == "Queue.Declare":
                asked.set()
            return usual_answer(method)

        broker.script = script
        broker.lose()
        await asked.wait()
        broker.methods.clear()
        client.leave()
        await asyncio.sleep(10)
        assert "Queue.Delete" in broker.methods
        assert client.session.state is State.CLOSED

    play(scene)


@pytest.mark.parametrize(("receipt", "answer"), [("", b"ERROR"), ("receipt:1\n", b"RECEIPT\nreceipt-id:bye")])
def test_disconnect_is_answered_with_a_receipt_only_if_nothing_can_be_lost(receipt: str, answer: bytes) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        def script(link: Link, method: Frame) -> Frame | None:
            if method.name == "Channel.Close":
                asyncio.get_running_loop().call_soon(broker.lose)
                return None
            return usual_answer(method)

        broker.script = script
        await client.say(f"SEND\ndestination:/topic/x\n{receipt}\nhi")
        if receipt:
            client.session.confirm(1, False, True)
        await client.say("DISCONNECT\nreceipt:bye\n\n")
        assert client.output.split(b"\0")[-2].lstrip().startswith(answer)

    play(scene, confirms="on_receipt")


def test_a_session_leaves_a_draining_link_once() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        # In the end only the channel is left that declared the queue.
        await client.say(f"SEND\n{EXCLUSIVE}\n\nhi")
        client.session.confirm(1, False, True)
        await client.say(f"SUBSCRIBE\nid:1\n{EXCLUSIVE}\n\n")
        await client.say("UNSUBSCRIBE\nid:1\n\n")
        consuming = next(link for link in broker.links if link.purpose == "consume")
        consuming.is_draining = True
        client.bridge.leave(consuming)
        await asyncio.sleep(10)
        broker.methods.clear()
        client.advances = 0
        client.bridge.leave(consuming)
        await asyncio.sleep(10)
        assert broker.methods == ["Channel.Close"]
        assert client.advances < 10

    play(scene)


def subscribes(count: int) -> list[str]:
    return [f"SUBSCRIBE\nid:{n}\ndestination:/topic/{n}\nreceipt:{n}\n\n" for n in range(count)]


def receipts(client: BridgedClient) -> list[int]:
    return [int(frame.partition(b"receipt-id:")[2]) for frame in client.output.split(b"\0") if b"RECEIPT" in frame]


def test_subscribes_in_a_row_reach_the_broker_together() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(*subscribes(3), seconds=0)
        await asyncio.sleep(0)
        # The broker has answered nothing yet.
        assert broker.methods.count("Basic.Consume") == 3
        await asyncio.sleep(1)
        assert receipts(client) == [0, 1, 2]

    play(scene)


def test_the_broker_may_answer_subscribes_in_any_order() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        held: list[Callable[[], None]] = []

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume) and not held:
                answer = pamqp.frame.marshal(
                    commands.Basic.ConsumeOk(method.consumer_tag), int(method.consumer_tag[1:])
                )
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


def test_a_session_that_ends_with_subscribes_under_way_closes_all_its_channels() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(*subscribes(20), seconds=0.003)
        client.leave()
        await asyncio.sleep(5)
        assert broker.methods.count("Channel.Close") == broker.methods.count("Channel.Open") > 8
        assert client.released == ["login", "links"]
        assert not any(link.channels for link in broker.links)

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
        broker.tell(link, pamqp.frame.marshal(commands.Basic.Cancel("s1"), 1))
        await asyncio.sleep(1)
        assert b"ERROR" in client.output
        assert link.channels == 0

    play(scene)


def test_publishing_is_held_while_the_link_is_full_and_goes_on_afterwards() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\nhi")
        link = next(link for link in broker.links if link.purpose == "publish")
        link.set_paused(True)
        assert client.session.holds == {Hold.LINK_WRITE}
        link.set_paused(False)
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
