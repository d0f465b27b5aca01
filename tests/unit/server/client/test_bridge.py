"""What a session's bridge does when links are lost, or the broker refuses, at moments that real brokers rarely give."""

from __future__ import annotations

import asyncio

import pamqp.body
import pamqp.frame
import pamqp.header
import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.link import Link
from gateway.session import ops
from gateway.session.context import State
from gateway.session.queues import QueueSpec
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, answer_without_queue, play, usual_answer

SEND_EXCLUSIVE = "SEND\ndestination:/queue/x\nexclusive:true\nreceipt:1\n\nhi"
EXCLUSIVE = "destination:/queue/x\nexclusive:true\nauto-delete:true"
SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/queue/x\n\n"


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


@pytest.mark.parametrize("frame", ["SUBSCRIBE\nid:1\ndestination:/topic/t\nreceipt:1\n\n", "DISCONNECT\nreceipt:1\n\n"])
def test_what_the_broker_has_answered_goes_on_when_there_is_time(frame: str) -> None:
    """A thousand clients may be answered at the same moment."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        client.output, client.has_time = b"", False
        await client.say(frame)
        assert client.output == b""
        client.has_time = True
        client.advance_paced()
        assert client.output == b"RECEIPT\nreceipt-id:1\n\n\0\n"

    play(scene)


ENDS_WITH_IT, OUTLIVES_IT = ["Queue.Delete", "Channel.Close"], ["Channel.Close"]


@pytest.mark.parametrize(
    ("headers", "first", "second"),
    [
        ("destination:/topic/t", ENDS_WITH_IT, ENDS_WITH_IT),
        # Both have one queue.
        (EXCLUSIVE, OUTLIVES_IT, ENDS_WITH_IT),
        ("destination:/queue/x\nexclusive:true\nauto-delete:false", OUTLIVES_IT, OUTLIVES_IT),
        # Other sessions may consume it.
        ("destination:/queue/x\nauto-delete:true", OUTLIVES_IT, OUTLIVES_IT),
    ],
)
def test_a_queue_that_ends_with_a_subscription_is_deleted_before_the_channel_is_closed(
    headers: str, first: list[str], second: list[str]
) -> None:
    """RabbitMQ 4.3 rejects messages for some milliseconds after an auto-delete queue has ended by itself."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(f"SUBSCRIBE\nid:1\n{headers}\n\n", f"SUBSCRIBE\nid:2\n{headers}\n\n")
        broker.methods.clear()
        await client.say("UNSUBSCRIBE\nid:1\n\n")
        assert broker.methods == first
        broker.methods.clear()
        await client.say("UNSUBSCRIBE\nid:2\n\n")
        assert broker.methods == second

    play(scene, subscription_queues="exclusive")


LEFT_TO_THE_BROKER = ["Channel.Close"]


@pytest.mark.parametrize(
    ("version", "at_the_end"),
    [
        ((3, 10, 8), LEFT_TO_THE_BROKER),
        ((4, 3, 6), ENDS_WITH_IT),
        # Releases that were not tried, another broker's number, and none.
        ((3, 9, 29), ENDS_WITH_IT),
        ((3, 11), ENDS_WITH_IT),
        ((0, 0, 0), ENDS_WITH_IT),
        ((), ENDS_WITH_IT),
    ],
)
@pytest.mark.parametrize("leave", ["UNSUBSCRIBE", "hang up"])
def test_a_broker_that_ends_auto_delete_queues_without_rejections_is_left_to_do_so(
    version: tuple[int, ...], at_the_end: list[str], leave: str
) -> None:
    """A queue.delete costs it and the gateway a seventh of the subscription."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.version = version
        await client.say(f"SUBSCRIBE\nid:1\n{EXCLUSIVE}\n\n")
        broker.methods.clear()
        if leave == "UNSUBSCRIBE":
            await client.say("UNSUBSCRIBE\nid:1\n\n")
        else:
            client.leave()
            await asyncio.sleep(1)
        assert broker.methods == at_the_end

    play(scene)


def test_a_session_that_ends_deletes_its_subscriptions_queues_before_it_closes_their_channels() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\ndestination:/topic/t\n\n")
        await client.say(f"SUBSCRIBE\nid:2\n{EXCLUSIVE}\n\n", f"SUBSCRIBE\nid:3\n{EXCLUSIVE}\n\n")
        broker.methods.clear()
        client.leave()
        await asyncio.sleep(1)
        assert broker.methods == ENDS_WITH_IT * 3

    play(scene, subscription_queues="exclusive")


def test_what_a_first_message_needs_is_asked_for_at_once() -> None:
    """Each answer that is awaited before the next question costs a round trip to the broker."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.script = lambda link, method: None
        await client.say("SEND\ndestination:/topic/x\n\nhi")
        assert broker.methods == ["Channel.Open", "Confirm.Select"]

    play(scene)


def test_nobody_is_given_a_publishing_channel_that_is_lost_already() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        lose_publishing_link_amid_declaration(broker)
        with pytest.raises(LinkDownError):
            await client.bridge.parts.publishing.restore(ops.Recover((), True, (QueueSpec("x", exclusive=True),)))

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
        broker.methods.clear()
        client.advances = 0
        for _ in range(2):
            await client.bridge.leave_link(consuming)
            await asyncio.sleep(10)
        assert broker.methods == ["Channel.Close"]
        assert client.advances < 10

    play(scene)


def pausable_links(broker: ScriptedBroker) -> list[Link]:
    return [link for link in broker.links if link.purpose == "own"]


def test_a_subscription_that_begins_while_a_link_drains_is_not_torn_down_with_it() -> None:
    """It goes to a link of its own, and the session looks again directly before it leaves."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\nack:client\ndestination:/queue/q\n\n")
        [first] = client.session.subscriptions.all
        [own] = pausable_links(broker)
        first.deliver(1, False, b"\0\1q", b"\0\0", b"x")
        own.drain()
        await client.bridge.leave_link(own)
        await client.say("SUBSCRIBE\nid:2\nack:client\ndestination:/topic/t\n\n")
        assert len(pausable_links(broker)) == 2
        broker.methods.clear()
        await client.say("ACK\nid:T_1@@session-x@@1\n\n")
        assert broker.methods == ["Basic.Ack", "Channel.Close", "Channel.Open", "Queue.Declare", "Basic.Consume"]
        assert not client.session.holds

    play(scene)


def test_a_link_is_not_left_after_a_subscription_has_begun_on_it_that_cannot_move() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\nack:client\nprefetch-count:9\ndestination:/queue/q\n\n")
        [first] = client.session.subscriptions.all
        [link] = [link for link in broker.links if link.purpose == "consume"]
        first.deliver(1, False, b"\0\1q", b"\0\0", b"x")
        await client.say("SUBSCRIBE\nid:2\ndestination:/topic/t\n\n", seconds=0)
        link.drain()
        await client.bridge.leave_link(link)
        broker.methods.clear()
        await client.say("ACK\nid:T_1@@session-x@@1\n\n")
        assert "Channel.Close" not in broker.methods

    play(scene)


def test_only_so_many_sessions_leave_at_a_time_and_the_others_wait_for_their_turn() -> None:
    """Also those that wait for their clients' acknowledgements."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\nack:client\nprefetch-count:9\ndestination:/queue/q\n\n")
        [first] = client.session.subscriptions.all
        [link] = [link for link in broker.links if link.purpose == "consume"]
        first.deliver(1, False, b"\0\1q", b"\0\0", b"x")
        link.drain()
        await client.bridge.leave_link(link)
        others = [client.slots.acquire() for _ in range(32)]
        await asyncio.gather(*others)
        await client.say("ACK\nid:T_1@@session-x@@1\n\n")
        assert "Channel.Close" not in broker.methods
        client.slots.release()
        client.advance()
        await asyncio.sleep(1)
        assert "Channel.Close" in broker.methods

    play(scene)


@pytest.mark.parametrize(
    ("frame", "purpose", "last"),
    [
        ("SEND\ndestination:/topic/t\n\nhi", "publish", "Confirm.Select"),
        ("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n", "consume", "Basic.Consume"),
    ],
)
def test_a_session_that_ends_while_it_leaves_gives_its_turn_back(frame: str, purpose: str, last: str) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(frame)
        client.session.confirm(client.session.confirms.last_sequence, False, True)
        [link] = [link for link in broker.links if link.purpose == purpose]
        link.drain()
        # The session's channel is closed, and never comes back.
        broker.script = lambda link, method: None if method.name == last else usual_answer(method)
        leaving = asyncio.ensure_future(client.bridge.leave_link(link))
        await asyncio.sleep(1)
        assert (leaving.done(), client.session.operation is None, link.channels) == (False, False, 0)
        client.leave()
        await asyncio.wait_for(leaving, 10)

    play(scene)


def test_a_publisher_leaves_a_broker_that_answers_nothing_any_more() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\nhi")
        client.session.confirm(1, False, True)
        [old] = [link for link in broker.links if link.purpose == "publish"]
        old.drain()
        broker.script = lambda link, method: None if link is old else usual_answer(method)
        await asyncio.wait_for(client.bridge.leave_link(old), 20)
        broker.methods.clear()
        await client.say("SEND\ndestination:/topic/t\n\nhi")
        assert broker.methods.count("Basic.Publish") == 1
        assert not client.session.holds

    play(scene)


def test_a_consumer_moves_although_messages_are_not_confirmed_and_a_publisher_does_not() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n", "SEND\ndestination:/topic/t\n\nx")
        [publishing] = [link for link in broker.links if link.purpose == "publish"]
        [consuming] = [link for link in broker.links if link.purpose == "consume"]
        for link in (publishing, consuming):
            link.drain()
            await client.bridge.leave_link(link)
        assert [link.channels for link in (publishing, consuming)] == [1, 0]
        assert not client.session.holds
        client.session.confirm(1, False, True)
        await client.bridge.leave_link(publishing)
        assert publishing.channels == 0

    play(scene)


def test_a_cancelled_consumer_is_asked_about_without_consuming() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n")
        [link] = [link for link in broker.links if link.purpose == "consume"]
        asked: list[commands.Basic.Consume] = []

        def script(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume):
                asked.append(method)
                return commands.Channel.Close(406, "PRECONDITION_FAILED - invalid arg 'x-priority'", 60, 20)
            return answer_without_queue(method)

        broker.script = script
        cancel = pamqp.frame.marshal(commands.Basic.Cancel("s1", nowait=True), 1)
        link.splitter.receive(cancel)
        await asyncio.sleep(1)
        [question] = asked
        assert question.arguments == {"x-priority": "none"}
        assert b"Server cancelled subscription" in client.output

    play(scene)


def test_a_consumer_whose_queue_is_deleted_is_cancelled_also_if_another_link_is_left() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\nreceipt:r\n\nhi", "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n")
        client.session.confirm(1, False, True)
        consuming, publishing = (
            next(link for link in broker.links if link.purpose == purpose) for purpose in ("consume", "publish")
        )

        def script(link: Link, method: Frame) -> Frame | None:
            # The broker takes its time to say whether it lets anybody consume.
            return None if isinstance(method, commands.Basic.Consume) else answer_without_queue(method)

        broker.script = script
        consuming.splitter.receive(pamqp.frame.marshal(commands.Basic.Cancel("s1", nowait=True), 1))
        publishing.drain()
        await asyncio.wait_for(client.bridge.leave_link(publishing), 60)
        await asyncio.sleep(1)
        refusal = commands.Channel.Close(406, "PRECONDITION_FAILED - invalid arg 'x-priority'", 60, 20)
        broker.tell(consuming, pamqp.frame.marshal(refusal, 2))
        await asyncio.sleep(5)
        assert b"Server cancelled subscription" in client.output

    play(scene)


def test_a_subscription_that_begins_while_deliveries_are_dropped_has_its_own_dropped_too() -> None:
    async def scene(_: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\nprefetch-count:9\ndestination:/queue/q\n\n")
        client.bridge.drop_deliveries()
        await client.say("SUBSCRIBE\nid:2\nprefetch-count:9\ndestination:/queue/r\n\n")
        for subscription in client.session.subscriptions.all:
            channel = client.bridge.parts.channels.get(subscription)
            assert channel is not None
            channel.link.splitter.receive(delivery(channel.number))
        client.advance()
        assert b"MESSAGE" not in client.output
        client.bridge.client_writable(True)
        await asyncio.sleep(1)
        for subscription in client.session.subscriptions.all:
            channel = client.bridge.parts.channels.get(subscription)
            assert channel is not None
            channel.link.splitter.receive(delivery(channel.number, tag=2))
        client.advance()
        assert client.output.count(b"MESSAGE") == 2

    play(scene)


def delivery(channel: int, tag: int = 1) -> bytes:
    """A message for the consumer of a channel."""
    frames = (
        commands.Basic.Deliver(f"s{channel}", tag, False, "", "q"),
        pamqp.header.ContentHeader(0, 1, commands.Basic.Properties()),
        pamqp.body.ContentBody(b"x"),
    )
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)


def test_others_write_between_the_pieces_of_a_large_commit() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        channels = []

        def script(link: Link, method: Frame) -> Frame | None:
            if method.name == "Basic.Publish":
                channels.append(broker.channel)
            return usual_answer(method)

        other = BridgedClient(broker, VirtualHost(name="/"), client)
        await other.connect()
        for each in (client, other):
            await each.say("SEND\ndestination:/topic/t\n\n")
        broker.script = script
        sends = [f"SEND\ndestination:/topic/t\ntransaction:t\n\n{'x' * 200}" for _ in range(2000)]
        await client.say("BEGIN\ntransaction:t\n\n", *sends, "COMMIT\ntransaction:t\n\n", seconds=0)
        await other.say("SEND\ndestination:/topic/t\n\n", seconds=5)
        assert len(channels) == 2001
        assert channels.index(channels[-1]) == 0
        assert next(number for number, channel in enumerate(channels) if channel != channels[0]) < 1000

    play(scene)


def test_the_rest_of_a_large_commit_is_written_before_the_session_ends() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\n")
        sends = [f"SEND\ndestination:/topic/t\ntransaction:t\n\n{'x' * 200}" for _ in range(2000)]
        await client.say("BEGIN\ntransaction:t\n\n", *sends, "COMMIT\ntransaction:t\n\n", seconds=0)
        assert broker.methods.count("Basic.Publish") < 1000
        client.leave()
        client.session.forget()
        assert broker.methods.count("Basic.Publish") == 2001

    play(scene)


def test_no_plain_message_is_left_behind_the_switch_to_confirms() -> None:
    """The broker would count it among those that it confirms."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\n\n")
        plain = [f"SEND\ndestination:/topic/t\n\n{'x' * 200}" for _ in range(1000)]
        await client.say(*plain, "SEND\ndestination:/topic/t\nreceipt:r\n\n", seconds=5)
        switch = broker.methods.index("Confirm.Select")
        assert broker.methods[switch:].count("Basic.Publish") == client.session.confirms.last_sequence == 1

    play(scene, confirms="on_receipt")
