"""What the parts of a session share: its state, what it says to the client, and the operation under way.

Each part (``login``, ``sender``, ``session`` itself) handles its own frames and events, and does through here what all
of them do: answer, hold the frames behind, ask the broker for something, fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from gateway.errors import CloseReason, StompError
from gateway.session import error_frames, ops
from gateway.session.connecting import trim
from gateway.session.observer import SessionObserver
from gateway.session.queues import QueueSpec
from gateway.session.settings import Settings
from gateway.session.subscription import AckMode, Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.traffic import COMMANDS, OTHER, TrafficByDestination
from gateway.session.transitions import MOVES, State
from gateway.stomp.encoder import encode_receipt
from gateway.stomp.frame import Frame

# Until a client has logged in there is no virtual host, and nothing that would look at its settings.
NO_SETTINGS: Final = Settings("")

NO_TURN_LIMIT: Final = 1 << 62
"""As many frames at one go as there are."""


class Hold(Enum):
    """Why a session does not read."""

    # It is looked up for every confirm, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    OPERATION = "operation"
    """The broker is carrying out what the frame in front needs."""
    COMMIT = "commit"
    """A COMMIT waits for confirms."""
    CONFIRM_WINDOW = "confirm-window"
    """As much as may be is published and not confirmed."""
    LINK_WRITE = "link-write"
    """The broker does not take bytes as fast as clients send them."""
    BROKER_BLOCKED = "broker-blocked"
    """The broker has a memory or disk alarm, and the client has sent since."""
    RATE_LIMIT = "rate-limit"
    """The user, or the address, sends more than it may, and is in debt."""
    CLIENT_WRITE = "client-write"
    """Far too much waits to be written to the client."""
    STOPPING = "stopping"
    """The gateway is stopping; the frame under way is the last one."""


class SessionContext:
    """The common ground of a session's parts.

    Args:
        identity: value of the session header, unguessable.
        strict: whether every ERROR closes before the client has named a virtual host.
    """

    def __init__(self, identity: bytes, *, strict: bool) -> None:
        self.identity = identity
        self.state = State.CONNECTING
        self.holds: set[Hold] = set()
        self.output: list[bytes] = []
        # What went wrong since the owner last looked, for its log.
        self.complaints: list[StompError] = []
        self.close_reason: CloseReason | None = None
        self.version = b"1.0"
        self.login: bytes | None = None
        self.settings = NO_SETTINGS
        self.strict = strict
        # Who looks on, from the login on; ``observe`` is the owner's, and finds one.
        self.observer: SessionObserver | None = None
        self.observe: Callable[[], SessionObserver | None] = lambda: None
        # What there was to count: frames in all and, but for SEND, by command; messages sent and the broker's answers.
        self.frames_received = 0
        # Frames that are carried out at one go, so that the owner can do something else in between; and whether there
        # were so many in the last one, so that there may be more.
        self.max_frames_per_turn = NO_TURN_LIMIT
        self.reached_turn_limit = False
        self.commands: dict[bytes, int] = {}
        self.receipts_sent = 0
        self.errors_sent = 0
        self.sends = TrafficByDestination()
        self.confirmed = self.rejected = self.returned = 0
        # STOMP 1.0 means header values without their leading spaces.
        self.trims = False
        self.subscriptions = Subscriptions(identity, self.output)
        self.operation: ops.Operation | None = None
        self._taken: ops.Operation | None = None
        # Whether the client takes its messages about as fast as they come; the owner knows.
        self.client_writable = True
        # The frame whose operation is under way, and whether it is to be looked at again once that is done.
        self.waiting: Frame | None = None
        self.again = False

    # Frames.

    def headers(self, frame: Frame) -> Mapping[bytes, bytes]:
        """A frame's headers as the version means them."""
        return trim(frame.headers) if self.trims else frame.headers

    def receipt_of(self, frame: Frame) -> bytes | None:
        """A frame's receipt header as the version means it."""
        receipt = frame.receipt
        return receipt.lstrip(b" ") if receipt is not None and self.trims else receipt

    def note_command(self, command: bytes) -> None:
        """Count a frame of the client by its command, unless it is a SEND: those are all the others."""
        name = command if command in COMMANDS else OTHER
        self.commands[name] = self.commands.get(name, 0) + 1

    def send_receipt(self, frame: Frame) -> None:
        """Answer a frame that asks for it."""
        receipt = self.receipt_of(frame)
        if receipt is not None:
            self.output.append(encode_receipt(receipt))
            self.receipts_sent += 1

    def new_subscription(self, tag: bytes, identifier: bytes | None, mode: AckMode) -> Subscription:
        """A subscription of this session, not yet known to anybody.

        Args:
            tag: its identity in the session.
            identifier: the client's own; None where it gave none.
            mode: how its messages are acknowledged.
        """
        window = self.settings.auto_ack_window
        return Subscription(
            tag,
            identifier,
            mode,
            self.identity,
            shows_ack=self.version == b"1.2",
            window=window,
            base=self.subscriptions.base,
        )

    def used(self, feature: str) -> None:
        """Let the witness know of a feature in use.

        Args:
            feature: its name in the journal.
        """
        if self.observer is not None:
            self.observer.used(feature)

    def observed(self, operation: ops.Subscribe, queue: QueueSpec | None) -> ops.Subscribe:
        """The same operation, the messages of whose subscription are counted; ``queue`` as for `SessionObserver`."""
        if self.observer is not None:
            operation.subscription.counter = self.observer.subscribing(operation, queue)
        return operation

    def settle_taken(self) -> None:
        """Settle what ack:auto delivered, unless the client is behind: then it goes back to its queue."""
        if self.client_writable:
            self.subscriptions.settle_auto()

    # Operations.

    def ask(self, operation: ops.Operation, frame: Frame | None, *, again: bool = False) -> None:
        """Ask the owner for an operation; the frame waits, and is looked at again afterwards if it says so."""
        self.operation = operation
        self.waiting = frame
        self.again = again
        self.holds.add(Hold.OPERATION)

    def answered(self) -> Frame | None:
        """The operation is done. The frame that waited for it, unless ``run`` will look at it again."""
        self.operation = None
        self.holds.discard(Hold.OPERATION)
        if self.again:
            return None
        frame, self.waiting = self.waiting, None
        return frame

    def take_operation(self) -> ops.Operation | None:
        """The operation to carry out, handed out once."""
        operation = self.operation
        if operation is None or operation is self._taken:
            return None
        self._taken = operation
        return operation

    # The end.

    def fail(self, error: StompError, receipt: bytes | None) -> None:
        """Tell the client what is wrong, and end if the error says so.

        Args:
            error: what is wrong.
            receipt: of the frame that caused it.
        """
        if self.state is State.CLOSED:
            return
        if error.close is None and self.strict:
            error = error_frames.closed_for(error, CloseReason.PROTOCOL_ERROR)
        self.output.append(error_frames.encode_error(error, receipt))
        self.errors_sent += 1
        self.complaints.append(error)
        if error.close is not None:
            self.end(error.close)

    def end(self, reason: CloseReason) -> None:
        """End once: nothing more is said, and what is delivered from now on reaches nobody."""
        if self.state is not State.CLOSED:
            self.close_reason = reason
            self.waiting = None
            self.again = False
            self.subscriptions.silence()
            self.move(State.CLOSED)

    def move(self, state: State) -> None:
        """The one place where the state changes."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"no way from {self.state} to {state}")
        self.state = state
