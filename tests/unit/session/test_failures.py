"""What goes wrong at the broker, and what the client hears of it."""

import pytest

from gateway.config.rules import OnSendError
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason, StompError
from gateway.session import error_frames, ops
from gateway.session.context import State
from tests.support.playbook import ENDS_WITH_ITS_LINK, Playbook, ack_id, deliver, stomp

MISSING = "NOT_FOUND - no exchange 'e' in vhost '/'"


def _sent(play: Playbook, *destinations_and_receipts: tuple[str, str]) -> None:
    """SENDs of which nothing is confirmed yet."""
    for number, (destination, receipt) in enumerate(destinations_and_receipts):
        play.client("SEND", f"destination:{destination}", *([f"receipt:{receipt}"] if receipt else []))
        if not number:
            play.prepare()
    assert len(play.published()) == len(destinations_and_receipts)


def test_a_refused_message_is_an_error_for_its_receipt_and_the_session_goes_on(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/topic/b", "r2"))
    play.confirm(1, accepted=False)
    play.confirm(2)
    assert play.said() == [
        "ERROR for r1 Message rejected: The broker did not accept the message for '/topic/a'.",
        "RECEIPT r2",
    ]
    assert play.state() is State.CONNECTED


def test_a_refused_message_without_a_receipt_is_an_error_all_the_same(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/topic/b", ""))
    play.confirm(2, accepted=False)
    play.confirm(1)
    assert play.said() == [
        "ERROR Message rejected: The broker did not accept the message for '/topic/b'.",
        "RECEIPT r1",
    ]


def test_several_messages_refused_at_once_are_an_error_each(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/topic/b", ""), ("/topic/c", "r3"))
    play.confirm(3, multiple=True, accepted=False)
    assert [word.partition(" Message")[0] for word in play.said()] == ["ERROR for r1", "ERROR", "ERROR for r3"]


def test_a_closed_publishing_channel_names_the_receipt_of_the_message_that_closed_it(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/exchange/e/k", "r2"), ("/exchange/e/k", "r3"), ("/topic/a", "r4"))
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    assert play.said() == [f"ERROR for r2 not_found: {MISSING}"]
    assert play.state() is State.CLOSED
    assert play.session.close_reason is CloseReason.BROKER_ERROR


def test_a_message_that_was_confirmed_did_not_close_the_channel(play: Playbook) -> None:
    _sent(play, ("/exchange/e/k", "r1"), ("/exchange/e/k", "r2"))
    play.confirm(1)
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    assert play.said() == ["RECEIPT r1", f"ERROR for r2 not_found: {MISSING}"]


def test_a_message_without_a_receipt_that_closed_the_channel_is_an_error_without_one(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/exchange/e/k", ""))
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    assert play.said() == [f"ERROR not_found: {MISSING}"]


def test_receipts_are_not_sent_for_what_a_closed_channel_left_unconfirmed(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/exchange/e/k", "r2"))
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    play.confirm(2, multiple=True)
    assert "RECEIPT r1" not in play.said()


def test_a_message_that_closed_the_channel_under_a_frame_that_waited_is_the_one_that_is_named(play: Playbook) -> None:
    _sent(play, ("/exchange/e/k", "r1"), ("/topic/a", "r2"))
    play.client("SEND", "destination:/queue/q", "exclusive:true", "receipt:r3")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.broker(ops.OperationFailed(404, MISSING, of_publish=True))
    assert play.said() == [f"ERROR for r1 not_found: {MISSING}"]


def test_a_queue_that_may_not_be_declared_is_an_error_for_the_frame_that_wanted_it(play: Playbook) -> None:
    _sent(play, ("/topic/a", "r1"), ("/queue/b", "rb"))
    play.client("SEND", "destination:/queue/q", "x-dead-letter-exchange:dead", "receipt:r2")
    assert len(play.published()) == 1
    text = "ACCESS_REFUSED - access to exchange 'dead' in vhost '/' refused for user 'guest'"
    play.broker(ops.ChannelClosed(403, text, publishing=True, of_declaration=True))
    assert play.said() == [f"ERROR for r2 access_refused: {text}"]


def test_every_error_is_there_for_the_owners_log(play: Playbook) -> None:
    play.client("COMMIT", "transaction:nope")
    play.client("SEND", "destination:/nowhere/")
    assert [each.message for each in play.session.take_errors()] == ["Bad transaction", "Unknown destination"]
    assert len(play.said()) == 2


def test_a_closed_consuming_channel_says_nothing_of_receipts(play: Playbook) -> None:
    _sent(play, ("/exchange/e/k", "r1"))
    play.subscribe()
    play.broker(ops.ChannelClosed(406, "PRECONDITION_FAILED - exchange 'e' timed out", publishing=False))
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - exchange 'e' timed out"]
    assert play.state() is State.CLOSED


def test_an_unknown_reply_code_still_has_a_name(play: Playbook) -> None:
    play.broker(ops.ChannelClosed(599, "SOMETHING - new", publishing=False))
    assert play.said() == ["ERROR broker_error: SOMETHING - new"]


def test_a_subscription_that_the_broker_cancels_is_an_error_and_its_id_is_free(play: Playbook) -> None:
    subscription = play.subscribe("a", "/queue/q", "ack:client")
    deliver(subscription, 1)
    play.broker(ops.ConsumerCancelled(subscription))
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.said() == [
        "MESSAGE a #1 ",
        "ERROR Server cancelled subscription: The server has canceled a subscription.\n"
        "No more messages will be delivered for \"id='a'\".",
        f'ERROR Subscription not found: Message with id "{ack_id(subscription, 1)}" has no subscription',
    ]
    play.subscribe("a", "/queue/q")
    assert play.state() is State.CONNECTED


def test_an_acknowledgement_of_nothing_is_the_brokers_error_without_asking_it(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "receipt:r1")
    assert play.said() == [
        "MESSAGE 1 #1 ",
        "RECEIPT r1",
        "ERROR precondition_failed: PRECONDITION_FAILED - unknown delivery tag 1",
    ]
    assert play.state() is State.CLOSED


def test_a_refused_login_may_be_tried_again(fresh: Playbook) -> None:
    fresh.client("CONNECT", "accept-version:1.1")
    assert fresh.asked() is not None
    fresh.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    assert fresh.said() == ["ERROR Bad CONNECT: Access refused for user 'guest'"]
    assert fresh.state() is State.CONNECTING
    fresh.connect("1.2")
    assert fresh.state() is State.CONNECTED


def test_a_login_that_makes_no_sense_to_repeat_ends_the_session(fresh: Playbook) -> None:
    fresh.client("CONNECT")
    assert fresh.asked() is not None
    fresh.broker(ops.LoginNotTried(error_frames.broker_unreachable()))
    assert fresh.said() == ["ERROR Upstream unavailable: The message broker cannot be reached; try again later."]
    assert fresh.state() is State.CLOSED


def test_heart_beats_that_make_no_sense_are_found_after_the_login_and_may_be_mended(fresh: Playbook) -> None:
    fresh.client("CONNECT", "accept-version:1.2", "heart-beat:1000")
    assert fresh.asked() is not None
    fresh.broker(ops.LoggedIn())
    assert fresh.said() == ["ERROR Processing error: Processing error"]
    assert fresh.state() is State.CONNECTING
    fresh.connect()


LOST = ops.LinkLost(320, "CONNECTION_FORCED - broker forced connection closure")


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_a_lost_link_ends_the_session_in_every_state(state: State) -> None:
    play = Playbook(ENDS_WITH_ITS_LINK)
    if state is State.AUTHENTICATING:
        play.client("CONNECT")
        assert play.asked() is not None
    elif state is not State.CONNECTING:
        play.connect()
        _sent(play, ("/topic/a", "r1"))
    if state is State.DRAINING:
        play.client("DISCONNECT", "receipt:bye")
    assert play.state() is state
    play.broker(LOST)
    assert play.said() == [f"ERROR connection_forced: {LOST.text}"]
    assert play.state() is State.CLOSED
    assert play.session.close_reason is CloseReason.LINK_LOST
    play.data(stomp("SEND", "destination:/topic/t"))
    play.broker(LOST)
    play.finish()


def test_what_happens_after_the_end_is_not_told(play: Playbook) -> None:
    subscription = play.subscribe()
    play.session.client_gone()
    for event in (LOST, ops.ConsumerCancelled(subscription), ops.ChannelClosed(404, MISSING, publishing=True)):
        play.broker(event)
    play.session.shut_down()
    play.session.time_passed(10_000.0)
    assert play.session.close_reason is CloseReason.CLIENT_GONE


@pytest.mark.parametrize(
    "error",
    [
        error_frames.bad_command(b"X" * 60_000),
        error_frames.bad_command(b"\xff\0" * 30_000),
        error_frames.access_refused(b"x" * 60_000, VirtualHost(name="/")),
        error_frames.duplicate_subscription(b"x" * 60_000),
        error_frames.no_subscription(b"id='" + b"\x01" * 60_000),
        error_frames.message_without_subscription(b"\xff\0" * 30_000),
        error_frames.subscription_cancelled(b"\xff\0" * 30_000, b"x"),
        error_frames.bad_transaction(b"\xff\0" * 30_000),
        error_frames.transaction_too_old(b"x" * 60_000),
        error_frames.destination_denied(b"SEND", b"/queue/" + b"x" * 60_000, b"l" * 60_000),
        error_frames.impossible_rewrite(b"/queue/" + b"x" * 60_000, b"y" * 60_000),
        error_frames.rejected(b"/queue/" + b"x" * 60_000),
        error_frames.stream_takes_nothing_back(b"/queue/" + b"x" * 60_000),
    ],
    ids=lambda error: error.message,
)
def test_an_error_repeats_little_of_what_the_client_sent(error: StompError) -> None:
    """Or a client could make the gateway send and keep many times what it sends."""
    assert len(error.body) < 2000


# Sessions that go on after a SEND that goes wrong.


KEEP = VirtualHost(name="/", on_send_error=OnSendError(action="keep"))


def _kept(play: Playbook, *headers: str) -> None:
    """Of three messages the broker refuses the second one."""
    play.connect()
    play.client("SEND", "destination:/topic/a", "receipt:r1", body="one")
    play.prepare()
    play.client("SEND", "destination:/exchange/e/k", "receipt:r2", *headers, body="two")
    play.client("SEND", "destination:/topic/a", "receipt:r3", body="three")
    assert len(play.published()) == 3


def test_what_is_not_to_blame_is_published_again_on_another_channel() -> None:
    play = Playbook(KEEP)
    _kept(play)
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    assert play.said() == [f"ERROR for r2 not_found: {MISSING}"]
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    assert (operation.publishing, operation.subscriptions, operation.is_refusal) == (True, (), True)
    play.client("SEND", "destination:/topic/a", "receipt:r4", body="four")
    play.recover(operation)
    assert play.published() == ["amq.topic a one", "amq.topic a three", "amq.topic a four"]
    play.confirm(3, multiple=True)
    assert play.said() == ["RECEIPT r1", "RECEIPT r3", "RECEIPT r4"]
    assert not play.session.holds


def test_a_property_may_be_to_blame() -> None:
    play = Playbook(KEEP)
    _kept(play, "expiration:soon")
    text = "PRECONDITION_FAILED - invalid expiration 'soon': no_integer"
    play.broker(ops.ChannelClosed(406, text, publishing=True))
    assert play.said() == [f"ERROR for r2 precondition_failed: {text}"]
    assert play.state() is State.CONNECTED


def test_the_session_ends_if_it_is_not_known_which_message_is_lost() -> None:
    play = Playbook(KEEP)
    _kept(play)
    play.broker(ops.ChannelClosed(406, "PRECONDITION_FAILED - something else", publishing=True))
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - something else"]
    assert play.state() is State.CLOSED


def test_the_frame_that_waited_is_carried_out_after_the_one_that_was_refused() -> None:
    play = Playbook(KEEP)
    _kept(play)
    play.client("SEND", "destination:/queue/q", "receipt:r4", body="four")
    waiting = play.asked()
    play.broker(ops.OperationFailed(404, MISSING, of_publish=True))
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    play.recover(operation)
    assert play.asked() == waiting
    play.broker(ops.PublisherPrepared(2, 4096, confirms=True))
    assert play.published() == ["amq.topic a one", "amq.topic a three", "- q four"]


def test_a_queue_that_may_not_be_declared_costs_its_message_alone() -> None:
    play = Playbook(KEEP)
    _kept(play)
    play.client("SEND", "destination:/queue/q", "receipt:r4")
    play.asked()
    play.broker(ops.OperationFailed(405, "RESOURCE_LOCKED - no"))
    play.confirm(3, multiple=True)
    assert play.said() == ["ERROR for r4 resource_locked: RESOURCE_LOCKED - no", *(f"RECEIPT r{n}" for n in (1, 2, 3))]
    assert (play.asked(), play.published(), set(play.session.holds)) == (None, [], set())


@pytest.mark.parametrize("change", [{"conformance": "strict"}, {"confirms": "on_receipt"}])
def test_only_a_session_that_knows_what_it_has_sent_goes_on(change: dict[str, str]) -> None:
    play = Playbook(KEEP.model_copy(update=change))
    _kept(play)
    play.broker(ops.ChannelClosed(404, MISSING, publishing=True))
    assert play.state() is State.CLOSED
