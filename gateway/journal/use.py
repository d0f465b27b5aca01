"""Which features a frame uses, out of ``gateway.journal.features``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import KIND_NAMES, REPLY_QUEUE, Kind
from gateway.session.queues import QUEUE_ARGUMENTS
from gateway.stomp.frame import RECEIPT
from gateway.stomp.headers import read_boolean

if TYPE_CHECKING:
    from gateway.journal.tally import About
    from gateway.session import ops
    from gateway.session.cached_publish import CachedPublish

_HEADERS: Final = {
    RECEIPT: "receipt",
    b"priority": "priority",
    b"expiration": "expiration",
    b"correlation-id": "correlation",
}
# Headers of SEND that mean something to STOMP or to RabbitMQ; every other one is the users' own.
_KNOWN: Final = frozenset(
    (
        b"destination", b"content-length", b"content-type", b"content-encoding", b"correlation-id", b"reply-to",
        b"expiration", b"amqp-message-id", b"type", b"user-id", b"app-id", b"priority", b"timestamp", b"persistent",
        b"receipt", b"transaction", b"durable", b"auto-delete", b"exclusive", b"id", b"ack",
    )
)  # fmt: skip
_ACKS: Final = {
    AckMode.AUTO: "ack-auto",
    AckMode.CLIENT: "ack-client",
    AckMode.CLIENT_INDIVIDUAL: "ack-client-individual",
}


def of_send(plan: CachedPublish, headers: Mapping[bytes, bytes]) -> Iterator[str]:
    """The features that a SEND uses.

    Args:
        plan: its meaning.
        headers: of the frame.
    """
    yield KIND_NAMES[plan.kind]
    for name in headers:
        if name in _HEADERS:
            yield _HEADERS[name]
        elif name in QUEUE_ARGUMENTS:
            yield "queue-arguments"
        elif name not in _KNOWN:
            yield "user-headers"
    for flag in (b"persistent", b"exclusive"):
        if read_boolean(headers.get(flag)):
            yield flag.decode()
    if plan.temp_queue is not None:
        yield "temp-queue"
    elif headers.get(b"reply-to", b"").startswith(REPLY_QUEUE):
        yield "reply-queue"


def of_subscribe(operation: ops.Subscribe, kind: Kind, about: About) -> Iterator[str]:
    """The features that a SUBSCRIBE, or the queue behind a reply-to, uses.

    Args:
        operation: what it asks of the broker.
        kind: of its destination.
        about: the subscription, as the journal shows it.
    """
    subscription = operation.subscription
    yield KIND_NAMES[kind]
    if about.exclusive and kind is Kind.QUEUE:
        # Those of topics and reply queues are exclusive without being asked.
        yield "exclusive"
    if about.durable:
        yield "durable-subscription"
    yield _ACKS[subscription.mode]
    if operation.prefetch and subscription.mode is not AckMode.AUTO:
        yield "prefetch"
    if operation.arguments and "x-stream-offset" in operation.arguments:
        yield "stream"
    if about.has_arguments:
        yield "queue-arguments"
