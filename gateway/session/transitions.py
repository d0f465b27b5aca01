"""The state machine of a session, as one table.

Theory of operation. A session is in one of five states, and ``Session`` changes it in one place only.

* CONNECTING: the client has said nothing yet, or its CONNECT was refused; it may try again.
* AUTHENTICATING: the broker is being asked. No frame is looked at; they wait where they are.
* CONNECTED: the session proper.
* DRAINING: the client said DISCONNECT, or the gateway is stopping. Nothing more is read; confirms are waited for and
  receipts still go out.
* CLOSED: the last frame is on its way. Whatever comes is thrown away.

``HANDLERS`` maps a state and a command to the name of the ``Session`` method that carries it out. A cell that is
absent is a protocol error: before CONNECT every other command is "Illegal command", after it every unknown one is "Bad
command". In the three states in which nothing is read no command has a cell.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where a session is in its life."""

    # It is looked up for every message, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    DRAINING = "draining"
    CLOSED = "closed"


READING: Final = frozenset((State.CONNECTING, State.CONNECTED))
"""States in which frames are looked at."""

HANDLERS: Final = {
    (State.CONNECTING, b"CONNECT"): "_on_connect",
    (State.CONNECTING, b"STOMP"): "_on_connect",
    (State.CONNECTED, b"CONNECT"): "_on_second_connect",
    (State.CONNECTED, b"STOMP"): "_on_second_connect",
    (State.CONNECTED, b"SEND"): "_on_send",
    (State.CONNECTED, b"SUBSCRIBE"): "_on_subscribe",
    (State.CONNECTED, b"UNSUBSCRIBE"): "_on_unsubscribe",
    (State.CONNECTED, b"ACK"): "_on_ack",
    (State.CONNECTED, b"NACK"): "_on_nack",
    (State.CONNECTED, b"BEGIN"): "_on_begin",
    (State.CONNECTED, b"COMMIT"): "_on_commit",
    (State.CONNECTED, b"ABORT"): "_on_abort",
    (State.CONNECTED, b"TOKEN"): "_on_token",
    (State.CONNECTED, b"DISCONNECT"): "_on_disconnect",
}

# Where a session may go from each state. Everything may end.
MOVES: Final = {
    State.CONNECTING: frozenset((State.AUTHENTICATING, State.DRAINING, State.CLOSED)),
    State.AUTHENTICATING: frozenset((State.CONNECTING, State.CONNECTED, State.DRAINING, State.CLOSED)),
    State.CONNECTED: frozenset((State.DRAINING, State.CLOSED)),
    State.DRAINING: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset[State](),
}
