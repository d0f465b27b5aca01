"""The states of a session, and the ways between them.

Theory of operation. A session is in one of five states, and only `SessionContext.move` changes it.

* CONNECTING: the client has sent nothing yet, or its CONNECT was refused and it may try again.
* AUTHENTICATING: the broker checks the login. Frames wait in the decoder.
* CONNECTED: every command has its handler.
* DRAINING: the client sent DISCONNECT, or the gateway stops. No frame is read any more; the session waits for confirms
  and still sends receipts.
* CLOSED: the last frame is written. All further input is discarded.

What a command does in a state is in the table of ``session.py``. A cell that is absent there is a protocol error:
before CONNECT every other command is "Illegal command", after it every unknown one is "Bad command". In the three
states in which no frame is read, no command has a cell.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where a session is in its life."""

    # Looked up for every frame, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    DRAINING = "draining"
    CLOSED = "closed"


READING: Final = frozenset((State.CONNECTING, State.CONNECTED))
"""The states in which frames are read."""

# From each state to the states that may follow. Every state may end in CLOSED.
MOVES: Final = {
    State.CONNECTING: frozenset((State.AUTHENTICATING, State.DRAINING, State.CLOSED)),
    State.AUTHENTICATING: frozenset((State.CONNECTING, State.CONNECTED, State.DRAINING, State.CLOSED)),
    State.CONNECTED: frozenset((State.DRAINING, State.CLOSED)),
    State.DRAINING: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset[State](),
}
