"""Hands deliveries that may take long, those to subscriptions with a selector, to their sinks as paced work.

One read can cause a second of such work. The deliveries are handled at once as long as the event loop iteration has
time for paced work. The rest waits, in order, and the link is not read until all of it is handled. So at most the
deliveries of one read wait, and meanwhile they are unsettled.
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
    """See `Link`."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def feed_heartbeat(self) -> None: ...


class PacedDeliveries:
    """The paced deliveries of one link."""

    __slots__ = ("_link", "_paced", "_sinks", "_waiting")

    def __init__(self, link: _Link, paced: PacedWork) -> None:
        self._link = link
        self._paced = paced
        # The sink for the deliveries of each channel.
        self._sinks: dict[FaultOwner, Sink] = {}
        self._waiting: deque[tuple[FaultOwner, _Delivery]] = deque()

    def sink_before(self, channel: FaultOwner, sink: Sink) -> Sink:
        """Make the sink to register for a channel. It passes deliveries on to ``sink`` when there is time."""
        self._sinks[channel] = sink
        alike = None if sink.deliver_alike is None else partial(self._deliver_alike, channel, sink.deliver_alike)
        return Sink(partial(self._deliver, channel), sink.confirm, sink.owner, deliver_alike=alike)

    def forget(self, channel: FaultOwner) -> None:
        """Drop the waiting deliveries of a channel, and pass on no others."""
        self._sinks.pop(channel, None)

    def clear(self) -> None:
        """Drop all waiting deliveries: the link has ended, and the broker delivers them again."""
        self._sinks.clear()
        self._waiting.clear()

    def _deliver(
        self, channel: FaultOwner, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body
    ) -> None:
        """HOT: once per message to a subscription with a selector, or once for many similar ones."""
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
        """HOT: once for many messages. Not paced unless others wait, because the result of their selector is known."""
        if not self._waiting:
            deliver(tag, bodies)
            return
        # They follow the waiting one from which they differ only in tag and body.
        _, (_, redelivered, route, properties, _) = self._waiting[-1]
        for number, body in enumerate(bodies, tag):
            self._waiting.append((channel, (number, redelivered, route, properties, body)))

    def _go_on(self) -> None:
        """Handle waiting deliveries while there is time. Read the link again when none is left, even after a fault."""
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
