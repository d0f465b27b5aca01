"""Publishing: SEND, the publishing channel, and the broker's confirms.

A SEND is published at once if everything that it needs exists. Otherwise the session asks for the next missing thing
(the channel, confirms, a queue), and then carries the frame out again. The RECEIPT follows the broker's confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from gateway.amqp import methods
from gateway.amqp.codec import Publication
from gateway.amqp.splitter import Return
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CodecError, StompError
from gateway.pieces import LARGE, Piece
from gateway.session import error_frames, ops
from gateway.session.cached_publish import CachedPublish, PublishChannel, SendRequest
from gateway.session.confirms import Commit, CommitFailure, PublisherConfirms, Unconfirmed
from gateway.session.context import NO_SETTINGS, Hold, SessionContext
from gateway.session.correlation import STAMPED, Stamped
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import SUBSCRIPTION_QUEUE, TEMP_QUEUE_OF_NEXT
from gateway.session.publish_output import PublishOutput
from gateway.session.queues import QueueSpec, temporary_queue
from gateway.session.transactions import size_of
from gateway.session.translate import without_bad_numbers
from gateway.session.varied_publish import VariedPublish, VariedPublishes
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame import Frame, HeaderBlock, OversizedFrame, ReceiptAndBody, encode_receipt

# The mark on a header block that came once, and whose SEND was published with a `VariedPublish`.
_CAME_ONCE: Final = object()

_NO_CHANNEL: Final = PublishChannel()

# A recovery encodes this many bytes of the messages to publish again at once, and the rest in several turns.
_AT_ONCE: Final = 64 << 10

_Made = TypeVar("_Made", bound=CachedPublish)


class Publisher:
    """Publishes the SENDs of a session, and answers them when the broker confirms."""

    __slots__ = (
        "_blocked", "_channel", "_confirmed_before", "_context", "_frames", "_varied", "confirms", "has_confirms",
        "is_in_doubt", "is_lost", "output",
    )  # fmt: skip

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._channel = _NO_CHANNEL
        # True while the channel is lost.
        self.is_lost = False
        # True until it is known why the broker rejected messages for queues that this session declared.
        self.is_in_doubt = False
        # The number of confirmed messages when the last recovery left some unconfirmed; None if it left none.
        self._confirmed_before: int | None = None
        # Whether the channel confirms. The first frame that needs confirms switches them on.
        self.has_confirms = False
        self.confirms = PublisherConfirms(NO_SETTINGS)
        self.output = PublishOutput(context.holds)
        self._frames = self.output.frames
        self._blocked = False
        # Created for the first SEND.
        self._varied: VariedPublishes | None = None

    def forget_messages(self) -> None:
        """Drop all messages, at the end of the session."""
        self.output.clear()
        self.confirms.take_all()

    # SEND.

    def publish_plain(self, frame: Frame, decoder: Decoder, most: int) -> int:
        """Publish a SEND for which everything is ready, and up to ``most`` similar ones that follow it in ``decoder``.

        HOT: once per SEND, or once for many. They differ only in body and receipt. ``send`` is the slow twin, and
        handles everything unusual.

        Returns:
            The number of SENDs that were published; 0 if ``send`` must handle the frame.
        """
        cached = frame.header_block.cached_publish
        if not isinstance(cached, CachedPublish) or cached.channel is not self._channel:
            return 0
        if self._blocked or not cached.is_plain or (frame.receipt is not None and not self.has_confirms):
            return 0
        try:
            self.publish(cached, [(frame.receipt, frame.body)], frame.length)
        except CodecError:
            # Nothing is published yet. ``send`` raises it again, and then the client gets the ERROR.
            return 0
        if self._context.trims_values and frame.receipt is not None:
            # Receipts of the same size may differ in size after trimming.
            most = 0
        messages, size = self.confirms.room
        behind = decoder.take_sends(frame, min(most, messages), size)
        if behind:
            # They raise no CodecError: their receipts, and so their headers, are as large as those of the first one.
            self.publish(cached, behind, frame.length)
        if self.confirms.is_full:
            self._hold()
        return 1 + len(behind)

    def send(self, frame: Frame) -> None:
        """Publish a SEND, add it to its transaction, or ask for what is missing."""
        if isinstance(frame, OversizedFrame):
            raise error_frames.oversized(self._context.settings.max_frame_size)
        cached = frame.header_block.cached_publish
        if not isinstance(cached, CachedPublish):
            cached = self._cached(frame, is_new=cached is None)
        if not self._prepare(frame, cached):
            return
        name = cached.request.transaction
        if name is not None:
            transactions = self._context.transactions
            transactions.get(name)
            cached.check(self._context.receipt_of(frame), frame)
            transactions.enlist(name, size_of(frame)).sends.append(frame)
            return
        self.publish(cached, [(frame.receipt, frame.body)], frame.length)
        if cached.held and self.has_confirms:
            self.confirms.hold_headers()
        if self._blocked or self.confirms.is_full or self._context.declared_queues.is_full:
            self._hold()

    def _cached(self, frame: Frame, *, is_new: bool) -> CachedPublish:
        """The cached publish of a SEND's header block; if the block ``is_new``, perhaps that of similar SENDs."""
        block, headers = frame.header_block, self._context.headers(frame)
        cached = self._find_varied(block, headers) if is_new else None
        if cached is None:
            cached = block.cached_publish = self._make(CachedPublish, headers, block.volatile)
        return cached

    def _find_varied(self, block: HeaderBlock, headers: Mapping[bytes, bytes]) -> CachedPublish | None:
        """The varied publish of similar SENDs, if there were any."""
        context = self._context
        varied = self._varied
        if varied is None:
            significant = () if context.observer is None else context.observer.header_values
            varied = self._varied = VariedPublishes(partial(self._make, VariedPublish), significant)
        found = varied.find(headers)
        if found is None or not found.is_plain:
            return None
        # If the block comes again, it gets its own cached publish.
        block.cached_publish = _CAME_ONCE
        found.headers = headers
        return found

    def _make(self, kind: type[_Made], headers: Mapping[bytes, bytes], volatile: tuple[bytes, ...]) -> _Made:
        context = self._context
        if context.settings.next_release:
            headers = without_bad_numbers(headers)
        stamp = None if context.observer is None else context.observer.stamp
        cached: _Made = (kind if stamp is None else STAMPED[kind])(
            headers,
            volatile,
            context.settings.default_topic_exchange,
            trims=context.trims_values,
            rules=context.queue_rules,
            destinations=context.destination_rules,
        )
        if stamp is not None and isinstance(cached, Stamped):
            cached.stamp = stamp
        request = cached.request
        cached.traffic = context.traffic.sends.counter(request.destination, request.kind)
        if context.observer is not None:
            cached.counter = context.observer.sends(request, headers)
        return cached

    def is_ready(self, send: Frame, commit: Frame) -> bool:
        """Whether a SEND of a transaction can still be published. If not, ask for what a lost link has taken away.

        ``commit``: the frame to carry out again afterwards.

        Raises:
            CodecError: the headers are too large for the frames of the broker that answers now.
        """
        cached = send.header_block.cached_publish
        if not isinstance(cached, CachedPublish) or cached.channel is self._channel:
            return True
        if not self._prepare(commit, cached):
            return False
        cached.check(self._context.receipt_of(send), send)
        return True

    def _prepare(self, frame: Frame, cached: CachedPublish) -> bool:
        """Prepare to publish a SEND, and return whether that can happen now.

        If not, this asks for the next thing that is missing, for ``frame``. If the queue may be declared without
        waiting, this declares it.
        """
        context = self._context
        temp_queues = context.subscriptions.temp_queues
        request = cached.request
        if request.temp_queue is not None and request.temp_queue not in temp_queues:
            self._ask_for_temp_queue(request.temp_queue, frame)
            return False
        queue = request.queue
        if queue is not None and queue.name in context.declared_queues:
            queue = None
        needs_confirm = (frame.receipt is not None or request.mandatory) and request.transaction is None
        confirms = self.has_confirms or needs_confirm or context.confirms_always
        waits = queue is not None and not (confirms and self._may_follow(request, queue))
        channel = self._channel
        if not channel.number or channel.has_rejected or waits or confirms is not self.has_confirms:
            operation = ops.PreparePublisher(confirms, queue if waits else None, channel.has_rejected)
            context.ask(operation, frame, retry=True)
            return False
        if queue is not None:
            self._declare(queue)
        reply_queue = temp_queues.get(request.temp_queue or b"")
        if cached.channel is not channel or cached.reply_queue != reply_queue:
            cached.build(channel, reply_queue)
        return True

    def _may_follow(self, request: SendRequest, queue: QueueSpec) -> bool:
        """Whether a message may follow the declaration of its queue without waiting for the broker's answer.

        If the queue is away or deleted, a recovery publishes the message again. But it must wait

        * in a transaction: a refusal could not name a receipt, since nothing is published yet;
        * if the session survives refused SENDs: a refused declaration would close the channel;
        * for an exclusive queue, which belongs to another link.
        """
        context = self._context
        waits = queue.exclusive or request.transaction is not None or context.settings.takes_existing_queues
        return not waits and context.rides_through and not context.keeps_after_send_error

    def _declare(self, queue: QueueSpec) -> None:
        """Declare a queue, without awaiting the answer, before its first message."""
        method = methods.declare(
            queue.name, queue.arguments, durable=queue.durable, auto_delete=queue.auto_delete, nowait=True
        )
        self._frames.append(method.frame(self._channel.number))
        self._context.declared_queues.add_unanswered(queue)

    def declarations_answered(self, last: int) -> bool:
        """Note that the broker has carried out this many declarations. Returns whether this released the session."""
        context = self._context
        was_held = Hold.CONFIRM_WINDOW in context.holds
        context.declared_queues.answered(last)
        self._release_window()
        return was_held and Hold.CONFIRM_WINDOW not in context.holds

    def _ask_for_temp_queue(self, identifier: bytes, frame: Frame) -> None:
        """Ask for the queue of ``/temp-queue/<id>`` in a reply-to, and a subscription to it."""
        context = self._context
        subscription = context.new_subscription(b"T_" + identifier, identifier, AckMode.AUTO)
        # A recovery must be able to declare it again, and RabbitMQ does not let clients declare a name of its own.
        name = context.fresh_queue_name().decode() if context.rides_through else ""
        if context.settings.next_release:
            name = name.replace(SUBSCRIPTION_QUEUE.decode(), TEMP_QUEUE_OF_NEXT)
        queue = temporary_queue(identifier, context.queue_rules, name)
        operation = ops.Subscribe(subscription, queue, name, None, context.settings.auto_ack_window)
        context.ask_to_subscribe(operation, queue, frame, retry=True)

    def ask_for_name(self, refused: ops.Operation | None) -> bool:
        """If the user may not declare a temporary queue with this name, let the broker name it. Returns whether so."""
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
        """Publish messages with the same header block. HOT: once per SEND, or once for many.

        Args:
            cached: its publication must be built for the present channel.
            sends: receipts of equal size, and bodies.
            length: their content-length header.
            commit: the COMMIT that publishes them.

        Raises:
            CodecError: the headers are too large for AMQP. Nothing was published.
        """
        context, publication, counter = self._context, cached.publication, cached.counter
        trims, keeps_bodies, values = context.trims_values, context.rides_through, cached.values(None, length)
        frames: list[Piece] = []
        put: Callable[[Any], None] = frames.append
        encode: Callable[[Any, tuple[bytes, ...]], object] = publication.encode
        if len(sends[0][1]) >= LARGE:
            # The following bodies are mostly as large. Small ones cost a little more in this way.
            put, encode, self.output.has_large = frames.extend, publication.pieces, True
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
                self.output.add_later(publication, body, values)
            size = len(body)
            total += size
            sent_at = None if counter is None else counter.sent(size, receipt is not None)
            messages.append((receipt, cached, size, commit, sent_at, body if keeps_bodies else None, values))
        self._frames += frames
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
        """Take the new state of the publishing channel. The queue is declared, if one was asked for."""
        context = self._context
        operation = context.operation
        self.has_confirms = event.confirms
        channel = PublishChannel(event.channel, event.frame_max)
        if event.is_new or channel != self._channel:
            self._channel = channel
        if event.is_new and not self.is_lost:
            # Sequence numbers start again at 1. All messages are confirmed. (After a loss, a recovery follows.)
            self.confirms.take_all()
        if isinstance(operation, ops.PreparePublisher) and operation.queue is not None:
            context.declared_queues.add(operation.queue.name, operation.queue)
        # The SEND that asked for the channel is accepted even during an alarm.
        context.holds.discard(Hold.BROKER_BLOCKED)
        context.operation_done()

    def set_blocked(self, blocked: bool) -> None:
        """Note that the broker raised an alarm or ended it. During an alarm, the next SEND holds the client."""
        self._blocked = blocked
        if not blocked:
            self._context.holds.discard(Hold.BROKER_BLOCKED)
        elif isinstance(self._context.operation, ops.PreparePublisher):
            # The broker answers nothing on this link until the alarm ends.
            self._context.holds.add(Hold.BROKER_BLOCKED)

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """See `Session.confirm`. Sends the RECEIPTs that wait for these confirms. HOT: once per confirm."""
        if not accepted and self._context.rides_through:
            context = self._context
            is_passing = self.is_lost or context.brokers_changed(context.settings)
            self.is_in_doubt = not is_passing
            # If brokers changed, the refusal may be temporary for every message. Otherwise only queues that the session
            # declared may be away.
            self.confirms.refuse(sequence, multiple=multiple, declared_only=not is_passing)
        messages = self.confirms.confirm(sequence, multiple=multiple)
        if messages:
            self._answered(messages, accepted)

    def give_up_blamed(self, code: int, text: str) -> bool:
        """Answer the messages that fit the reason for which the broker closed the channel. Returns whether any do.

        They get an ERROR. All other messages may be published again.
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
        """Send RECEIPTs or ERRORs. ``error``: makes the ERROR for refused messages, if the reason is known. HOT."""
        context = self._context
        output, traffic = context.output, context.traffic
        if accepted:
            traffic.confirmed += len(messages)
        else:
            traffic.rejected += len(messages)
            # Another object, so that all header blocks take the slow path, where the next SEND has it replaced.
            self._channel = replace(self._channel, has_rejected=True)
        finished: Commit | None = None
        for receipt, cached, _, commit, sent_at, _, _ in messages:
            if sent_at is not None and cached.counter is not None:
                cached.counter.confirmed(sent_at, accepted)
            if commit is not None:
                commit.unconfirmed -= 1
                if not accepted:
                    commit.fail(CommitFailure.REJECTED)
                if commit.unconfirmed == 0:
                    finished = commit
            if not accepted:
                why = error_frames.rejected(cached.request.destination) if error is None else error(context.settings)
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

        If the session declared its queue, the queue is deleted or away, and `RideThrough` has the message published
        again.
        """
        message = self.confirms.take_returned(returned)
        if not returned.exchange:
            self._forget_queue(returned.routing_key)
        if message is None:
            return
        receipt, cached, _, commit, sent_at, body, _ = message
        if cached.request.queue is not None and body is not None:
            self.is_in_doubt = False
            return
        self._context.traffic.returned += 1
        if sent_at is not None and cached.counter is not None:
            cached.counter.confirmed(sent_at, False)
        if commit is not None:
            commit.fail(CommitFailure.RETURNED)
        if cached.request.mandatory or receipt is not None:
            self._context.fail_send(error_frames.unroutable(cached.request.destination, returned.text), receipt)

    def _forget_queue(self, name: bytes) -> None:
        """Note that a queue is gone, so that the next SEND declares it again if the session declared it before."""
        if self._context.declared_queues.discard(name.decode(errors="replace")):
            # Another object, so that all header blocks take the slow path again, where the queue is declared.
            self._channel = replace(self._channel)

    # The loss of the link.

    @property
    def queues_of_unconfirmed(self) -> tuple[QueueSpec, ...]:
        """The queues that the unconfirmed messages are for, as their SENDs declared them."""
        queues = [cached.request.queue for _, cached, *_ in self.confirms.messages]
        return tuple({queue.name: queue for queue in queues if queue is not None}.values())

    @property
    def publishes_blindly(self) -> bool:
        """Whether messages on the channel may be lost unnoticed, because it does not confirm."""
        return bool(self._channel.number) and not self.has_confirms

    @property
    def is_stuck(self) -> bool:
        """Whether nothing was confirmed since the last recovery, which published messages again."""
        return self._confirmed_before == self._context.traffic.confirmed and bool(self.confirms)

    def give_up_refused(self) -> None:
        """Answer the refused messages with ERRORs, because they are not published again."""
        self._confirmed_before = None
        self.is_in_doubt = False
        self._answered(self.confirms.take_refused(), accepted=False)

    def lost(self) -> None:
        """Give up the channel, which is closed or unusable.

        ``confirms`` has all its unconfirmed messages with their bodies, and ``restored`` encodes them again.
        """
        self.is_lost = True
        self._context.declared_queues.discard_unanswered()
        self.is_in_doubt = False
        self._channel = PublishChannel(0, self._channel.frame_max)
        self.output.clear()
        self.set_blocked(False)

    def restored(self, event: ops.PublisherPrepared) -> None:
        """Use a new channel: publish unconfirmed messages in their old order, before anything new.

        If there are many, all but the first go out in pieces, like a COMMIT. Messages that the broker returned, and
        those of a COMMIT that gets an ERROR, are not published again.

        Raises:
            CodecError: the headers of a message are too large for the frames of the broker that answers now.
        """
        self.is_lost = False
        takes_less = 0 < event.frame_max < (self._channel.frame_max or event.frame_max + 1)
        self._channel, self.has_confirms = PublishChannel(event.channel, event.frame_max), event.confirms
        given_up: list[Commit] = []
        encoded = 0
        for message in self.confirms.take_all():
            _, cached, size, commit, _, body, values = message
            if body is None or (commit is not None and commit.failure is CommitFailure.INTERRUPTED):
                if commit is not None:
                    commit.unconfirmed -= 1
                    given_up.append(commit)
                continue
            publication = self._built(cached)
            if encoded < _AT_ONCE:
                encoded += self.output.encode(publication, body, values)
            else:
                if takes_less:
                    publication.encode(b"", values)
                self.output.add_later(publication, body, values)
                self._context.holds.add(Hold.REPLAY)
            self.confirms.add([message], size)
        self._confirmed_before = self._context.traffic.confirmed if self.confirms else None
        self._release_window()
        if given_up and not given_up[-1].unconfirmed:
            given_up[-1].on_confirmed()

    def _built(self, cached: CachedPublish) -> Publication:
        if cached.channel is self._channel:
            return cached.publication
        reply_queue = self._context.subscriptions.temp_queues.get(cached.request.temp_queue or b"", cached.reply_queue)
        return cached.build(self._channel, reply_queue)
