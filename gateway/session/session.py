"""One STOMP session: frames, deliveries and events in; bytes for client and broker, and operations, out.

The owner (``gateway.server``) feeds it and carries out what it asks:

* in: ``run`` with the decoder that holds the client's bytes; ``confirm`` and ``Subscription.deliver`` from the broker;
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
from typing import Final

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import FindVirtualHost
from gateway.errors import CloseReason, CodecError, FrameError, StompError, TlsOctetsError
from gateway.session import error_frames, ops
from gateway.session.authentication import Authentication
from gateway.session.context import Hold, SessionContext
from gateway.session.destination_rules import DestinationRules
from gateway.session.publisher import Publisher
from gateway.session.queues import QueueRules
from gateway.session.renewal import Renewal
from gateway.session.sender import Sender, octets
from gateway.session.subscriber import Subscriber
from gateway.session.transitions import HANDLERS, READING, State
from gateway.stomp.decoder import Decoder, Limits
from gateway.stomp.frame import Frame
from gateway.stomp.headers import read_boolean
from gateway.stomp.heartbeat import Heartbeats

_TOPIC: Final = b"/topic/"


class Session(SessionContext):
    """One STOMP conversation.

    Args:
        identity: value of the session header, unguessable.
        server: value of the server header.
        resolve: finds the settings of a virtual host.
        limits: of the decoder; widened once the client has logged in.
        now: seconds on the clock of ``time_passed``.
    """

    def __init__(
        self, identity: bytes, server: bytes, resolve: FindVirtualHost, limits: Limits, now: float = 0.0
    ) -> None:
        default = resolve(None)
        super().__init__(identity, strict=default is not None and default.strict)
        self.authentication = Authentication(self, server, resolve)
        self.sender = Sender(self)
        self.subscriber = Subscriber(self, self.sender)
        self.renewal = Renewal(self)
        self._limits = limits
        self._now = now
        self._on_drained: Callable[[], None] | None = None
        self._stopping: Callable[[], None] | None = None

    @property
    def publisher(self) -> Publisher:
        """What is published, for the broker."""
        return self.sender.publisher

    @property
    def heartbeats(self) -> Heartbeats:
        """What was agreed on."""
        return self.authentication.heartbeats

    @property
    def wants_read(self) -> bool:
        """Whether frames of the client would be looked at now."""
        return not self.holds and self.state in READING

    # Frames from the client.

    def run(self, decoder: Decoder) -> None:
        """Carry out the client's frames until the decoder has no more, or the session is held, or has made its stride.

        HOT: the loop of every message to the broker.

        Args:
            decoder: holds what the client sent.
        """
        holds = self.holds
        if self.again and not holds - {Hold.STOPPING}:
            self.again = False
            waiting, self.waiting = self.waiting, None
            if waiting is not None:
                self._carry_out(waiting, is_new=False)
            self._drain_when_idle()
        received = 0
        max_frames_per_turn = self.max_frames_per_turn
        try:
            while not holds and self.state in READING and received < max_frames_per_turn:
                frame = decoder.next_frame()
                if frame is None:
                    return
                received += 1
                self._carry_out(frame)
        except FrameError as error:
            self.malformed(error)
        finally:
            self.frames_received += received
            self.reached_turn_limit = received >= max_frames_per_turn

    def malformed(self, error: FrameError) -> None:
        """Tell the client what is wrong with its bytes, and end."""
        if isinstance(error, TlsOctetsError) and self.login is None:
            # It waits for a handshake, and would take an ERROR for a broken one.
            self.end(CloseReason.TLS_ON_PLAIN_PORT)
        else:
            self.fail(error_frames.malformed(str(error)), None)

    def _carry_out(self, frame: Frame, *, is_new: bool = True) -> None:
        command = frame.head.command
        try:
            if command == b"SEND" and self.state is State.CONNECTED:
                # The table says the same, at the price of a look-up for each message.
                self.sender.send(frame)
                return
            if is_new and command != b"SEND":
                self.note_command(command)
            name = HANDLERS.get((self.state, command))
            if name is not None:
                handler: Callable[[Frame], None] = getattr(self, name)
                handler(frame)
            elif self.state is State.CONNECTING:
                self.authentication.connect_implicitly(frame)
            else:
                raise error_frames.bad_command(command)
        except StompError as error:
            self.fail(error, self.receipt_of(frame))
        except CodecError as error:
            self.fail(error_frames.not_for_amqp(str(error)), self.receipt_of(frame))

    # CONNECT.

    def _on_connect(self, frame: Frame) -> None:
        self.authentication.connect(frame)

    def _on_second_connect(self, frame: Frame) -> None:
        raise error_frames.already_connected()

    def _on_logged_in(self, event: ops.LoggedIn) -> None:
        operation = self.operation
        if self.authentication.accepted():
            if isinstance(operation, ops.Login):
                self.renewal.start(operation.passcode)
            settings = self.settings
            rules = QueueRules.of(event.broker_version, settings)
            destinations = DestinationRules(settings, self.login or b"")
            self.sender.start(rules, destinations)
            self.subscriber.start(rules, destinations)
            self.subscriptions.streams_take_nack = rules.streams_take_nack
            self._limits.frame = settings.max_frame_size

    def _on_login_failed(self, event: ops.LoginFailed) -> None:
        self.authentication.failed(event)

    def _on_broker_unreachable(self, event: ops.BrokerUnreachable) -> None:
        self.authentication.impossible()

    def _on_session_refused(self, event: ops.SessionRefused) -> None:
        self.authentication.refused(error_frames.too_many_sessions(event.whose, event.limit))

    # SEND and transactions.

    def _on_send(self, frame: Frame) -> None:
        self.sender.send(frame)

    def _on_begin(self, frame: Frame) -> None:
        self.sender.begin(frame, self._now)

    def _on_abort(self, frame: Frame) -> None:
        self.sender.abort(frame)

    def _on_commit(self, frame: Frame) -> None:
        self.sender.commit(frame)

    def _on_publisher_prepared(self, event: ops.PublisherPrepared) -> None:
        self.sender.prepared(event)

    def set_blocked(self, blocked: bool) -> None:
        """Take note of an alarm on the broker: the next SEND is the last one until it is over."""
        self.sender.set_blocked(blocked)

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack or basic.nack of published messages.

        HOT: once per confirm of the broker, which mostly means many messages.

        Args:
            sequence: publish sequence number.
            multiple: whether all before it are meant too.
            accepted: ack or nack.
        """
        if self.state is State.CLOSED:
            return
        self.sender.confirm(sequence, multiple, accepted)
        if self._stopping is not None:
            self._drain_when_idle()
        if self._on_drained is not None:
            self._close_upstream_when_quiet()

    def take_return(self, returned: Return) -> None:
        """Take a mandatory message that the broker gave back; its confirm follows.

        Args:
            returned: the broker's basic.return.
        """
        if self.state is not State.CLOSED:
            self.sender.take_return(returned)

    # TOKEN.

    def _on_token(self, frame: Frame) -> None:
        self.renewal.renew(frame)

    def _on_token_renewed(self, event: ops.TokenRenewed) -> None:
        self.renewal.renewed()

    def _on_token_refused(self, event: ops.TokenRefused) -> None:
        self.renewal.refused(event)

    # SUBSCRIBE and UNSUBSCRIBE.

    def _on_subscribe(self, frame: Frame) -> None:
        self.subscriber.subscribe(frame)

    def _on_subscribed(self, event: ops.Subscribed) -> None:
        self.subscriber.subscribed(event)

    def _on_unsubscribe(self, frame: Frame) -> None:
        self.subscriber.unsubscribe(frame)

    def _on_unsubscribed(self, event: ops.Unsubscribed) -> None:
        self.subscriber.unsubscribed()

    def _on_consumer_cancelled(self, event: ops.ConsumerCancelled) -> None:
        self.subscriber.cancelled(event)

    # ACK and NACK.

    def _on_ack(self, frame: Frame) -> None:
        """HOT: acknowledgements in the order of delivery cost a look-up each, and one AMQP frame per batch."""
        self._settle(frame, self.headers(frame), None)

    def _on_nack(self, frame: Frame) -> None:
        headers = self.headers(frame)
        requeue = read_boolean(headers.get(b"requeue"))
        self._settle(frame, headers, self.settings.default_nack_requeue if requeue is None else requeue)

    def _settle(self, frame: Frame, headers: Mapping[bytes, bytes], requeue: bool | None) -> None:
        name = b"id" if self.version == b"1.2" else b"message-id"
        settlement = self.subscriptions.settlement(frame.head.command, name, headers.get(name), requeue)
        transaction = headers.get(b"transaction")
        if transaction is not None:
            self.sender.transactions.join(transaction, octets(frame)).settlements.append(settlement)
        elif settlement.is_outstanding:
            self.subscriptions.settle(settlement)
        else:
            # As with the plugin, where the broker finds out only after the receipt is on its way.
            self.send_receipt(frame)
            self.fail(error_frames.unknown_delivery_tag(settlement.number, self.settings), None)
            return
        if frame.receipt is not None:
            self.send_receipt(frame)

    # The end.

    def _on_disconnect(self, frame: Frame) -> None:
        def on_drained() -> None:
            self.send_receipt(frame)
            self.end(CloseReason.DISCONNECT)

        self._drain(on_drained)

    def shut_down(self) -> None:
        """The gateway is stopping: read nothing more, wait for confirms, tell the client, end."""

        def on_drained() -> None:
            text = "The gateway is stopping; connect again.\n"
            self.fail(error_frames.closing("Shutting down", text, CloseReason.SHUTDOWN), None)

        if self.state is State.CONNECTED:
            self.holds.add(Hold.STOPPING)
            self._stopping = on_drained
            self._drain_when_idle()
        elif self.state in (State.CONNECTING, State.AUTHENTICATING):
            on_drained()

    def _drain_when_idle(self) -> None:
        """Start to drain for the gateway's end once the frame under way is done."""
        idle = self.operation is None and not self.again and not self.sender.commits
        if self._stopping is not None and idle and self.state is State.CONNECTED:
            self._drain(self._stopping)

    def _drain(self, on_drained: Callable[[], None]) -> None:
        """Wait for what is unconfirmed and under way, close the channels, then say good-bye."""
        self.settle_taken()
        self.move(State.DRAINING)
        self._on_drained = on_drained
        self._close_upstream_when_quiet()

    def _close_upstream_when_quiet(self) -> None:
        if self._on_drained is not None and self.operation is None and not self.publisher.unconfirmed:
            self.subscriptions.silence()
            self.ask(ops.CloseUpstream(), None)

    def _on_upstream_closed(self, event: ops.UpstreamClosed) -> None:
        on_drained, self._on_drained = self._on_drained, None
        if on_drained is not None:
            on_drained()

    def end(self, reason: CloseReason) -> None:
        """End once: nothing more is said or asked."""
        self._on_drained = None
        super().end(reason)

    def close(self, error: StompError) -> None:
        """End the session with an ERROR that says why, for reasons that the owner knows."""
        self.fail(error, None)

    def client_gone(self) -> None:
        """The client's connection is gone."""
        self.end(CloseReason.CLIENT_GONE)

    # Events.

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
        operation = self.operation
        self.again = False
        frame = self.answered()
        receipt = None if frame is None else self.receipt_of(frame)
        if isinstance(operation, ops.PreparePublisher) and "exchange '" in event.text:
            # Perhaps an earlier message closed the channel, and not what was asked for now.
            receipt = self.publisher.receipt_of_failure(event.text) or receipt
        is_topic = isinstance(operation, ops.Subscribe) and operation.subscription.destination.startswith(_TOPIC)
        refused = error_frames.topic_refused if is_topic else error_frames.broker_error
        self._fail_for(event.text, refused(event.code, event.text, self.settings), receipt)

    def _on_channel_closed(self, event: ops.ChannelClosed) -> None:
        receipt = self.sender.receipt_of_failure(event.text) if event.publishing else None
        self._fail_for(event.text, error_frames.broker_error(event.code, event.text, self.settings), receipt)

    def _on_link_lost(self, event: ops.LinkLost) -> None:
        error = error_frames.broker_error(event.code, event.text, self.settings)
        self._fail_for(event.text, error_frames.closed_for(error, CloseReason.LINK_LOST), None)

    def _fail_for(self, text: str, error: StompError, receipt: bytes | None) -> None:
        """The broker said so: tell the client, in the words for it if its token has expired."""
        self.fail(error_frames.token_expired() if self.renewal.was_cause(text) else error, receipt)

    def time_passed(self, now: float) -> None:
        """Take note of the time, and forget transactions that were left open for too long.

        Args:
            now: seconds on any clock that only goes forward.
        """
        self._now = now
        if self.state is State.CONNECTED:
            for identifier in self.sender.transactions.expire(now):
                self.fail(error_frames.transaction_too_old(identifier), None)


_EVENT_HANDLERS: Final = {
    ops.LoggedIn: "_on_logged_in",
    ops.LoginFailed: "_on_login_failed",
    ops.BrokerUnreachable: "_on_broker_unreachable",
    ops.SessionRefused: "_on_session_refused",
    ops.PublisherPrepared: "_on_publisher_prepared",
    ops.Subscribed: "_on_subscribed",
    ops.Unsubscribed: "_on_unsubscribed",
    ops.TokenRenewed: "_on_token_renewed",
    ops.TokenRefused: "_on_token_refused",
    ops.UpstreamClosed: "_on_upstream_closed",
    ops.OperationFailed: "_on_operation_failed",
    ops.ChannelClosed: "_on_channel_closed",
    ops.ConsumerCancelled: "_on_consumer_cancelled",
    ops.LinkLost: "_on_link_lost",
}
