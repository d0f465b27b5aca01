"""Holds: why a session does not read, and what lets it go on."""

from itertools import count

from gateway.config.virtual_host import ConfirmWindow, VirtualHost
from gateway.session import ops
from gateway.session.context import Hold
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.support.playbook import Playbook, ack_id, deliver, stomp

SEND = ("SEND", "destination:/topic/t", "receipt:r")


def _small_window(messages: int = 4, data: int = 1000) -> Playbook:
    play = Playbook(VirtualHost(name="/", confirm_window=ConfirmWindow(messages=messages, bytes=data)))
    play.connect()
    play.client(*SEND)
    play.prepare()
    assert play.published() == ["amq.topic t "]
    play.confirm(1)
    assert play.said() == ["RECEIPT r"]
    return play


def test_a_full_window_of_messages_holds_and_half_of_it_releases() -> None:
    play = _small_window(messages=4)
    for _ in range(3):
        play.client(*SEND)
    assert not play.session.holds
    play.data(stomp(*SEND) + stomp(*SEND))
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    assert not play.session.wants_read
    assert len(play.published()) == 4
    play.confirm(2)
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    assert play.published() == []
    play.confirm(3)
    assert play.session.holds == set()
    assert play.published() == ["amq.topic t "]
    play.confirm(6, multiple=True)
    assert play.said() == ["RECEIPT r"] * 5
    play.finish()


def test_a_full_window_of_bytes_holds_and_half_of_it_releases() -> None:
    play = _small_window(data=1000)
    play.client(*SEND, body="x" * 600)
    assert play.session.wants_read
    play.client(*SEND, body="x" * 400)
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    play.confirm(3)
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    play.confirm(2)
    assert play.session.holds == set()
    assert play.said() == ["RECEIPT r"] * 2
    assert len(play.published()) == 2


def test_a_message_larger_than_the_window_passes_alone() -> None:
    play = _small_window(data=10)
    play.data(stomp(*SEND, body="x" * 100) + stomp(*SEND, body="y" * 100))
    assert len(play.published()) == 1
    play.confirm(2)
    assert len(play.published()) == 1
    play.confirm(3)
    assert play.session.holds == set()
    assert play.said() == ["RECEIPT r"] * 2


def test_refused_messages_make_room_too() -> None:
    play = _small_window(messages=1)
    play.client(*SEND)
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    play.confirm(2, accepted=False)
    assert play.session.holds == set()
    assert play.said() == ["ERROR for r Message rejected: The broker did not accept the message for '/topic/t'."]
    assert play.published() == ["amq.topic t "]


def test_an_alarm_lets_one_more_send_pass_and_then_holds(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    play.client("SEND", "destination:/topic/t", body="before")
    play.prepare()
    assert play.published() == ["amq.topic t before"]
    play.session.publisher.set_blocked(True)
    # Whoever only consumes goes on: that is what empties the queues.
    deliver(subscription, 1)
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "receipt:a1")
    assert play.said() == ["MESSAGE 1 #1 ", "RECEIPT a1"]
    assert play.settled() == ["ack 1 multiple"]
    assert play.session.wants_read
    play.data(
        stomp("SEND", "destination:/topic/t", body="one more") + stomp("SEND", "destination:/topic/t", body="held")
    )
    assert play.session.holds == {Hold.BROKER_BLOCKED}
    assert play.published() == ["amq.topic t one more"]
    # Deliveries go on.
    deliver(subscription, 2)
    assert play.said() == ["MESSAGE 1 #2 "]
    play.session.publisher.set_blocked(False)
    play.go_on()
    assert play.published() == ["amq.topic t held"]
    assert play.session.wants_read


def test_an_alarm_holds_behind_a_send_that_needs_a_channel_first(play: Playbook) -> None:
    play.session.publisher.set_blocked(True)
    play.data(stomp("SEND", "destination:/queue/q", body="one") + stomp("SEND", "destination:/queue/q", body="two"))
    play.prepare()
    assert play.session.holds == {Hold.BROKER_BLOCKED}
    assert play.published() == ["- q one"]
    play.session.publisher.set_blocked(False)
    play.go_on()
    assert play.published() == ["- q two"]


def test_an_alarm_that_is_over_before_the_next_send_holds_nothing(play: Playbook) -> None:
    play.session.publisher.set_blocked(True)
    play.session.publisher.set_blocked(False)
    play.client("SEND", "destination:/topic/t", body="one")
    play.prepare()
    assert play.published() == ["amq.topic t one"]
    assert play.session.wants_read


def test_a_link_that_takes_no_bytes_holds_its_clients(play: Playbook) -> None:
    subscription = play.subscribe()
    play.session.holds.add(Hold.LINK_WRITE)
    play.client("SEND", "destination:/topic/t", body="held")
    assert play.asked() is None
    deliver(subscription, 1)
    assert play.said() == ["MESSAGE 1 #1 "]
    play.session.holds.discard(Hold.LINK_WRITE)
    play.go_on()
    play.prepare()
    assert play.published() == ["amq.topic t held"]


def test_a_frame_that_waited_for_its_operation_also_waits_for_the_link(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", body="held")
    operation = play.asked()
    assert isinstance(operation, ops.PreparePublisher)
    play.session.holds.add(Hold.LINK_WRITE)
    play.broker(ops.PublisherPrepared(1, 4096, confirms=True))
    assert play.published() == []
    play.session.holds.discard(Hold.LINK_WRITE)
    play.go_on()
    assert play.published() == ["amq.topic t held"]


def test_holds_are_independent() -> None:
    play = _small_window(messages=1)
    play.session.publisher.set_blocked(True)
    play.data(stomp(*SEND) + stomp(*SEND))
    assert play.session.holds == {Hold.CONFIRM_WINDOW, Hold.BROKER_BLOCKED}
    assert len(play.published()) == 1
    play.confirm(2)
    assert play.said() == ["RECEIPT r"]
    assert play.session.holds == {Hold.BROKER_BLOCKED}
    assert play.published() == []
    play.session.publisher.set_blocked(False)
    play.go_on()
    assert len(play.published()) == 1


def test_before_login_nothing_behind_connect_is_looked_at(fresh: Playbook) -> None:
    fresh.data(stomp("CONNECT", "accept-version:1.2") + stomp("SEND", "destination:/topic/t", body="soon"))
    assert fresh.session.holds == {Hold.OPERATION}
    assert not fresh.session.wants_read
    assert isinstance(fresh.asked(), ops.Login)
    fresh.broker(ops.LoggedIn())
    assert fresh.said() == ["CONNECTED 1.2"]
    fresh.prepare()
    assert fresh.published() == ["amq.topic t soon"]


def _turns(session: Session, frames: int) -> list[int]:
    """How many frames each turn takes of so many that are there at once."""
    decoder = Decoder()
    decoder.feed(stomp("ACK", "id:1") * frames)
    taken: list[int] = []
    while not taken or session.reached_turn_limit:
        before = session.traffic.frames_received
        session.run(decoder)
        taken.append(session.traffic.frames_received - before)
    assert decoder.buffered == 0
    return taken


def _session() -> Session:
    return Session(b"session-1", b"gateway", lambda _: None, FrameLimits())


def test_a_turn_ends_at_its_number_of_frames() -> None:
    session = _session()
    assert _turns(session, 100) == [100]
    session.max_frames_per_turn = 40
    assert _turns(session, 100) == [40, 40, 20]
    session.max_frames_per_turn = 1
    assert _turns(session, 3) == [1, 1, 1, 0]


def test_a_turn_ends_when_its_time_is_over_whatever_its_frames_cost() -> None:
    session = _session()
    seconds = count()
    session.set_turn_time(lambda: next(seconds), 2.5)
    # Each look at the clock takes a second: one at the beginning, and one after every 16 frames.
    assert _turns(session, 100) == [48, 48, 4]
    session.max_frames_per_turn = 40
    assert _turns(session, 100) == [40, 40, 20]


def test_a_turn_ends_when_its_time_is_over_within_a_run_of_sends() -> None:
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/topic/t", body="x")
    play.prepare()
    seconds = count()
    play.session.set_turn_time(lambda: next(seconds), 1.5)
    before = play.session.traffic.frames_received
    play.data(b"SEND\ndestination:/topic/t\n\nx\0" * 900)
    assert play.session.reached_turn_limit
    assert 0 < play.session.traffic.frames_received - before < 400


# SENDs that are held only for so long.


REFUSED = (
    "Upstream unavailable: The message broker has accepted no messages for at least 5 seconds; this one was not sent."
)


def _stalled(**settings: object) -> tuple[Playbook, ops.Recover]:
    """A session whose link is lost; it has a transaction open."""
    play = Playbook(VirtualHost.model_validate({"name": "/", "hold_sends_for": 5, **settings}))
    play.connect()
    play.client(*SEND)
    play.prepare()
    assert play.published() == ["amq.topic t "]
    play.confirm(1)
    play.client("BEGIN", "transaction:x")
    assert play.said() == ["RECEIPT r"]
    return play, play.lose(publishing=True)


def _wait(play: Playbook, *moments: float) -> None:
    for moment in moments:
        play.session.time_passed(moment)
    play.go_on()


def test_sends_are_refused_after_the_bound_and_not_before() -> None:
    play, operation = _stalled()
    play.client(*SEND)
    _wait(play, 100, 104.9)
    assert (play.said(), play.session.refuses_sends) == ([], False)
    _wait(play, 105)
    play.client("SEND", "destination:/topic/t")
    assert play.said() == [f"ERROR for r {REFUSED}", f"ERROR {REFUSED}"]
    play.recover(operation)
    play.client(*SEND)
    assert play.published() == ["amq.topic t "]
    # The next time has a bound of its own.
    play.lose(publishing=True)
    play.client(*SEND)
    _wait(play, 200, 204)
    assert (play.said(), play.session.refuses_sends) == ([], False)


def test_other_frames_and_transactions_wait_and_what_comes_after_them() -> None:
    for first in (("SEND", "destination:/topic/t", "transaction:x", "receipt:first"), ("ABORT", "transaction:x")):
        play, operation = _stalled()
        _wait(play, 0, 5)
        play.client(*first)
        play.client(*SEND)
        _wait(play, 10, 20)
        assert play.said() == []
        play.recover(operation)
        assert play.published() == ["amq.topic t "]


def test_a_broker_that_confirms_slowly_is_no_reason_to_refuse() -> None:
    play = Playbook(VirtualHost(name="/", hold_sends_for=5, confirm_window=ConfirmWindow(messages=2)))
    play.connect()
    play.client(*SEND)
    play.prepare()
    for number in range(1, 6):
        play.client(*SEND)
        assert Hold.CONFIRM_WINDOW in play.session.holds
        _wait(play, 4 * number)
        assert not play.session.refuses_sends
        play.confirm(number)
    assert not any("ERROR" in word for word in play.said())
    play.client(*SEND)
    _wait(play, 100, 106)
    play.client(*SEND)
    assert f"ERROR for r {REFUSED}" in play.said()


def test_a_session_that_waits_for_something_else_does_not_refuse() -> None:
    play, _ = _stalled()
    play.session.holds.add(Hold.RATE_LIMIT)
    play.client(*SEND)
    _wait(play, 0, 10, 20)
    assert (play.said(), play.session.refuses_sends) == ([], False)
