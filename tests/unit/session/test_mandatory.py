"""A mandatory SEND: what is asked of the broker, and whom the message belongs to that it gives back."""

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import ConfirmWindow, VirtualHost
from gateway.errors import CloseReason
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import Hold, State
from gateway.session.observer import SessionObserver
from tests.support.playbook import Playbook, ack_id, deliver, stomp

NOWHERE = "No queue received the message for '{}': NO_ROUTE"


def mandatory(destination: str, receipt: str | None = None, body: str = "") -> bytes:
    receipts = () if receipt is None else (f"receipt:{receipt}",)
    return stomp("SEND", f"destination:{destination}", "mandatory:true", *receipts, body=body)


def refusal(destination: str, receipt: str | None = None) -> str:
    whose = "" if receipt is None else f" for {receipt}"
    return f"ERROR{whose} Unroutable message: {NOWHERE.format(destination)}"


def begin(settings: VirtualHost | None = None) -> Playbook:
    """A session whose first message, a mandatory one, was confirmed."""
    play = Playbook(settings)
    play.connect()
    play.data(mandatory("/topic/first"))
    assert play.prepare().confirms
    assert play.published() == ["mandatory amq.topic first "]
    play.confirm(1)
    return play


def test_a_message_that_comes_back_is_an_error_and_gets_no_receipt() -> None:
    play = begin()
    play.data(mandatory("/topic/t", "r1", "lost") + mandatory("/topic/u", "r2"))
    assert play.published() == ["mandatory amq.topic t lost", "mandatory amq.topic u "]
    play.return_message("amq.topic", "t", size=4, receipt="r1")
    assert play.said() == [refusal("/topic/t", "r1")]
    play.confirm(3, multiple=True)
    assert play.said() == ["RECEIPT r2"]
    assert play.state() is State.CONNECTED
    assert not len(play.session.confirms)
    play.finish()


def test_without_a_receipt_the_error_names_the_destination_alone() -> None:
    play = begin()
    play.data(mandatory("/amq/queue/gone"))
    play.published()
    play.return_message("", "gone")
    play.confirm(2)
    assert play.said() == [refusal("/amq/queue/gone")]


@pytest.mark.parametrize("value", ["false", "no", "TRUE", ""])
def test_only_true_is_mandatory(mortal: Playbook, value: str) -> None:
    mortal.client("SEND", "destination:/topic/t", f"mandatory:{value}")
    assert not mortal.prepare().confirms
    assert mortal.published() == ["amq.topic t "]


def test_a_client_that_had_no_confirms_gets_them_with_its_first_mandatory_message(mortal: Playbook) -> None:
    mortal.client("SEND", "destination:/topic/t")
    assert not mortal.prepare().confirms
    mortal.data(mandatory("/topic/t"))
    assert mortal.prepare().confirms
    assert mortal.published() == ["amq.topic t ", "mandatory amq.topic t "]
    mortal.return_message("amq.topic", "t")
    mortal.confirm(1)
    assert mortal.said() == [refusal("/topic/t")]


def test_of_messages_that_went_the_same_way_the_one_that_bears_its_receipt_came_back() -> None:
    """The first may have found a queue that was deleted since, and wait for its confirm only."""
    play = begin()
    play.data(mandatory("/topic/t", "found") + mandatory("/topic/t", "lost") + mandatory("/topic/t", "found too"))
    play.published()
    play.return_message("amq.topic", "t", receipt="lost")
    assert play.said() == [refusal("/topic/t", "lost")]
    play.confirm(4, multiple=True)
    assert play.said() == ["RECEIPT found", "RECEIPT found too"]


def test_messages_that_are_all_alike_come_back_in_their_order() -> None:
    play = begin()
    play.data(mandatory("/topic/t") * 3 + mandatory("/topic/t", "r"))
    play.published()
    for _ in range(3):
        play.return_message("amq.topic", "t")
    # One more than there are is nobody's, least of all the one's with a receipt.
    play.return_message("amq.topic", "t")
    assert play.said() == [refusal("/topic/t")] * 3
    play.confirm(5, multiple=True)
    assert play.said() == ["RECEIPT r"]


def test_a_message_that_is_not_mandatory_never_comes_back() -> None:
    play = begin()
    play.data(stomp("SEND", "destination:/topic/t", "receipt:r") + mandatory("/exchange/amq.topic/t", "r"))
    play.published()
    play.return_message("amq.topic", "t", receipt="r")
    assert play.said() == [refusal("/exchange/amq.topic/t", "r")]
    play.confirm(3, multiple=True)
    assert play.said() == ["RECEIPT r"]


def test_what_came_back_is_counted_once_each() -> None:
    play = begin()
    for name in ("r", "s"):
        play.data(mandatory("/topic/t", name))
    play.published()
    for name in ("r", "s"):
        play.return_message("amq.topic", "t", receipt=name)
    assert play.session.traffic.returned == 2


def test_a_message_that_comes_back_unasked_is_nobodys() -> None:
    play = begin()
    play.confirm(play.session.confirms.last_sequence, multiple=True)
    play.said()
    assert not len(play.session.confirms)
    play.return_message("amq.topic", "t", receipt="r")
    assert play.said() == []


def test_properties_that_make_no_sense_harm_nobody() -> None:
    play = begin()
    play.data(mandatory("/topic/t"))
    play.published()
    play.session.message_returned(Return(312, b"NO_ROUTE", b"amq.topic", b"t", b"\x20\0\xff"))
    play.confirm(2)
    assert play.said() == [refusal("/topic/t")]


def test_what_came_back_makes_room_in_the_window() -> None:
    play = begin(VirtualHost(name="/", confirm_window=ConfirmWindow(messages=1)))
    play.data(mandatory("/topic/t", "r"))
    play.published()
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    play.return_message("amq.topic", "t", receipt="r")
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    play.confirm(2)
    assert play.session.holds == set()
    assert play.said() == [refusal("/topic/t", "r")]


def test_a_transaction_with_a_message_that_comes_back_acknowledges_nothing() -> None:
    play = begin()
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    assert play.said() == ["MESSAGE 1 #1 "]
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/t", "transaction:t", "receipt:s1", "mandatory:true")
    play.client("SEND", "destination:/topic/u", "transaction:t", "receipt:s2")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.published() == ["mandatory amq.topic t ", "amq.topic u "]
    assert play.session.holds == {Hold.COMMIT}
    play.return_message("amq.topic", "t", receipt="s1")
    play.confirm(3, multiple=True)
    assert play.said() == [
        refusal("/topic/t", "s1"),
        "RECEIPT s2",
        "ERROR for c Unroutable message: A message of the transaction reached no queue; nothing was acknowledged.",
    ]
    assert play.settled() == []
    assert play.session.holds == set()


def test_confirms_of_a_transaction_are_switched_on_by_its_commit(mortal: Playbook) -> None:
    mortal.client("BEGIN", "transaction:t")
    mortal.client("SEND", "destination:/topic/t", "transaction:t", "mandatory:true")
    assert not mortal.prepare().confirms
    mortal.client("COMMIT", "transaction:t")
    assert mortal.prepare().confirms
    assert mortal.published() == ["mandatory amq.topic t "]


def test_strict_closes_with_it() -> None:
    play = begin(VirtualHost(name="/", conformance="strict"))
    play.data(mandatory("/topic/t", "r"))
    play.published()
    play.return_message("amq.topic", "t", receipt="r")
    assert play.said() == [refusal("/topic/t", "r")]
    assert play.session.close_reason is CloseReason.PROTOCOL_ERROR
    # Behind the end nothing more is said.
    play.return_message("amq.topic", "t", receipt="r")
    assert play.said() == []


def test_disconnect_waits_for_the_confirm_of_what_came_back() -> None:
    play = begin()
    play.data(mandatory("/topic/t", "r") + stomp("DISCONNECT", "receipt:bye"))
    play.published()
    play.return_message("amq.topic", "t", receipt="r")
    assert play.asked() is None
    play.confirm(2)
    assert play.said() == [refusal("/topic/t", "r")]
    assert play.asked() is not None


def test_a_returned_message_that_the_observer_has_passed_over_is_not_told_of() -> None:
    """A journal with samples of messages."""
    told: list[object] = []
    counter = SimpleNamespace(sent=lambda size, receipt: None, confirmed=lambda *what: told.append(what))
    observer = SimpleNamespace(
        header_values=(), stamp=None, sends=lambda cached, headers: counter, used=lambda what: None
    )
    play = Playbook()
    play.session.set_client(ClientFacts(), lambda: cast(SessionObserver, observer))
    play.connect()
    play.client("SEND", "destination:/amq/queue/q", "mandatory:true", "receipt:r")
    play.prepare()
    play.published()
    play.return_message("", "q", receipt="r")
    play.confirm(1)
    assert play.said()[0].startswith("ERROR for r Unroutable message")
    assert told == []


def test_a_message_for_a_declared_queue_is_published_again_when_it_is_returned() -> None:
    """The broker has no such queue any more. Nobody is told, and nothing has a receipt before the queue has it."""
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/queue/q", "receipt:r1", body=b"one")
    play.prepare()
    play.client("SEND", "destination:/queue/q", "receipt:r2", body=b"two")
    assert play.published() == ["- q one", "- q two"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r1"]
    play.return_message("", "q", size=3, receipt="r2")
    play.confirm(2)
    assert play.said() == []
    recovery = play.asked()
    assert isinstance(recovery, ops.Recover)
    assert [queue.name for queue in recovery.queues] == ["q"]
    play.recover(recovery)
    assert play.published() == ["- q two"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r2"]
    assert not play.session.holds


def test_what_comes_after_a_returned_message_for_its_queue_is_published_again_with_it() -> None:
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/queue/q", body=b"one")
    play.prepare()
    for body in (b"two", b"three", b"six"):
        play.client("SEND", "destination:/queue/q", body=body)
    play.published()
    play.return_message("", "q", size=3)
    play.confirm(4, multiple=True)
    recovery = play.asked()
    assert isinstance(recovery, ops.Recover)
    play.recover(recovery)
    assert play.published() == ["- q one", "- q two", "- q three", "- q six"]


def test_without_riding_through_a_message_for_a_deleted_queue_is_an_error_and_the_next_one_declares_the_queue(
    mortal: Playbook,
) -> None:
    mortal.client("SEND", "destination:/queue/q", "receipt:r", body=b"one")
    mortal.prepare()
    mortal.published()
    mortal.return_message("", "q", size=3, receipt="r")
    mortal.confirm(1)
    assert [line.splitlines()[0] for line in mortal.said()] == [refusal("/queue/q", "r").splitlines()[0]]
    mortal.client("SEND", "destination:/queue/q", body=b"two")
    operation = mortal.asked()
    assert isinstance(operation, ops.PreparePublisher)
    assert operation.queue is not None


def test_a_rejected_message_is_an_error_only_if_its_queue_is_not_away() -> None:
    for is_away, expected in ((False, "ERROR for r Message rejected"), (True, None)):
        play = Playbook()
        play.connect()
        play.client("SEND", "destination:/queue/q", "receipt:r")
        play.prepare()
        play.published()
        play.session.confirm(1, False, False)
        assert play.said() == []
        assert play.asked() == ops.FindQueues(("q",))
        play.broker(ops.QueuesFound(is_away))
        if expected is None:
            assert play.said() == []
            assert isinstance(play.asked(), ops.Recover)
        else:
            assert play.said()[0].startswith(expected)
            assert not play.session.holds
