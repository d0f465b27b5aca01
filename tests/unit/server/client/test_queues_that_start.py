"""A queue that is not found: it does not exist, or its node is away or still starts."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.server.broker.link import Link
from gateway.session.context import State
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, answer_without_queue, play, usual_answer

AWAY = "NOT_FOUND - home node 'a@b' of durable queue 'x' in vhost '/' is down or inaccessible"
DECLARES = "SUBSCRIBE\nid:1\ndestination:/queue/x\nreceipt:1\n\n"
CONSUMES = "SUBSCRIBE\nid:1\ndestination:/amq/queue/x\nreceipt:1\n\n"
SENDS = "SEND\ndestination:/queue/x\nreceipt:1\n\nhi"


def refuse(broker: ScriptedBroker) -> None:
    """The broker does not find the queue any more. It ignores what comes behind a method that it refuses."""
    closing: set[tuple[Link, int]] = set()

    def script(link: Link, method: Frame) -> Frame | None:
        channel = link, broker.channel
        if method.name == "Channel.CloseOk":
            closing.remove(channel)
        if channel in closing:
            return None
        refused = {"Queue.Declare": (50, 10), "Basic.Consume": (60, 20)}.get(method.name)
        if refused is None:
            return usual_answer(method)
        closing.add(channel)
        return commands.Channel.Close(404, AWAY, *refused)

    broker.script = script


@pytest.mark.parametrize("frame", [DECLARES, CONSUMES, SENDS])
def test_it_is_waited_for(frame: str) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed = True
        refuse(broker)
        await client.say(frame, seconds=5)
        assert b"ERROR" not in client.output
        broker.script = lambda link, method: usual_answer(method)
        await asyncio.sleep(30)
        if client.session.confirms:
            client.session.confirm(client.session.confirms.last_sequence, True, True)
            client.advance()
        assert client.output.rstrip().endswith(b"RECEIPT\nreceipt-id:1\n\n\0")
        assert client.session.state is State.CONNECTED

    play(scene)


def test_what_was_sent_before_is_published_again_when_the_channel_goes_with_the_declaration() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/queue/y\nreceipt:0\n\nhi")
        client.brokers_changed = True
        refuse(broker)
        await client.say(SENDS, seconds=5)
        broker.script = lambda link, method: usual_answer(method)
        broker.methods.clear()
        await asyncio.sleep(30)
        assert broker.methods.count("Basic.Publish") == 2
        client.session.confirm(client.session.confirms.last_sequence, True, True)
        client.advance()
        assert client.output.count(b"RECEIPT") == 2

    play(scene)


def test_a_queue_that_does_not_exist_is_an_error_at_once_also_after_a_change_of_the_brokers() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed = True

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume):
                return commands.Channel.Close(404, "NOT_FOUND - no queue 'x' in vhost '/'", 60, 20)
            return answer_without_queue(method)

        broker.script = script
        await client.say(CONSUMES)
        assert b"no queue" in client.output
        assert client.session.state is State.CLOSED

    play(scene)


@pytest.mark.parametrize(("ago", "waits"), [(5.0, True), (20.0, False)])
def test_an_exchange_that_is_not_found_is_waited_for_shortly_after_a_change_of_the_brokers(
    ago: float, waits: bool
) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed, client.changed_ago = True, ago

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Queue.Bind):
                return commands.Channel.Close(404, "NOT_FOUND - no exchange 'e' in vhost '/'", 50, 20)
            return usual_answer(method)

        broker.script = script
        await client.say("SUBSCRIBE\nid:1\ndestination:/exchange/e/k\n\n", seconds=3)
        assert (b"no exchange" in client.output) is not waits

    play(scene)


@pytest.mark.parametrize(("ago", "waits"), [(5.0, True), (20.0, False)])
def test_a_queue_that_goes_between_declaration_and_consumer_is_declared_again_shortly_after_a_change_of_the_brokers(
    ago: float, waits: bool
) -> None:
    """RabbitMQ deletes what a lost node had by name, also what was declared again since."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed, client.changed_ago = True, ago

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume):
                return commands.Channel.Close(404, "NOT_FOUND - no queue 'q' in vhost '/'", 60, 20)
            return answer_without_queue(method)

        broker.script = script
        await client.say("SUBSCRIBE\nid:1\ndestination:/topic/a\nreceipt:1\n\n", seconds=3)
        assert (b"message:not_found" in client.output) is not waits
        broker.script = lambda link, method: usual_answer(method)
        await asyncio.sleep(10)
        assert client.output.rstrip().endswith(b"RECEIPT\nreceipt-id:1\n\n\0") is waits

    play(scene)


def test_a_queue_that_does_not_come_is_the_error_that_the_broker_gave() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed = True
        refuse(broker)
        await client.say(DECLARES, seconds=12)
        assert b"message:not_found" in client.output
        assert b"home node" in client.output
        assert client.session.state is State.CLOSED

    play(scene, upstream={"ride_through": 10})


def test_without_riding_through_it_is_an_error_at_once() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.brokers_changed = True
        refuse(broker)
        await client.say(CONSUMES)
        assert b"home node" in client.output
        assert b"receipt-id:1" in client.output

    play(scene, upstream={"ride_through": 0})


@pytest.mark.parametrize("text", ["does not have a replica", "does not have a running replica"])
def test_a_stream_whose_replica_starts_is_waited_for_for_some_seconds(text: str) -> None:
    """Its leader has moved, because a node went of which the gateway need not know."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        def refuse_consumer(link: Link, method: Frame) -> Frame | None:
            if method.name != "Basic.Consume":
                return usual_answer(method)
            return commands.Channel.Close(406, f"PRECONDITION_FAILED - queue 'x' {text} on the local node", 60, 20)

        broker.script = refuse_consumer
        await client.say(CONSUMES, seconds=5)
        assert b"ERROR" not in client.output
        broker.script = lambda link, method: usual_answer(method)
        await asyncio.sleep(30)
        assert b"receipt-id:1" in client.output
        broker.script = refuse_consumer
        await client.say(CONSUMES.replace("id:1\n", "id:2\n", 1), seconds=9)
        assert b"ERROR" not in client.output
        await asyncio.sleep(6)
        assert b"message:precondition_failed" in client.output

    play(scene)
