"""`compatibility: next` has the names and texts of the plugin's next version, where it changed them on purpose."""

from __future__ import annotations

import pytest

from gateway.config.virtual_host import TransactionLimits, VirtualHost
from gateway.pieces import joined
from gateway.session import ops
from gateway.session.destinations import durable_queue_name
from tests.support.playbook import IDENTITY, Playbook, ack_id, deliver

RELEASED = VirtualHost(name="/")
NEXT = RELEASED.model_copy(update={"compatibility": "next"})

# Computed by Erlang's own encoder, from binaries where the released versions encode lists.
NAMES = {
    ("durable", "test.subscription"): "stomp-subscription-mN8EtNJgeewoAWGIePSs-A",
    ("parity-47b627-t", "s1"): "stomp-subscription-Mpz5Ky0cpyX8h5_Pt_rPiA",
}


@pytest.fixture
def play() -> Playbook:
    """A session that has logged in where the next version is the model."""
    playbook = Playbook(NEXT)
    playbook.connect()
    return playbook


@pytest.mark.parametrize(("subscription", "name"), NAMES.items(), ids=str)
def test_the_queue_of_a_durable_subscription(subscription: tuple[str, str], name: str) -> None:
    key, identifier = (text.encode() for text in subscription)
    assert durable_queue_name(key, identifier, next_release=True) == name.encode()
    assert durable_queue_name(key, identifier) != name.encode()


@pytest.mark.parametrize("destination", ["/topic/durable", "/exchange/other/durable"])
def test_a_durable_subscription_consumes_the_queue_and_unsubscribe_deletes_that_of_a_topic(
    play: Playbook, destination: str
) -> None:
    play.client("SUBSCRIBE", "id:test.subscription", f"destination:{destination}", "durable:true")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    name = NAMES["durable", "test.subscription"]
    assert operation.queue_name == name
    subscription = play.subscribed(operation)
    play.client("UNSUBSCRIBE", "id:test.subscription", "durable:true")
    is_topic = destination.startswith("/topic")
    assert play.asked() == ops.Unsubscribe(subscription, name if is_topic else None)


@pytest.mark.parametrize(
    ("code", "text", "shown"),
    [
        (404, "NOT_FOUND - no queue 'q' in vhost '/'", "not_found: no queue 'q' in vhost '/'"),
        (406, "PRECONDITION_FAILED - invalid expiration 'a - b'", "precondition_failed: invalid expiration 'a - b'"),
        (403, "ACCESS_REFUSED - access to topic 't' refused", "access_refused: access to topic 't' refused"),
        (320, "CONNECTION_FORCED - NOT_FOUND - x", "connection_forced: NOT_FOUND - x"),
        (541, "no name here - really", "internal_error: no name here - really"),
        (541, "Queue - not a name", "internal_error: Queue - not a name"),
    ],
)
def test_the_broker_is_quoted_without_the_name_of_the_error(play: Playbook, code: int, text: str, shown: str) -> None:
    play.broker(ops.ChannelClosed(code, text, True))
    assert play.said() == [f"ERROR {shown}"]


def test_the_error_for_an_unknown_delivery_has_no_receipt_before_it_and_leaves_the_session_open(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    play.client("ACK", f"id:T_1@@{IDENTITY.decode()}@@9", "receipt:r")
    assert play.said() == ["MESSAGE 1 #1 ", "ERROR for r Message not found: unknown delivery tag 9"]
    assert play.state().name == "CONNECTED"
    play.client("BEGIN", "transaction:t")
    play.client("NACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["ERROR for c Message not found: unknown delivery tag 1"]
    assert play.state().name == "CONNECTED"
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]


def test_a_refused_operation_and_a_lost_link_are_told_in_the_same_way() -> None:
    for event in (
        ops.OperationFailed(404, "NOT_FOUND - no queue 'q' in vhost '/'"),
        ops.LinkLost(320, "CONNECTION_FORCED - gone"),
    ):
        play = Playbook(NEXT)
        play.connect()
        play.client("SUBSCRIBE", "id:1", "destination:/amq/queue/q", "receipt:r1")
        assert isinstance(play.asked(), ops.Subscribe)
        play.broker(event)
        assert " - " not in "".join(play.said())


@pytest.mark.parametrize(("settings", "end"), [(RELEASED, b"'\n"), (NEXT, b"'")])
def test_a_refused_login_has_no_line_feed_behind_it(settings: VirtualHost, end: bytes) -> None:
    play = Playbook(settings)
    play.client("CONNECT", "host:/", "login:a", "passcode:b")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    data = joined(play.session.output)
    body = b"Access refused for user 'a%b" % end
    assert data.endswith(b"content-length:%d\n\n%b\0\n" % (len(body), body))


def test_unsubscribe_deletes_the_queue_of_its_subscription_whatever_its_headers_name(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/topic/a", "durable:true", "x-queue-name:mine")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    subscription = play.subscribed(operation)
    play.client("UNSUBSCRIBE", "id:1", "durable:true", "x-queue-name:of-another-client")
    assert play.asked() == ops.Unsubscribe(subscription, "mine")


def test_what_an_ended_subscription_has_delivered_may_still_be_settled(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    play.said()
    play.client("UNSUBSCRIBE", "id:1", "receipt:u")
    assert play.asked() == ops.Unsubscribe(subscription, None, 3)
    # It was on its way.
    deliver(subscription, 4)
    play.broker(ops.Unsubscribed())
    assert play.said() == ["RECEIPT u"]
    assert play.settled() == ["nack 4 requeue"]
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "receipt:a")
    play.client("BEGIN", "transaction:t")
    play.client("NACK", f"id:{ack_id(subscription, 2)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["RECEIPT a", "RECEIPT c"]
    assert play.settled() == ["ack 1 multiple", "nack 2 requeue"]
    # Another one of this name does not have its messages.
    again = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(again, 1)
    play.said()
    play.client("ACK", f"id:{ack_id(again, 1)}")
    assert play.settled() == ["ack 1 multiple"]
    play.client("ACK", f"id:{ack_id(subscription, 4)}")
    assert play.said() == ["ERROR Message not found: unknown delivery tag 4"]
    # With the last one it ends for good.
    assert play.asked() is None
    play.client("ACK", f"id:{ack_id(subscription, 3)}")
    assert play.settled() == ["ack 3 multiple"]
    assert play.asked() == ops.Unsubscribe(subscription, None)
    play.broker(ops.Unsubscribed())
    play.client("ACK", f"id:{ack_id(subscription, 3)}")
    assert "Subscription not found" in play.said()[0]


def test_few_ended_subscriptions_have_something_to_settle(play: Playbook) -> None:
    for number in range(17):
        subscription = play.subscribe(str(number), "/queue/q", "ack:client")
        deliver(subscription, 1)
        play.said()
        play.client("UNSUBSCRIBE", f"id:{number}")
        assert play.asked() == ops.Unsubscribe(subscription, None, 1 if number < 16 else None)
        play.broker(ops.Unsubscribed())


def test_a_link_that_is_lost_takes_what_an_ended_subscription_has_delivered(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    delivered = ack_id(subscription, 1)
    play.client("UNSUBSCRIBE", "id:1")
    play.asked()
    play.broker(ops.Unsubscribed())
    play.said()
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", (subscription,)))
    play.go_on()
    play.client("ACK", f"id:{delivered}", "receipt:r")
    assert play.said() == ["RECEIPT r"]
    assert play.settled() == []


def test_a_forged_user_id_is_refused_access(play: Playbook) -> None:
    text = "PRECONDITION_FAILED - user_id property set to 'boss' but authenticated user was 'guest'"
    play.broker(ops.ChannelClosed(406, text, True))
    assert play.said() == [f"ERROR access_refused: {text.partition(' - ')[2]}"]


@pytest.mark.parametrize("header", ["priority:high", "timestamp:now", "content-length:five"])
def test_a_number_that_is_none_does_not_count(play: Playbook, header: str) -> None:
    play.data(f"SEND\ndestination:/topic/a\n{header}\n\nhello\0".encode())
    play.prepare()
    assert play.published() == ["amq.topic a hello"]
    assert play.said() == []


def test_a_bad_expiration_is_an_error_of_the_frame_alone(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/a", "expiration:soon", "receipt:r")
    assert play.said() == ["ERROR for r Processing error: Processing error"]
    play.client("SEND", "destination:/topic/a", "expiration:1000", body="hello")
    play.prepare()
    assert play.published() == ["amq.topic a hello"]


def test_a_bad_prefetch_is_none(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "ack:client", "prefetch-count:many")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.prefetch == 0  # no limit


@pytest.mark.parametrize(("limits", "most"), [({}, 16), ({"max_open": 20}, 20)])
def test_few_transactions_may_be_open_unless_the_configuration_says_how_many(limits: dict[str, int], most: int) -> None:
    play = Playbook(NEXT.model_copy(update={"transactions": TransactionLimits(**limits)}))
    play.connect()
    for number in range(most):
        play.client("BEGIN", f"transaction:{number}")
    assert play.said() == []
    play.client("BEGIN", "transaction:more")
    assert play.said() == [f"ERROR Transaction limit exceeded: Too many concurrent transactions (limit {most})"]
    assert NEXT.transaction_limits.max_actions == 1024
    assert RELEASED.transaction_limits == TransactionLimits()


def test_reply_queues_have_the_name_that_users_are_granted_there(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/a", "reply-to:/temp-queue/r")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue_name.startswith("stomp.gen-")


# What does not change, because the next version changed it by accident or not at all.

UNCHANGED = [
    (["SEND", "destination:/a/b"], "Unknown destination"),
    (["SEND"], "Missing destination"),
    (["SUBSCRIBE", "id:1", "destination:/queue/q", "ack:no"], "Processing error"),
    (["ACK", "id:1"], "Invalid header"),
    (["ACK", "id:T_1@@s@@1"], "Subscription not found"),
    (["UNSUBSCRIBE", "id:1"], "No subscription found"),
    (["COMMIT", "transaction:t"], "Bad transaction"),
    (["NONSENSE"], "Bad command"),
]


@pytest.mark.parametrize(("frame", "message"), UNCHANGED, ids=str)
def test_the_gateways_own_errors_are_the_same(frame: list[str], message: str) -> None:
    answers = []
    for settings in (RELEASED, NEXT):
        play = Playbook(settings)
        play.connect()
        play.client(*frame)
        answers.append(play.said())
        assert play.state().name == "CONNECTED"
    assert answers[0] == answers[1]
    assert message in answers[0][0]


def test_transient_queues_and_message_ids_are_the_same(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/topic/a")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue_name.startswith("stomp-subscription-")
    deliver(play.subscribed(operation), 1, "hello")
    assert play.said() == ["MESSAGE 1 #1 hello"]


def test_a_queue_that_has_a_name_keeps_it(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/topic/a", "durable:true", "x-queue-name:mine")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue_name == "mine"
