"""What the parts of a session share: its state, holds, output to the client, and pending operations.

Each part (``connect``, ``publish``, ``commit``, ``subscribe``, ``ride_through``, ``disconnect``) handles its own
commands and events. All of them answer frames, hold the client, ask for operations and fail through `SessionContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from hashlib import md5
from typing import Final, Literal

from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason, StompError
from gateway.message_selectors.selector import Selector
from gateway.pieces import Body
from gateway.session import error_frames, ops
from gateway.session.delivery_ledger import AckMode
from gateway.session.destination_rules import NO_DESTINATION_RULES
from gateway.session.destinations import subscription_queue_name
from gateway.session.observer import SessionObserver
from gateway.session.pending_operations import PendingOperations
from gateway.session.queues import DeclaredQueues, QueueRules, QueueSpec
from gateway.session.selective_subscription import Selection, SelectiveSubscription
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.traffic import SessionTraffic
from gateway.session.transactions import OpenTransactions
from gateway.stomp.frame import Frame, encode_receipt
from gateway.stomp.headers import trim_values

NO_SETTINGS: Final = VirtualHost(name="")
"""The settings before the login."""

# The reasons for which a refused SEND closes the session, unless ``on_send_error`` lets it continue.
_OF_A_SEND: Final = (CloseReason.BROKER_ERROR, CloseReason.DESTINATION_DENIED)

_NO_QUEUE_RULES: Final = QueueRules()


class State(Enum):
    """The state of a session. Only `SessionContext.move` changes it.

    ``COMMANDS`` in ``session.py`` maps state and command to a handler. A missing entry is a protocol error: "Illegal
    command" before CONNECT, and "Bad command" after it.
    """

    # Hashed for every frame, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    CONNECTING = "connecting"
    """The client has sent nothing yet, or its CONNECT was refused and it may try again."""
    AUTHENTICATING = "authenticating"
    """The broker checks the login."""
    CONNECTED = "connected"
    """The client has logged in."""
    DRAINING = "draining"
    """The client sent DISCONNECT, or the gateway stops. The session waits for confirms and still sends receipts."""
    CLOSED = "closed"
    """The last frame is in the output. All further input is dropped."""


READING: Final = frozenset((State.CONNECTING, State.CONNECTED))
"""The states in which frames are read. In the others they wait in the decoder, or are dropped."""

# The states that may follow each state.
MOVES: Final = {
    State.CONNECTING: frozenset((State.AUTHENTICATING, State.CLOSED)),
    State.AUTHENTICATING: frozenset((State.CONNECTING, State.CONNECTED, State.CLOSED)),
    State.CONNECTED: frozenset((State.DRAINING, State.CLOSED)),
    State.DRAINING: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset[State](),
}


class Hold(Enum):
    """Why a session does not read the client's frames, and which function says so."""

    # Hashed for every confirm, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    OPERATION = "operation"
    """The broker carries out an operation for a frame. Set by `SessionContext.ask`."""
    COMMIT = "commit"
    """A COMMIT waits for confirms. Set by `TransactionHandler.commit`."""
    CONFIRM_WINDOW = "confirm-window"
    """Too many messages or bytes are unconfirmed, or too many declarations of queues unanswered. Set by
    `Publisher._hold`."""
    LINK_WRITE = "link-write"
    """The broker reads the link more slowly than clients send. Set by `PublishingChannel.window_full`, and by its
    ``_follow`` if the link's write buffer is full."""
    LINK_LOST = "link-lost"
    """A link is lost, and the session is not restored yet. Set by `RideThrough._hold`."""
    QUEUE_AWAY = "queue-away"
    """The broker refuses messages because their queue is deleted or away, or it has closed the channel because of
    another message. The session waits for a new channel. Set by `RideThrough._hold`."""
    REPLAY = "replay"
    """Messages are being published again after a loss. Set by `Publisher.restored`."""
    BROKER_BLOCKED = "broker-blocked"
    """The broker has a memory or disk alarm, and the client has sent a message since it began, or waits for a channel.
    Set by `Publisher._hold` and `Publisher.set_blocked`."""
    RATE_LIMIT = "rate-limit"
    """The user, or the address, has sent more than its rate allows. Set by `RateLimiter.charge`."""
    CLIENT_WRITE = "client-write"
    """Too many bytes wait to be written to the client. Set by `ClientConnection._write_output`."""
    STOPPING = "stopping"
    """The gateway is stopping. No frame is read any more. Set by `DisconnectHandler.shut_down`."""


def _none_changed(_virtual_host: VirtualHost) -> bool:
    return False


class SessionContext:
    """The state that the parts of one session share: everything that more than one of them needs.

    Args:
        identity: see `Session`.
        strict: every ERROR closes the connection: the default virtual host's setting, until CONNECT names another.
    """

    __slots__ = (
        "_queues_named", "brokers_changed", "client_writable", "close_reason", "declared_queues", "destination_rules",
        "holds", "identity", "login", "observer", "on_send_error", "output", "pending", "queue_rules", "rides_through",
        "settings", "state", "strict", "subscriptions", "traffic", "transactions", "trims_values", "unlogged_errors",
        "version",
    )  # fmt: skip

    def __init__(self, identity: bytes, *, strict: bool) -> None:
        self.identity = identity
        self.state = State.CONNECTING
        self.holds: set[Hold] = set()
        self.output: list[Body] = []
        self.traffic = SessionTraffic()
        self.subscriptions = Subscriptions()
        self.transactions = OpenTransactions(NO_SETTINGS.transactions)
        self.declared_queues = DeclaredQueues()
        self.observer: SessionObserver | None = None
        self.close_reason: CloseReason | None = None
        # The ERRORs that the server has not taken for its log yet.
        self.unlogged_errors: list[StompError] = []
        # Set by CONNECT and its outcome.
        self.version = b"1.0"
        self.trims_values = False  # STOMP 1.0 ignores leading spaces in header values
        self.login: bytes | None = None
        self.settings = NO_SETTINGS
        # Whether the session outlives the loss of a link.
        self.rides_through = False
        self.strict = strict
        self.queue_rules = _NO_QUEUE_RULES
        self.destination_rules = NO_DESTINATION_RULES
        self.on_send_error: Literal["close", "keep", "log"] = "close"
        # False while the client reads more slowly than messages arrive. Set by the server.
        self.client_writable = True
        # Whether a broker was lost, or answered again, within ride_through, so that refusals may be temporary. Set by
        # the server.
        self.brokers_changed: Callable[[VirtualHost], bool] = _none_changed
        # Requests to the broker.
        self.pending = PendingOperations()
        self._queues_named = 0

    # Frames.

    def headers(self, frame: Frame) -> Mapping[bytes, bytes]:
        """A frame's headers. For STOMP 1.0 the values have no leading spaces."""
        return trim_values(frame.headers) if self.trims_values else frame.headers

    def receipt_of(self, frame: Frame | None) -> bytes | None:
        """A frame's receipt header, or None. For STOMP 1.0 it has no leading spaces."""
        receipt = None if frame is None else frame.receipt
        return receipt.lstrip(b" ") if receipt is not None and self.trims_values else receipt

    def send_receipt(self, frame: Frame | None) -> None:
        """Send the RECEIPT for a frame if it asks for one."""
        receipt = self.receipt_of(frame)
        if receipt is not None:
            self.output.append(encode_receipt(receipt))
            self.traffic.receipts_sent += 1

    def settle_if_writable(self) -> None:
        """Settle deliveries under ack:auto. Do not, if the client is slow: they will return to their queue."""
        if self.client_writable:
            self.subscriptions.settle_auto_acks()

    def end_settled(self) -> None:
        """Ask to close the channel of a subscription that has ended, if all its deliveries are settled by now."""
        if not self.pending.asked and (subscription := self.subscriptions.take_settled()) is not None:
            self.ask(ops.Unsubscribe(subscription, None), None)

    # Operations.

    @property
    def operation(self) -> ops.Operation | None:
        """The operation that the session waits for first."""
        return self.pending.operation

    def ask(self, operation: ops.Operation, frame: Frame | None, *, retry: bool = False) -> None:
        """Ask for an operation on behalf of a frame, and hold later frames, except SUBSCRIBEs that may run together.

        With ``retry``, the frame is carried out again after the operation.
        """
        self.pending.ask(operation, frame, retries=retry)
        self._hold_or_release()

    def postpone(self, frame: Frame) -> None:
        """Keep a frame, and hold later ones, until no operation is pending."""
        self.pending.postponed = frame
        self._hold_or_release()

    def take_frame(self) -> Frame | None:
        """Return the frame whose turn has come, once; None if there is none."""
        others = self.holds - {Hold.STOPPING}
        return None if others else self.pending.take_frame(stopping=Hold.STOPPING in self.holds)

    def _hold_or_release(self) -> None:
        if self.pending.holds_frames:
            self.holds.add(Hold.OPERATION)
        else:
            self.holds.discard(Hold.OPERATION)

    def new_subscription(
        self,
        tag: bytes,
        identifier: bytes | None,
        mode: AckMode,
        destination: bytes = b"",
        selector: Selector | None = None,
    ) -> Subscription:
        """Create a subscription, which has no consumer yet. For the queue of a reply-to, it has no destination."""
        subscription = (Subscription if selector is None else SelectiveSubscription)(
            tag,
            identifier,
            mode,
            self.identity,
            destination=destination,
            shows_ack=self.version == b"1.2",
            window=self.settings.auto_ack_window,
            base=self.subscriptions.base,
        )
        subscription.correlates = self.observer is not None and self.observer.stamp is not None
        if self.settings.topic_slashes == "dots_and_back":
            subscription.headers.shows_slashes = True
        if selector is not None and isinstance(subscription, SelectiveSubscription):
            subscription.selection = Selection(selector)
        return subscription

    def ask_to_subscribe(
        self, operation: ops.Subscribe, queue: QueueSpec | None, frame: Frame, *, retry: bool = False
    ) -> None:
        """Ask for a subscription, and tell the observer. ``queue``: see `SessionObserver.subscribing`."""
        if self.pending.must_wait(operation):
            self.postpone(frame)
            return
        if self.observer is not None:
            operation.subscription.set_counter(self.observer.subscribing(operation, queue))
        if queue is not None and operation.queue is None:
            # If the session declared the queue before, a recovery must declare it in the same way.
            queue = self.declared_queues.get(queue.name) or queue
        operation.subscription.request = operation if queue is operation.queue else replace(operation, queue=queue)
        self.ask(operation, frame, retry=retry)

    def ask_instead(self, operation: ops.Subscribe) -> None:
        """Ask for this operation in place of the SUBSCRIBE that the broker has refused, for the same frame."""
        operation.subscription.request = operation
        self.pending.ask_instead(operation)

    def operation_done(self, *, failed: bool = False) -> Frame | None:
        """End the first operation. Returns the frame that asked for it, or None if that is carried out again.

        If the operation has ``failed``, the frame is never carried out again.
        """
        frame = self.pending.done(failed=failed)
        self._hold_or_release()
        return frame

    def fresh_queue_name(self) -> bytes:
        """Return a new name for a queue of this session. It is unguessable because the session's identity is."""
        self._queues_named += 1
        seed = b"%b %d" % (self.identity, self._queues_named)
        return subscription_queue_name(md5(seed, usedforsecurity=False).digest())

    @property
    def confirms_always(self) -> bool:
        """Whether all messages are published with confirms, so that a recovery knows what to publish again."""
        return self.rides_through and self.settings.confirms == "always"

    # The end.

    def fail(self, error: StompError, receipt: bytes | None = None) -> None:
        """Send an ERROR, and close the session if the error or strict mode demands it."""
        if self.state is State.CLOSED:
            return
        if error.close is None and self.strict:
            error = error_frames.closed_for(error, CloseReason.PROTOCOL_ERROR)
        self.output.append(error_frames.encode_error(error, receipt))
        self.traffic.errors_sent += 1
        self.unlogged_errors.append(error)
        if error.close is not None:
            self.close(error.close)

    @property
    def keeps_after_send_error(self) -> bool:
        """Whether the session continues when the broker refuses one of its SENDs.

        Only sessions with confirms can: they know which other messages were on the channel that the broker closed.
        """
        return self.on_send_error != "close" and self.confirms_always and not self.strict

    def fail_send(self, error: StompError, receipt: bytes | None) -> None:
        """Answer a failed SEND, as the setting `on_send_error` says."""
        if self.keeps_after_send_error and error.close in _OF_A_SEND:
            reason, error = error.reason, StompError(error.message, error.body)
            error.reason = reason
        if self.on_send_error == "log" and receipt is None and error.close is None and not self.strict:
            error.is_sent = False
            self.unlogged_errors.append(error)
        else:
            self.fail(error, receipt)

    def close(self, reason: CloseReason) -> None:
        """Close the session, unless it is closed. Deliveries that still arrive are dropped."""
        if self.state is not State.CLOSED:
            self.close_reason = reason
            self.pending.clear()
            self.subscriptions.stop_deliveries()
            self.move(State.CLOSED)

    def move(self, state: State) -> None:
        """Change the state, along `MOVES`."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"no move from {self.state} to {state}")
        self.state = state
