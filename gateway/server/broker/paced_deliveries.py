"""Deliveries that may cost much: those to subscriptions with a selector. One read can bring a second of such work.

They are handled as they come while there is time for paced work in this round of the event loop. The rest of what was
read waits, in order, and the link is not read until none of it is left. So no more waits than one read has brought, and
to the broker the deliveries are unsettled as if they had not arrived.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final, Protocol, cast

from gateway.amqp.splitter import DeliverAlike, Sink
from gateway.pieces import Body
from gateway.server.fault_boundary import FaultOwner, guarded, report
from gateway.server.paced_work import PacedWork

_WAITING: Final = "deliveries wait"

_Delivery = tuple[int, bool, bytes, bytes, Body]


class _Link(Protocol):
    """Whose deliveries these are."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def feed_heartbeat(self) -> None: ...


class PacedDeliveries:
    """The deliveries of one link that are paced."""

    __slots__ = ("_link", "_paced", "_sinks", "_waiting")

    def __init__(self, link: _Link, paced: PacedWork) -> None:
        self._link = link
        self._paced = paced
        # Where the deliveries of each channel go now.
        self._sinks: dict[FaultOwner, Sink] = {}
        self._waiting: deque[tuple[FaultOwner, _Delivery]] = deque()

    def sink_before(self, channel: FaultOwner, sink: Sink) -> Sink:
        """The sink to register for a channel: it hands deliveries on to the other one when there is time for them."""
        self._sinks[channel] = sink
        alike = None if sink.deliver_alike is None else partial(self._deliver_alike, channel, sink.deliver_alike)
        return Sink(partial(self._deliver, channel), sink.confirm, sink.owner, deliver_alike=alike)

    def forget(self, channel: FaultOwner) -> None:
        """A channel is closed, or its deliveries are dropped: those that wait, too."""
        self._sinks.pop(channel, None)

    def clear(self) -> None:
        """The link is over, and the broker delivers again what waits."""
        self._sinks.clear()
        self._waiting.clear()

    def _deliver(
        self, channel: FaultOwner, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body
    ) -> None:
        """HOT: once per message to a subscription with a selector, or once for many that are alike."""
        waiting = self._waiting
        if not waiting and self._paced.has_time:
            sink = self._sinks.get(channel)
            if sink is not None:
                self._paced.spend(sink.deliver, tag, redelivered, route, properties, body)
            return
        waiting.append((channel, (tag, redelivered, route, properties, body)))
        if len(waiting) == 1:
            self._link.pause_reading(_WAITING)
            self._paced.later(channel, self._go_on)

    def _deliver_alike(self, channel: FaultOwner, deliver: DeliverAlike, tag: int, bodies: list[bytes]) -> None:
        """HOT: once for many messages. What a selector says of them is known."""
        if not self._waiting:
            deliver(tag, bodies)
            return
        # They follow the one that they are like.
        _, (_, redelivered, route, properties, _) = self._waiting[-1]
        for number, body in enumerate(bodies, tag):
            self._waiting.append((channel, (number, redelivered, route, properties, body)))

    def _go_on(self) -> None:
        """Handle what waits, as much as there is time for now. The link is read again in the end, whatever fails."""
        try:
            self._link.feed_heartbeat()
            self._handle_some()
        finally:
            if self._waiting:
                self._paced.later(self._waiting[0][0], self._go_on)
            else:
                self._link.resume_reading(_WAITING)

    def _handle_some(self) -> None:
        owners = dict[Any, None]()
        while self._waiting:
            channel, delivery = self._waiting.popleft()
            sink = self._sinks.get(channel)
            if sink is None:
                continue
            owners[sink.owner] = None
            try:
                sink.deliver(*delivery)
            except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                self.forget(channel)
                report(cast(FaultOwner, sink.owner), error)
            if self._paced.time_left <= 0:
                break
        for owner in owners:
            guarded(owner, owner.flush_batch)
