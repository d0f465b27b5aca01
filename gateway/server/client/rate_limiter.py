"""Keeps one client to the rates of its user and of its address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.server.client.session_limits import SessionRates
from gateway.session.context import Hold
from gateway.session.session import NO_TURN_LIMIT, Session


class RateLimiter:
    """Holds a session while it is in debt for what it has sent; ``resume`` is called when it may go on."""

    def __init__(self, session: Session, resume: Callable[[], None]) -> None:
        self._session = session
        self._resume = resume
        self._rates: SessionRates | None = None
        self._timer: asyncio.TimerHandle | None = None
        # What the client was charged for up to now.
        self._messages = self._bytes = 0
        self._usual = NO_TURN_LIMIT

    def start(self, rates: SessionRates | None) -> None:
        """The client has logged in and is to keep to these rates."""
        if rates is not None and rates.has_rates:
            self._rates = rates
            self._usual = self._session.max_frames_per_turn
            self._session.set_max_frames_per_turn(min(self._usual, rates.max_frames_per_turn))

    def charge(self, bytes_in: int) -> None:
        """Charge a client for what it has sent since the last call; ``bytes_in`` counts from its first byte.

        HOT: once per read.
        """
        rates = self._rates
        if rates is None:
            return
        session = self._session
        # More frames may wait in the decoder, and maybe no further read follows that would carry them out.
        has_more = session.reached_turn_limit
        # All frames that are counted by no other name were SENDs.
        messages = session.traffic.frames_received - sum(session.traffic.commands.values())
        if messages == self._messages and bytes_in == self._bytes and not has_more:
            return
        wait = rates.charge(messages - self._messages, bytes_in - self._bytes)
        self._messages, self._bytes = messages, bytes_in
        if (wait > 0 or has_more) and self._timer is None:
            session.hold(Hold.RATE_LIMIT)
            self._timer = asyncio.get_running_loop().call_later(wait, self._debt_paid)

    def _debt_paid(self) -> None:
        self._release()
        self._resume()

    def _release(self) -> None:
        self._session.release(Hold.RATE_LIMIT)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """Nothing more is read from the client: what it has sent is carried out now."""
        if self._rates is not None:
            self._rates = None
            self._session.set_max_frames_per_turn(self._usual)
        self._release()
