"""The features of STOMP and of RabbitMQ's adapter that a session may use, as the journal names them: a closed set.

A client's first use of each is one ``use`` line, so that whoever migrates knows what the other side must support.
"""

from __future__ import annotations

from typing import Final

FEATURES: Final = (
    "heart-beat",
    "tls",
    "certificate-login",
    "implicit-connect",
    "queue",
    "topic",
    "exchange",
    "amq-queue",
    "reply-queue",
    "temp-queue",
    "receipt",
    "persistent",
    "transaction",
    "ack-auto",
    "ack-client",
    "ack-client-individual",
    "ack-cumulative",
    "nack",
    "nack-discard",
    "prefetch",
    "durable-subscription",
    "exclusive",
    "stream",
    "priority",
    "expiration",
    "correlation",
    "queue-arguments",
    "user-headers",
)
"""Every value of ``x`` in a ``use`` line."""
