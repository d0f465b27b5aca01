"""The table of states and commands."""

import pytest

from gateway.session.context import MOVES, READING, State
from gateway.session.session import COMMANDS as TABLE
from gateway.stomp.frame import CLIENT_COMMANDS
from tests.support.playbook import Playbook

HANDLERS = {(state, command): handler for state, row in TABLE.items() for command, handler in row.items()}


@pytest.mark.parametrize("cell", HANDLERS, ids=lambda cell: f"{cell[0].value}-{cell[1].decode()}")
def test_a_cell_names_a_command_that_exists_in_a_state_that_reads_and_something_that_carries_it_out(
    cell: tuple[State, bytes],
) -> None:
    state, command = cell
    assert state in READING
    assert command in CLIENT_COMMANDS
    assert callable(HANDLERS[cell])


def test_every_command_means_something_once_the_client_is_connected() -> None:
    assert {command for state, command in HANDLERS if state is State.CONNECTED} == set(CLIENT_COMMANDS)


def test_before_login_only_logging_in_means_something() -> None:
    assert {command for state, command in HANDLERS if state is State.CONNECTING} == {b"CONNECT", b"STOMP"}


def test_every_state_may_end_and_the_end_is_the_end() -> None:
    assert set(MOVES) == set(State)
    assert all(State.CLOSED in MOVES[state] for state in State if state is not State.CLOSED)
    assert MOVES[State.CLOSED] == frozenset()


def test_there_is_no_way_back_from_connected_or_draining() -> None:
    assert State.CONNECTING not in MOVES[State.CONNECTED] | MOVES[State.DRAINING]
    assert State.CONNECTED not in MOVES[State.DRAINING]


@pytest.mark.parametrize("command", [b"MESSAGE", b"RECEIPT", b"ERROR", b"CONNECTED", b"send", b"SEND ", b"", b"\xff"])
def test_what_no_client_may_say_is_an_error_and_the_connection_stays_open(command: bytes) -> None:
    play = Playbook()
    play.data(command + b"\nreceipt:r1\n\n\0" if command else b"\n")
    if command:
        assert play.said() == ["ERROR for r1 Illegal command: You must log in using CONNECT first"]
    play.connect()
    play.data(command + b"\nreceipt:r2\n\n\0" if command else b"\n")
    if command:
        shown = command.decode("utf-8", "backslashreplace")
        assert play.said() == [f'ERROR for r2 Bad command: Could not interpret command "{shown}"']
    assert play.state() is State.CONNECTED
