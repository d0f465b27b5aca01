"""The channels of the model of a broker: AMQP frames in, what RabbitMQ answers called back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pamqp import body, commands, frame, header

from gateway.amqp.splitter import Return
from tests.support.model_broker import PRECONDITION_FAILED, Arguments, Message, ModelBroker, Place, Queue, RefusalError
from tests.support.model_kinds import first_offset

_CONTENT_START = 19  # of a content header frame, up to the property flags

Deliver = Callable[[int, bool, bytes, bytes, bytes], None]
Confirm = Callable[[int, bool, bool], None]
Returned = Callable[[Return], None]
Closed = Callable[[RefusalError], None]


def _nobody(*_: object) -> None:
    """Nobody listens."""


class Channel:
    """One AMQP channel: what a session writes on it takes effect, and what RabbitMQ answers is called back.

    Args:
        broker: where it leads.
        number: the channel's number, which all frames must bear.
        owner: the connection.
        user: who is logged in.
        deliver: takes deliveries, as ``gateway.session.subscription.Subscription.deliver`` does.
        confirm: takes sequence, multiple and accepted, as ``Session.confirm`` does.
        closed: is told when the broker closes the channel.
        cancelled: is told when the broker cancels the consumer.
    """

    def __init__(
        self,
        broker: ModelBroker,
        number: int,
        *,
        owner: object = None,
        user: str = "guest",
        deliver: Deliver = _nobody,
        confirm: Confirm = _nobody,
        closed: Closed = _nobody,
        cancelled: Callable[[], None] = _nobody,
    ) -> None:
        self.number = number
        # Takes mandatory messages that reach no queue, as ``Session.message_returned`` does.
        self.returned: Returned = _nobody
        self.confirms = False
        self.unacked: dict[int, tuple[Queue, Place]] = {}
        self.is_open = True
        self.offset = 0
        self._broker = broker
        self._owner = owner
        self._user = user
        self._deliver = deliver
        self._confirm = confirm
        self._closed = closed
        self._cancelled = cancelled
        self._queue: Queue | None = None
        self._prefetch = 0
        self._last_tag = 0
        self._sequence = 0
        self._outcomes: list[bool] = []

    # As a consumer.

    def consume(self, queue: str, prefetch: int, arguments: Arguments | None = None) -> None:
        """Consume a queue with acknowledgements; 0 sets no limit to them.

        Raises:
            RefusalError: the queue is not there, or another's, or does not let itself be consumed so.
        """
        found = self._broker.queue(queue, self._owner)
        self._broker.check_consumer(found, prefetch, arguments or {})
        self._queue = found
        self._prefetch = prefetch
        self.offset = first_offset((arguments or {}).get("x-stream-offset"), self._queue.depth)
        self._queue.consumers.append(self)
        self._queue.deliver()

    @property
    def has_room(self) -> bool:
        """See Consumer."""
        return not self._prefetch or len(self.unacked) < self._prefetch

    def take(self, queue: Queue, place: Place) -> None:
        """See Consumer."""
        self._last_tag += 1
        self.unacked[self._last_tag] = (queue, place)
        message = place.message
        self._deliver(self._last_tag, message.redelivered, message.route, message.properties, message.body)

    def cancelled(self) -> None:
        """See Consumer."""
        self._queue = None
        self._cancelled()

    def cancel(self) -> None:
        """End the consumer; what is unacknowledged stays with the channel."""
        queue, self._queue = self._queue, None
        if queue is not None:
            self._broker.drop_consumer(queue, self)

    def close(self) -> None:
        """Close the channel: its consumer ends, and what is unacknowledged goes back."""
        if not self.is_open:
            return
        self.is_open = False
        self.cancel()
        self._give_back(list(self.unacked))

    # What is written on it.

    def write(self, data: bytes) -> None:
        """Take AMQP frames, whole ones only. What comes after a refusal is discarded, as RabbitMQ does."""
        frames = self._frames(data)
        try:
            for found, _ in frames:
                if not self.is_open:
                    return
                if isinstance(found, commands.Basic.Publish):
                    self._publish(found, frames)
                elif isinstance(found, commands.Queue.Declare):
                    self._declare(found)
                elif isinstance(found, commands.Basic.Ack):
                    self._settle(found.delivery_tag, found.multiple)
                elif isinstance(found, commands.Basic.Nack):
                    self._settle(found.delivery_tag, found.multiple, refused=True, requeue=found.requeue)
                else:
                    raise AssertionError(f"no session writes {found.name}")
            self._answer()
        except RefusalError as refusal:
            self._answer()
            self.close()
            self._closed(refusal)

    def _frames(self, data: bytes) -> Iterator[tuple[Any, bytes]]:
        """The frames, each next to its bytes."""
        at = 0
        while at < len(data):
            size, number, found = frame.unmarshal(data[at:])
            assert number == self.number, f"a frame for channel {number} on channel {self.number}"
            yield found, data[at : at + size]
            at += size

    def _publish(self, method: commands.Basic.Publish, frames: Iterator[tuple[Any, bytes]]) -> None:
        found, data = next(frames)
        assert isinstance(found, header.ContentHeader)
        pieces = b""
        while len(pieces) < found.body_size:
            piece, _ = next(frames)
            assert isinstance(piece, body.ContentBody)
            pieces += piece.value
        assert len(pieces) == found.body_size, "a body longer than its header says"
        self._check(found.properties)
        message = Message(method.exchange, method.routing_key, data[_CONTENT_START:-1], pieces)
        reached = not method.mandatory or self._broker.reaches_a_queue(message)
        accepted = self._broker.route(message)
        if not reached:
            route = (method.exchange.encode(), method.routing_key.encode())
            self.returned(Return(312, b"NO_ROUTE", *route, message.properties, len(pieces)))
        if self.confirms:
            self._outcomes.append(accepted)

    def _declare(self, method: commands.Queue.Declare) -> None:
        """Declare a queue in front of its message."""
        assert method.nowait, "nobody waits for the answer"
        flags = {"durable": method.durable, "exclusive": method.exclusive, "auto_delete": method.auto_delete}
        try:
            self._broker.declare(method.queue, **flags, arguments=method.arguments, owner=self._owner)
        except RefusalError as refusal:
            refusal.of_declaration = True
            raise

    def _check(self, properties: commands.Basic.Properties) -> None:
        user, expiration = properties.user_id, properties.expiration
        if user is not None and user != self._user:
            raise RefusalError(
                PRECONDITION_FAILED,
                f"PRECONDITION_FAILED - user_id property set to '{user}' but authenticated user was '{self._user}'",
            )
        for name in ("CC", "BCC"):
            if name in (properties.headers or {}):
                reason = f'{{unacceptable_type_in_header,"{name}",longstr}}'
                raise RefusalError(PRECONDITION_FAILED, f"PRECONDITION_FAILED - invalid message: {reason}")
        if properties.reply_to == "amq.rabbitmq.reply-to":
            raise RefusalError(PRECONDITION_FAILED, "PRECONDITION_FAILED - fast reply consumer does not exist")
        if expiration and not expiration.isdecimal():
            raise RefusalError(
                PRECONDITION_FAILED, f"PRECONDITION_FAILED - invalid expiration '{expiration}': no_integer"
            )

    def _answer(self) -> None:
        """Confirm what was published: as many as possible at once, as RabbitMQ does."""
        outcomes, self._outcomes = self._outcomes, []
        for number, accepted in enumerate(outcomes):
            self._sequence += 1
            is_last = number + 1 == len(outcomes) or outcomes[number + 1] != accepted
            if not accepted:
                self._confirm(self._sequence, False, False)
            elif is_last:
                self._confirm(self._sequence, True, True)

    def _settle(self, tag: int, multiple: bool, *, refused: bool = False, requeue: bool = False) -> None:
        if tag not in self.unacked and not (multiple and tag == 0):
            raise RefusalError(PRECONDITION_FAILED, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        stream = self._queue is not None and self._queue.is_stream
        assert not (refused and stream), "RabbitMQ closes the whole link: a stream takes nothing back"
        tags = [each for each in self.unacked if each <= tag or tag == 0] if multiple else [tag]
        if refused and requeue:
            self._give_back(tags)
            return
        settled = [self.unacked.pop(each) for each in tags]
        if refused:
            for queue, place in settled:
                self._broker.dead_letter(queue, place.message)
        if self._queue is not None:
            self._queue.deliver()

    def _give_back(self, tags: list[int]) -> None:
        returned: dict[Queue, list[Place]] = {}
        for tag in tags:
            queue, place = self.unacked.pop(tag)
            returned.setdefault(queue, []).append(place)
        for queue, places in returned.items():
            queue.put_back(places)
