"""Who looks on while a session works, for the journal and for figures: told what happens, and never asked.

A session without a witness pays one comparison per message. With one, what happens for each message goes to *accounts*:
one for each plan of SEND, one for each subscription. They are found once and called directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.session import ops
    from gateway.session.cached_publish import CachedPublish
    from gateway.session.queues import QueueSpec
    from gateway.session.subscription import Subscription


class SendCounter(Protocol):
    """What is published by one plan. HOT: called for each message."""

    def sent(self, size: int, receipt: bool) -> object:
        """A message was published.

        Args:
            size: bytes of its body.
            receipt: whether its frame asked for a receipt.

        Returns:
            A ticket for ``confirmed``; None if nobody wants to know.
        """

    def confirmed(self, sent_at: object, accepted: bool) -> None:
        """The broker answered for a message.

        Args:
            sent_at: what ``sent`` returned for it.
            accepted: ack or nack.
        """


class DeliveryCounter(Protocol):
    """What one subscription delivers. HOT: called for each message.

    Counts alone need no counter: a subscription has ``figures``.
    """

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """A message goes to the client.

        Args:
            tag: delivery tag.
            redelivered: the broker's flag.
            size: bytes of its body.
        """

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """The client acknowledged or refused messages.

        Args:
            tag: of the last one; with ``count`` above 1 all outstanding ones before it are meant too.
            count: how many.
            requeue: None for an ACK; for a NACK whether they go back to their queue.
        """


class SessionObserver(Protocol):
    """Told what a session does, from its login on."""

    def sends(self, plan: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
        """A new plan of SEND: the counter for its messages."""

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """The broker is asked for a subscription: the counter for its messages, which may come before the answer.

        Args:
            operation: what is asked.
            queue: what its queue is to look like, also where it is declared already; None where it is none of ours.
        """

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """A subscription began, on this queue."""

    def unsubscribed(self, subscription: Subscription, how: str) -> None:
        """A subscription is about to end: ``unsubscribe``, ``deleted`` with its queue, ``cancelled`` by the broker."""

    def used(self, feature: str) -> None:
        """The client uses a feature, perhaps for the first time."""
