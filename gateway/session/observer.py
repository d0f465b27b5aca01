"""What an observer of a session implements: the journal does. An observer is told what happens and never asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.session import ops
    from gateway.session.cached_publish import CachedPublish
    from gateway.session.queues import QueueSpec
    from gateway.session.subscription import Subscription
    from gateway.session.traffic import DeliveryCounter, SendCounter


class SessionObserver(Protocol):
    """Told what a session does, from its login on.

    What happens for each message goes to counters: one for each kind of SEND, one for each subscription. They are asked
    for once, and called directly.
    """

    def sends(self, cached_publish: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
        """A SEND has headers that are new: the counter for all messages with these headers."""

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """The broker is asked for a subscription: the counter for its messages, which may arrive before the answer.

        Args:
            operation: the request.
            queue: what its queue looks like, even if it is declared already; None if the gateway declares none.
        """

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """A subscription began, on this queue."""

    def unsubscribed(self, subscription: Subscription, how: str) -> None:
        """A subscription is about to end: ``unsubscribe``, ``deleted`` with its queue, ``cancelled`` by the broker."""

    def used(self, feature: str) -> None:
        """The client uses a feature, perhaps for the first time."""
