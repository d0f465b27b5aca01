"""The interface of a session's observer, such as the journal. Nothing that it returns affects the client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.session import ops
    from gateway.session.cached_publish import SendRequest
    from gateway.session.queues import QueueSpec
    from gateway.session.subscription import Subscription
    from gateway.session.traffic import DeliveryCounter, SendCounter


class SessionObserver(Protocol):
    """Learns what a session does after its login.

    For messages, the session asks for one counter per header block of SEND and per subscription, and calls these.
    """

    @property
    def header_values(self) -> Collection[bytes]:
        """The names of the SEND headers whose values ``sends`` looks at."""

    @property
    def stamp(self) -> Callable[[], bytes] | None:
        """Returns the encoded time of publishing, for `correlation`; None if messages do not carry it."""

    def sends(self, request: SendRequest, headers: Mapping[bytes, bytes]) -> SendCounter:
        """Note a SEND with a new header block. Returns the counter for its messages."""

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """Note that the broker is asked for a subscription. Returns the counter for its messages, or None.

        Messages may arrive before ``subscribed``. ``queue``: its queue, even if it is declared already; None if the
        gateway does not declare it.
        """

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """Note that a subscription consumes this queue."""

    def unsubscribed(self, subscription: Subscription, how: str, *, is_left: bool = False) -> None:
        """Note that a subscription is about to end.

        ``how``: ``unsubscribe``, ``deleted`` (with its queue), ``cancelled`` (by the broker) or ``revoked``.
        ``is_left``: the client may still settle the subscription's deliveries.
        """

    def queue_away(self, subscription: Subscription) -> None:
        """Note that a subscription waits for its queue, whose node is away."""

    def queue_back(self, subscription: Subscription) -> None:
        """Note that a subscription no longer waits for its queue."""

    def used(self, feature: str) -> None:
        """Note that the client uses a feature, perhaps not for the first time."""
