"""The confirm window: the messages that a session has published and the broker has not confirmed.

Publish sequence numbers count from 1, from the first message after confirms are switched on (RabbitMQ, "Consumer
Acknowledgements and Publisher Confirms").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gateway.amqp import properties
from gateway.amqp.splitter import Return
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CodecError
from gateway.pieces import Body
from gateway.session.cached_publish import CachedPublish
from gateway.session.queues import QueueSpec


class CommitFailure(IntEnum):
    """Why a COMMIT acknowledges nothing. If there are several reasons, the client gets the largest."""

    NONE = 0
    REJECTED = 1
    """The broker did not accept one of its messages."""
    RETURNED = 2
    """One of its messages reached no queue."""
    INTERRUPTED = 3
    """It acknowledges deliveries of a lost channel."""


@dataclass(slots=True, eq=False)
class Commit:
    """A COMMIT that waits for confirms. ``unconfirmed``: the number of its messages without one."""

    unconfirmed: int
    on_confirmed: Callable[[], None]
    failure: CommitFailure = CommitFailure.NONE

    def fail(self, failure: CommitFailure) -> None:
        """Note a reason to acknowledge nothing."""
        self.failure = max(self.failure, failure)


# Every virtual host has these exchanges, and they cannot be deleted.
_PREDECLARED: Final = frozenset((b"", b"amq.direct", b"amq.fanout", b"amq.topic", b"amq.headers", b"amq.match"))

Unconfirmed = tuple[bytes | None, CachedPublish, int, Commit | None, object, Body | None, tuple[bytes, ...]]
"""An unconfirmed message: receipt, cached publish, size in bytes of its body and of large headers, the COMMIT that
published it, the observer's ``sent_at``, the body, and the values of ``gaps``. Body and values serve to publish it
again after a loss. The body is None if that does not happen: the broker has returned the message, or the session does
not outlive its link. It is a plain tuple because one is made for every message."""

# Indexes of `Unconfirmed`.
_RECEIPT: Final = 0
_CACHED: Final = 1
_SIZE: Final = 2
_BODY: Final = 5


class PublisherConfirms:
    """The unconfirmed messages of one session, in the order of publishing."""

    __slots__ = (
        "_last_returned", "_max_bytes", "_max_messages", "_refused", "_returning", "_unconfirmed", "last_sequence",
        "unconfirmed_bytes",
    )  # fmt: skip

    def __init__(self, settings: VirtualHost) -> None:
        self.set_limits(settings)
        self._unconfirmed: dict[int, Unconfirmed] = {}
        # Messages that the broker refused or returned, and that are to be published again on another channel.
        self._refused: dict[int, Unconfirmed] = {}
        # The publish sequence number of the message that the broker returned last.
        self._last_returned = 0
        # The routes of the returned messages in ``_refused``.
        self._returning: set[tuple[bytes, bytes]] = set()
        # The publish sequence number of the last message; 0 before confirms are on.
        self.last_sequence = 0
        self.unconfirmed_bytes = 0

    def set_limits(self, settings: VirtualHost) -> None:
        """Set the size of the window, in messages and bytes."""
        self._max_messages = settings.confirm_window.messages
        self._max_bytes = settings.confirm_window.bytes

    def __len__(self) -> int:
        """The number of unconfirmed messages."""
        return len(self._unconfirmed) + len(self._refused)

    def __contains__(self, sequence: int) -> bool:
        """Whether the message with this publish sequence number is neither confirmed nor refused."""
        return sequence in self._unconfirmed

    @property
    def is_answered(self) -> bool:
        """Whether the broker has confirmed or refused everything."""
        return not self._unconfirmed

    def is_answered_up_to(self, sequence: int) -> bool:
        """Whether the broker has confirmed or refused this message and all before it."""
        return next(iter(self._unconfirmed), sequence + 1) > sequence

    @property
    def has_refused(self) -> bool:
        """Whether there are refused messages to publish again."""
        return bool(self._refused)

    @property
    def owes_receipts(self) -> bool:
        """Whether a receipt waits for a confirm."""
        return any(receipt is not None for receipt, *_ in self.messages)

    @property
    def room(self) -> tuple[int, int]:
        """The numbers of messages and bytes until the window is full. HOT: once per SEND, or once for many."""
        return self._max_messages - len(self._unconfirmed), self._max_bytes - self.unconfirmed_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing may be published before the next confirm. HOT: once per SEND, or once for many."""
        return len(self._unconfirmed) >= self._max_messages or self.unconfirmed_bytes >= self._max_bytes

    @property
    def is_half_empty(self) -> bool:
        """Whether enough is confirmed to release a client that filled the window."""
        return 2 * len(self._unconfirmed) <= self._max_messages and 2 * self.unconfirmed_bytes <= self._max_bytes

    @property
    def messages(self) -> Iterable[Unconfirmed]:
        """The unconfirmed messages, in the order of publishing."""
        if self._refused:
            return [message for _, message in sorted((*self._refused.items(), *self._unconfirmed.items()), key=_number)]
        return self._unconfirmed.values()

    def add(self, messages: list[Unconfirmed], size: int) -> None:
        """Record published messages of ``size`` bytes in total. HOT: once per SEND, or once for many."""
        self._unconfirmed.update(enumerate(messages, self.last_sequence + 1))
        self.last_sequence += len(messages)
        self.unconfirmed_bytes += size

    def hold_headers(self) -> None:
        """Add the memory of the last message's headers, which are large, to its size."""
        receipt, cached, size, commit, sent_at, body, values = self._unconfirmed[self.last_sequence]
        held = cached.held_with(values)
        self._unconfirmed[self.last_sequence] = (receipt, cached, size + held, commit, sent_at, body, values)
        self.unconfirmed_bytes += held

    def take_all(self) -> list[Unconfirmed]:
        """Remove and return all messages, to publish them on another channel. Sequence numbers start again at 1."""
        messages = list(self.messages)
        self._unconfirmed.clear()
        self._refused.clear()
        self._returning.clear()
        self.last_sequence = self._last_returned = self.unconfirmed_bytes = 0
        return messages

    def confirm(self, sequence: int, *, multiple: bool) -> list[Unconfirmed]:
        """Remove and return the messages of a confirm, in the order of publishing. HOT: once per confirm."""
        unconfirmed = self._unconfirmed
        if not multiple:
            message = unconfirmed.pop(sequence, None)
            if message is None:
                return []
            self.unconfirmed_bytes -= message[_SIZE]
            return [message]
        # The dictionary is in publishing order, so the messages of a multiple come first. They are removed afterwards:
        # finding the first entry again after each removal would walk over all the holes.
        confirmed: list[int] = []
        for each in unconfirmed:
            if each > sequence:
                break
            confirmed.append(each)
        messages = [unconfirmed.pop(each) for each in confirmed]
        self.unconfirmed_bytes -= sum([message[_SIZE] for message in messages])
        return messages

    def refuse(self, sequence: int, *, multiple: bool, declared_only: bool) -> None:
        """Keep messages that the broker refused, if it may accept them later.

        This excludes messages for a queue that was declared with ``x-overflow: reject-publish``. With
        ``declared_only``, it excludes those for queues that the session has not declared.
        """
        numbers = [each for each in self._unconfirmed if each <= sequence] if multiple else [sequence]
        for each in numbers:
            message = self._unconfirmed.get(each)
            if message is None:
                continue
            queue = message[_CACHED].request.queue
            if (declared_only and queue is None) or (queue is not None and _refuses_publishes(queue)):
                continue
            self._refused[each] = self._unconfirmed.pop(each)

    @property
    def refused_queues(self) -> tuple[str, ...]:
        """The names of the queues of the refused messages."""
        queues = [message[_CACHED].request.queue for message in self._refused.values()]
        return tuple(dict.fromkeys(queue.name for queue in queues if queue is not None))

    def take_refused(self) -> list[Unconfirmed]:
        """Remove and return the refused messages, in the order of publishing."""
        messages = [message for _, message in sorted(self._refused.items(), key=_number)]
        self._refused.clear()
        self.unconfirmed_bytes -= sum(message[_SIZE] for message in messages)
        return messages

    def take_returned(self, returned: Return) -> Unconfirmed | None:
        """Find the message that the broker returned; None if no unconfirmed message fits. Its confirm still follows.

        The broker returns messages in order, but does not say which: it was published after the one returned last.
        Earlier messages with the same route may have reached a queue and still wait for their confirm. The receipt,
        which is among the headers, tells them apart.

        If the session declared the message's queue, this message and all later ones for that queue are kept as refused,
        to be published again. Some of them may then arrive twice.
        """
        unconfirmed, route = self._unconfirmed, (returned.exchange, returned.routing_key)
        if route in self._returning:
            return None
        receipt = _receipt_in(returned.properties)
        first = max(self._last_returned + 1, next(iter(unconfirmed), 0))
        for sequence in range(first, self.last_sequence + 1):
            message = unconfirmed.get(sequence)
            if message is not None and _is_returned(message, returned, receipt):
                self._last_returned = sequence
                _, cached, size, commit, _, body, _ = message
                if cached.request.queue is None or body is None:
                    unconfirmed[sequence] = (None, cached, size, commit, None, None, ())
                else:
                    self._keep_from(sequence, route)
                return message
        return None

    def _keep_from(self, sequence: int, route: tuple[bytes, bytes]) -> None:
        """Keep the messages of a route from this one on as refused. Nothing more is published on this channel."""
        self._returning.add(route)
        for each, message in tuple(self._unconfirmed.items()):
            request, body = message[_CACHED].request, message[_BODY]
            if each >= sequence and body is not None and (request.exchange, request.routing_key) == route:
                self._refused[each] = self._unconfirmed.pop(each)

    def receipt_of_failure(self, text: str) -> bytes | None:
        """The receipt of the SEND that made the broker close the channel: the first that fits the broker's text."""
        blamed = self._blamed(text)
        return self._unconfirmed[blamed[0]][_RECEIPT] if blamed else None

    def receipt_of_declaration(self, queue: str) -> bytes | None:
        """The receipt of the first message for a queue, whose declaration was refused."""
        for receipt, cached, *_ in self._unconfirmed.values():
            if cached.request.queue is not None and cached.request.queue.name == queue:
                return receipt
        return None

    def take_blamed(self, text: str) -> list[Unconfirmed]:
        """Remove and return the messages that, by the broker's text, made it close the channel or would do so again."""
        messages = [self._unconfirmed.pop(each) for each in self._blamed(text)]
        self.unconfirmed_bytes -= sum(message[_SIZE] for message in messages)
        return messages

    def _blamed(self, text: str) -> list[int]:
        """The sequence numbers of the messages that fit the broker's reason for closing the channel.

        A single message fits every reason, except one that names an exchange.
        """
        reason = text.encode()
        if len(self._unconfirmed) == 1 and b"exchange" not in reason:
            return list(self._unconfirmed)
        return [number for number, (_, cached, *_) in self._unconfirmed.items() if cached.is_named_in(reason)]

    @property
    def are_for_predeclared_exchanges(self) -> bool:
        """Whether there are messages, and all are for exchanges that exist as long as their virtual host."""
        return bool(self._unconfirmed) and all(
            each[_CACHED].request.exchange in _PREDECLARED for each in self._unconfirmed.values()
        )


def _number(item: tuple[int, Unconfirmed]) -> int:
    return item[0]


def _refuses_publishes(queue: QueueSpec) -> bool:
    return str(queue.arguments.get("x-overflow", "")).startswith("reject-publish")


def _is_returned(message: Unconfirmed, returned: Return, receipt_in_headers: bytes | None) -> bool:
    receipt, cached, size, _, _, _, values = message
    request = cached.request
    return (
        (request.mandatory or request.queue is not None)
        and request.routing_key == returned.routing_key
        and request.exchange == returned.exchange
        and size in (returned.size, returned.size + cached.held_with(values))
        and receipt == receipt_in_headers
    )


def _receipt_in(property_list: bytes) -> bytes | None:
    try:
        headers = properties.decode(property_list).headers or ()
    except CodecError:
        return None
    return next((value for name, value in headers if name == b"receipt" and isinstance(value, bytes)), None)
