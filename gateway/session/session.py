"""One STOMP session: frames, deliveries and events in; octets for client and broker, and operations, out.

The owner (``gateway.server``) feeds it and carries out what it asks:

* in: ``run`` with the decoder that holds the client's octets; ``confirm`` and ``Subscription.deliver`` from the broker;
  ``handle`` for events; ``set_blocked``; ``time_passed``;
* out: ``output`` for the client, ``publisher.output`` and ``subscriptions.take_settling`` for the broker, and
  ``take_operation``; all collected per batch and never waiting for anything;
* questions: ``state``, ``wants_read``, ``holds``, ``close_reason``.

Frames take effect in order. A frame that needs something from the broker first (a channel, a queue) asks for one
operation and is looked at again afterwards; the frames behind it wait in the decoder, because the session is *held*. A
hold is a named reason not to read, so a stalled client can be explained by looking at ``holds``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import md5
from typing import Final

from gateway.errors import CloseReason, CodecError, FrameError, StompError
from gateway.session import ops, refusals
from gateway.session.connecting import Connect, read_connect, trim
from gateway.session.destinations import subscription_queue_name
from gateway.session.publisher import Commit, Publisher
from gateway.session.queues import QueueRules, QueueSpec
from gateway.session.sending import SendPlan
from gateway.session.settings import Resolve, Settings
from gateway.session.subscribing import queue_to_delete, read_subscribe, read_unsubscribe
from gateway.session.subscription import AckMode, Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.transactions import Settlement, Transaction, Transactions
from gateway.session.transitions import HANDLERS, MOVES, READING, State
from gateway.stomp.decoder import Decoder, Limits
from gateway.stomp.encoder import encode, encode_receipt
from gateway.stomp.frame import Frame
from gateway.stomp.headers import read_boolean
from gateway.stomp.heartbeat import Heartbeats

# Until a client has logged in there is no virtual host, and nothing that would look at its settings.
_NO_SETTINGS: Final = Settings("")

_TOPIC: Final = b"/topic/"


class Hold(Enum):
    """Why a session does not read."""

    OPERATION = "operation"
    """The broker is carrying out what the frame in front needs."""
    COMMIT = "commit"
    """A COMMIT waits for confirms."""
    CONFIRM_WINDOW = "confirm-window"
    """As much as may be is published and not confirmed."""
    LINK_WRITE = "link-write"
    """The broker does not take octets as fast as clients send them."""
    BROKER_BLOCKED = "broker-blocked"
    """The broker has a memory or disk alarm, and the client has sent since."""
    CLIENT_WRITE = "client-write"
    """Far too much waits to be written to the client."""
    STOPPING = "stopping"
    """The gateway is stopping; the frame under way is the last one."""


class Session:
    """One STOMP conversation.

    Args:
        identity: value of the session header, unguessable.
        server: value of the server header.
        resolve: finds the settings of a virtual host.
        limits: of the decoder; widened once the client has logged in.
        now: seconds on the clock of ``time_passed``.
    """

    def __init__(self, identity: bytes, server: bytes, resolve: Resolve, limits: Limits, now: float = 0.0) -> None:
        self.identity = identity
        self.state = State.CONNECTING
        self.holds: set[Hold] = set()
        self.output: list[bytes] = []
        self.version = b"1.0"
        self.login: bytes | None = None
        self.settings = _NO_SETTINGS
        self.heartbeats = Heartbeats()
        # About the client, known to the owner: whether it connects from this machine, the name in its certificate where
        # that may stand in for a login, and whether its listener lets it leave out CONNECT.
        self.is_local = True
        self.certificate_name: str | None = None
        self.implicit_connect = False
        self.close_reason: CloseReason | None = None
        # Whether the client takes its messages about as fast as they come; the owner knows.
        self.client_writable = True
        # What went wrong since the owner last looked, for its log.
        self.complaints: list[StompError] = []
        self.publisher = Publisher(_NO_SETTINGS)
        self.subscriptions = Subscriptions(identity, self.output)
        self._server = server
        self._resolve = resolve
        self._limits = limits
        self._now = now
        self._connect: Connect | None = None
        self._rules = QueueRules()
        self._trims = False
        self._blocked = False
        self._operation: ops.Operation | None = None
        self._taken: ops.Operation | None = None
        # The frame whose operation is under way, and whether it is to be looked at again once that is done.
        self._waiting: Frame | None = None
        self._again = False
        self._commit: tuple[Commit, Transaction, Frame] | None = None
        self._farewell: Callable[[], None] | None = None
        self._stopping: Callable[[], None] | None = None
        self._declared: set[str] = set()
        self._queues_named = 0
        self._transactions = Transactions(_NO_SETTINGS.transactions)

    @property
    def wants_read(self) -> bool:
        """Whether frames of the client would be looked at now."""
        return not self.holds and self.state in READING

    # Frames from the client.

    def run(self, decoder: Decoder) -> None:
        """Carry out the client's frames until the decoder has no more, or the session is held.

        HOT: the loop of every message to the broker.

        Args:
            decoder: holds what the client sent.
        """
        holds = self.holds
        if self._again and not holds - {Hold.STOPPING}:
            self._again = False
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._carry_out(waiting)
            self._drain_when_idle()
        try:
            while not holds and self.state in READING:
                frame = decoder.next_frame()
                if frame is None:
                    return
                self._carry_out(frame)
        except FrameError as error:
            self.malformed(error)

    def malformed(self, error: FrameError) -> None:
        """Tell the client what is wrong with its octets, and end."""
        self._fail(refusals.malformed(str(error)), None)

    def _carry_out(self, frame: Frame) -> None:
        command = frame.head.command
        try:
            if command == b"SEND" and self.state is State.CONNECTED:
                self._on_send(frame)
                return
            name = HANDLERS.get((self.state, command))
            if name is not None:
                handler: Callable[[Frame], None] = getattr(self, name)
                handler(frame)
            elif self.state is State.CONNECTING:
                self._connect_implicitly(frame)
            else:
                raise refusals.bad_command(command)
        except StompError as error:
            self._fail(error, self._receipt_of(frame))
        except CodecError as error:
            self._fail(refusals.not_for_amqp(str(error)), self._receipt_of(frame))

    def _headers(self, frame: Frame) -> Mapping[bytes, bytes]:
        return trim(frame.headers) if self._trims else frame.headers

    def _receipt_of(self, frame: Frame) -> bytes | None:
        receipt = frame.receipt
        return receipt.lstrip(b" ") if receipt is not None and self._trims else receipt

    def _send_receipt(self, frame: Frame) -> None:
        receipt = self._receipt_of(frame)
        if receipt is not None:
            self.output.append(encode_receipt(receipt))

    # CONNECT.

    def _on_connect(self, frame: Frame) -> None:
        self._log_in(read_connect(frame.headers, self._resolve, self.certificate_name), frame)

    def _connect_implicitly(self, frame: Frame) -> None:
        """A frame that should have come after CONNECT. Where the listener allows it, it is carried out all the same."""
        if not self.implicit_connect:
            raise refusals.not_connected()
        try:
            connect = read_connect({}, self._resolve, self.certificate_name, implicit=True)
        except StompError as error:
            raise refusals.closed_for(error, CloseReason.BROKER_ERROR) from None
        self._log_in(connect, frame)

    def _log_in(self, connect: Connect, frame: Frame) -> None:
        self._connect = connect
        self._ask(connect.login, frame, again=connect.implicit)
        self._move(State.AUTHENTICATING)

    def _on_second_connect(self, frame: Frame) -> None:
        raise refusals.already_connected()

    def _on_logged_in(self, event: ops.LoggedIn) -> None:
        connect = self._connect
        if connect is None or self.state is not State.AUTHENTICATING:
            self._answered()
            return
        try:
            heartbeats = connect.accept(is_local=self.is_local)
        except StompError as error:
            self._refuse_login(error)
            return
        self._connect = None
        self._answered()
        self.version = connect.version
        self._trims = connect.version == b"1.0"
        self.login = connect.login.login
        self.heartbeats = heartbeats
        self.settings = settings = connect.login.settings
        self.publisher = Publisher(settings)
        self._transactions = Transactions(settings.transactions)
        self._limits.frame = settings.max_frame_size
        self._rules = QueueRules.of(event.broker_version, settings.exclusive_queues)
        self._move(State.CONNECTED)
        if connect.implicit:
            return
        headers = [(b"session", self.identity), (b"heart-beat", heartbeats.header), (b"version", connect.version)]
        if not settings.hide_server_info:
            headers.insert(0, (b"server", self._server))
        self.output.append(encode(b"CONNECTED", headers))

    def _on_login_failed(self, event: ops.LoginFailed) -> None:
        connect = self._connect
        if connect is None:
            self._answered()
            return
        login = connect.login
        self._refuse_login(refusals.login_failed(event.code, event.text, login.login, login.settings))

    def _on_broker_unreachable(self, event: ops.BrokerUnreachable) -> None:
        self._refuse_login(refusals.broker_unreachable())

    def _refuse_login(self, error: StompError) -> None:
        """The client may send another CONNECT; one that sent none at all has no business here."""
        connect, frame = self._connect, self._waiting
        self._again = False
        self._answered()
        if self.state is not State.AUTHENTICATING:
            return
        self._move(State.CONNECTING)
        if connect is not None and connect.implicit:
            error = refusals.closed_for(error, CloseReason.BROKER_ERROR)
        self._fail(error, frame.receipt if frame else None)
        self._connect = None

    # SEND.

    def _on_send(self, frame: Frame) -> None:
        """Publish, at once if everything is there.

        HOT: a look at the head's plan, an encode, an entry in the account of confirms.
        """
        plan = frame.head.plan
        if not isinstance(plan, SendPlan):
            headers = self._headers(frame)
            exchange = self.settings.default_topic_exchange
            plan = SendPlan(headers, frame.head.volatile, exchange, trims=self._trims, rules=self._rules)
            frame.head.plan = plan
        receipt = frame.receipt
        publisher = self.publisher
        publication = plan.publication
        if publication is None or not plan.is_plain or (receipt is not None and not publisher.confirms):
            self._send_slowly(frame, plan)
            return
        if receipt is not None and self._trims:
            receipt = receipt.lstrip(b" ")
        publisher.publish(publication, frame.body, plan.values(receipt, frame), receipt, plan)
        if self._blocked or publisher.is_full:
            self._hold_sender()

    def _send_slowly(self, frame: Frame, plan: SendPlan) -> None:
        """The slow twin of ``_on_send``: whatever is missing is asked for first, and a transaction keeps the frame."""
        if plan.transaction is not None:
            self._transactions.peek(plan.transaction)
        if not self._is_prepared(frame, plan):
            return
        if plan.transaction is not None:
            plan.check(self._receipt_of(frame), frame)
            self._transactions.join(plan.transaction, _octets(frame)).sends.append(frame)
            return
        self._publish(frame, plan)
        if self._blocked or self.publisher.is_full:
            self._hold_sender()

    def _is_prepared(self, frame: Frame, plan: SendPlan) -> bool:
        """Whether everything a SEND needs is there; if not, the next thing has been asked for."""
        publisher = self.publisher
        if plan.temp_queue is not None and plan.temp_queue not in self.subscriptions.temp_queues:
            self._ask(self._temp_queue_wanted(plan.temp_queue), frame, again=True)
            return False
        queue = plan.queue if plan.queue is not None and plan.queue.name not in self._declared else None
        confirms = publisher.confirms or (frame.receipt is not None and plan.transaction is None)
        if not publisher.channel or queue is not None or confirms is not publisher.confirms:
            self._ask(ops.PreparePublisher(confirms, queue), frame, again=True)
            return False
        reply_queue = self.subscriptions.temp_queues.get(plan.temp_queue or b"")
        if plan.publication is None or plan.reply_queue != reply_queue:
            plan.build(publisher, reply_queue)
        return True

    def _publish(self, frame: Frame, plan: SendPlan, commit: Commit | None = None) -> None:
        """Publish a frame that ``_is_prepared``."""
        if plan.publication is not None:
            receipt = self._receipt_of(frame)
            self.publisher.publish(plan.publication, frame.body, plan.values(receipt, frame), receipt, plan, commit)

    def _on_publisher_prepared(self, event: ops.PublisherPrepared) -> None:
        operation = self._operation
        self.publisher.open(event.channel, event.frame_max, confirms=event.confirms)
        if isinstance(operation, ops.PreparePublisher) and operation.queue is not None:
            self._declared.add(operation.queue.name)
        self._answered()

    def _hold_sender(self) -> None:
        if self.publisher.is_full and self.publisher.unconfirmed:
            self.holds.add(Hold.CONFIRM_WINDOW)
        if self._blocked:
            self.holds.add(Hold.BROKER_BLOCKED)

    def set_blocked(self, blocked: bool) -> None:
        """Take note of an alarm on the broker: the next SEND is the last one until it is over."""
        self._blocked = blocked
        if not blocked:
            self.holds.discard(Hold.BROKER_BLOCKED)

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack or basic.nack of published messages.

        HOT: a receipt or nothing per message.

        Args:
            sequence: publish sequence number.
            multiple: whether all before it are meant too.
            accepted: ack or nack.
        """
        if self.state is State.CLOSED:
            return
        output = self.output
        for receipt, route, _, commit in self.publisher.confirm(sequence, multiple=multiple):
            if commit is not None:
                commit.waiting -= 1
                commit.rejected = commit.rejected or not accepted
            if not accepted:
                self._fail(refusals.rejected(route.destination), receipt)
            elif receipt is not None:
                output.append(encode_receipt(receipt))
        if Hold.CONFIRM_WINDOW in self.holds and self.publisher.has_room:
            self.holds.discard(Hold.CONFIRM_WINDOW)
        if self._commit is not None and self._commit[0].waiting == 0:
            self._finish_commit()
            self._drain_when_idle()
        if self._farewell is not None:
            self._close_upstream_when_quiet()

    # SUBSCRIBE and UNSUBSCRIBE.

    def _on_subscribe(self, frame: Frame) -> None:
        request = read_subscribe(self._headers(frame), self._fresh_queue_name(), self.settings, self._rules)
        if request.tag in self.subscriptions:
            raise refusals.duplicate_subscription(request.tag)
        subscription = self._subscription(request.tag, request.identifier, request.mode)
        subscription.destination = request.text
        # A queue is declared once per session, by whichever frame touches it first; one of a topic every time.
        known = request.binding is None and request.queue_name in self._declared
        prefetch = self.settings.auto_ack_window if request.mode is AckMode.AUTO else request.prefetch
        queue = None if known else request.queue
        operation = ops.Subscribe(subscription, queue, request.queue_name, request.binding, prefetch, request.arguments)
        self._ask(operation, frame)

    def _subscription(self, tag: bytes, identifier: bytes | None, mode: AckMode) -> Subscription:
        window = self.settings.auto_ack_window
        return Subscription(tag, identifier, mode, self.identity, shows_ack=self.version == b"1.2", window=window)

    def _temp_queue_wanted(self, identifier: bytes) -> ops.Subscribe:
        """A queue that the broker names and this session alone reads: ``/temp-queue/<id>`` in a reply-to."""
        subscription = self._subscription(b"T_" + identifier, identifier, AckMode.AUTO)
        queue = QueueSpec("", exclusive=True, auto_delete=True)
        return ops.Subscribe(subscription, queue, "", None, self.settings.auto_ack_window)

    def _fresh_queue_name(self) -> bytes:
        """A name for the queue of a subscription that nobody shares; unguessable, because the session's identity is."""
        self._queues_named += 1
        seed = b"%b %d" % (self.identity, self._queues_named)
        return subscription_queue_name(md5(seed, usedforsecurity=False).digest())

    def _on_subscribed(self, event: ops.Subscribed) -> None:
        subscription = event.subscription
        operation = self._operation
        if isinstance(operation, ops.Subscribe) and operation.queue is not None and operation.binding is None:
            self._declared.add(event.queue_name)
        self.subscriptions.add(subscription, event.queue_name)
        frame = self._answered()
        # The RECEIPT precedes the first MESSAGE, though the broker may deliver earlier.
        if frame is not None:
            self._send_receipt(frame)
        self.subscriptions.start(subscription)

    def _on_unsubscribe(self, frame: Frame) -> None:
        headers = self._headers(frame)
        request = read_unsubscribe(headers)
        subscription = self.subscriptions.get(request.tag)
        if subscription is None:
            raise refusals.no_subscription(request.description)
        delete = queue_to_delete(subscription.destination, headers, self.settings)
        self._settle_taken()
        self.subscriptions.forget(subscription)
        self._ask(ops.Unsubscribe(subscription, delete), frame)

    def _on_unsubscribed(self, event: ops.Unsubscribed) -> None:
        frame = self._answered()
        if frame is not None:
            self._send_receipt(frame)

    def _on_consumer_cancelled(self, event: ops.ConsumerCancelled) -> None:
        subscription = event.subscription
        if not self.subscriptions.is_current(subscription):
            return
        self.subscriptions.forget(subscription)
        if subscription.subscription is None:
            shown, description = subscription.destination, b"destination='%b'" % subscription.destination
        else:
            shown, description = subscription.subscription, b"id='%b'" % subscription.subscription
        self._fail(refusals.subscription_cancelled(description, shown), None)

    def _settle_taken(self) -> None:
        """Settle what ack:auto delivered, unless the client is behind: then it goes back to its queue."""
        if self.client_writable:
            self.subscriptions.settle_auto()

    # ACK and NACK.

    def _on_ack(self, frame: Frame) -> None:
        """HOT: acknowledgements in the order of delivery cost a look-up each, and one AMQP frame per batch."""
        self._settle(frame, self._headers(frame), None)

    def _on_nack(self, frame: Frame) -> None:
        headers = self._headers(frame)
        requeue = read_boolean(headers.get(b"requeue"))
        self._settle(frame, headers, self.settings.default_nack_requeue if requeue is None else requeue)

    def _settle(self, frame: Frame, headers: Mapping[bytes, bytes], requeue: bool | None) -> None:
        name = b"id" if self.version == b"1.2" else b"message-id"
        settlement = self.subscriptions.settlement(frame.head.command, name, headers.get(name), requeue)
        transaction = headers.get(b"transaction")
        if transaction is not None:
            self._transactions.join(transaction, _octets(frame)).settlements.append(settlement)
        elif settlement.is_outstanding:
            self.subscriptions.settle(settlement)
        else:
            # As with the plugin, where the broker finds out only after the receipt is on its way.
            self._send_receipt(frame)
            self._fail(refusals.unknown_delivery_tag(settlement.tag, self.settings), None)
            return
        if frame.receipt is not None:
            self._send_receipt(frame)

    # Transactions.

    def _transaction_name(self, frame: Frame) -> bytes:
        identifier = self._headers(frame).get(b"transaction")
        if identifier is None:
            raise refusals.missing_transaction(frame.command)
        return identifier

    def _on_begin(self, frame: Frame) -> None:
        self._transactions.begin(self._transaction_name(frame), self._now)
        self._send_receipt(frame)

    def _on_abort(self, frame: Frame) -> None:
        self._transactions.end(self._transaction_name(frame))
        self._send_receipt(frame)

    def _on_commit(self, frame: Frame) -> None:
        """Publish, wait for every confirm, then settle, then the receipt."""
        identifier = self._transaction_name(frame)
        transaction = self._transactions.peek(identifier)
        if transaction.sends and not self.publisher.confirms:
            self._ask(ops.PreparePublisher(confirms=True, queue=None), frame, again=True)
            return
        self._transactions.end(identifier)
        for settlement in transaction.settlements:
            self._check_settlement(settlement)
        commit = Commit(waiting=len(transaction.sends))
        self._commit = (commit, transaction, frame)
        for send in transaction.sends:
            if isinstance(send.head.plan, SendPlan):
                self._publish(send, send.head.plan, commit)
        if transaction.sends:
            self.holds.add(Hold.COMMIT)
        else:
            self._finish_commit()

    def _check_settlement(self, settlement: Settlement) -> None:
        if not self.subscriptions.is_current(settlement.subscription):
            raise refusals.message_without_subscription(settlement.ack_id)
        if not settlement.is_outstanding:
            raise refusals.unknown_delivery_tag(settlement.tag, self.settings)

    def _finish_commit(self) -> None:
        if self._commit is None:
            return
        (commit, transaction, frame), self._commit = self._commit, None
        self.holds.discard(Hold.COMMIT)
        if commit.rejected:
            self._fail(refusals.commit_rejected(), self._receipt_of(frame))
            return
        lost = [each for each in transaction.settlements if not self.subscriptions.is_current(each.subscription)]
        if lost:
            # Cancelled by the broker while the confirms were awaited.
            self._fail(refusals.message_without_subscription(lost[0].ack_id), self._receipt_of(frame))
            return
        for settlement in transaction.settlements:
            self.subscriptions.settle(settlement)
        self._send_receipt(frame)

    # The end.

    def _on_disconnect(self, frame: Frame) -> None:
        def farewell() -> None:
            self._send_receipt(frame)
            self._end(CloseReason.DISCONNECT)

        self._drain(farewell)

    def shut_down(self) -> None:
        """The gateway is stopping: read nothing more, wait for confirms, tell the client, end."""

        def farewell() -> None:
            text = "The gateway is stopping; connect again.\n"
            self._fail(refusals.closing("Shutting down", text, CloseReason.SHUTDOWN), None)

        if self.state is State.CONNECTED:
            self.holds.add(Hold.STOPPING)
            self._stopping = farewell
            self._drain_when_idle()
        elif self.state in (State.CONNECTING, State.AUTHENTICATING):
            farewell()

    def _drain_when_idle(self) -> None:
        """Start to drain for the gateway's end once the frame under way is done."""
        idle = self._operation is None and not self._again and self._commit is None
        if self._stopping is not None and idle and self.state is State.CONNECTED:
            self._drain(self._stopping)

    def _drain(self, farewell: Callable[[], None]) -> None:
        """Wait for what is unconfirmed and under way, close the channels, then say good-bye."""
        self._settle_taken()
        self._move(State.DRAINING)
        self._farewell = farewell
        self._close_upstream_when_quiet()

    def _close_upstream_when_quiet(self) -> None:
        if self._farewell is not None and self._operation is None and not self.publisher.unconfirmed:
            self.subscriptions.silence()
            self._ask(ops.CloseUpstream(), None)

    def _on_upstream_closed(self, event: ops.UpstreamClosed) -> None:
        farewell, self._farewell = self._farewell, None
        if farewell is not None:
            farewell()

    def close(self, error: StompError) -> None:
        """End the session with an ERROR that says why, for reasons that the owner knows."""
        self._fail(error, None)

    def client_gone(self) -> None:
        """The client's connection is gone."""
        self._end(CloseReason.CLIENT_GONE)

    def _end(self, reason: CloseReason) -> None:
        if self.state is not State.CLOSED:
            self.close_reason = reason
            self._waiting = self._farewell = self._commit = None
            self._again = False
            self.subscriptions.silence()
            self._move(State.CLOSED)

    def _fail(self, error: StompError, receipt: bytes | None) -> None:
        if self.state is State.CLOSED:
            return
        if error.close is None and self._is_strict():
            error = refusals.closed_for(error, CloseReason.PROTOCOL_ERROR)
        self.output.append(refusals.encode_error(error, receipt))
        self.complaints.append(error)
        if error.close is not None:
            self._end(error.close)

    def _is_strict(self) -> bool:
        """Whether every ERROR closes. Before the login the virtual host that was asked for decides, or the default."""
        if self.state is State.CONNECTED or self.login is not None:
            return self.settings.strict
        settings = self._connect.login.settings if self._connect is not None else self._resolve(None)
        return settings is not None and settings.strict

    # Operations and events.

    def _ask(self, operation: ops.Operation, frame: Frame | None, *, again: bool = False) -> None:
        """Ask the owner for an operation; the frame waits, and is looked at again afterwards if it says so."""
        self._operation = operation
        self._waiting = frame
        self._again = again
        self.holds.add(Hold.OPERATION)

    def _answered(self) -> Frame | None:
        """The operation is done. The frame that waited for it, unless ``run`` will look at it again."""
        self._operation = None
        self.holds.discard(Hold.OPERATION)
        if self._again:
            return None
        frame, self._waiting = self._waiting, None
        return frame

    def take_operation(self) -> ops.Operation | None:
        """The operation to carry out, handed out once."""
        operation = self._operation
        if operation is None or operation is self._taken:
            return None
        self._taken = operation
        return operation

    def handle(self, event: ops.Event) -> None:
        """Take the answer to an operation, or what happened at the broker.

        Args:
            event: one of ``gateway.session.ops``.
        """
        if self.state is State.CLOSED:
            return
        handler: Callable[[ops.Event], None] = getattr(self, _EVENT_HANDLERS[type(event)])
        handler(event)
        self._drain_when_idle()
        self._close_upstream_when_quiet()

    def _on_operation_failed(self, event: ops.OperationFailed) -> None:
        operation = self._operation
        self._again = False
        frame = self._answered()
        receipt = None if frame is None else self._receipt_of(frame)
        if isinstance(operation, ops.PreparePublisher) and "exchange '" in event.text:
            # Perhaps an earlier message closed the channel, and not what was asked for now.
            receipt = self.publisher.receipt_of_failure(event.text) or receipt
        is_topic = isinstance(operation, ops.Subscribe) and operation.subscription.destination.startswith(_TOPIC)
        refused = refusals.topic_refused if is_topic else refusals.broker_error
        self._fail(refused(event.code, event.text, self.settings), receipt)

    def _on_channel_closed(self, event: ops.ChannelClosed) -> None:
        receipt = None
        if event.publishing and self._commit is not None:
            receipt = self._receipt_of(self._commit[2])
        elif event.publishing:
            receipt = self.publisher.receipt_of_failure(event.text)
        self._fail(refusals.broker_error(event.code, event.text, self.settings), receipt)

    def _on_link_lost(self, event: ops.LinkLost) -> None:
        error = refusals.broker_error(event.code, event.text, self.settings)
        self._fail(refusals.closed_for(error, CloseReason.LINK_LOST), None)

    def time_passed(self, now: float) -> None:
        """Take note of the time, and forget transactions that were left open for too long.

        Args:
            now: seconds on any clock that only goes forward.
        """
        self._now = now
        if self.state is State.CONNECTED:
            for identifier in self._transactions.expire(now):
                self._fail(refusals.transaction_too_old(identifier), None)

    def _move(self, state: State) -> None:
        """The one place where the state changes."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"no way from {self.state} to {state}")
        self.state = state


def _octets(frame: Frame) -> int:
    """What keeping a frame costs, about."""
    return len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())


_EVENT_HANDLERS: Final = {
    ops.LoggedIn: "_on_logged_in",
    ops.LoginFailed: "_on_login_failed",
    ops.BrokerUnreachable: "_on_broker_unreachable",
    ops.PublisherPrepared: "_on_publisher_prepared",
    ops.Subscribed: "_on_subscribed",
    ops.Unsubscribed: "_on_unsubscribed",
    ops.UpstreamClosed: "_on_upstream_closed",
    ops.OperationFailed: "_on_operation_failed",
    ops.ChannelClosed: "_on_channel_closed",
    ops.ConsumerCancelled: "_on_consumer_cancelled",
    ops.LinkLost: "_on_link_lost",
}
