"""Destinations: the client's text, its route on the broker, and the text in a MESSAGE.

RabbitMQ's adapter splits at slashes before it unescapes. It reads only the escape ``%2F``, but writes others, too. The
gateway does exactly the same, because queue names and replies depend on it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from enum import Enum
from hashlib import md5
from typing import Final

from gateway.errors import StompError

AMQ_TOPIC: Final = b"amq.topic"
REPLY_QUEUE: Final = b"/reply-queue/"
TEMP_QUEUE: Final = b"/temp-queue/"
_TOPIC: Final = b"/topic/"

# The plugin's text, even if the gateway knows more kinds: transcripts compare it.
_VALID_TYPES: Final = b"/temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue/"
_ROUTABLE: Final = (b"/exchange", b"/topic", b"/queue", b"/amq/queue", REPLY_QUEUE)
_SHOWN_ESCAPED: Final = re.compile(rb"[\x00-\x1f%/\x80-\xff]")


class DestinationKind(Enum):
    """The kinds of destinations. The value is the word for the kind in an ERROR."""

    QUEUE = b"queue"
    TOPIC = b"topic"
    EXCHANGE = b"exchange"
    AMQ_QUEUE = b"amqqueue"
    REPLY_QUEUE = b"reply_queue"
    TEMP_QUEUE = b"temp_queue"


_PREFIXES: Final = {
    DestinationKind.QUEUE: b"/queue",
    DestinationKind.TOPIC: b"/topic",
    DestinationKind.EXCHANGE: b"/exchange",
    DestinationKind.AMQ_QUEUE: b"/amq/queue",
    DestinationKind.REPLY_QUEUE: b"/reply-queue",
    DestinationKind.TEMP_QUEUE: b"/temp-queue",
}

# Without /reply-queue, which needs a slash after it.
_BY_PREFIX: Final = {prefix: kind for kind, prefix in _PREFIXES.items() if kind is not DestinationKind.REPLY_QUEUE}

KIND_NAMES: Final = {kind: prefix[1:].replace(b"/", b"-").decode() for kind, prefix in _PREFIXES.items()}
"""The names of the kinds in metrics and the journal: their prefixes, with hyphens for slashes."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A parsed destination, unescaped.

    ``name``: the queue, the topic's routing key, or the exchange. ``key``: the routing key of an exchange destination,
    otherwise empty.
    """

    kind: DestinationKind
    name: bytes
    key: bytes = b""

    def route(self, topic_exchange: bytes) -> tuple[bytes, bytes]:
        """The exchange and routing key with which messages for this destination are published.

        ``topic_exchange``: the virtual host's default topic exchange, which also replaces ``amq.topic``.
        """
        if self.kind is DestinationKind.TOPIC:
            return topic_exchange, self.name
        if self.kind is DestinationKind.EXCHANGE:
            return (topic_exchange if self.name == AMQ_TOPIC else self.name), self.key
        return b"", self.name

    @property
    def is_bound(self) -> bool:
        """Whether each subscription has a queue of its own, which is bound to an exchange."""
        return self.kind in (DestinationKind.TOPIC, DestinationKind.EXCHANGE)

    @property
    def binding_key(self) -> bytes:
        """The routing key with which a subscription's queue is bound."""
        return self.name if self.kind is DestinationKind.TOPIC else self.key


def parse(text: bytes) -> Destination:
    """Parse a destination header.

    Raises:
        StompError: "Invalid destination" or "Unknown destination".
    """
    if not text:
        raise StompError("Invalid destination", "Destination cannot be blank")
    if b"/" not in text:
        return Destination(DestinationKind.QUEUE, _unescape(text))
    if text.startswith(REPLY_QUEUE):
        return _named(DestinationKind.REPLY_QUEUE, text[len(REPLY_QUEUE) :], text[len(REPLY_QUEUE) - 1 :])
    first = text.find(b"/", 5 if text.startswith(b"/amq/") else 1)
    prefix, rest = (text, b"") if first < 0 else (text[:first], text[first:])
    kind = _BY_PREFIX.get(prefix)
    if kind is DestinationKind.EXCHANGE:
        return _exchange(rest)
    if kind is not None:
        return _named(kind, rest[1:], rest, b"/" in rest[1:])
    body = b"'%b' is not a valid destination.\nValid destination types are: %b.\n" % (text, _VALID_TYPES)
    raise StompError("Unknown destination", body)


def kind_of(text: bytes) -> DestinationKind:
    """The kind of a destination by its prefix. The rest may be invalid, if a rule makes it valid."""
    try:
        return parse(text).kind
    except StompError:
        kinds = (kind for kind, prefix in _PREFIXES.items() if text.startswith(prefix + b"/"))
        return next(kinds, DestinationKind.QUEUE)


def _named(kind: DestinationKind, name: bytes, rest: bytes, has_more: bool = False) -> Destination:
    if not name or has_more:
        raise _invalid(kind, rest)
    return Destination(kind, _unescape(name))


def _exchange(rest: bytes) -> Destination:
    name, _, key = rest[1:].partition(b"/")
    if not name or b"/" in key:
        raise _invalid(DestinationKind.EXCHANGE, rest)
    return Destination(DestinationKind.EXCHANGE, _unescape(name), _unescape(key))


def _invalid(kind: DestinationKind, rest: bytes) -> StompError:
    return StompError("Invalid destination", b"'%b' is not a valid %b destination\n" % (rest, kind.value))


def canonical_texts(destination: Destination, topic_exchange: bytes) -> tuple[bytes, ...]:
    """The texts to match with an operator's patterns: the destination's own, and then those of its queue or topic.

    For example, ``/amq/queue/a`` also gives ``/queue/a``, and ``/exchange/amq.topic/b`` also gives ``/topic/b``.
    """
    name = _without_slashes(destination.name)
    kind = destination.kind
    exchange, _ = destination.route(topic_exchange)
    if kind is not DestinationKind.EXCHANGE:
        own = b"%b/%b" % (_PREFIXES[kind], name)
        # The name of a temporary queue is local to the session.
        is_queue_by_name = not exchange and kind not in (DestinationKind.QUEUE, DestinationKind.TEMP_QUEUE)
        return (own, b"/queue/" + name) if is_queue_by_name else (own,)
    key = _without_slashes(destination.key)
    own_ones = [b"/exchange/%b/%b" % (each, key) for each in dict.fromkeys((name, _without_slashes(exchange)))]
    if not key:
        # A slash after the exchange does not change the destination, but patterns distinguish it.
        own_ones = [each for own in own_ones for each in (own[:-1], own)]
    return (*own_ones, b"/topic/" + key) if exchange == topic_exchange else tuple(own_ones)


def _without_slashes(part: bytes) -> bytes:
    return part.replace(b"/", b"%2F")


def not_for(command: bytes, text: bytes) -> StompError:
    """Make the error for a temp-queue destination outside reply-to. ``command``: SEND or SUBSCRIBE."""
    return StompError("Invalid destination", b"'%b' is not a valid destination for '%b'\n" % (text, command))


def _unescape(part: bytes) -> bytes:
    return part.replace(b"%2F", b"/")


def _escape(part: bytes) -> bytes:
    return _SHOWN_ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], part)


def message_destination(exchange: bytes, routing_key: bytes) -> bytes:
    """The destination header of a MESSAGE: where it was published, which may differ from the subscription's."""
    key = _escape(routing_key)
    if not exchange:
        return b"/queue/" + key
    if exchange == AMQ_TOPIC:
        return b"/topic/" + key
    name = _escape(exchange)
    return b"/exchange/%b/%b" % (name, key) if key else b"/exchange/" + name


def with_dots(text: bytes) -> bytes:
    """Translate a destination of a client that separates the words of a topic by slashes, as other brokers do.

    ``/topic/a/b`` becomes ``/topic/a.b``, and a final ``**``, for any number of words, becomes ``#``.
    """
    if not text.startswith(_TOPIC):
        return text
    words = text[len(_TOPIC) :].split(b"/")
    words[-1] = b"#" if words[-1] == b"**" else words[-1]
    return _TOPIC + b".".join(words)


def with_slashes(destination: bytes) -> bytes:
    """The destination header of a MESSAGE for a client that separates words by slashes."""
    return destination.replace(b".", b"/") if destination.startswith(_TOPIC) else destination


def message_reply_to(reply_to: bytes) -> bytes:
    """The reply-to header of a MESSAGE. A text that is not a destination becomes that of a queue with this name."""
    return reply_to if reply_to.startswith(_ROUTABLE) else REPLY_QUEUE + reply_to


TEMP_QUEUE_OF_NEXT: Final = "stomp.gen-"
"""The prefix of the queue's name for ``/temp-queue/<id>`` in the plugin's next release."""

SUBSCRIPTION_QUEUE: Final = b"stomp-subscription-"
"""The prefix of the queue's name for a topic subscription."""


def durable_queue_name(routing_key: bytes, subscription_id: bytes, *, next_release: bool = False) -> bytes:
    """The queue name of a durable topic subscription, as RabbitMQ's adapter computes it.

    It is a hash of routing key and id in Erlang's external term format; exchange and virtual host do not matter. All
    released versions encode both as lists of bytes. With ``next_release`` they are binaries, so that release does not
    find the queues of earlier ones.
    """
    encoded = _erlang_binary if next_release else _erlang_string
    term = b"\x83h\x02" + encoded(routing_key) + encoded(subscription_id)
    # RabbitMQ's adapter uses MD5. No secret depends on it.
    return subscription_queue_name(md5(term, usedforsecurity=False).digest())


def subscription_queue_name(digest: bytes) -> bytes:
    """The queue name of a topic subscription: a prefix and 16 bytes in the URL-safe alphabet without padding."""
    return SUBSCRIPTION_QUEUE + urlsafe_b64encode(digest).rstrip(b"=")


_LONGEST_ERLANG_STRING: Final = 0xFFFF


def _erlang_binary(text: bytes) -> bytes:
    """A binary in the external term format: BINARY_EXT."""
    return b"m" + len(text).to_bytes(4, "big") + text


def _erlang_string(text: bytes) -> bytes:
    """A list of bytes in the external term format: NIL_EXT, STRING_EXT, or for a long one LIST_EXT."""
    size = len(text)
    if not size:
        return b"j"
    if size <= _LONGEST_ERLANG_STRING:
        return b"k" + size.to_bytes(2, "big") + text
    elements = bytearray(2 * size)
    elements[0::2] = b"a" * size
    elements[1::2] = text
    return b"l" + size.to_bytes(4, "big") + bytes(elements) + b"j"
