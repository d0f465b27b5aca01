"""State shared by the parts of a session: its state, holds, output to the client, and pending operation.

Each part of a session (``connect``, ``publish``, ``commit``, ``subscribe``, ``disconnect``) handles its own commands
and events. What all of them do goes through here: answer, hold later frames, ask the broker, fail.
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
from gateway.session.correlation import CorrelatedSubscription
from gateway.session.delivery_ledger import AckMode
from gateway.session.destination_rules import NO_DESTINATION_RULES
from gateway.session.destinations import subscription_queue_name
from gateway.session.observer import SessionObserver
from gateway.session.pending_operations import PendingOperations
from gateway.session.queues import DeclaredQueues, QueueRules, QueueSpec
from gateway.session.selective_subscription import (
    CorrelatedSelectiveSubscription,
    Selection,
    SelectiveSubscription,
)
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.traffic import SessionTraffic
from gateway.session.transactions import OpenTransactions
from gateway.stomp.frame import Frame, encode_receipt
from gateway.stomp.headers import trim_values

NO_SETTINGS: Final = VirtualHost(name="")
"""Stands in until the client has logged in to a virtual host."""

# Why a session closes because of a SEND that is refused, unless it goes on.
_OF_A_SEND: Final = (CloseReason.BROKER_ERROR, CloseReason.DESTINATION_DENIED)

_NO_QUEUE_RULES: Final = QueueRules()

# By whether messages tell when they were published, and whether there is a selector.
_SUBSCRIPTIONS: Final[Mapping[tuple[bool, bool], type[Subscription]]] = {
    (False, False): Subscription,
    (True, False): CorrelatedSubscription,
    (False, True): SelectiveSubscription,
    (True, True): CorrelatedSelectiveSubscription,
}


class State(Enum):
    """Where a session is in its life. Only `SessionContext.move` changes it.

    What a command does in a state is in the table ``COMMANDS`` of ``session.py``. A pair that is absent there is a
    protocol error: before CONNECT every other command is "Illegal command", after it every unknown one "Bad command".
    """

    # Looked up for every frame, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    CONNECTING = "connecting"
    """The client has sent nothing yet, or its CONNECT was refused and it may try again."""
    AUTHENTICATING = "authenticating"
    """The broker checks the login."""
    CONNECTED = "connected"
    """Every command has its handler."""
    DRAINING = "draining"
    """The client sent DISCONNECT, or the gateway stops. The session waits for confirms and still sends receipts."""
    CLOSED = "closed"
    """The last frame is written. All further input is discarded."""


READING: Final = frozenset((State.CONNECTING, State.CONNECTED))
"""The states in which frames are read. In the others they wait in the decoder, or are discarded."""

# From each state to the states that may follow. Every state may end in CLOSED.
MOVES: Final = {
    State.CONNECTING: frozenset((State.AUTHENTICATING, State.DRAINING, State.CLOSED)),
    State.AUTHENTICATING: frozenset((State.CONNECTING, State.CONNECTED, State.DRAINING, State.CLOSED)),
    State.CONNECTED: frozenset((State.DRAINING, State.CLOSED)),
    State.DRAINING: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset[State](),
}


class Hold(Enum):
    """Why a session does not read the client's frames."""

    # Looked up for every confirm, and the hash of Enum is written in Python.
    __hash__ = object.__hash__

    OPERATION = "operation"
    """The broker carries out an operation for a frame."""
    COMMIT = "commit"
    """A COMMIT waits for confirms."""
    CONFIRM_WINDOW = "confirm-window"
    """Too much is published and not confirmed."""
    LINK_WRITE = "link-write"
    """The broker does not take bytes as fast as clients send them."""
    LINK_LOST = "link-lost"
    """The connection to the broker is lost, and what went with it is not back yet."""
    QUEUE_AWAY = "queue-away"
    """The broker does not take what the client has sent: its queue is gone, or the node that has the queue is. Or it
    has closed the channel because of another message."""
    REPLAY = "replay"
    """Messages that were unconfirmed at a loss are published again."""
    BROKER_BLOCKED = "broker-blocked"
    """The broker has a memory or disk alarm, and the client has sent since."""
    RATE_LIMIT = "rate-limit"
    """The user, or the address, has sent more than its rate allows."""
    CLIENT_WRITE = "client-write"
    """Far too many bytes wait to be written to the client."""
    STOPPING = "stopping"
    """The gateway is stopping; the frame under way is the last one."""


def _is_settled(_virtual_host: VirtualHost) -> bool:
    return False


class SessionContext:
    """The state that the parts of one session share, for them to read.

    It has more attributes than other classes because everything that two parts need is here, and nowhere twice.
    ``strict``: every ERROR closes the connection. That is the default virtual host's setting until CONNECT names one.
    """

    __slots__ = (
        "_queues_named", "client_writable", "close_reason", "declared_queues", "destination_rules", "holds", "identity",
        "is_unsettled", "login", "observer", "on_send_error", "output", "pending", "queue_rules", "settings", "state",
        "strict",
        "subscriptions", "traffic", "transactions", "trims_values", "unlogged_errors", "version",
    )  # fmt: skip

    def __init__(self, identity: bytes, *, strict: bool) -> None:
        self.identity = identity
        self.state = State.CONNECTING
        self.holds: set[Hold] = set()
        self.output: list[Body] = []
        self.traffic = SessionTraffic()
        self.subscriptions = Subscriptions(self.output)
        self.transactions = OpenTransactions(NO_SETTINGS.transactions)
        self.declared_queues = DeclaredQueues()
        self.observer: SessionObserver | None = None
        self.close_reason: CloseReason | None = None
        # The ERRORs sent since the server last took them for its log.
        self.unlogged_errors: list[StompError] = []
        # Known from CONNECT, or from its outcome.
        self.version = b"1.0"
        self.trims_values = False  # STOMP 1.0 ignores leading spaces in header values
        self.login: bytes | None = None
        self.settings = NO_SETTINGS
        self.strict = strict
        self.queue_rules = _NO_QUEUE_RULES
        self.destination_rules = NO_DESTINATION_RULES
        self.on_send_error: Literal["close", "keep", "log"] = "close"
        # Whether the client takes messages about as fast as they come. Set by the server.
        self.client_writable = True
        # Whether brokers went or came in the last seconds, so that refusals may be temporary. Set by the server.
        self.is_unsettled: Callable[[VirtualHost], bool] = _is_settled
        # Requests to the broker.
        self.pending = PendingOperations()
        self._queues_named = 0

    # Frames.

    def headers(self, frame: Frame) -> Mapping[bytes, bytes]:
        """A frame's headers as the version reads them."""
        return trim_values(frame.headers) if self.trims_values else frame.headers

    def receipt_of(self, frame: Frame | None) -> bytes | None:
        """A frame's receipt header as the version reads it."""
        receipt = None if frame is None else frame.receipt
        return receipt.lstrip(b" ") if receipt is not None and self.trims_values else receipt

    def send_receipt(self, frame: Frame | None) -> None:
        """Answer a frame with RECEIPT if it asks for one."""
        receipt = self.receipt_of(frame)
        if receipt is not None:
            self.output.append(encode_receipt(receipt))
            self.traffic.receipts_sent += 1

    def settle_if_writable(self) -> None:
        """Settle deliveries under ack:auto, unless the client is slow: then they return to their queue."""
        if self.client_writable:
            self.subscriptions.settle_auto_acks()

    def end_settled(self) -> None:
        """End for good a subscription that the client has left, if all its deliveries are settled now."""
        if not self.pending.asked and (subscription := self.subscriptions.take_settled()) is not None:
            self.ask(ops.Unsubscribe(subscription, None), None)

    # Operations.

    @property
    def operation(self) -> ops.Operation | None:
        """The operation that the session waits for first."""
        return self.pending.operation

    def ask(self, operation: ops.Operation, frame: Frame | None, *, retry: bool = False) -> None:
        """Ask the broker for an operation, and hold later frames, except a SUBSCRIBE after others.

        With ``retry`` the frame is carried out again once the operation is done.
        """
        self.pending.ask(operation, frame, retries=retry)
        self._hold_or_release()

    def postpone(self, frame: Frame) -> None:
        """Carry out a frame, and later ones, once no operation is pending."""
        self.pending.postponed = frame
        self._hold_or_release()

    def take_frame(self) -> Frame | None:
        """The postponed frame whose turn has come, handed out once."""
        others = self.holds - {Hold.STOPPING}
        return None if others else self.pending.take_frame(stopping=Hold.STOPPING in self.holds)

    def _hold_or_release(self) -> None:
        if self.pending.takes_nothing:
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
        """A subscription without a consumer yet; without destination for the queue of a reply-to."""
        correlates = self.observer is not None and self.observer.stamp is not None
        subscription = _SUBSCRIPTIONS[correlates, selector is not None](
            tag,
            identifier,
            mode,
            self.identity,
            destination=destination,
            shows_ack=self.version == b"1.2",
            window=self.settings.auto_ack_window,
            base=self.subscriptions.base,
        )
        if self.settings.topic_slashes == "dots_and_back":
            subscription.show_slashes()
        if selector is not None and isinstance(subscription, SelectiveSubscription):
            subscription.selection = Selection(selector)
        return subscription

    def ask_to_subscribe(
        self, operation: ops.Subscribe, queue: QueueSpec | None, frame: Frame, *, retry: bool = False
    ) -> None:
        """Ask for a subscription whose messages the observer counts; ``queue`` as for `SessionObserver.subscribing`."""
        if self.pending.concerns(operation):
            self.postpone(frame)
            return
        if self.observer is not None:
            operation.subscription.set_counter(self.observer.subscribing(operation, queue))
        if queue is not None and operation.queue is None:
            # The session has declared it before. If the broker loses it, it must be declared as it was then.
            queue = self.declared_queues.get(queue.name) or queue
        operation.subscription.request = operation if queue is operation.queue else replace(operation, queue=queue)
        self.ask(operation, frame, retry=retry)

    def ask_instead(self, operation: ops.Subscribe) -> None:
        """Ask for another subscription in place of the one that the broker has refused, with the same frame."""
        operation.subscription.request = operation
        self.pending.ask_instead(operation)

    def operation_done(self) -> Frame | None:
        """End the operation. Returns the frame that requested it, or None if that is to be carried out again."""
        frame = self.pending.done()
        self._hold_or_release()
        return frame

    def operation_failed(self) -> Frame | None:
        """End a failed operation. Returns the frame that requested it, which is not carried out again."""
        frame = self.pending.done(failed=True)
        self._hold_or_release()
        return frame

    def fresh_queue_name(self) -> bytes:
        """A name for a queue that no other session reads; unguessable, because the session's identity is."""
        self._queues_named += 1
        seed = b"%b %d" % (self.identity, self._queues_named)
        return subscription_queue_name(md5(seed, usedforsecurity=False).digest())

    # The loss of a link.

    @property
    def confirms_always(self) -> bool:
        """Whether everything is published with confirms, so that it is known what to publish again after a loss."""
        return self.rides_through and self.settings.confirms == "always"

    @property
    def rides_through(self) -> bool:
        """Whether the session outlives the loss of a link."""
        return self.login is not None and self.settings.upstream.ride_through > 0

    # The end.

    def fail(self, error: StompError, receipt: bytes | None = None) -> None:
        """Send an ERROR, and close the session if the error demands it."""
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

        For that it must know what else it has published on the channel that the broker closes.
        """
        return self.on_send_error != "close" and self.confirms_always and not self.strict

    def fail_send(self, error: StompError, receipt: bytes | None) -> None:
        """Answer a SEND that goes wrong, as `on_send_error` wants it."""
        if self.keeps_after_send_error and error.close in _OF_A_SEND:
            reason, error = error.reason, StompError(error.message, error.body)
            error.reason = reason
        if self.on_send_error == "log" and receipt is None and error.close is None and not self.strict:
            error.is_sent = False
            self.unlogged_errors.append(error)
        else:
            self.fail(error, receipt)

    def close(self, reason: CloseReason) -> None:
        """Close the session, once. Deliveries that still arrive are thrown away."""
        if self.state is not State.CLOSED:
            self.close_reason = reason
            self.pending.clear()
            self.subscriptions.stop_deliveries()
            self.move(State.CLOSED)

    def move(self, state: State) -> None:
        """Change the state. Nothing else does."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"no move from {self.state} to {state}")
        self.state = state
