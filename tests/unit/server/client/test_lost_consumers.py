"""Consumers that are lost: what the broker says of their queue, and what the session does then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pamqp.frame
import pamqp.header
import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import CONNECTION_FORCED, NOT_ALLOWED, LinkDownError, UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.session.context import State
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, answer_without_queue, play, usual_answer

SUBSCRIBE = "SUBSCRIBE\nid:1\nack:client\nprefetch-count:9\ndestination:/amq/queue/q\n\n"
AWAY = "NOT_FOUND - home node 'a@b' of durable queue 'q' in vhost '/' is down or inaccessible"

Answer = Callable[[Frame], Frame | None]


def refused_while_away(method: Frame) -> Frame | None:
    """RabbitMQ 3.10 refuses everything for a queue that is away."""
    refused = {"Queue.Declare": (50, 10), "Basic.Consume": (60, 20)}.get(method.name)
    return usual_answer(method) if refused is None else commands.Channel.Close(404, AWAY, *refused)


def unanswered_while_away(method: Frame) -> Frame | None:
    """RabbitMQ 4.3 does not answer, nor anything that comes later on the channel."""
    return None if method.name in ("Queue.Declare", "Basic.Consume") else usual_answer(method)


def answer_with(broker: ScriptedBroker, answer: Answer) -> None:
    """Refused methods close the channel: what comes behind them is ignored. Unanswered ones keep it busy."""
    closing: set[tuple[Link, int]] = set()
    busy: set[tuple[Link, int]] = set()

    def script(link: Link, method: Frame) -> Frame | None:
        channel = (link, broker.channel)
        if method.name == "Channel.CloseOk":
            closing.discard(channel)
        if channel in closing or channel in busy:
            return None
        given = answer(method)
        if given is None and isinstance(method, commands.Queue.Declare | commands.Basic.Consume) and not method.nowait:
            busy.add(channel)
        if isinstance(given, commands.Channel.Close):
            closing.add(channel)
        return given

    broker.script = script


def give_back(client: BridgedClient, receipt: str) -> None:
    """The broker returns a message without a body, and confirms it."""
    properties = pamqp.header.ContentHeader(0, 0, commands.Basic.Properties(headers={"receipt": receipt})).marshal()
    client.session.message_returned(Return(312, b"NO_ROUTE", b"", b"q", properties[12:], 0))
    client.session.confirm(client.session.confirms.last_sequence, False, True)
    client.advance()


def cancel(broker: ScriptedBroker) -> None:
    """The broker cancels the only consumer."""
    link = next(link for link in broker.links if link.purpose == "consume")
    broker.tell(link, pamqp.frame.marshal(commands.Basic.Cancel("s1", nowait=True), 1))


@pytest.mark.parametrize("answer", [refused_while_away, unanswered_while_away])
def test_a_subscription_comes_back_with_its_queue_and_holds_nobody(answer: Answer) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        asked: list[tuple[Link, int]] = []

        def noting(method: Frame) -> Frame | None:
            if method.name == "Queue.Declare":
                asked.append((broker.links[-1], broker.channel))
            return answer(method)

        answer_with(broker, noting)
        cancel(broker)
        await asyncio.sleep(30)
        assert client.session.awaited_queues == ["q"]
        assert not client.session.holds
        await client.say("BEGIN\ntransaction:t\nreceipt:goes on\n\n")
        assert b"receipt-id:goes on" in client.output
        answer_with(broker, usual_answer)
        if answer is unanswered_while_away:
            # One question is enough.
            [(link, channel)] = asked
            broker.tell(link, pamqp.frame.marshal(commands.Queue.DeclareOk("q", 0, 0), channel))
        broker.methods.clear()
        await asyncio.sleep(10)
        assert client.session.awaited_queues == []
        assert "Basic.Consume" in broker.methods
        assert b"ERROR" not in client.output

    play(scene)


def test_a_brief_refusal_while_a_subscription_comes_back_does_not_end_it() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        answers = [
            LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - no broker answers"),
            UpstreamError(NOT_ALLOWED, "NOT_ALLOWED - access to vhost '/' refused: connection limit (1) is reached"),
        ]
        usual = broker.open_link

        async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
            if answers:
                raise answers.pop(0)
            return await usual(virtual_host, credentials, purpose, *more)

        # Many others restore their channels, so this subscription waits, without a channel that a recovery knows.
        async with AsyncExitStack() as others:
            while not client.links.restoring.locked():
                await others.enter_async_context(client.links.restoring)
            cancel(broker)
            await asyncio.sleep(2)
            client.links._open_link = open_link
            broker.lose()
            await asyncio.sleep(1)
        await asyncio.sleep(25)
        assert not answers
        assert b"ERROR" not in client.output
        assert client.session.awaited_queues == []

    play(scene)


def test_a_link_that_is_lost_while_a_subscription_comes_back_brings_it_back_once() -> None:
    """RabbitMQ 4.3 closes the connection of a consumer that begins on a quorum queue that is being deleted."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        answer_with(broker, refused_while_away)
        cancel(broker)
        await asyncio.sleep(3)
        consuming = asyncio.Event()

        def begins(method: Frame) -> Frame | None:
            if method.name != "Basic.Consume":
                return usual_answer(method)
            consuming.set()
            return None

        answer_with(broker, begins)
        await consuming.wait()
        broker.methods.clear()
        answer_with(broker, usual_answer)
        broker.lose()
        await asyncio.sleep(30)
        assert broker.methods.count("Basic.Consume") == 1
        assert client.session.awaited_queues == []
        assert not client.session.holds
        assert b"ERROR" not in client.output

    play(scene)


def test_a_consumer_that_is_cancelled_because_its_virtual_host_goes_comes_back_with_that() -> None:
    """Permissions go first, the connection last. RabbitMQ 4.3 asks for one also if a queue is there."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)

        def without_permission(method: Frame) -> Frame | None:
            refused = {"Queue.Declare": (50, 10), "Basic.Consume": (60, 20)}.get(method.name)
            return usual_answer(method) if refused is None else commands.Channel.Close(403, "ACCESS_REFUSED", *refused)

        answer_with(broker, without_permission)
        cancel(broker)
        await asyncio.sleep(20)
        assert b"ERROR" not in client.output
        answer_with(broker, usual_answer)
        broker.lose()
        await asyncio.sleep(30)
        assert not client.session.holds
        assert client.session.awaited_queues == []
        assert b"ERROR" not in client.output

    play(scene)


def test_a_queue_that_does_not_come_back_in_time_ends_its_subscription_and_nothing_else() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        answer_with(broker, refused_while_away)
        cancel(broker)
        await asyncio.sleep(9)
        assert b"ERROR" not in client.output
        await asyncio.sleep(2)
        assert b"message:Server cancelled subscription" in client.output
        assert client.session.state is State.CONNECTED

    play(scene, upstream={"ride_through": 10})


@pytest.mark.parametrize(("is_made_again", "offset"), [(True, 0), (False, 7)])
def test_a_stream_that_is_gone_is_read_from_its_beginning_when_it_is_made_again(
    is_made_again: bool, offset: int
) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        [subscription] = client.session.subscriptions.all
        subscription.next_offset = 7

        def without(method: Frame) -> Frame | None:
            if method.name == "Basic.Consume":
                return commands.Channel.Close(404, "NOT_FOUND - no queue 'q' in vhost '/'", 60, 20)
            return answer_without_queue(method)

        answer_with(broker, without if is_made_again else refused_while_away)
        broker.lose()
        await asyncio.sleep(5)
        answer_with(broker, usual_answer)
        await asyncio.sleep(10)
        assert client.session.awaited_queues == []
        assert subscription.next_offset == offset

    play(scene)


def test_a_subscription_that_waits_can_be_ended() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        answer_with(broker, refused_while_away)
        cancel(broker)
        await asyncio.sleep(3)
        await client.say("UNSUBSCRIBE\nid:1\nreceipt:u\n\n")
        assert b"receipt-id:u" in client.output
        answer_with(broker, usual_answer)
        broker.methods.clear()
        await asyncio.sleep(10)
        assert "Basic.Consume" not in broker.methods

    play(scene)


@pytest.mark.parametrize(
    ("headers", "is_renamed"),
    [("", True), ("durable:true\nauto-delete:false\n", False), ("x-queue-name:mine\n", False)],
)
def test_a_queue_that_ends_with_its_node_is_not_waited_for(headers: str, *, is_renamed: bool) -> None:
    """RabbitMQ deletes what has the name of such a queue when its node is back, even if it was declared since."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(f"SUBSCRIBE\nid:1\ndestination:/topic/t\n{headers}\n")
        [subscription] = client.session.subscriptions.all
        old = subscription.queue
        bound: list[str] = []

        stuck: set[tuple[Link, int]] = set()

        def script(link: Link, method: Frame) -> Frame | None:
            """A channel works in order: behind what is not answered nothing is."""
            channel = (link, broker.channel)
            if isinstance(method, commands.Queue.Declare) and method.queue == old:
                stuck.add(channel)
            if channel in stuck:
                return None
            if isinstance(method, commands.Queue.Bind):
                bound.append(method.queue)
            return usual_answer(method)

        broker.script = script
        broker.lose()
        await asyncio.sleep(20)
        [subscription] = client.session.subscriptions.all
        assert (subscription.queue != old) is is_renamed
        assert client.session.awaited_queues == ([] if is_renamed else [old])
        assert (subscription.queue in bound) is is_renamed
        assert b"ERROR" not in client.output

    play(scene)


@pytest.mark.parametrize("answer", [refused_while_away, unanswered_while_away])
def test_a_message_whose_queue_does_not_come_back_in_time_is_an_error_and_the_session_goes_on(answer: Answer) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/queue/q\nreceipt:lost\n\n")
        answer_with(broker, answer)
        give_back(client, "lost")
        await asyncio.sleep(9)
        assert client.session.awaited_queues == ["q"]
        assert {hold.value for hold in client.session.holds} == {"queue-away"}
        assert b"lost" not in client.output
        await asyncio.sleep(5)
        assert b"message:Message rejected" in client.output
        assert b"receipt-id:lost" in client.output
        await client.say("SEND\ndestination:/topic/t\nreceipt:next\n\n", seconds=5)
        client.session.confirm(client.session.confirms.last_sequence, False, True)
        client.advance()
        assert b"receipt-id:next" in client.output
        assert client.session.awaited_queues == []
        assert client.session.state is State.CONNECTED

    play(scene, upstream={"ride_through": 10})


def test_a_session_that_ends_while_it_asks_about_a_queue_waits_for_nothing() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SUBSCRIBE)
        answer_with(broker, unanswered_while_away)
        cancel(broker)
        await asyncio.sleep(0.5)
        answer_with(broker, usual_answer)
        client.leave()
        await asyncio.sleep(5)
        assert client.released == ["login", "links"]

    play(scene)


@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/amq.topic/t"])
def test_a_queue_that_the_broker_deletes_while_it_is_bound_gets_another_name(
    destination: str,
) -> None:
    """RabbitMQ 3.10 deletes what a lost node had, by name, and what was declared again meanwhile with it."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(f"SUBSCRIBE\nid:1\ndestination:{destination}\n\n")
        [subscription] = client.session.subscriptions.all
        old = subscription.queue
        consuming = next(link for link in broker.links if link.purpose == "consume")
        missing = commands.Channel.Close(404, f"NOT_FOUND - no queue '{old}' in vhost '/'", 50, 20)
        broker.tell(consuming, pamqp.frame.marshal(missing, 1))
        await asyncio.sleep(5)
        assert subscription.queue != old
        assert client.session.awaited_queues == []
        assert b"ERROR" not in client.output
        assert "Queue.Bind" in broker.methods

    play(scene)


def test_a_channel_that_the_broker_closes_for_another_reason_is_an_error() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SUBSCRIBE\nid:1\ndestination:/topic/t\n\n")
        consuming = next(link for link in broker.links if link.purpose == "consume")
        closed = commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20)
        broker.tell(consuming, pamqp.frame.marshal(closed, 1))
        await asyncio.sleep(5)
        assert b"message:access_refused" in client.output

    play(scene)


@pytest.mark.parametrize(
    ("frame", "is_renamed"),
    [
        ("destination:/topic/t\n", True),
        ("destination:/topic/t\nexclusive:true\n", False),
        ("destination:/topic/t\ndurable:true\nauto-delete:false\n", False),
        ("destination:/queue/q\n", False),
    ],
)
def test_after_the_loss_of_a_link_a_topic_gets_a_new_queue(frame: str, *, is_renamed: bool) -> None:
    """RabbitMQ 4.3 deletes by name what a node had that was away, when it is back: the old name would not be safe."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(f"SUBSCRIBE\nid:1\n{frame}\n")
        [subscription] = client.session.subscriptions.all
        old = subscription.queue
        broker.lose()
        await asyncio.sleep(5)
        assert (subscription.queue != old) is is_renamed
        assert subscription.has_channel
        assert b"ERROR" not in client.output

    play(scene)


def test_a_message_that_is_rejected_because_its_queue_was_deleted_is_published_again() -> None:
    """RabbitMQ rejects what is on its way to a quorum queue while that is deleted."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/queue/q\nreceipt:1\n\nhi")
        answer_with(broker, answer_without_queue)
        broker.methods.clear()
        client.session.confirm(client.session.confirms.last_sequence, False, False)
        client.advance()
        await asyncio.sleep(5)
        assert b"ERROR" not in client.output
        assert broker.methods.count("Basic.Publish") == 1
        client.session.confirm(client.session.confirms.last_sequence, False, True)
        client.advance()
        assert b"receipt-id:1" in client.output

    play(scene)


@pytest.mark.parametrize("look", [1, 2, 6, None])
def test_a_reply_queue_that_goes_with_those_of_a_lost_node_is_declared_again(look: int | None) -> None:
    """RabbitMQ deletes them by name, also one that was declared since, and tells its consumer nothing."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\nreply-to:/temp-queue/r\n\n", seconds=5)
        [subscription] = client.session.subscriptions.all
        name, looks = subscription.queue, []

        def script(method: Frame) -> Frame | None:
            if isinstance(method, commands.Queue.Declare) and method.passive and method.queue == name:
                looks.append(method)
                return answer_without_queue(method) if len(looks) == look else usual_answer(method)
            return usual_answer(method)

        answer_with(broker, script)
        broker.lose()
        await asyncio.sleep(0.9)
        assert subscription.has_channel
        broker.methods.clear()
        await asyncio.sleep(700)
        assert broker.methods.count("Basic.Consume") == (0 if look is None else 1)
        assert subscription.queue == name
        assert client.session.awaited_queues == []
        assert b"ERROR" not in client.output
        # Not for ever.
        await asyncio.sleep(700)
        broker.methods.clear()
        await asyncio.sleep(700)
        assert "Queue.Declare" not in broker.methods

    play(scene)


def test_a_reply_queue_is_looked_for_no_more_once_its_session_is_over() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\nreply-to:/temp-queue/r\n\n", seconds=5)
        broker.lose()
        await asyncio.sleep(2)
        client.leave()
        await asyncio.sleep(0.5)
        assert client.released == ["login", "links"]

    play(scene)


def test_an_earlier_look_for_a_reply_queue_does_not_disturb_a_consumer_that_only_begins() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/t\nreply-to:/temp-queue/r\n\n", seconds=5)
        loop = asyncio.get_running_loop()
        broker.lose()
        # One look is over, and the next is in two seconds.
        await asyncio.sleep(3)

        def slowly(link: Link, method: Frame) -> Frame | None:
            if isinstance(method, commands.Basic.Consume):
                begun = pamqp.frame.marshal(commands.Basic.ConsumeOk(method.consumer_tag), broker.channel)
                loop.call_later(1.9, broker.tell, link, begun)
                return None
            return answer_without_queue(method)

        broker.script = slowly
        broker.methods.clear()
        await asyncio.sleep(0.5)
        broker.lose()
        await asyncio.sleep(2.6)
        answer_with(broker, usual_answer)
        await asyncio.sleep(700)
        assert broker.methods.count("Basic.Consume") == 1
        assert b"ERROR" not in client.output

    play(scene)
