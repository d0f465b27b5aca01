"""The exclusive queues of a session that no subscription declares again after a loss."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.server.broker.link import Link
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play, usual_answer


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
