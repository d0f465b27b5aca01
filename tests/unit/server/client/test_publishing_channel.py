"""The channel on which a session publishes: what a rejected message costs, and when it is published again."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.server.broker.link import Link
from gateway.server.client.client_deadlines import OperationDeadline
from gateway.session.context import Hold, State
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play, usual_answer


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
        # Another channel asks whether the queue is away.
        assert broker.methods.count("Confirm.Select") == 1
        await asyncio.sleep(5)
        rejects(client)
        await client.say(SEND_RECEIPT)
        assert broker.methods.count("Confirm.Select") == 2
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
        assert "Confirm.Select" not in broker.methods

    play(scene)


@pytest.mark.parametrize("what", ["link is lost", "other message is refused for now"])
def test_nothing_is_forgotten_that_happens_while_the_channel_is_replaced(what: str) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT, "SEND\ndestination:/queue/slow\nreceipt:slow\n\nhi")
        client.session.confirm(1, False, False)
        client.advance()
        # Before the channel is replaced, this waits for the answer about the slow queue.
        await client.say("SEND\ndestination:/queue/full\nreceipt:next\n\nhi", seconds=0.1)
        if what == "link is lost":
            broker.lose(*(link for link in broker.links if link.purpose == "publish"))
        else:
            client.brokers_changed = True
            rejects(client)
        await asyncio.sleep(20)
        client.session.confirm(client.session.confirms.last_sequence, True, True)
        client.advance()
        await asyncio.sleep(1)
        for receipt in (b"slow", b"next"):
            assert client.output.count(b"RECEIPT\nreceipt-id:" + receipt) == 1
        assert not client.session.confirms

    play(scene)


def test_a_session_that_has_no_broker_any_more_ends_in_time_also_with_a_message_that_was_not_taken() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT, "SEND\ndestination:/queue/other\nreceipt:2\n\nhi")
        client.brokers_changed = True
        broker.is_gone = True
        client.session.confirm(1, False, False)
        client.advance()
        broker.lose()
        await asyncio.sleep(11)
        assert client.session.state is State.CLOSED
        assert b"Message rejected" not in client.output
        assert b"connection_forced" in client.output

    play(scene, upstream={"ride_through": 10})


def test_a_message_for_a_queue_without_a_leader_is_published_until_it_is_taken() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT)
        client.brokers_changed = True
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
        client.brokers_changed = True
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
        client.brokers_changed = True
        broker.methods.clear()
        client.session.confirm(1, False, False)
        client.advance()
        await asyncio.sleep(0.1)
        client.session.confirm(2, False, True)
        client.advance()
        await asyncio.sleep(1)
        assert broker.methods.count("Basic.Publish") == 1

    play(scene)


def test_a_session_with_much_to_send_is_held_while_too_much_of_others_is_on_its_way() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say(SEND_RECEIPT)
        (link,) = [link for link in broker.links if link.purpose == "publish"]
        assert link.window is not None
        client.bridge.keep_to_window()
        held = [Hold.LINK_WRITE in client.session.holds]
        link.window.published(client.bridge, 100)
        broker.script = lambda link, method: None
        link.window._in_flight += 8 << 20  # type: ignore[attr-defined]
        client.bridge.keep_to_window()
        held.append(Hold.LINK_WRITE in client.session.holds)
        assert held == [False, True]

    play(scene)


def test_the_first_message_does_not_wait_for_the_answer_to_its_channel() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        other = await another_client(broker, client)
        broker.methods.clear()
        broker.script = lambda link, method: None
        await other.say("SEND\ndestination:/topic/a\n\nhi")
        assert [name for name in broker.methods if "Header" not in name and "Body" not in name] == [
            "Channel.Open", "Confirm.Select", "Basic.Publish",
        ]  # fmt: skip

    play(scene)


def test_a_channel_that_the_broker_refuses_behind_the_first_message_ends_its_session_alone() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        other = await another_client(broker, client)
        refusal = commands.Channel.Close(530, "NOT_ALLOWED - too many channels", 20, 10)
        broker.script = lambda _, method: refusal if isinstance(method, commands.Channel.Open) else usual_answer(method)
        await other.say("SEND\ndestination:/topic/a\nreceipt:1\n\nhi")
        assert b"NOT_ALLOWED - too many channels" in other.output
        assert b"RECEIPT" not in other.output
        assert (other.session.state, client.session.state) == (State.CLOSED, State.CONNECTED)

    play(scene)


async def another_client(broker: ScriptedBroker, client: BridgedClient) -> BridgedClient:
    """A session that shares the links of another one."""
    other = BridgedClient(broker, client.session.settings, client)
    await other.connect()
    return other


def data_methods(broker: ScriptedBroker) -> list[str]:
    return [name for name in broker.methods if name not in {"ContentHeader", "ContentBody"}]


def test_first_messages_follow_the_declarations_of_their_queues_at_once() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        broker.methods.clear()
        broker.script = lambda link, method: None
        await client.say(*(f"SEND\ndestination:/queue/{name}\n\nhi" for name in "abc"))
        assert data_methods(broker) == [*["Queue.Declare", "Basic.Publish"] * 3, "Basic.Qos"]

    play(scene)


def test_a_refused_declaration_names_the_message_that_asked_for_it() -> None:
    refusal = commands.Channel.Close(406, "PRECONDITION_FAILED - inequivalent arg for queue 'b' in vhost '/'", 50, 10)

    def script(_: Link, method: Frame) -> Frame | None:
        return refusal if isinstance(method, commands.Queue.Declare) and method.queue == "b" else usual_answer(method)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        broker.script = script
        await client.say(*(f"SEND\ndestination:/queue/{name}\nreceipt:{name}\n\nhi" for name in "abc"))
        assert client.output.count(b"ERROR") == 1
        assert b"receipt-id:b\n" in client.output
        assert b"RECEIPT" not in client.output
        assert client.session.state is State.CLOSED

    play(scene)


def test_a_message_whose_queue_turns_out_to_be_away_is_published_when_it_is_back() -> None:
    text = "NOT_FOUND - home node 'b' of durable queue 'b' in vhost '/' is down or inaccessible"
    away = commands.Channel.Close(404, text, 50, 10)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        client.session.confirm(1, False, True)
        broker.script = lambda _, method: away if isinstance(method, commands.Queue.Declare) else usual_answer(method)
        await client.say("SEND\ndestination:/queue/b\nreceipt:1\n\nhi")
        assert b"ERROR" not in client.output
        broker.script = lambda _, method: usual_answer(method)
        broker.methods.clear()
        await asyncio.sleep(20)
        assert data_methods(broker)[-2:] == ["Queue.Declare", "Basic.Publish"]
        client.session.confirm(1, False, True)
        client.advance()
        assert b"RECEIPT\nreceipt-id:1\n" in client.output

    play(scene)


def test_a_subscription_declares_a_queue_whose_declaration_is_not_answered_as_the_message_did() -> None:
    declared: list[commands.Queue.Declare] = []

    def script(_: Link, method: Frame) -> Frame | None:
        if isinstance(method, commands.Queue.Declare):
            declared.append(method)
        return usual_answer(method)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        broker.script = script
        await client.say(
            "SEND\ndestination:/queue/q\nx-expires:60000\n\nhi", "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n"
        )
        assert [method.arguments for method in declared] == [{"x-expires": 60000}] * 2
        assert b"ERROR" not in client.output

    play(scene)


def test_few_declarations_are_on_their_way_at_a_time_since_others_wait_behind_them() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        broker.methods.clear()
        await client.say(*(f"SEND\ndestination:/queue/{number}\n\nhi" for number in range(100)), seconds=0)
        assert broker.methods.count("Queue.Declare") == 64
        await asyncio.sleep(1)
        assert broker.methods.count("Queue.Declare") == 100

    play(scene)


def test_a_refused_declaration_names_its_message_also_if_the_text_is_cut_and_a_commit_waits() -> None:
    name = "b" * 200
    text = f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}"[:255]

    def script(_: Link, method: Frame) -> Frame | None:
        refused = isinstance(method, commands.Queue.Declare) and method.queue == name
        return commands.Channel.Close(406, text, 50, 10) if refused else usual_answer(method)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        broker.script = script
        begin, of_transaction = "BEGIN\ntransaction:t\n\n", "SEND\ndestination:/topic/a\ntransaction:t\n\nhi"
        refused, commit = f"SEND\ndestination:/queue/{name}\nreceipt:it\n\nhi", "COMMIT\ntransaction:t\nreceipt:c\n\n"
        await client.say(begin, of_transaction, refused, commit)
        assert b"receipt-id:it\n" in client.output

    play(scene)


def test_a_declaration_that_is_never_answered_ends_its_session_in_time() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        await client.say("SEND\ndestination:/topic/a\n\nhi")
        client.session.confirm(1, False, True)
        broker.script = lambda link, method: None
        await client.say("SEND\ndestination:/queue/away\nreceipt:1\n\nhi")
        deadline = OperationDeadline(client.session, lambda operation: False)
        missed = [deadline.missed(float(now)) for now in (0, 50, 70)]
        assert missed[:2] == [None, None]
        assert missed[2] is not None

    play(scene)


KEEP = {"on_send_error": {"action": "keep"}}


def refuse_publishes(_: Link, method: Frame) -> Frame | None:
    if isinstance(method, commands.Basic.Publish) and method.exchange == "nope":
        return commands.Channel.Close(404, "NOT_FOUND - no exchange 'nope' in vhost '/'", 60, 40)
    return usual_answer(method)


def test_a_session_that_goes_on_after_a_refusal_also_ends_directly_behind_one() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.script = refuse_publishes
        await client.say(
            "SEND\ndestination:/exchange/nope/a\nreceipt:1\n\nhi", "DISCONNECT\nreceipt:bye\n\n", seconds=60
        )
        assert b"ERROR" in client.output
        assert b"receipt-id:bye" in client.output
        assert client.session.state is State.CLOSED

    play(scene, **KEEP)


@pytest.mark.parametrize("action", ["keep", "log"])
def test_a_message_that_is_refused_in_a_transaction_is_not_left_out(action: str) -> None:
    def script(_: Link, method: Frame) -> Frame | None:
        if isinstance(method, commands.Queue.Declare):
            return commands.Channel.Close(406, "PRECONDITION_FAILED - inequivalent arg", 50, 10)
        return usual_answer(method)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.script = script
        await client.say(
            "BEGIN\ntransaction:t\n\n",
            "SEND\ndestination:/topic/a\ntransaction:t\n\nhi",
            "SEND\ndestination:/queue/b\ntransaction:t\n\nhi",
            "COMMIT\ntransaction:t\nreceipt:c\n\n",
            seconds=5,
        )
        assert b"ERROR" in client.output
        assert b"RECEIPT" not in client.output
        assert "Basic.Publish" not in broker.methods

    play(scene, on_send_error={"action": action})
