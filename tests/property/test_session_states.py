"""The session's state table is total, and nothing that a client or a broker does makes a session raise."""

from collections.abc import Callable

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway.config.virtual_host import VirtualHost
from gateway.session import error_frames, ops
from gateway.session.context import MOVES, READING, Hold, State
from gateway.session.session import COMMANDS as TABLE
from gateway.stomp.frame import CLIENT_COMMANDS
from tests.property.session_frames import COMMANDS, frames
from tests.support.playbook import FRAME_MAX, PUBLISHING, Playbook, deliver

HANDLERS = {(state, command): handler for state, row in TABLE.items() for command, handler in row.items()}


def reach(state: State) -> Playbook:
    """A session in this state, with something to lose."""
    play = Playbook()
    if state is State.CONNECTING:
        return play
    if state is State.AUTHENTICATING:
        play.client("CONNECT", "accept-version:1.2")
        assert play.asked() is not None
        return play
    play.connect()
    deliver(play.subscribe("1", "/queue/q", "ack:client"), 1)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/t", "receipt:owed")
    play.prepare()
    if state is State.DRAINING:
        play.client("DISCONNECT", "receipt:bye")
    elif state is State.CLOSED:
        play.session.client_gone()
    play.said()
    play.published()
    return play


@pytest.mark.parametrize("state", State, ids=lambda state: state.value)
@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_every_cell_without_a_handler_is_the_protocols_error_or_nothing(state: State, command: bytes) -> None:
    if (state, command) in HANDLERS:
        return
    play = reach(state)
    assert play.state() is state
    play.data(command + b"\nreceipt:r1\n\n\0")
    shown = command.decode("utf-8", "backslashreplace")
    expected = {
        State.CONNECTING: ["ERROR for r1 Illegal command: You must log in using CONNECT first"],
        State.CONNECTED: [f'ERROR for r1 Bad command: Could not interpret command "{shown}"'],
    }
    assert play.said() == expected.get(state, [])
    assert play.state() is state
    assert play.asked() is None


@pytest.mark.parametrize("cell", HANDLERS, ids=lambda cell: f"{cell[0].value}-{cell[1].decode()}")
@given(data=st.data())
def test_every_cell_with_a_handler_leads_to_a_legal_state(cell: tuple[State, bytes], data: st.DataObject) -> None:
    state, command = cell
    play = reach(state)
    play.data(data.draw(frames(command)))
    play.said()
    assert play.state() is state or play.state() in MOVES[state]


@given(st.sampled_from(sorted(set(State) - READING, key=str)), frames())
def test_what_arrives_in_a_state_that_does_not_read_changes_nothing(state: State, frame: bytes) -> None:
    play = reach(state)
    play.data(frame)
    assert (play.state(), play.said(), play.asked(), play.published()) == (state, [], None, [])


# Whole lives.


def _answers(operation: ops.Operation) -> list[ops.Event]:
    """What the broker may answer, the good answer first."""
    if isinstance(operation, ops.Recover):
        publisher = ops.PublisherPrepared(PUBLISHING, FRAME_MAX, confirms=True) if operation.publishing else None
        back = tuple(ops.Subscribed(each.subscription, each.queue_name or "q") for each in operation.subscriptions)
        return [ops.Recovered(back, publisher), ops.RecoveryFailed(403, "ACCESS_REFUSED - no"), ops.RecoveryFailed()]
    return _answers_to_client(operation)


def _answers_to_client(operation: ops.Operation) -> list[ops.Event]:
    refusal = ops.OperationFailed(403, "ACCESS_REFUSED - no")
    lost = ops.OperationInterrupted(320, "CONNECTION_FORCED - gone")
    if isinstance(operation, ops.Login):
        failures: list[ops.Event] = [
            ops.LoginFailed(403, "no"),
            ops.LoginFailed(530, "no"),
            ops.LoginNotTried(error_frames.too_many_sessions("The user 'a'", 1)),
            ops.LoginNotTried(error_frames.broker_unreachable(), is_logged=False),
        ]
        return [ops.LoggedIn(renews_tokens=True), *failures]
    if isinstance(operation, ops.RenewToken):
        return [ops.TokenRenewed(), ops.TokenRefused("no"), lost]
    if isinstance(operation, ops.PreparePublisher):
        return [ops.PublisherPrepared(PUBLISHING, FRAME_MAX, operation.confirms), refusal, lost]
    if isinstance(operation, ops.Subscribe):
        return [ops.Subscribed(operation.subscription, operation.queue_name or "amq.gen-1"), refusal, lost]
    if isinstance(operation, ops.Unsubscribe):
        return [ops.Unsubscribed(), refusal, lost]
    return [ops.UpstreamClosed(), refusal, lost]


Step = Callable[[Playbook, list[ops.Subscribe]], None]


def _client(frame: bytes) -> Step:
    return lambda play, _: play.data(frame)


def _answer(choice: int) -> Step:
    def step(play: Playbook, subscribed: list[ops.Subscribe]) -> None:
        operation = play.asked()
        if operation is not None:
            possible = _answers(operation)
            if isinstance(operation, ops.Subscribe):
                subscribed.append(operation)
            # Mostly the good one, or no life would be long.
            play.broker(possible[choice if choice < len(possible) else 0])

    return step


def _delivery(choice: int, tag: int) -> Step:
    def step(_: Playbook, subscribed: list[ops.Subscribe]) -> None:
        if subscribed:
            subscription = subscribed[choice % len(subscribed)].subscription
            deliver(subscription, tag)

    return step


def _cancel(choice: int) -> Step:
    def step(play: Playbook, subscribed: list[ops.Subscribe]) -> None:
        if subscribed:
            play.broker(ops.ConsumerCancelled(subscribed[choice % len(subscribed)].subscription))

    return step


def _set_hold(on: bool) -> Step:
    def step(play: Playbook, _: list[ops.Subscribe]) -> None:
        (play.session.holds.add if on else play.session.holds.discard)(Hold.LINK_WRITE)
        play.session.publisher.set_blocked(on)
        play.go_on()

    return step


_numbers = st.integers(0, 9)
_receipts = st.sampled_from([None, "r1", "r2"])
_often = frames().map(_client) | st.integers(0, 30).map(_answer)
_sometimes = (
    st.tuples(_numbers, st.integers(1, 5)).map(lambda given: _delivery(*given))
    | st.tuples(_numbers, st.booleans(), st.booleans()).map(
        lambda given: lambda play, _: play.confirm(given[0], multiple=given[1], accepted=given[2])
    )
    | st.tuples(st.sampled_from(["", "amq.topic", "e"]), st.sampled_from(["q", "a.*", "k"]), _receipts).map(
        lambda given: lambda play, _: play.return_message(given[0], given[1], receipt=given[2])
    )
    | _numbers.map(_cancel)
    | st.booleans().map(_set_hold)
    | st.sampled_from([1.0, 500.0, 5000.0]).map(lambda now: lambda play, _: play.session.time_passed(now))
    | st.just(lambda play, _: play.session.subscriptions.settle_auto_acks())
)
_rarely = (
    st.booleans().map(
        lambda publishing: (
            lambda play, _: play.broker(ops.ChannelClosed(404, "NOT_FOUND - no exchange 'e'", publishing))
        )
    )
    | st.booleans().map(
        lambda publishing: (
            lambda play, _: play.broker(
                ops.LinkLost(541, "INTERNAL_ERROR", tuple(play.session.subscriptions.all), publishing)
            )
        )
    )
    | st.just(lambda play, _: play.session.shut_down())
    | st.just(lambda play, _: play.session.client_gone())
    | st.just(lambda play, _: play.data(b"no colon\nhere\n\n\0"))
)
_lives = st.tuples(
    st.booleans(),
    st.lists(st.one_of(_often, _often, _often, _sometimes), max_size=40),
    st.lists(_rarely | _often, max_size=4),
)


@given(_lives)
def test_a_session_never_raises_and_only_moves_as_it_may(life: tuple[bool, list[Step], list[Step]]) -> None:
    connected, steps, end = life
    play = Playbook(VirtualHost(name="/", token_renewal=True))
    if connected:
        play.connect()
    subscribed: list[ops.Subscribe] = []
    for step in [*steps, *end]:
        before = play.state()
        step(play, subscribed)
        assert play.state() is before or _is_reachable(before, play.state()), (before, play.state())
        assert play.session.wants_read == (play.state() in READING and not play.session.holds)
        came = [*play.said(), *play.published(), *play.settled()]
        assert not came or before is not State.CLOSED, "after the end nothing may come"
    event(f"ends {play.state().value}")
    assert (play.session.close_reason is not None) == (play.state() is State.CLOSED)


def _is_reachable(start: State, end: State) -> bool:
    """One call may move more than once."""
    return end in MOVES[start] or any(_is_reachable(each, end) for each in MOVES[start] if each is not State.CONNECTING)


def test_the_vocabulary_covers_all_commands() -> None:
    assert set(CLIENT_COMMANDS) <= set(COMMANDS)
