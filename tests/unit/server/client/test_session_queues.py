"""The queues of a session: exclusive ones after a loss, and any with the last channel that a link has room for."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import Upstream
from gateway.server.broker.link import Link
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, answer_without_queue, play, usual_answer


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


@pytest.mark.parametrize("exists", [True, False])
def test_a_session_with_the_last_channel_of_a_link_may_not_use_a_queue_of_another_one(exists: bool) -> None:
    async def scene(broker: ScriptedBroker, owner: BridgedClient) -> None:
        broker.channel_max = 2
        await owner.say("SUBSCRIBE\nid:1\ndestination:/queue/x\nexclusive:true\nreceipt:r\n\n")
        assert b"RECEIPT\n" in owner.output
        if not exists:
            broker.script = lambda link, method: answer_without_queue(method)
        other = BridgedClient(broker, owner.session.settings, owner)
        await other.connect()
        await other.say("SUBSCRIBE\nid:1\ndestination:/amq/queue/x\nreceipt:r\n\n", seconds=5)
        assert (b"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'x'" in other.output) == exists
        assert (b"RECEIPT\n" in other.output) != exists

    play(scene)


def test_existing_queues_are_used_with_the_last_channel_of_a_link() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.channel_max = 2
        for number in range(4):
            await client.say(f"SUBSCRIBE\nid:{number}\ndestination:/queue/x{number}\nreceipt:{number}\n\n")
        assert client.output.count(b"RECEIPT\n") == 4

    play(scene, on_queue_conflict="use_existing")


_OTHER_BROKER = Upstream.model_validate({"urls": ["amqp://other"]})


@pytest.mark.parametrize("settings", [{"on_queue_conflict": "use_existing"}, {"on_send_error": {"action": "keep"}}])
def test_after_a_reload_a_queue_is_declared_on_the_broker_that_its_message_is_published_to(
    settings: dict[str, object],
) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/queue/a\n\n")
        assert client.links.use_upstream(_OTHER_BROKER)
        asked: list[tuple[str, str]] = []

        def script(link: Link, method: Frame) -> Frame | None:
            asked.append((method.name, link.broker.host))
            return usual_answer(method)

        broker.script = script
        await client.say("SEND\ndestination:/queue/b\n\n", seconds=30)
        [declared_at], [published_at] = (
            {host for name, host in asked if name == method} for method in ("Queue.Declare", "Basic.Publish")
        )
        assert declared_at == published_at

    play(scene, **settings)


def test_after_a_reload_an_exclusive_queue_is_still_that_of_its_session() -> None:
    async def scene(broker: ScriptedBroker, owner: BridgedClient) -> None:
        await own_queues(owner, "x")
        other = BridgedClient(broker, owner.session.settings, owner)
        await other.connect()
        await own_queues(other, "y")
        [*old] = broker.links
        assert owner.links.use_upstream(_OTHER_BROKER)

        def script(link: Link, method: Frame) -> Frame | None:
            return usual_answer(method) if link in old else answer_without_queue(method)

        broker.script = script
        await other.say("SEND\ndestination:/queue/x\nexclusive:true\n\n", seconds=5)
        assert b"RESOURCE_LOCKED" in other.output

    play(scene)


@pytest.mark.parametrize("settings", [{"on_queue_conflict": "use_existing"}, {"on_send_error": {"action": "keep"}}])
def test_a_full_link_that_drains_is_no_reason_to_refuse_a_send(settings: dict[str, object]) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.channel_max = 2
        await client.say("SUBSCRIBE\nid:0\ndestination:/queue/s\n\n", "SEND\ndestination:/queue/a\n\n")
        other = BridgedClient(broker, client.session.settings, client)
        await other.connect()
        await other.say("SEND\ndestination:/queue/b\n\n")
        for link in broker.links:
            link.drain()
        await client.say("SEND\ndestination:/queue/c\n\n", seconds=5)
        assert b"ERROR" not in client.output

    play(scene, **settings)
