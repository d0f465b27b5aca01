"""What a session's bridge does when links are lost, or the broker refuses, at moments that real brokers rarely give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.link import Link
from gateway.session import ops
from gateway.session.context import State
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


def rejects(client: BridgedClient) -> None:
    """The broker does not take the last message."""
    client.session.confirm(client.session.confirms.last_sequence, False, False)
    client.advance()


SEND_RECEIPT = "SEND\ndestination:/queue/full\nreceipt:1\n\nhi"


def test_a_full_queue_costs_its_senders_a_new_channel_now_and_then_and_not_for_each_message() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT)
        broker.methods.clear()
        for _ in range(20):
            rejects(client)
            await client.say(SEND_RECEIPT, seconds=0.1)
        assert broker.methods.count("Basic.Publish") == 20
        assert broker.methods.count("Channel.Open") == 1
        await asyncio.sleep(5)
        rejects(client)
        await client.say(SEND_RECEIPT)
        assert broker.methods.count("Channel.Open") == 2
        assert client.output.count(b"Message rejected") == 21

    play(scene)


def test_a_full_queue_and_a_slow_one_do_not_make_each_message_wait() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/queue/slow\n\nhi", SEND_RECEIPT)
        broker.methods.clear()
        rejects(client)
        await client.say(SEND_RECEIPT)
        for published in range(1, 5):
            assert broker.methods.count("Basic.Publish") == published
            rejects(client)
            await client.say(SEND_RECEIPT, seconds=0.1)
        assert "Channel.Open" not in broker.methods

    play(scene)


def test_a_message_for_a_queue_without_a_leader_is_published_until_it_is_taken() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT)
        client.is_unsettled = True
        broker.methods.clear()
        for _ in range(3):
            rejects(client)
            await asyncio.sleep(5)
        assert client.session.confirms.last_sequence == 1
        client.session.confirm(1, False, True)
        client.advance()
        assert client.output.rstrip().endswith(b"RECEIPT\nreceipt-id:1\n\n\0")
        assert b"ERROR" not in client.output
        for name in ("Channel.Open", "Channel.Close", "Queue.Declare", "Basic.Publish"):
            assert broker.methods.count(name) == 3, name

    play(scene)


def test_a_message_that_no_broker_takes_in_time_is_an_error_and_the_session_goes_on() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT)
        client.is_unsettled = True
        while b"ERROR" not in client.output:
            rejects(client)
            await asyncio.sleep(0.1)
        assert client.session.state is State.CONNECTED
        await client.say(SEND_RECEIPT, seconds=5)
        client.session.confirm(1, False, True)
        client.advance()
        assert client.output.rstrip().endswith(b"RECEIPT\nreceipt-id:1\n\n\0")

    play(scene, upstream={"ride_through": 10})


def test_what_is_still_under_way_when_another_message_is_refused_is_not_published_twice() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT, "SEND\ndestination:/queue/slow\n\nhi")
        client.is_unsettled = True
        broker.methods.clear()
        client.session.confirm(1, False, False)
        client.advance()
        await asyncio.sleep(0.1)
        client.session.confirm(2, False, True)
        client.advance()
        await asyncio.sleep(1)
        assert broker.methods.count("Basic.Publish") == 1

    play(scene)


# Exclusive queues that no subscription declares again.



async def own_queues(client: BridgedClient, *names: str) -> None:
    for name in names:
        await client.say(f"SEND\ndestination:/queue/{name}\nexclusive:true\nauto-delete:false\n\nhi")
        client.session.confirm(client.session.confirms.last_sequence, False, True)


def declared(broker: ScriptedBroker) -> list[str]:
    """From now on: the queues of which the broker accepts the declaration, in order."""
    names: list[str] = []

    def script(link: Link, method: Frame) -> Frame | None:
        if isinstance(method, commands.Queue.Declare):
            names.append(method.queue)
        return usual_answer(method)

    broker.script = script
    return names


@pytest.mark.parametrize("place", [0, 1, 2])
def test_exclusive_queues_are_all_declared_again_though_one_is_refused_for_a_while(place: int) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await own_queues(client, "a", "b", "c")
        names = declared(broker)
        usual, refusals = broker.script, [commands.Channel.Close(405, "RESOURCE_LOCKED - the old connection", 50, 10)]

        def script(link: Link, method: Frame) -> Frame | None:
            if method.name == "Queue.Declare" and len(names) == place and refusals:
                return refusals.pop()
            return usual(link, method)

        broker.script = script
        broker.lose()
        await asyncio.sleep(10)
        assert not refusals
        assert sorted(names) == ["a", "b", "c"]
        assert not client.session.holds

    play(scene)


def test_an_exclusive_queue_that_is_lost_while_another_is_declared_again_comes_back_too() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await own_queues(client, "a", "b")
        headers = "exclusive:true\nauto-delete:false\nack:client"
        await client.say(f"SUBSCRIBE\nid:1\n{headers}\ndestination:/queue/c\n\n", "UNSUBSCRIBE\nid:1\n\n")
        own = [link for link in broker.links if link.purpose == "own"]
        names = declared(broker)
        usual = broker.script

        def script(link: Link, method: Frame) -> Frame | None:
            if method.name == "Queue.Declare" and own:
                asyncio.get_running_loop().call_soon(broker.lose, own.pop())
            return usual(link, method)

        assert own
        broker.script = script
        broker.lose(*(link for link in broker.links if link not in own))
        await asyncio.sleep(10)
        assert not own
        assert sorted(set(names)) == ["a", "b", "c"]
        assert not client.session.holds

    play(scene)
