"""The protocol of a session's observer, such as the journal. The session calls it, and decides nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.session import ops
    from gateway.session.cached_publish import CachedPublish
    from gateway.session.queues import QueueSpec
    from gateway.session.subscription import Subscription
    from gateway.session.traffic import DeliveryCounter, SendCounter


class SessionObserver(Protocol):
    """Called when a session does something after its login.

    Messages are counted by counters, one for each header block of SEND and one for each subscription. The session asks
    for each counter once and calls it directly.
    """

    @property
    def header_values(self) -> Collection[bytes]:
        """Names of the headers of SEND whose values it looks at."""

    @property
    def stamp(self) -> Callable[[], bytes] | None:
        """Gives the time for a message that is published now (`correlation`); None if messages shall not carry it."""

    def sends(self, cached_publish: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
        """A SEND has a new header block. Returns the counter for all messages with these headers."""

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """The broker is asked for a subscription. Returns the counter for its messages, which may precede the answer.

        ``queue`` is its queue, even if that is declared already; None if the gateway does not declare one.
        """

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """A subscription began, on this queue."""

    def unsubscribed(self, subscription: Subscription, how: str, *, is_left: bool = False) -> None:
        """A subscription is about to end.

        ``how``: ``unsubscribe``, ``deleted`` with its queue, ``cancelled`` by the broker, or ``revoked``.
        ``is_left``: its unsettled deliveries stay with the session, which may still settle them.
        """

    def queue_away(self, subscription: Subscription) -> None:
        """A subscription waits for its queue, whose node is away."""

    def queue_back(self, subscription: Subscription) -> None:
        """It waits no longer."""

    def used(self, feature: str) -> None:
        """The client uses a feature, perhaps for the first time."""
