"""A broker closes a link because of what one session sends: that session ends, and its neighbours ride on."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.link import Link
from gateway.session.context import State
from tests.support.deadline import until
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play, usual_answer

FRAMES = {
    "message": "SEND\ndestination:/topic/{}\nreceipt:r\n\nhi",
    "subscription": "SUBSCRIBE\nid:1\ndestination:/amq/queue/{}\nreceipt:r\n\n",
}


class Choosy(ScriptedBroker):
    """Confirms messages, and closes each link on which somebody publishes or consumes what is bad."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.confirms = True
        self.script = self._answer_or_close

    def _answer_or_close(self, link: Link, method: Frame) -> Frame | None:
        what = getattr(method, "routing_key", "") if isinstance(method, commands.Basic.Publish) else ""
        what = method.queue if isinstance(method, commands.Basic.Consume) else what
        if what == "bad":
            self.closed += 1
            asyncio.get_running_loop().call_soon(self.close, link, 501)
            return None
        return (
            commands.Basic.Ack(1)
            if what == "good" and self.confirms and method.name == "Basic.Publish"
            else usual_answer(method)
        )


async def neighbours(broker: ScriptedBroker, **settings: object) -> tuple[BridgedClient, BridgedClient]:
    """Two clients of the same login."""
    host = VirtualHost.model_validate({"name": "/", **settings})
    first = BridgedClient(broker, host)
    second = BridgedClient(broker, host, first)
    for client in (first, second):
        await client.connect()
    return first, second


async def begin_turn(broker: ScriptedBroker, client: BridgedClient) -> None:
    """Close the first link with blame, and wait until a session of the client's login has its turn."""
    broker.close(broker.links[0], 501)
    await until(lambda: asyncio.sleep(0, client.links.turn.locked()), bool)


@pytest.mark.parametrize("first", ["good", "bad"])
@pytest.mark.parametrize("kind", list(FRAMES))
def test_who_makes_the_broker_close_a_link_ends_and_the_others_ride_on(kind: str, first: str) -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        guilty, innocent = await neighbours(broker)
        told = {"good": innocent, "bad": guilty}
        # Both are under way when the link is closed.
        for name in (first, *(told.keys() - {first})):
            await told[name].say(FRAMES[kind].format(name), seconds=0)
        await asyncio.sleep(20)
        assert guilty.session.state is State.CLOSED
        assert b"501 - it was bad" in guilty.output
        assert broker.closed == 3
        assert b"ERROR" not in innocent.output
        assert b"RECEIPT\nreceipt-id:r" in innocent.output
        assert not innocent.session.holds
        assert not innocent.links.turn.locked()

    play(scene)


def test_who_cannot_come_back_without_the_link_being_closed_ends() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        guilty, innocent = await neighbours(broker)
        await guilty.say(FRAMES["subscription"].format("turns-bad"))
        await innocent.say(FRAMES["subscription"].format("good"))
        choosy = broker.script

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume):
                method.queue = method.queue.removeprefix("turns-")
            return choosy(link, method)

        broker.script = script
        broker.close(next(link for link in broker.links if link.purpose == "consume"), 541)
        await asyncio.sleep(20)
        assert (guilty.session.state, innocent.session.state) == (State.CLOSED, State.CONNECTED)
        assert broker.closed == 3
        assert not innocent.session.holds

    play(scene)


def test_nobody_is_to_blame_for_a_link_that_is_closed_long_after_a_turn() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        broker.confirms = False
        first, second = await neighbours(broker)
        for client in (first, second):
            await client.say(FRAMES["message"].format("good"))
        for _times in range(3):
            # During an alarm, say, the broker confirms nothing.
            broker.close(next(link for link in broker.links if link.closed is None), 501)
            await asyncio.sleep(20)
        assert (first.session.state, second.session.state) == (State.CONNECTED, State.CONNECTED)
        broker.confirms = True
        broker.lose()
        await asyncio.sleep(20)
        for client in (first, second):
            assert b"RECEIPT\nreceipt-id:r" in client.output
            assert b"ERROR" not in client.output

    play(scene)


def test_a_session_that_ends_in_its_turn_gives_it_to_the_next() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        broker.confirms = False
        first, second = await neighbours(broker)
        for client in (first, second):
            await client.say(FRAMES["message"].format("good"))
        await begin_turn(broker, first)
        first.leave()
        assert not first.links.turn.locked()
        broker.confirms = True
        await asyncio.sleep(20)
        assert b"RECEIPT\nreceipt-id:r" in second.output
        assert not second.links.turn.locked()

    play(scene)


def test_a_session_in_whose_turn_another_one_makes_the_broker_close_the_link_rides_on() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        broker.confirms = False
        guilty, innocent = await neighbours(broker)
        await innocent.say(FRAMES["message"].format("good"))
        await begin_turn(broker, innocent)
        broker.confirms = True
        # This one has nothing to bring back, so it takes no turn.
        await guilty.say(FRAMES["message"].format("bad"))
        assert broker.closed
        await asyncio.sleep(20)
        assert guilty.session.state is State.CLOSED
        assert b"RECEIPT\nreceipt-id:r" in innocent.output
        assert b"ERROR" not in innocent.output

    play(scene)


def test_a_session_whose_queue_does_not_answer_keeps_no_other_one_away() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        stuck, other = await neighbours(broker)
        for client, queue in ((stuck, "stuck"), (other, "good")):
            await client.say(FRAMES["subscription"].format(queue))
        choosy = broker.script

        def script(link: Link, method: Frame) -> Frame | None:
            is_stuck = isinstance(method, commands.Basic.Consume | commands.Queue.Declare) and method.queue == "stuck"
            return None if is_stuck else choosy(link, method)

        broker.script = script
        broker.close(next(link for link in broker.links if link.purpose == "consume"), 501)
        await asyncio.sleep(20)
        assert stuck.session.awaited_queues == ["stuck"]
        assert not other.session.awaited_queues
        assert not other.session.holds

    play(scene)


def test_a_session_that_loses_its_link_again_begins_its_turn_anew() -> None:
    async def scene(_: ScriptedBroker, __: BridgedClient) -> None:
        broker = Choosy()
        broker.confirms = False
        client, _other = await neighbours(broker)
        await client.say(FRAMES["message"].format("good"))
        turn = client.links.turn
        await begin_turn(broker, client)
        await asyncio.sleep(0.6)
        # Nobody is to blame for this loss, and nothing is proven yet.
        broker.lose()
        await asyncio.sleep(0.8)
        assert turn.locked()
        await asyncio.sleep(5)
        assert not turn.locked()

    play(scene)
