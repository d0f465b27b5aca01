"""A broker in memory: as much of RabbitMQ as the session's output needs to be understood, and nothing that takes time.

What a session writes is read with pamqp, the oracle. Properties stay the bytes that they were, as in RabbitMQ; what it
refuses, it refuses in RabbitMQ's words. Nothing is ever under way: when a call returns, everything has happened.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol

from pamqp import commands, encode, header

from gateway.parity.amqp_broker import BrokerMessage, BrokerRefusalError
from tests.support.model_kinds import kind_of, refused_consumer, refused_declaration, with_number

Arguments = Mapping[str, Any]

_ACCESS_REFUSED = 403
_NOT_FOUND = 404
_RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406


class RefusalError(Exception):
    """What RabbitMQ closes a channel with.

    Args:
        code: AMQP reply code.
        text: reply text.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        # Whether the refused method is a declaration in front of a message.
        self.of_declaration = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a queue. ``properties`` are the flags and the list of a content header, as received."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    redelivered: bool = False
    returns: int = 0

    def numbered(self, name: str, number: int) -> Message:
        """The same message with a header of 64 bits that the broker adds."""
        return replace(self, properties=with_number(self.properties, name, number))

    @property
    def route(self) -> bytes:
        """Exchange and routing key as basic.deliver has them, two short strings."""
        return b"".join(bytes((len(name),)) + name for name in (self.exchange.encode(), self.routing_key.encode()))


@dataclass(order=True, slots=True)
class Place:
    """A message with its place in its queue, which it keeps when it comes back."""

    number: int
    message: Message = field(compare=False)


class Consumer(Protocol):
    """Who takes messages from a queue."""

    offset: int
    """Of a stream: which of its messages it takes next."""

    @property
    def has_room(self) -> bool:
        """Whether its prefetch allows one more."""

    def take(self, queue: Queue, place: Place) -> None:
        """Take a message."""

    def cancelled(self) -> None:
        """The queue is gone."""


@dataclass(slots=True, eq=False)
class Queue:
    """A queue. ``owner`` is whom it is exclusive to, None for everybody."""

    name: str
    durable: bool = False
    auto_delete: bool = False
    owner: object = None
    arguments: Arguments = field(default_factory=dict)
    ready: list[Place] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more, and says so."""
        longest = self.arguments.get("x-max-length")
        return self.arguments.get("x-overflow") == "reject-publish" and longest is not None and self.depth >= longest

    @property
    def depth(self) -> int:
        """Messages ready for consumers."""
        return len(self.ready)

    @property
    def is_stream(self) -> bool:
        """Whether its messages stay, and each consumer reads all of them from its own offset on."""
        return kind_of(self.arguments) == "stream"

    def put(self, message: Message) -> None:
        """Add a message at the end."""
        self.ready.append(Place(next(self.numbers), message))
        self.deliver()

    def put_back(self, places: list[Place]) -> None:
        """Return messages to where they were."""
        if self.is_stream:
            return
        for place in places:
            message = replace(place.message, redelivered=True, returns=place.message.returns + 1)
            if kind_of(self.arguments) == "quorum":
                message = message.numbered("x-delivery-count", message.returns)
            insort(self.ready, Place(place.number, message))
        self.deliver()

    def deliver(self) -> None:
        """Hand out what may be handed out, to the consumers in turns."""
        if self.is_stream:
            for reader in self.consumers:
                self._read_on(reader)
            return
        while self.ready:
            consumer = next((each for each in self.consumers if each.has_room), None)
            if consumer is None:
                return
            self.consumers.remove(consumer)
            self.consumers.append(consumer)
            consumer.take(self, self.ready.pop(0))

    def _read_on(self, reader: Consumer) -> None:
        while reader.has_room and reader.offset < len(self.ready):
            place = self.ready[reader.offset]
            reader.offset += 1
            reader.take(self, replace(place, message=place.message.numbered("x-stream-offset", place.number)))


@dataclass(slots=True)
class _Exchange:
    kind: str
    internal: bool = False
    bindings: list[tuple[str, str]] = field(default_factory=list)  # routing key and queue

    def queues_for(self, routing_key: str) -> set[str]:
        return {queue for key, queue in self.bindings if self._matches(key, routing_key)}

    def _matches(self, key: str, routing_key: str) -> bool:
        if self.kind == "fanout":
            return True
        return _topic_matches(_words(key), _words(routing_key)) if self.kind == "topic" else key == routing_key


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _topic_matches(pattern: list[str], words: list[str]) -> bool:
    """A topic exchange's rule: * is one word, # any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return _topic_matches(pattern[1:], words) or (bool(words) and _topic_matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and _topic_matches(pattern[1:], words[1:])


class ModelBroker:
    """Queues, exchanges and bindings of a virtual host.

    The coroutines are the view from behind that transcripts have (``gateway.parity.amqp_broker.Broker``); the other
    methods are what AMQP offers to channels.

    Args:
        virtual_host: its name.
    """

    def __init__(self, virtual_host: str = "/") -> None:
        self.virtual_host = virtual_host
        self.queues: dict[str, Queue] = {}
        self._exchanges = {
            "amq.direct": _Exchange("direct"),
            "amq.fanout": _Exchange("fanout"),
            "amq.topic": _Exchange("topic"),
        }
        self._names = count(1)

    # What AMQP offers.

    def declare(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        owner: object = None,
    ) -> str:
        """Declare a queue; an empty name is replaced by one of the broker's choice.

        Args:
            name: of the queue.
            durable: AMQP's flag; an exclusive queue is never durable.
            exclusive: whether it is the owner's alone.
            auto_delete: whether it goes with its last consumer.
            arguments: must be what AMQP can carry.
            owner: the connection.

        Returns:
            The name.

        Raises:
            RefusalError: it exists and is another's, or otherwise.
        """
        encode.field_table(dict(arguments or {}))  # the oracle refuses what has no encoding
        name = name or f"amq.gen-{next(self._names):022}"
        declared = Queue(name, durable and not exclusive, auto_delete, owner if exclusive else None, arguments or {})
        known = self.queues.get(name)
        if known is not None:
            self._check_equivalence(known, declared)
        elif name.startswith("amq.") and not name.startswith("amq.gen-"):
            raise RefusalError(
                _ACCESS_REFUSED, f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"
            )
        else:
            flags = {"durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
            _refuse(refused_declaration(name, self.virtual_host, declared.arguments, **flags))
            self.queues[name] = declared
        return name

    def queue(self, name: str, owner: object = None) -> Queue:
        """Find a queue to consume, bind or delete.

        Raises:
            RefusalError: there is none, or it is another's.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise RefusalError(_NOT_FOUND, f"NOT_FOUND - no queue '{name}' in vhost '{self.virtual_host}'")
        if queue.owner is not None and queue.owner is not owner:
            raise self._locked(name)
        return queue

    def check_consumer(self, queue: Queue, prefetch: int, arguments: Arguments) -> None:
        """See whether a queue can be consumed so.

        Raises:
            RefusalError: it cannot.
        """
        _refuse(refused_consumer(queue.name, self.virtual_host, queue.arguments, prefetch, arguments))

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue.

        Raises:
            RefusalError: one of the two is not there.
        """
        if queue not in self.queues:
            raise RefusalError(_NOT_FOUND, f"NOT_FOUND - no queue '{queue}' in vhost '{self.virtual_host}'")
        bindings = self._exchange(exchange).bindings
        if (routing_key, queue) not in bindings:
            bindings.append((routing_key, queue))

    def delete(self, name: str) -> None:
        """Delete a queue if it exists, and tell its consumers."""
        queue = self.queues.pop(name, None)
        if queue is None:
            return
        for exchange in self._exchanges.values():
            exchange.bindings = [binding for binding in exchange.bindings if binding[1] != name]
        consumers, queue.consumers = queue.consumers, []
        for consumer in consumers:
            consumer.cancelled()

    def drop_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Take a consumer away, and the queue with it if that is what its flags say."""
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
            if queue.auto_delete and not queue.consumers:
                self.delete(queue.name)

    def drop_owner(self, owner: object) -> None:
        """A connection is closed; its exclusive queues go."""
        for name in [queue.name for queue in self.queues.values() if queue.owner is owner]:
            self.delete(name)

    def route(self, message: Message) -> bool:
        """Put a message into every queue that it is bound for.

        Returns:
            Whether no queue refused it; to be bound for none is no refusal.

        Raises:
            RefusalError: the exchange is not there, or internal.
        """
        names = {message.routing_key} & self.queues.keys()
        if message.exchange:
            exchange = self._exchange(message.exchange)
            if exchange.internal:
                raise RefusalError(
                    _ACCESS_REFUSED,
                    f"ACCESS_REFUSED - cannot publish to internal exchange '{message.exchange}' in vhost "
                    f"'{self.virtual_host}'",
                )
            names = exchange.queues_for(message.routing_key)
        queues = [self.queues[name] for name in sorted(names)]
        taking = [queue for queue in queues if not queue.is_full]
        for queue in taking:
            queue.put(message)
        return len(taking) == len(queues)

    def reaches_a_queue(self, message: Message) -> bool:
        """Whether a message is bound for any queue."""
        if not message.exchange:
            return message.routing_key in self.queues
        return bool(self._exchange(message.exchange).queues_for(message.routing_key))

    def dead_letter(self, queue: Queue, message: Message) -> None:
        """Pass a rejected message on, or forget it."""
        exchange = queue.arguments.get("x-dead-letter-exchange")
        if exchange not in self._exchanges:
            return
        key = queue.arguments.get("x-dead-letter-routing-key", message.routing_key)
        death = {"exchange": message.exchange, "queue": queue.name, "reason": "rejected"}
        properties = read_properties(message.properties)
        properties.headers = {
            **(properties.headers or {}),
            "x-death": [{**death, "count": 1, "routing-keys": [message.routing_key]}],
            **{f"x-first-death-{name}": value for name, value in death.items()},
        }
        self.route(Message(exchange, key, write_properties(properties), message.body))

    def _check_equivalence(self, known: Queue, declared: Queue) -> None:
        if known.owner is not declared.owner:
            raise self._locked(known.name)
        for name in ("durable", "auto_delete"):
            was, wanted = (str(getattr(queue, name)).lower() for queue in (known, declared))
            if was != wanted:
                raise self._inequivalent(name, known, wanted, was)
        for name in sorted(known.arguments.keys() | declared.arguments.keys()):
            was, wanted = (queue.arguments.get(name, "none") for queue in (known, declared))
            if was != wanted:
                raise self._inequivalent(name, known, wanted, was)

    def _inequivalent(self, name: str, known: Queue, wanted: object, was: object) -> RefusalError:
        return RefusalError(
            PRECONDITION_FAILED,
            f"PRECONDITION_FAILED - inequivalent arg '{name}' for queue '{known.name}' in vhost "
            f"'{self.virtual_host}': received '{wanted}' but current is '{was}'",
        )

    def _locked(self, queue: str) -> RefusalError:
        return RefusalError(
            _RESOURCE_LOCKED,
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost "
            f"'{self.virtual_host}'. It could be originally declared on another connection or the exclusive property "
            "value does not match that of the original declaration.",
        )

    def _exchange(self, name: str) -> _Exchange:
        found = self._exchanges.get(name)
        if found is None:
            raise RefusalError(_NOT_FOUND, f"NOT_FOUND - no exchange '{name}' in vhost '{self.virtual_host}'")
        return found

    # The view from behind.

    async def declare_queue(self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        """See Broker."""
        try:
            self.declare(name, durable=durable, auto_delete=auto_delete, arguments=arguments)
        except RefusalError as refusal:
            raise BrokerRefusalError(refusal.text) from None

    async def delete_queue(self, name: str) -> None:
        """See Broker."""
        self.delete(name)

    async def declare_exchange(self, name: str, kind: str, *, internal: bool) -> None:
        """See Broker."""
        self._exchanges.setdefault(name, _Exchange(kind, internal))

    async def delete_exchange(self, name: str) -> None:
        """See Broker."""
        self._exchanges.pop(name, None)

    async def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        """See Broker."""
        self.bind(queue, exchange, routing_key)

    async def publish(self, exchange: str, routing_key: str, message: BrokerMessage) -> None:
        """See Broker."""
        given: dict[str, Any] = dict(message.properties)
        if "timestamp" in given:
            given["timestamp"] = datetime.fromtimestamp(given["timestamp"], UTC)
        properties = commands.Basic.Properties(headers=dict(message.headers) or None, **given)
        self.route(Message(exchange, routing_key, write_properties(properties), message.body))

    async def take(self, queue: str) -> BrokerMessage | None:
        """See Broker."""
        ready = self.queues[queue].ready if queue in self.queues else []
        if not ready:
            return None
        message = ready.pop(0).message
        properties = read_properties(message.properties)
        given: dict[str, Any] = {name: value for name, value in properties if value not in (None, "")}
        headers: dict[str, Any] = given.pop("headers", None) or {}
        if "timestamp" in given:
            given["timestamp"] = int(given["timestamp"].timestamp())
        return BrokerMessage(given, headers, message.body)

    async def count(self, queue: str) -> int | None:
        """See Broker."""
        return self.queues[queue].depth if queue in self.queues else None


def _refuse(text: str | None) -> None:
    if text is not None:
        raise RefusalError(PRECONDITION_FAILED, text)


def read_properties(data: bytes) -> commands.Basic.Properties:
    """Decode the flags and the property list of a content header, with pamqp."""
    found = header.ContentHeader()
    found.unmarshal(b"\0\x3c\0\0" + bytes(8) + data)
    return found.properties


def write_properties(properties: commands.Basic.Properties) -> bytes:
    """Encode the flags and the property list of a content header, with pamqp."""
    return properties.marshal()
