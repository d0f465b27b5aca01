"""Sessions that end or leave a link: the others on it do not notice."""

import asyncio

import pamqp.frame
from pamqp import body, commands, header

from gateway.config.virtual_host import VirtualHost
from tests.support.scripted_broker import BEFORE_ANSWERS, BridgedClient, ScriptedBroker, play, usual_answer


def _delivery(channel: int) -> bytes:
    frames: list[pamqp.frame.FrameTypes] = [
        commands.Basic.Deliver("s", 1, False, "", "q"),
        header.ContentHeader(0, 2, commands.Basic.Properties()),
        body.ContentBody(b"hi"),
    ]
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)


def test_a_delivery_for_a_session_that_is_over_leaves_the_others_of_its_link_alone() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n")
        channel_of_gone = broker.channel
        other = BridgedClient(broker, VirtualHost(name="/"), client)
        await other.connect()
        await other.say("SUBSCRIBE\nid:2\ndestination:/queue/r\n\n")
        channel = broker.channel
        [link] = [link for link in broker.links if link.purpose == "consume"]
        # As while a queue is away: the gateway gives up waiting for this answer.
        broker.script = lambda link, method: None if method.name == "Channel.Close" else usual_answer(method)
        client.leave()
        await asyncio.sleep(30)  # virtual seconds
        broker.tell(link, _delivery(channel_of_gone) + _delivery(channel))
        assert b"MESSAGE" in other.output

    play(scene)


def test_a_session_that_leaves_a_link_takes_a_slot_only_until_it_has_left() -> None:
    """However much the client asks for meanwhile."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\nhi")
        client.session.confirm(client.session.confirms.last_sequence, False, True)
        [old] = [link for link in broker.links if link.purpose == "publish"]
        old.drain()
        leaving = asyncio.ensure_future(client.bridge.leave_link(old))
        await asyncio.sleep(BEFORE_ANSWERS)
        await client.say(*("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n", "UNSUBSCRIBE\nid:1\n\n") * 1000, seconds=0)
        await leaving
        assert not old.channels
        assert client.session.operation is not None

    play(scene)
