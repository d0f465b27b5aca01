"""How sessions end: DISCONNECT, a client that is gone, a gateway that stops."""

import pytest

from gateway.errors import CloseReason, StompError
from gateway.session import ops
from gateway.session.context import State
from tests.support.playbook import Playbook, ack_id, deliver, stomp

STOPPING = "ERROR Shutting down: The gateway is stopping; connect again."


def _send(play: Playbook, receipt: str) -> None:
    play.client("SEND", "destination:/topic/t", f"receipt:{receipt}")
    if isinstance(operation := play.asked(), ops.PreparePublisher):
        play.broker(ops.PublisherPrepared(1, 4096, operation.confirms))
    assert play.published() == ["amq.topic t "]


def test_disconnect_waits_for_all_confirms_and_for_the_channels_to_close(play: Playbook) -> None:
    for receipt in ("r1", "r2", "r3"):
        _send(play, receipt)
    play.data(stomp("DISCONNECT", "receipt:bye") + stomp("SEND", "destination:/topic/t", body="too late"))
    assert play.state() is State.DRAINING
    assert play.asked() is None
    play.confirm(2)
    play.confirm(3)
    assert play.asked() is None
    play.confirm(1)
    assert play.said() == ["RECEIPT r2", "RECEIPT r3", "RECEIPT r1"]
    assert play.asked() == ops.CloseUpstream()
    assert play.state() is State.DRAINING
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT bye"]
    assert play.state() is State.CLOSED
    assert play.session.close_reason is CloseReason.DISCONNECT


def test_disconnect_without_receipt_waits_just_the_same(play: Playbook) -> None:
    _send(play, "r1")
    play.client("DISCONNECT")
    assert play.asked() is None
    play.confirm(1)
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT r1"]
    assert play.state() is State.CLOSED


def test_a_message_refused_while_the_session_drains_is_told(play: Playbook) -> None:
    _send(play, "r1")
    play.client("DISCONNECT", "receipt:bye")
    play.confirm(1, accepted=False)
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == [
        "ERROR for r1 Message rejected: The broker did not accept the message for '/topic/t'.",
        "RECEIPT bye",
    ]


def test_disconnect_settles_what_was_delivered_and_lets_nothing_more_out(play: Playbook) -> None:
    subscription = play.subscribe()
    deliver(subscription, 1, "before")
    play.client("DISCONNECT", "receipt:bye")
    assert play.settled() == ["ack 1 multiple"]
    assert play.asked() == ops.CloseUpstream()
    deliver(subscription, 2, "after")
    assert play.said() == ["MESSAGE 1 #1 before"]
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT bye"]


def test_what_the_client_never_got_is_not_settled_at_the_end(play: Playbook) -> None:
    subscription = play.subscribe()
    play.client("DISCONNECT")
    assert play.asked() == ops.CloseUpstream()
    deliver(subscription, 1, "after the last frame that the client will get")
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []


def test_a_client_that_is_gone_in_the_middle_of_an_operation(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r1")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.session.client_gone()
    assert play.state() is State.CLOSED
    play.subscribed(operation)
    deliver(operation.subscription, 1)
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []
    assert play.said() == []
    assert play.session.close_reason is CloseReason.CLIENT_GONE


def test_a_client_that_is_gone_in_the_middle_of_its_login(fresh: Playbook) -> None:
    fresh.client("CONNECT")
    assert isinstance(fresh.asked(), ops.Login)
    fresh.session.client_gone()
    fresh.broker(ops.LoggedIn())
    assert fresh.said() == []
    assert fresh.state() is State.CLOSED


def test_a_client_that_is_gone_leaves_nothing_of_its_frame_to_be_done(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/q", body="waits for its queue")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.session.client_gone()
    play.broker(ops.PublisherPrepared(1, 4096, confirms=False))
    assert play.published() == []


def test_a_gateway_that_stops_waits_for_confirms_and_says_so(play: Playbook) -> None:
    _send(play, "r1")
    play.session.shut_down()
    assert play.state() is State.DRAINING
    assert not play.session.wants_read
    play.client("SEND", "destination:/topic/t", "receipt:r2", body="not read any more")
    assert play.said() == []
    play.confirm(1)
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT r1", STOPPING]
    assert play.session.close_reason is CloseReason.SHUTDOWN


@pytest.mark.parametrize("asked", [False, True])
def test_a_gateway_that_stops_before_the_login_says_so_at_once(fresh: Playbook, asked: bool) -> None:
    if asked:
        fresh.client("CONNECT")
        assert isinstance(fresh.asked(), ops.Login)
    fresh.session.shut_down()
    assert fresh.said() == [STOPPING]
    assert fresh.state() is State.CLOSED
    fresh.broker(ops.LoggedIn())


def test_a_gateway_that_stops_lets_a_disconnect_have_its_receipt(play: Playbook) -> None:
    play.client("DISCONNECT", "receipt:bye")
    assert play.asked() == ops.CloseUpstream()
    play.session.shut_down()
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT bye"]
    assert play.session.close_reason is CloseReason.DISCONNECT


def test_a_subscription_under_way_is_finished_before_the_gateway_stops(play: Playbook) -> None:
    play.data(
        stomp("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r1")
        + stomp("SEND", "destination:/queue/q", "receipt:r2")
    )
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.session.shut_down()
    assert play.asked() is None
    play.subscribed(operation)
    assert play.said() == ["RECEIPT r1"]
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == [STOPPING]


def test_a_send_under_way_is_published_before_the_gateway_stops(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/q", "receipt:r1", body="waits for its queue")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.session.shut_down()
    play.broker(ops.PublisherPrepared(1, 4096, confirms=True))
    assert play.published() == ["- q waits for its queue"]
    assert play.asked() is None
    play.confirm(1)
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT r1", STOPPING]


def test_a_send_under_way_is_no_unknown_command_when_the_gateway_stops(play: Playbook) -> None:
    _send(play, "r1")
    play.client("SEND", "destination:/queue/q", "exclusive:true", body="waits for its queue")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.session.shut_down()
    play.broker(ops.PublisherPrepared(1, 4096, confirms=True))
    assert play.said() == []
    play.published()
    play.confirm(2, multiple=True)
    assert play.said() == ["RECEIPT r1"]
    assert play.asked() == ops.CloseUpstream()


def test_a_commit_under_way_is_finished_before_the_gateway_stops(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    _send(play, "r1")
    play.client("BEGIN", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("SEND", "destination:/topic/t", "transaction:t", body="x")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.published() == ["amq.topic t x"]
    play.session.shut_down()
    play.confirm(1)
    assert play.settled() == []
    play.confirm(2)
    assert play.said() == ["MESSAGE 1 #1 ", "RECEIPT r1", "RECEIPT c"]
    assert play.settled() == ["ack 1 multiple"]
    assert play.asked() == ops.CloseUpstream()


def test_channels_that_do_not_close_end_the_session_with_the_brokers_words(play: Playbook) -> None:
    play.client("DISCONNECT", "receipt:bye")
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.OperationFailed(541, "INTERNAL_ERROR - sorry"))
    assert play.said() == ["ERROR internal_error: INTERNAL_ERROR - sorry"]
    assert play.state() is State.CLOSED


def test_bytes_that_are_no_frame_end_the_session_with_an_error(play: Playbook) -> None:
    play.data(stomp("BEGIN", "transaction:t", "receipt:r1") + b"SEND\nno colon\n\n\0" + stomp("BEGIN"))
    receipt, error = play.said()
    assert receipt == "RECEIPT r1"
    assert error.startswith("ERROR Malformed frame: a header line without a colon")
    assert play.session.close_reason is CloseReason.MALFORMED_FRAME


def test_after_the_end_nothing_is_said_and_nothing_is_settled_for_the_client(play: Playbook) -> None:
    subscription = play.subscribe()
    _send(play, "r1")
    play.client("CONNECT", "accept-version:1.2")
    assert play.said() == ["ERROR Illegal command: You are already connected."]
    assert play.state() is State.CLOSED
    deliver(subscription, 1, "too late")
    play.confirm(1)
    play.session.subscriptions.settle_auto_acks()
    assert [play.said(), play.settled()] == [[], []]


def test_a_message_delivered_before_an_error_is_still_said_and_settled(play: Playbook) -> None:
    subscription = play.subscribe()
    deliver(subscription, 1, "in time")
    play.broker(ops.ChannelClosed(404, "NOT_FOUND - no exchange 'e' in vhost '/'", publishing=True))
    assert play.said() == [
        "MESSAGE 1 #1 in time",
        "ERROR not_found: NOT_FOUND - no exchange 'e' in vhost '/'",
    ]


def test_the_owner_may_end_a_session_for_reasons_of_its_own(play: Playbook) -> None:
    _send(play, "r1")
    play.session.close(StompError("Slow consumer", "Too slow.\n", close=CloseReason.SLOW_CONSUMER))
    play.session.close(StompError("Heart-beat timeout", "Silent.\n", close=CloseReason.HEART_BEAT_TIMEOUT))
    assert play.said() == ["ERROR Slow consumer: Too slow."]
    assert play.session.close_reason is CloseReason.SLOW_CONSUMER


@pytest.mark.parametrize("command", ["UNSUBSCRIBE", "DISCONNECT"])
def test_what_a_client_that_is_behind_may_never_read_is_not_settled(play: Playbook, command: str) -> None:
    subscription = play.subscribe()
    deliver(subscription, 1)
    play.session.context.client_writable = False
    play.client(command, "id:1")
    assert play.settled() == []
    assert play.asked() is not None
    assert play.said() == ["MESSAGE 1 #1 "]


def test_a_session_that_is_over_keeps_no_frames() -> None:
    play = Playbook()
    play.connect()
    _send(play, "r1")
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/t", "transaction:t", body=b"x" * 1000)
    play.client("BEGIN", "transaction:c")
    play.client("SEND", "destination:/topic/t", "transaction:c", body=b"x" * 1000)
    play.client("COMMIT", "transaction:c")
    session = play.session
    assert (len(session.confirms), len(session.context.transactions)) == (2, 1)
    session.client_gone()
    session.forget()
    assert (len(session.confirms), session.confirms.unconfirmed_bytes, len(session.context.transactions)) == (0, 0, 0)
    assert (b"".join(session.publisher.output.take()), session.output) == (b"", [])
