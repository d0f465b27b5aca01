"""One STOMP session. It takes frames, deliveries and events, and returns bytes for client and broker, and operations.

The server calls `Session`, reads the `SessionContext` that its parts share, and calls two of the parts: `Subscriptions`
with each `Subscription`, to deliver and settle, and `Publisher` with its `PublishOutput` and `PublisherConfirms`.
docs/architecture.md draws the parts. `COMMANDS`, at the end of this file, maps state and command to a handler.

How the server uses a session:

* input: ``run`` with the decoder that has the client's bytes; ``confirm``, ``message_returned`` and
  ``Subscription.deliver`` from the broker; ``handle`` for events; ``time_passed``; and its own reasons in ``holds``;
* output: ``output`` for the client, ``PublishOutput.take`` and ``Subscriptions.take_settlements`` for the broker,
  ``take_operation`` for the bridge, and ``take_errors`` for the log. The server fetches them once per batch;
* questions: ``state``, ``wants_read``, ``holds``, ``close_reason``, and the attributes of ``context``.

Frames take effect in order. A frame that needs something from the broker, such as a channel or a queue, asks for an
operation. Meanwhile the session is *held*: later frames wait in the decoder. A hold is a named reason not to read the
client, so ``holds`` explains why a client stalls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.errors import CloseReason, CodecError, FrameError, HttpRequestError, StompError, TlsHandshakeError
from gateway.session import error_frames, ops
from gateway.session.acknowledge import AckHandler
from gateway.session.commit import TransactionHandler
from gateway.session.connect import ClientFacts, ConnectHandler, TokenHandler
from gateway.session.context import READING, Hold, SessionContext, State
from gateway.session.disconnect import DisconnectHandler
from gateway.session.observer import SessionObserver
from gateway.session.publish import Publisher
from gateway.session.ride_through import RideThrough
from gateway.session.stall_watch import StallWatch
from gateway.session.subscribe import SubscribeHandler
from gateway.session.subscription import Subscription
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame
from gateway.stomp.heartbeat import Heartbeats

NO_TURN_LIMIT: Final = 1 << 62
"""For ``max_frames_per_turn``: a turn may take any number of frames."""

# The session reads the clock after this many frames. A frame with a hundred headers takes a fifth of a millisecond.
_FRAMES_PER_CHECK: Final = 16

# Up to this many similar SENDs, at two microseconds each, count as one of these frames.
_SENDS_PER_CHECK: Final = 128

_TOPIC: Final = b"/topic/"

# The client, or one of its messages, caused these ends. Unsettled deliveries then count toward a queue's
# delivery-limit, as with the plugin, so that a message on which its clients fail is finally dead-lettered.
_ENDED_BY_CLIENT: Final = frozenset(
    (
        CloseReason.DISCONNECT, CloseReason.CLIENT_GONE, CloseReason.HEART_BEAT_TIMEOUT, CloseReason.MALFORMED_FRAME,
        CloseReason.PROTOCOL_ERROR, CloseReason.INTERNAL_ERROR,
    )
)  # fmt: skip

# The commands that make the session publish.
_SENDS: Final = (b"SEND", b"COMMIT")


def _no_time() -> float:
    """The clock of a session whose turns have no time limit."""
    return 0.0


class Session:
    """One STOMP session.

    Args:
        identity: the session's unguessable name: the ``session`` header of CONNECTED, part of ack ids and queue names.
        product: the gateway's name and version, for the ``server`` header of CONNECTED.
        resolve: finds the virtual host with a name or alias; with None, the default one.
        limits: the decoder's limits, which the session changes after the login.
    """

    __slots__ = (
        "_acknowledgements", "_clock", "_connect", "_disconnect", "_limits", "_ride_through", "_stall", "_subscriber",
        "_tokens", "_transactions", "_turn_time", "awaited_for_sends", "confirms", "context", "holds", "identity",
        "max_frames_per_turn", "output", "publisher", "reached_turn_limit", "subscriptions", "traffic", "unanswered",
    )  # fmt: skip

    def __init__(self, identity: bytes, product: bytes, resolve: FindVirtualHost, limits: FrameLimits) -> None:
        default = resolve(None)
        context = self.context = SessionContext(identity, strict=default is not None and default.strict)
        self._limits = limits
        # The server reads these. It empties ``output``, and adds holds of its own.
        self.identity = identity
        self.output = context.output
        self.holds = context.holds
        self.subscriptions = context.subscriptions
        self.traffic = context.traffic
        # Queues that are away and for which the session has messages. Set by the server.
        self.awaited_for_sends: tuple[str, ...] = ()
        # The most frames that one call of ``run`` takes, and whether the last call reached that, or its time limit.
        self.max_frames_per_turn = NO_TURN_LIMIT
        self.reached_turn_limit = False
        # The number of methods that the broker has not answered although messages already follow them, such as
        # confirm.select. Set by the server.
        self.unanswered = 0
        # A call of ``run`` ends after _turn_time by this clock, because frames differ in cost.
        self._clock: Callable[[], float] = _no_time
        self._turn_time = 0.0

        self._connect = ConnectHandler(context, product, resolve)
        self.publisher = Publisher(context)
        self.confirms = self.publisher.confirms
        self._stall = StallWatch(context, self.publisher)
        self._transactions = TransactionHandler(context, self.publisher)
        self._ride_through = RideThrough(context, self.publisher, self._transactions)
        self._subscriber = SubscribeHandler(context)
        self._acknowledgements = AckHandler(context)
        self._tokens = TokenHandler(context)
        self._disconnect = DisconnectHandler(context, self.confirms, self._transactions)

    # Questions.

    def can_leave(self, subscriptions: Iterable[Subscription]) -> bool:
        """Whether these subscriptions could move to another link; with none, whether the publishing channel could.

        The session must be able to restore them, and their queues must outlive their last consumer.
        """
        return self.context.rides_through and all(subscription.outlives_consumers for subscription in subscriptions)

    def is_quiet(self, subscriptions: Iterable[Subscription]) -> bool:
        """Whether no operation is under way, and every delivery of these subscriptions is settled."""
        context = self.context
        return (
            context.state is State.CONNECTED
            and not context.pending.asked
            and not self.is_recovering
            and all(subscription.ledger.outstanding == 0 for subscription in subscriptions)
        )

    def renew_publisher(self) -> bool:
        """Ask for a new publishing channel in place of the present one. Returns False if something is under way."""
        context = self.context
        publisher = self.publisher
        if not self.is_quiet(()) or publisher.output or Hold.COMMIT in self.holds:
            return False
        context.ask(ops.PreparePublisher(publisher.has_confirms, None, is_fresh=True), None)
        return True

    @property
    def is_recovering(self) -> bool:
        """Whether something that was lost with a link is not restored yet."""
        return self._ride_through.is_under_way

    @property
    def state(self) -> State:
        """The session's state."""
        return self.context.state

    @property
    def wants_read(self) -> bool:
        """Whether ``run`` would take frames of the client now."""
        return not self.holds and self.context.state in READING

    @property
    def refuses_sends(self) -> bool:
        """Whether SENDs are refused instead of held, because the broker has accepted no messages for a long time."""
        return self._stall.is_over

    @property
    def close_reason(self) -> CloseReason | None:
        """Why the session closed; None while it is open."""
        return self.context.close_reason

    @property
    def is_ended_by_client(self) -> bool:
        """Whether the client ended the session or caused its end; not the gateway, an operator or the broker."""
        return self.close_reason in _ENDED_BY_CLIENT or self._disconnect.is_by_client

    @property
    def settings(self) -> VirtualHost:
        """The settings of its virtual host; before the login, one without a name."""
        return self.context.settings

    @property
    def login(self) -> bytes | None:
        """The user's name as received; None before the login."""
        return self.context.login

    @property
    def version(self) -> bytes:
        """The negotiated version of STOMP, for example ``b"1.2"``."""
        return self.context.version

    @property
    def heartbeats(self) -> Heartbeats:
        """The negotiated heart-beats."""
        return self._connect.heartbeats

    @property
    def certificate_name(self) -> str | None:
        """The user's name in the client's certificate, if clients of this listener may log in by certificate."""
        return self._connect.client.certificate_name

    @property
    def operation(self) -> ops.Operation | None:
        """The operation that the session waits for first, if any."""
        return self.context.operation

    @property
    def has_frame(self) -> bool:
        """Whether a frame that the decoder has returned is still waiting."""
        return self.context.pending.has_frame

    def recovery_request(self) -> ops.Recover:
        """The subscriptions and channels that the pending recovery has to restore now."""
        return self._ride_through.recovery_request()

    @property
    def awaited_queues(self) -> list[str]:
        """The names of the queues that the session waits for because they are away."""
        away = [each.queue for each in self.subscriptions.all if each.awaits_queue]
        return list(dict.fromkeys((*away, *self.awaited_for_sends)))

    def token_expired(self, now: float) -> bool:
        """Whether the client's token has expired. ``now`` is in seconds since the epoch."""
        return self.state is State.CONNECTED and self._tokens.has_expired(now)

    # Facts from the server.

    def set_client(self, client: ClientFacts, observe: Callable[[], SessionObserver | None] | None = None) -> None:
        """Set the facts about the client. ``observe`` is called after the login and returns the session's observer."""
        self._connect.client, self._connect.observe = client, observe

    def set_turn_time(self, clock: Callable[[], float], duration: float) -> None:
        """Let a call of ``run`` begin no more frames after ``duration``, in the unit of ``clock``."""
        self._clock, self._turn_time = clock, duration

    def time_passed(self, now: float) -> None:
        """Abort transactions that were open for too long, and refuse SENDs that have been held for too long.

        ``now`` is in seconds, on a monotonic clock.
        """
        self._transactions.time_passed(now)
        self._stall.time_passed(now)

    # Frames from the client.

    def run(self, decoder: Decoder) -> None:
        """Carry out the client's frames until there are no more, the session is held, or the turn is over.

        HOT: the loop of every frame.
        """
        context, holds, publisher = self.context, self.holds, self.publisher
        pending = context.pending
        received, turn_ends = 0, self._clock() + self._turn_time
        max_frames = self.max_frames_per_turn
        check_at = min(max_frames, _FRAMES_PER_CHECK)
        self.reached_turn_limit = False
        asked = pending.asked
        try:
            if pending.has_frame or self._stall.is_over:
                self._run_held(decoder)
            while not holds and context.state in READING:
                if received >= check_at:
                    if received >= max_frames or self._clock() > turn_ends:
                        self.reached_turn_limit = True
                        return
                    check_at = min(max_frames, received + _FRAMES_PER_CHECK)
                frame = decoder.next_frame()
                if frame is None:
                    return
                received += 1
                command, most = frame.header_block.command, max_frames - received
                if command == b"SEND":
                    together = 0 if asked else publisher.publish_plain(frame, decoder, min(most, _SENDS_PER_CHECK))
                else:
                    together = 0 if asked else self._acknowledgements.settle_plain(frame, decoder, most)
                    context.traffic.note_command(command, together or 1)
                if together:
                    received += together - 1
                elif asked and command != b"SUBSCRIBE":
                    context.postpone(frame)
                    return
                else:
                    self._carry_out(frame)
        except FrameError as error:
            self.malformed(error)
        finally:
            context.traffic.frames_received += received

    def _run_held(self, decoder: Decoder) -> None:
        """Carry out postponed frames whose turn has come. Refuse held SENDs if the broker accepts none for long."""
        context = self.context
        while context.pending.has_frame and (waiting := context.take_frame()) is not None:
            self._carry_out(waiting)
            self._disconnect.advance()
        if self._stall.is_over:
            self._refuse_sends(decoder)

    def _refuse_sends(self, decoder: Decoder) -> None:
        """Answer SENDs with an ERROR until the broker accepts messages, or until a frame comes that must wait for it.

        That is any other frame, or a SEND in a transaction.
        """
        context, seconds = self.context, self.settings.hold_sends_for or 0.0
        for _ in range(self.max_frames_per_turn):
            if self._stall.ended():
                return
            frame = decoder.next_frame()
            if frame is None:
                return
            context.traffic.frames_received += 1
            if frame.command == b"SEND" and b"transaction" not in frame.headers:
                self._fail(error_frames.not_taken(seconds), frame)
                continue
            if frame.command != b"SEND":
                context.traffic.note_command(frame.command)
            # While a frame is postponed, `StallWatch.ended` returns True, so this ends the loop.
            context.postpone(frame)
        self.reached_turn_limit = True

    def malformed(self, error: FrameError) -> None:
        """Close the session with an ERROR about bytes that violate the grammar or a limit."""
        if isinstance(error, TlsHandshakeError) and self.login is None:
            # The client expects a TLS handshake and would not understand an ERROR.
            self.context.close(CloseReason.TLS_ON_PLAIN_PORT)
        elif isinstance(error, HttpRequestError) and self.login is None:
            self.context.output.append(error_frames.HTTP_ANSWER)
            self.context.close(CloseReason.HTTP_ON_STOMP_PORT)
        else:
            self.context.fail(error_frames.malformed(str(error)))

    def _carry_out(self, frame: Frame) -> None:
        """Call the handler of a frame, and answer its error."""
        context = self.context
        try:
            handler = COMMANDS[context.state].get(frame.header_block.command)
            if handler is None:
                self._unknown_command(frame)
            else:
                handler(self, frame)
        except StompError as error:
            self._fail(error, frame)
        except CodecError as error:
            self._fail(error_frames.not_for_amqp(str(error)), frame)

    def _fail(self, error: StompError, frame: Frame) -> None:
        """Answer a frame that cannot be carried out."""
        context = self.context
        receipt = context.receipt_of(frame)
        if frame.command != b"SEND":
            context.fail(error, receipt)
        elif context.on_send_error != "close" and b"transaction" in frame.headers:
            # The session must end, or the transaction's COMMIT would succeed without this SEND.
            context.fail(error_frames.closed_for(error, error.close or CloseReason.BROKER_ERROR), receipt)
        else:
            context.fail_send(error, receipt)

    def _unknown_command(self, frame: Frame) -> None:
        if self.context.state is not State.CONNECTING:
            raise error_frames.bad_command(frame.command)
        self._connect.connect_implicitly(frame)

    # Confirms and events from the broker.

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack (``accepted``) or basic.nack of the message with this publish sequence number.

        HOT: once per confirm, which usually covers many messages. ``multiple``: the answer is for all messages up to
        this one.
        """
        if self.context.state is State.CLOSED:
            return
        self.publisher.confirm(sequence, multiple, accepted)
        if not accepted:
            self._ride_through.refused()
        if self._disconnect.is_waiting:
            self._disconnect.advance()

    def message_returned(self, returned: Return) -> None:
        """Take a mandatory message that the broker returned. Its confirm follows."""
        if self.context.state is not State.CLOSED:
            self.publisher.message_returned(returned)
            self._ride_through.refused()

    def handle(self, event: ops.Event, operation: ops.Operation | None = None) -> None:
        """Take an event: the answer to an operation, or something that happened at the broker.

        ``operation``: the one that is answered. It is needed for SUBSCRIBEs, of which several may be under way.
        """
        if self.context.state is State.CLOSED:
            return
        pending = self.context.pending
        if not pending.defers(event, operation):
            _EVENTS[type(event)](self, event)
            while (answer := pending.next_answer()) is not None:
                _EVENTS[type(answer)](self, answer)
        self._disconnect.advance()
        self._ride_through.advance()

    def _logged_in(self, event: ops.LoggedIn) -> None:
        operation = self.context.operation
        if self._connect.logged_in(event):
            settings = self.settings
            if isinstance(operation, ops.Login):
                self._tokens.logged_in(operation.passcode, is_on=event.renews_tokens)
            self.confirms.set_limits(settings)
            self.context.transactions.set_limits(settings.transaction_limits)
            self._limits.frame = settings.max_frame_size
            self._limits.ignores_bad_lengths = settings.next_release
            self._limits.skips_bodies = self.context.on_send_error != "close" and not settings.strict

    def _operation_failed(self, event: ops.OperationFailed) -> None:
        context, operation = self.context, self.context.operation
        if event.of_publish and self._survives_refusal(event, operation):
            return
        if event.may_pass and context.rides_through:
            if isinstance(operation, ops.PreparePublisher):
                # The refusal closed the publishing channel.
                self._ride_through.channel_lost(event.code, event.text)
            self._ride_through.interrupted(event.code, event.text)
            return
        if event.code == error_frames.ACCESS_REFUSED and self.publisher.ask_for_name(operation):
            return
        if isinstance(operation, ops.PreparePublisher):
            # The SEND that waited for the end of an alarm has failed.
            self.holds.discard(Hold.BROKER_BLOCKED)
        frame = context.operation_done(failed=True)
        receipt = context.receipt_of(frame)
        if not event.of_publish and frame is not None and frame.command in _SENDS and context.keeps_after_send_error:
            if isinstance(operation, ops.PreparePublisher) and operation.is_fresh:
                # It is unknown whether the old channel still exists.
                self._ride_through.channel_lost(event.code, event.text)
            self._fail(error_frames.broker_error(event.code, event.text, self.settings), frame)
            return
        if event.of_publish:
            receipt = self.publisher.confirms.receipt_of_failure(event.text)
        is_topic = isinstance(operation, ops.Subscribe) and operation.subscription.destination.startswith(_TOPIC)
        context.fail(error_frames.broker_error(event.code, event.text, self.settings, is_topic=is_topic), receipt)

    def _survives_refusal(self, event: ops.OperationFailed, operation: ops.Operation | None) -> bool:
        """Whether the session continues, or ends in order, although a refused message made its operation fail."""
        context = self.context
        if self._ride_through.is_virtual_host_going(event.code):
            self._ride_through.channel_lost(event.code, event.text)
            self._ride_through.interrupted(event.code, event.text)
            return True
        if isinstance(operation, ops.CloseUpstream) and context.keeps_after_send_error and self.publisher.is_lost:
            # The client has the ERROR for the refused message, and everything else is answered.
            self._disconnect.upstream_closed(ops.UpstreamClosed())
            return True
        if not self._ride_through.publish_refused(event.code, event.text):
            return False
        if context.state is not State.CLOSED:
            context.pending.interrupt()
        return True

    def _channel_closed(self, event: ops.ChannelClosed) -> None:
        context, receipt = self.context, None
        may_pass = event.may_pass and context.rides_through
        if event.publishing and (may_pass or self._ride_through.is_virtual_host_going(event.code)):
            self._ride_through.channel_lost(event.code, event.text)
            return
        if event.publishing and self._ride_through.publish_refused(event.code, event.text):
            return
        if event.of_declaration:
            queue = context.declared_queues.refused(event.text)
            receipt = self.publisher.confirms.receipt_of_declaration(queue)
        elif event.publishing and self._transactions.committing is not None:
            receipt = context.receipt_of(self._transactions.committing)
        elif event.publishing:
            receipt = self.publisher.confirms.receipt_of_failure(event.text)
        context.fail(error_frames.broker_error(event.code, event.text, self.settings), receipt)

    def _interrupted(self, event: ops.OperationInterrupted) -> None:
        is_end = isinstance(self.context.operation, ops.CloseUpstream)
        if is_end and self.context.rides_through and not self.publisher.publishes_blindly:
            # Everything is confirmed, and the other channels are gone with the link.
            self._disconnect.upstream_closed(ops.UpstreamClosed())
        else:
            self._ride_through.interrupted(event.code, event.text)

    # Work for the server.

    def take_operation(self) -> ops.Operation | None:
        """Return the next operation to carry out, once; None if there is none."""
        return self.context.pending.take()

    def take_errors(self) -> list[StompError]:
        """Return the ERRORs since the last call, for log and counters. Some of them were not sent to the client."""
        errors, self.context.unlogged_errors = self.context.unlogged_errors, []
        return errors

    # The end.

    def shut_down(self) -> None:
        """Begin an orderly end: read nothing more, wait for confirms, send an ERROR, close."""
        self._disconnect.shut_down()

    def close(self, error: StompError) -> None:
        """Close the session with this ERROR."""
        self.context.fail(error)

    def client_gone(self) -> None:
        """Close the session because the client's connection is gone."""
        self.context.close(CloseReason.CLIENT_GONE)

    def forget(self) -> None:
        """Free the memory of a session that has ended and is counted: its frames may take many megabytes.

        Dropping the observer, which refers to the session, breaks the reference cycle, so Python frees both at once.
        """
        context = self.context
        context.observer = None
        self._connect.observe = None
        context.output.clear()
        context.pending.clear()
        context.transactions.clear()
        context.declared_queues.clear()
        self._transactions.forget_commit()
        self.publisher.forget_messages()


COMMANDS: Final[dict[State, dict[bytes, Callable[[Session, Frame], None]]]] = {
    State.CONNECTING: {
        b"CONNECT": lambda session, frame: session._connect.connect(frame),
        b"STOMP": lambda session, frame: session._connect.connect(frame),
    },
    State.CONNECTED: {
        b"CONNECT": lambda session, frame: session._connect.connect_again(frame),
        b"STOMP": lambda session, frame: session._connect.connect_again(frame),
        b"SEND": lambda session, frame: session.publisher.send(frame),
        b"SUBSCRIBE": lambda session, frame: session._subscriber.subscribe(frame),
        b"UNSUBSCRIBE": lambda session, frame: session._subscriber.unsubscribe(frame),
        b"ACK": lambda session, frame: session._acknowledgements.ack(frame),
        b"NACK": lambda session, frame: session._acknowledgements.nack(frame),
        b"BEGIN": lambda session, frame: session._transactions.begin(frame),
        b"COMMIT": lambda session, frame: session._transactions.commit(frame),
        b"ABORT": lambda session, frame: session._transactions.abort(frame),
        b"TOKEN": lambda session, frame: session._tokens.renew(frame),
        b"DISCONNECT": lambda session, frame: session._disconnect.disconnect(frame),
    },
}
"""The state table: the handler of each command in each state. A missing entry is a protocol error, see `State`.

A handler raises StompError or CodecError for a frame that it cannot carry out, and the client gets an ERROR.
All sessions share one table, because methods bound to each session would take more memory than the rest of it.
"""

_EVENTS: Final[dict[type[ops.Event], Callable[[Session, Any], None]]] = {
    ops.LoggedIn: lambda session, event: session._logged_in(event),
    ops.LoginFailed: lambda session, event: session._connect.login_failed(event),
    ops.LoginNotTried: lambda session, event: session._connect.not_tried(event),
    ops.PublisherPrepared: lambda session, event: session.publisher.prepared(event),
    ops.Subscribed: lambda session, event: session._subscriber.subscribed(event),
    ops.Unsubscribed: lambda session, event: session._subscriber.unsubscribed(event),
    ops.ConsumerCancelled: lambda session, event: session._subscriber.cancelled(event),
    ops.QueueAway: lambda session, event: session._ride_through.queue_away(event),
    ops.QueueBack: lambda session, event: session._ride_through.queue_back(event),
    ops.QueuesFound: lambda session, event: session._ride_through.queues_found(event),
    ops.AccessRevoked: lambda session, event: session._subscriber.revoked(event),
    ops.TokenRenewed: lambda session, event: session._tokens.renewed(event),
    ops.TokenRefused: lambda session, event: session._tokens.refused(event),
    ops.OperationFailed: lambda session, event: session._operation_failed(event),
    ops.ChannelClosed: lambda session, event: session._channel_closed(event),
    ops.LinkLost: lambda session, event: session._ride_through.link_lost(event),
    ops.OperationInterrupted: lambda session, event: session._interrupted(event),
    ops.Recovered: lambda session, event: session._ride_through.recovered(event),
    ops.RecoveryFailed: lambda session, event: session._ride_through.failed(event),
    ops.UpstreamClosed: lambda session, event: session._disconnect.upstream_closed(event),
}
"""The handler of each event."""
