"""Who looks on while a session works, for the journal and for figures: told what happens, and never asked.

A session without a witness pays one comparison per message. With one, what happens for each message goes to *accounts*:
one for each plan of SEND, one for each subscription. They are found once and called directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.session import ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription
from gateway.session.traffic import DeliveryCounter, SendCounter


class SessionObserver(Protocol):
    """Told what a session does, from its login on."""

    def sends(self, cached_publish: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
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
