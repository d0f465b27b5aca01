"""Publishing: SEND, the publishing channel, and the broker's confirms.

A SEND is published at once where everything it needs is there. Otherwise it asks the broker for the next missing thing
(the channel, confirms, a queue) and is carried out anew. The broker's confirm sends its RECEIPT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from gateway.amqp import methods
from gateway.amqp.codec import Publication
from gateway.amqp.splitter import Return
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CodecError, StompError
from gateway.pieces import LARGE, Body, Piece, gathered
from gateway.session import error_frames, ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.confirms import Commit, PublisherConfirms, Unconfirmed
from gateway.session.context import NO_SETTINGS, Hold, SessionContext
from gateway.session.correlation import StampedPublish, StampedVariedPublish
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import SUBSCRIPTION_QUEUE, TEMP_QUEUE_OF_NEXT
from gateway.session.queues import QueueSpec, temporary_queue
from gateway.session.transactions import size_of
from gateway.session.translate import without_bad_numbers
from gateway.session.varied_publish import VariedPublish, VariedPublishes
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame import Frame, HeaderBlock, OversizedFrame, ReceiptAndBody, encode_receipt

# Stands on a header block whose SEND was published as one of its kind.
_CAME_ONCE: Final = object()

# After a loss, this many bytes of the messages to publish again are encoded at once.
_AT_ONCE: Final = 64 << 10

_Made = TypeVar("_Made", bound=CachedPublish)


class Publisher:
    """Publishes the SENDs of a session, and answers them when the broker confirms."""

    __slots__ = (
        "_blocked", "_channel", "_channel_key", "_confirmed_before", "_context", "_frame_max", "_has_large",
        "_has_rejected", "_keeps_bodies", "_output", "_unencoded", "_varied", "confirms", "has_confirms",
        "is_in_doubt", "is_lost",
    )  # fmt: skip

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        # The publishing channel; 0 until the first SEND has asked for it.
        self._channel = self._frame_max = 0
        # A new object for each channel, so that data encoded for one channel is never sent on another.
        self._channel_key = object()
        # True while the channel is lost.
        self.is_lost = False
        # Whether unconfirmed messages are published again after a loss.
        self._keeps_bodies = False
        # True while it is unknown why the broker rejected messages for queues that this session has declared.
        self.is_in_doubt = False
        # Whether the broker has rejected a message. A channel whose first message for a quorum queue comes while the
        # queue's leader is dead rejects everything for that queue from then on (RabbitMQ 3.10), so it is replaced now
        # and then.
        self._has_rejected = False
        # The number of confirmed messages when the last recovery left some unconfirmed; None if it left none.
        self._confirmed_before: int | None = None
        # Whether the channel confirms. The first frame that needs confirms switches them on.
        self.has_confirms = False
        self.confirms = PublisherConfirms(NO_SETTINGS)
        self._output: list[Piece] = []
        self._has_large = False
        # Messages that are not encoded yet, of a COMMIT or published again: what encodes them, their bodies and their
        # values. They go out after the output, and the client is held until all of them are written.
        self._unencoded: deque[tuple[Publication, Body, tuple[bytes, ...]]] = deque()
        self._blocked = False
        # Made for the first SEND.
        self._varied: VariedPublishes | None = None

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return bool(self._output or self._unencoded)

    def take_output(self, at_most: int | None) -> list[Piece]:
        """See `Session.take_publishes`. HOT: once per batch."""
        output = self._output
        if self._unencoded:
            self._encode_some(at_most)
        if not output:
            return []
        taken: list[Piece] = [b"".join(output)] if not self._has_large else gathered(output)
        self._has_large = False
        output.clear()
        return taken

    def _encode_some(self, at_most: int | None) -> None:
        """Encode as much as is taken now: others would wait while all of it is encoded at once."""
        size, unencoded = 0, self._unencoded
        while unencoded and (at_most is None or size < at_most):
            size += self._encode(*unencoded.popleft())
        if not unencoded:
            self._context.holds.discard(Hold.REPLAY)

    def _encode(self, publication: Publication, body: Body, values: tuple[bytes, ...]) -> int:
        """Encode a message that was kept until now; its size with headers."""
        is_large = len(body) >= LARGE
        pieces = publication.pieces(body, values) if is_large else [publication.encode(bytes(body), values)]
        self._output += pieces
        self._has_large |= is_large
        return sum(map(len, pieces))

    def forget_messages(self) -> None:
        """The session is over: nothing is published again."""
        self._clear_output()
        self.confirms.take_all()

    def _clear_output(self) -> None:
        self._output.clear()
        self._unencoded.clear()

    # SEND.

    def publish_plain(self, frame: Frame, decoder: Decoder, most: int) -> int:
        """Publish a SEND for which everything is ready, and the following ones that differ only in body and receipt.

        HOT: once per SEND, or once for many. ``send`` is the slow twin; anything unusual is left to it.

        Args:
            frame: the one that the decoder has just handed out.
            decoder: has the frames after it.
            most: how many of the following SENDs may be carried out with it.

        Returns:
            How many SENDs were carried out; 0 if the frame is one for ``send``.
        """
        cached = frame.header_block.cached_publish
        if not isinstance(cached, CachedPublish) or cached.channel_key is not self._channel_key:
            return 0
        if self._blocked or not cached.is_plain or (frame.receipt is not None and not self.has_confirms):
            return 0
        try:
            self.publish(cached, [(frame.receipt, frame.body)], frame.length)
        except CodecError:
            # Nothing has happened yet. It happens again in ``send``, and its client is told.
            return 0
        if self._context.trims_values and frame.receipt is not None:
            # Receipts of the same size need not have it any more once they are trimmed.
            most = 0
        messages, size = self.confirms.room
        behind = decoder.take_sends(frame, min(most, messages), size)
        if behind:
            # With receipts of the same size they cannot be too large for AMQP either.
            self.publish(cached, behind, frame.length)
        if self.confirms.is_full:
            self._hold()
        return 1 + len(behind)

    def send(self, frame: Frame) -> None:
        """SEND: first requests what is missing, or leaves the frame to a transaction."""
        if isinstance(frame, OversizedFrame):
            raise error_frames.oversized(self._context.settings.max_frame_size)
        cached = frame.header_block.cached_publish
        if not isinstance(cached, CachedPublish):
            cached = self._cached(frame, is_new=cached is None)
        if not self._is_prepared(frame, cached):
            return
        if cached.transaction is not None:
            transactions = self._context.transactions
            transactions.get(cached.transaction)
            cached.check(self._context.receipt_of(frame), frame)
            transactions.enlist(cached.transaction, size_of(frame)).sends.append(frame)
            return
        self.publish(cached, [(frame.receipt, frame.body)], frame.length)
        if cached.held and self.has_confirms:
            self.confirms.hold_headers()
        if self._blocked or self.confirms.is_full or self._context.declared_queues.is_full:
            self._hold()

    def _cached(self, frame: Frame, *, is_new: bool) -> CachedPublish:
        """What is computed for the SEND's header block, or if the block ``is_new``, for SENDs of its kind."""
        block, headers = frame.header_block, self._context.headers(frame)
        cached = self._find_varied(block, headers) if is_new else None
        if cached is None:
            cached = block.cached_publish = self._make(CachedPublish, StampedPublish, headers, block.volatile)
        return cached

    def _find_varied(self, block: HeaderBlock, headers: Mapping[bytes, bytes]) -> CachedPublish | None:
        """The common part of similar SENDs, if only values in this header block are new."""
        context = self._context
        varied = self._varied
        if varied is None:
            meant = () if context.observer is None else context.observer.header_values
            varied = self._varied = VariedPublishes(partial(self._make, VariedPublish, StampedVariedPublish), meant)
        found = varied.find(headers)
        if found is None or not found.is_plain:
            return None
        # If the block comes again, it gets a cached publish of its own.
        block.cached_publish = _CAME_ONCE
        found.headers = headers
        return found

    def _make(
        self, plain: type[_Made], stamped: type[_Made], headers: Mapping[bytes, bytes], volatile: tuple[bytes, ...]
    ) -> _Made:
        context = self._context
        if context.settings.next_release:
            headers = without_bad_numbers(headers)
        stamp = None if context.observer is None else context.observer.stamp
        cached = (plain if stamp is None else stamped)(
            headers,
            volatile,
            context.settings.default_topic_exchange,
            trims=context.trims_values,
            rules=context.queue_rules,
            destinations=context.destination_rules,
        )
        if stamp is not None and isinstance(cached, StampedPublish | StampedVariedPublish):
            cached.stamp = stamp
        cached.traffic = context.traffic.sends.counter(cached.destination, cached.kind)
        if context.observer is not None:
            cached.counter = context.observer.sends(cached, headers)
        return cached

    def is_ready(self, send: Frame, commit: Frame) -> bool:
        """Whether a SEND of a transaction can be published as it was prepared; else this asks for what is missing.

        Only the loss of a link takes anything away again. ``commit`` is then carried out anew.

        Raises:
            CodecError: AMQP cannot carry its headers to the broker that answers now, which takes shorter frames.
        """
        cached = send.header_block.cached_publish
        if not isinstance(cached, CachedPublish) or cached.channel_key is self._channel_key:
            return True
        if not self._is_prepared(commit, cached):
            return False
        cached.check(self._context.receipt_of(send), send)
        return True

    def _is_prepared(self, frame: Frame, cached: CachedPublish) -> bool:
        """Whether everything a SEND needs is there. If not, this asks for the next missing thing."""
        context = self._context
        temp_queues = context.subscriptions.temp_queues
        if cached.temp_queue is not None and cached.temp_queue not in temp_queues:
            self._ask_for_temp_queue(cached.temp_queue, frame)
            return False
        queue = cached.queue if cached.queue is not None and cached.queue.name not in context.declared_queues else None
        needs_confirm = (frame.receipt is not None or cached.mandatory) and cached.transaction is None
        # A session that is to outlive its link publishes with confirms, to know what it has to publish again.
        confirms = self.has_confirms or needs_confirm or context.confirms_always
        waits = queue is not None and not (confirms and self._may_follow(cached, queue))
        if not self._channel or self._has_rejected or waits or confirms is not self.has_confirms:
            operation = ops.PreparePublisher(confirms, queue if waits else None, self._has_rejected)
            context.ask(operation, frame, retry=True)
            return False
        if queue is not None:
            self._declare(queue)
        reply_queue = temp_queues.get(cached.temp_queue or b"")
        if cached.channel_key is not self._channel_key or cached.reply_queue != reply_queue:
            cached.build(self._channel, self._frame_max, reply_queue, self._channel_key)
        return True

    def _may_follow(self, cached: CachedPublish, queue: QueueSpec) -> bool:
        """Whether a message may follow the declaration of its queue before the broker has answered that.

        A message whose queue is away, or was deleted, is published again. In a transaction nothing is published yet
        whose receipt a refusal could name, and a session that goes on needs its channel. An exclusive queue belongs to
        another link.
        """
        context = self._context
        waits = queue.exclusive or cached.transaction is not None or context.settings.takes_existing_queues
        return not waits and context.rides_through and not context.keeps_after_send_error

    def _declare(self, queue: QueueSpec) -> None:
        """Declare a queue in front of its first message."""
        method = methods.declare(
            queue.name, queue.arguments, durable=queue.durable, auto_delete=queue.auto_delete, nowait=True
        )
        self._output.append(method.frame(self._channel))
        self._context.declared_queues.add_unanswered(queue)

    def declarations_answered(self, last: int) -> bool:
        """See `Session.declarations_answered`."""
        context = self._context
        was_held = Hold.CONFIRM_WINDOW in context.holds
        context.declared_queues.answered(last)
        self._release_window()
        return was_held and Hold.CONFIRM_WINDOW not in context.holds

    def _ask_for_temp_queue(self, identifier: bytes, frame: Frame) -> None:
        """Request the queue of ``/temp-queue/<id>`` in a reply-to, and subscribe to it."""
        context = self._context
        subscription = context.new_subscription(b"T_" + identifier, identifier, AckMode.AUTO)
        # A queue that the broker has named cannot be declared again under its name.
        name = context.fresh_queue_name().decode() if context.rides_through else ""
        if context.settings.next_release:
            name = name.replace(SUBSCRIPTION_QUEUE.decode(), TEMP_QUEUE_OF_NEXT)
        queue = temporary_queue(identifier, context.queue_rules, name)
        operation = ops.Subscribe(subscription, queue, name, None, context.settings.auto_ack_window)
        context.ask_to_subscribe(operation, queue, frame, retry=True)

    def ask_for_name(self, refused: ops.Operation | None) -> bool:
        """Let the broker name a temporary queue after all, if the user may not declare one of another name."""
        if not isinstance(refused, ops.Subscribe) or refused.subscription.destination:
            return False
        if refused.queue is None or not refused.queue.name:
            return False
        operation = replace(refused, queue=replace(refused.queue, name=""), queue_name="")
        self._context.ask_instead(operation)
        return True

    def publish(
        self,
        cached: CachedPublish,
        sends: Sequence[ReceiptAndBody],
        length: bytes | None,
        commit: Commit | None = None,
    ) -> None:
        """Publish messages with one header block, whose publication is built. HOT: once per SEND, or once for many.

        ``length`` is their content-length header.

        Raises:
            CodecError: AMQP cannot carry the first one. None was published.
        """
        publication = cached.publication
        if publication is None:
            return
        counter, keeps_bodies = cached.counter, self._keeps_bodies
        trims, values = self._context.trims_values, cached.values(None, length)
        frames: list[Piece] = []
        put: Callable[[Any], None] = frames.append
        encode: Callable[[Any, tuple[bytes, ...]], object] = publication.encode
        if len(sends[0][1]) >= LARGE:
            # The following ones are mostly as large; for smaller ones it costs a little more.
            put, encode, self._has_large = frames.extend, publication.pieces, True
        messages: list[Unconfirmed] = []
        total = 0
        for sent_receipt, body in sends:
            receipt = sent_receipt
            if receipt is not None:
                if trims:
                    receipt = receipt.lstrip(b" ")
                values = cached.values(receipt, length)
            if commit is None:
                put(encode(body, values))
            else:
                self._unencoded.append((publication, body, values))
            size = len(body)
            total += size
            sent_at = None if counter is None else counter.sent(size, receipt is not None)
            messages.append((receipt, cached, size, commit, sent_at, body if keeps_bodies else None, values))
        self._output += frames
        traffic = cached.traffic
        traffic.published += len(messages)
        traffic.published_bytes += total
        if self.has_confirms:
            self.confirms.add(messages, total)

    def _hold(self) -> None:
        holds = self._context.holds
        if (self.confirms.is_full and len(self.confirms)) or self._context.declared_queues.is_full:
            holds.add(Hold.CONFIRM_WINDOW)
        if self._blocked:
            holds.add(Hold.BROKER_BLOCKED)

    # Answers of the broker.

    def prepared(self, event: ops.PublisherPrepared) -> None:
        """The publishing channel is open, and the queue declared if one was asked for."""
        context = self._context
        operation = context.operation
        self._channel, self._frame_max, self.has_confirms = event.channel, event.frame_max, event.confirms
        self._has_rejected = False
        self._keeps_bodies = context.rides_through
        if event.is_new:
            self._channel_key = object()
            if not self.is_lost:
                # Sequence numbers start again at 1, and nothing waits for a confirm. After a loss a recovery follows.
                self.confirms.take_all()
        if isinstance(operation, ops.PreparePublisher) and operation.queue is not None:
            context.declared_queues.add(operation.queue.name, operation.queue)
        # During an alarm the SEND that asked for the channel is still taken.
        context.holds.discard(Hold.BROKER_BLOCKED)
        context.operation_done()

    def set_blocked(self, blocked: bool) -> None:
        """See `Session.set_blocked`."""
        self._blocked = blocked
        if not blocked:
            self._context.holds.discard(Hold.BROKER_BLOCKED)
        elif isinstance(self._context.operation, ops.PreparePublisher):
            # The broker answers nothing on this link before the alarm is over.
            self._context.holds.add(Hold.BROKER_BLOCKED)

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack or basic.nack of published messages, and send the RECEIPTs that wait for it.

        HOT: once per confirm, a receipt or nothing per message.
        """
        if not accepted and self._keeps_bodies:
            context = self._context
            is_passing = self.is_lost or context.is_unsettled(context.settings)
            self.is_in_doubt = not is_passing
            # Without a change of the brokers only those are in doubt that are for a queue that may be away.
            self.confirms.refuse(sequence, multiple=multiple, declared_only=not is_passing)
        messages = self.confirms.confirm(sequence, multiple=multiple)
        if messages:
            self._answered(messages, accepted)

    def give_up_blamed(self, code: int, text: str) -> bool:
        """The broker has closed the channel: its reason is the ERROR for the messages that it means.

        Returns:
            Whether it is known which ones those are. All others may be published again.
        """
        messages = self.confirms.take_blamed(text)
        if messages:
            self._answered(messages, accepted=False, error=partial(error_frames.broker_error, code, text))
        return bool(messages)

    def _answered(
        self,
        messages: list[Unconfirmed],
        accepted: bool,
        error: Callable[[VirtualHost], StompError] | None = None,
    ) -> None:
        """HOT: see ``confirm``. ``error`` is what is wrong with messages that are not accepted, if it is known."""
        context = self._context
        output, traffic = context.output, context.traffic
        if accepted:
            traffic.confirmed += len(messages)
        else:
            traffic.rejected += len(messages)
            self._has_rejected = True
            self._channel_key = object()
        finished: Commit | None = None
        for receipt, cached, _, commit, sent_at, _, _ in messages:
            if sent_at is not None and cached.counter is not None:
                cached.counter.confirmed(sent_at, accepted)
            if commit is not None:
                commit.unconfirmed -= 1
                commit.is_rejected = commit.is_rejected or not accepted
                if commit.unconfirmed == 0:
                    finished = commit
            if not accepted:
                why = error_frames.rejected(cached.destination) if error is None else error(context.settings)
                context.fail_send(why, receipt)
            elif receipt is not None:
                output.append(encode_receipt(receipt))
                traffic.receipts_sent += 1
        self._release_window()
        if finished is not None:
            finished.on_confirmed()

    def _release_window(self) -> None:
        holds = self._context.holds
        if Hold.CONFIRM_WINDOW in holds and self.confirms.is_half_empty and not self._context.declared_queues.is_full:
            holds.discard(Hold.CONFIRM_WINDOW)

    def message_returned(self, returned: Return) -> None:
        """Take a message that reached no queue. Its confirm still follows.

        If the session has declared its queue, that is gone or away, and `RideThrough` has the message published again.
        """
        message = self.confirms.take_returned(returned)
        if not returned.exchange:
            self._forget_queue(returned.routing_key)
        if message is None:
            return
        receipt, cached, _, commit, sent_at, body, _ = message
        if cached.queue is not None and body is not None:
            self.is_in_doubt = False
            return
        self._context.traffic.returned += 1
        if sent_at is not None and cached.counter is not None:
            cached.counter.confirmed(sent_at, False)
        if commit is not None:
            commit.is_returned = True
        if cached.mandatory or receipt is not None:
            self._context.fail_send(error_frames.unroutable(cached.destination, returned.text), receipt)

    def _forget_queue(self, name: bytes) -> None:
        """A queue is gone: if the session has declared it, the next SEND declares it again."""
        if self._context.declared_queues.discard(name.decode(errors="replace")):
            self._channel_key = object()

    # The loss of the link.

    @property
    def queues_of_unconfirmed(self) -> tuple[QueueSpec, ...]:
        """The queues that the unconfirmed messages are for, as their SENDs declared them."""
        queues = {cached.queue.name: cached.queue for _, cached, *_ in self.confirms.messages if cached.queue}
        return tuple(queues.values())

    @property
    def publishes_blindly(self) -> bool:
        """Whether nobody would learn that something which was published on the channel is lost."""
        return bool(self._channel) and not self.has_confirms

    @property
    def is_stuck(self) -> bool:
        """Whether none of the messages that the last recovery published again was confirmed."""
        return self._confirmed_before == self._context.traffic.confirmed and bool(self.confirms)

    def give_up_refused(self) -> None:
        """The broker did not take messages for so long, or for such a reason, that their client gets the ERROR."""
        self._confirmed_before = None
        self.is_in_doubt = False
        self._answered(self.confirms.take_refused(), accepted=False)

    def lost(self) -> None:
        """The channel is gone, or of no use any more.

        All that was published on it and is not confirmed is in ``confirms``, with its body. Whatever was encoded for
        it is worthless now, sent or not; ``restored`` encodes it again.
        """
        self.is_lost = True
        self._context.declared_queues.discard_unanswered()
        self._has_rejected = self.is_in_doubt = False
        self._channel = 0
        self._channel_key = object()
        self._clear_output()
        self._context.holds.discard(Hold.REPLAY)
        self.set_blocked(False)

    def restored(self, event: ops.PublisherPrepared) -> None:
        """There is a channel again: publish unconfirmed messages in their old order, before anything new.

        Of much, all but the beginning goes out a piece at a time, as a COMMIT does. Not again: what the broker returned
        to a client that wanted that, and what belongs to a COMMIT that is answered with an ERROR.

        Raises:
            CodecError: a message is too large for AMQP frames of the broker that answers now.
        """
        self.is_lost = self._has_rejected = False
        takes_less = 0 < event.frame_max < (self._frame_max or event.frame_max + 1)
        self._channel, self._frame_max, self.has_confirms = event.channel, event.frame_max, event.confirms
        given_up: list[Commit] = []
        encoded = 0
        for message in self.confirms.take_all():
            _, cached, size, commit, _, body, values = message
            if body is None or (commit is not None and commit.is_interrupted):
                if commit is not None:
                    commit.unconfirmed -= 1
                    given_up.append(commit)
                continue
            publication = self._built(cached)
            if encoded < _AT_ONCE:
                encoded += self._encode(publication, body, values)
            else:
                if takes_less:
                    publication.encode(b"", values)
                self._unencoded.append((publication, body, values))
            self.confirms.add([message], size)
        if self._unencoded:
            self._context.holds.add(Hold.REPLAY)
        self._confirmed_before = self._context.traffic.confirmed if self.confirms else None
        self._release_window()
        if given_up and not given_up[-1].unconfirmed:
            given_up[-1].on_confirmed()

    def _built(self, cached: CachedPublish) -> Publication:
        if cached.publication is not None and cached.channel_key is self._channel_key:
            return cached.publication
        reply_queue = self._context.subscriptions.temp_queues.get(cached.temp_queue or b"", cached.reply_queue)
        return cached.build(self._channel, self._frame_max, reply_queue, self._channel_key)
