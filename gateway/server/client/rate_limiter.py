"""Keeps one client to the rates of its user and of its address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.session.context import Hold
from gateway.session.session import NO_TURN_LIMIT

if TYPE_CHECKING:
    from gateway.server.client.session_limits import SessionRates
    from gateway.session.session import Session


class RateLimiter:
    """Holds a session while what it sent is not paid for.

    Args:
        session: it.
        resume: is called when it may go on.
    """

    def __init__(self, session: Session, resume: Callable[[], None]) -> None:
        self._session = session
        self._resume = resume
        self._place: SessionRates | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._messages = self._octets = 0
        self._usual = NO_TURN_LIMIT

    def start(self, place: SessionRates | None) -> None:
        """The client has logged in, and has this place."""
        if place is not None and place.has_rates:
            self._place = place
            self._usual = self._session.max_frames_per_turn
            self._session.set_max_frames_per_turn(min(self._usual, place.max_frames_per_turn))

    def charge(self, octets: int) -> None:
        """Charge a client for what it has sent since the last time. HOT: once per read.

        Args:
            octets: received from it in all.
        """
        place = self._place
        if place is None:
            return
        session = self._session
        # More frames may wait in the decoder, and no read will come to remind of them.
        has_more = session.reached_turn_limit
        # All frames that are counted by no other name were SENDs.
        messages = session.traffic.frames_received - sum(session.traffic.commands.values())
        if messages == self._messages and octets == self._octets and not has_more:
            return
        wait = place.pay(messages - self._messages, octets - self._octets)
        self._messages, self._octets = messages, octets
        if (wait > 0 or has_more) and self._timer is None:
            session.hold(Hold.RATE_LIMIT)
            self._timer = asyncio.get_running_loop().call_later(wait, self._paid)

    def _paid(self) -> None:
        self.stop()
        self._resume()

    def stop(self) -> None:
        """Hold the client no longer, and charge it for nothing more unless it goes on sending."""
        self._session.release(Hold.RATE_LIMIT)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def end(self) -> None:
        """Nothing more is read from the client: what it has sent is carried out now."""
        if self._place is not None:
            self._place = None
            self._session.set_max_frames_per_turn(self._usual)
        self.stop()
