"""Watches how long the broker accepts no messages, for the setting ``hold_sends_for``."""

from __future__ import annotations

from typing import Final

from gateway.session import ops
from gateway.session.context import Hold, SessionContext, State
from gateway.session.publish import Publisher

# With these holds, SENDs may be waiting for the broker.
_FOR_BROKER: Final = frozenset(
    (
        Hold.OPERATION, Hold.CONFIRM_WINDOW, Hold.LINK_WRITE, Hold.LINK_LOST, Hold.QUEUE_AWAY, Hold.REPLAY,
        Hold.BROKER_BLOCKED,
    )
)  # fmt: skip


class StallWatch:
    """Finds out whether the SENDs of a session have been held for too long. Then they are refused instead."""

    __slots__ = ("_context", "_publisher", "_since", "is_over")

    def __init__(self, context: SessionContext, publisher: Publisher) -> None:
        self._context = context
        self._publisher = publisher
        # True once ``hold_sends_for`` is over, until the broker accepts messages.
        self.is_over = False
        # The time since when the broker accepts none, and the number of messages that it had confirmed by then.
        self._since: tuple[float, int] | None = None

    def time_passed(self, now: float) -> None:
        """See `Session.time_passed`."""
        longest, confirmed = self._context.settings.hold_sends_for, self._context.traffic.confirmed
        if longest is None:
            return
        if not self._is_stalled:
            self._since = None
        elif self._since is None or self._since[1] != confirmed:
            self._since = now, confirmed
        elif now - self._since[0] >= longest:
            self.is_over = True

    def ended(self) -> bool:
        """Look again, before a SEND is refused. Returns whether the broker accepts messages."""
        if self._is_stalled:
            return False
        self.is_over, self._since = False, None
        return True

    @property
    def _is_stalled(self) -> bool:
        """Whether SENDs are held, and only because the broker accepts no messages."""
        holds, pending = self._context.holds, self._context.pending
        if not holds or not holds <= _FOR_BROKER or self._context.state is not State.CONNECTED:
            return False
        if holds <= {Hold.LINK_WRITE} and not self._publisher.has_confirms:
            # Without confirms, a full link may only mean that the broker reads slowly.
            return False
        # A SEND after another pending frame waits for that frame, and not for the broker.
        is_for_send = all(isinstance(each.operation, ops.PreparePublisher) for each in pending.asked)
        return is_for_send and pending.postponed is None
