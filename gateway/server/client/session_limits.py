"""Limits on the number of sessions and on their rates: by virtual host, by user, by address.

If a virtual host limits rates, all sessions of one user in it share a rate, and so do all sessions from one address. A
rate has a token bucket for messages and one for bytes. After each read, the session is charged for it and may go into
debt, and it is not read again until the debt is paid. A session waits only for the debt after its own read, so sessions
that share a rate take turns, and together keep to it.

A rate without sessions is forgotten when its buckets are full, because a new one would be the same.

Counts and the state of buckets are in `Counts`, which all workers share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from gateway.config.model import FailedLoginLimits
from gateway.config.virtual_host import Limit, VirtualHost
from gateway.errors import GatewayError
from gateway.server.client.failed_logins import FailedLogins
from gateway.server.client_address import network_of
from gateway.server.counts import Cell, Counts, Key
from gateway.server.listen.address_checks import LockOuts
from gateway.session.context import Hold
from gateway.session.session import NO_TURN_LIMIT, Session

_USER: Final = "user"
_ADDRESS: Final = "address"

# The turn of a client with a limited rate has as many frames as the rate allows in this many seconds.
_TURN: Final = 0.1

# Debts up to this, in seconds, are rounding errors.
_NO_DEBT: Final = 1e-6

_Scope = tuple[str, str, str]
"""The virtual host, "user" or "address", and the name of that. For the virtual host itself, the last two are empty."""


class LimitReachedError(GatewayError):
    """The limit of ``scope``, a text such as ``The user 'a'``, is reached."""

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(f"{scope} has {limit} sessions")
        self.scope = scope
        self.limit = limit


class Bucket:
    """A token bucket that may go into debt. It fills at ``rate`` per second, and holds the tokens of ``burst`` seconds.

    Its only state, in ``cell``, is the time when it will be full. Times are in seconds, on a monotonic clock.
    """

    __slots__ = ("_at", "_burst", "_times", "rate")

    def __init__(self, rate: float, burst: float, cell: Cell) -> None:
        self.rate = rate
        self._burst = burst
        self._times, self._at = cell

    def take(self, amount: int, now: float) -> float:
        """Take tokens, even more than the bucket has. Returns the seconds until the debt is paid, or 0."""
        full_at = self._times[self._at] = max(self._times[self._at], now) + amount / self.rate
        debt = full_at - now - self._burst
        return debt if debt > _NO_DEBT else 0.0

    def is_full(self, now: float) -> bool:
        """Whether the bucket is as full as a new one."""
        return self._times[self._at] <= now


class _Rate:
    """A rate of one user, or of one address, in one virtual host, and the sessions that share it."""

    __slots__ = ("_bytes", "_counts", "_keys", "messages", "sessions")

    def __init__(self, scope: _Scope, limit: Limit, counts: Counts) -> None:
        self.sessions = 0
        self._counts = counts
        self._keys: list[Key] = []

        def bucket(rate: int | None, of: str) -> Bucket | None:
            if rate is None:
                return None
            key = (*scope, of, rate, limit.burst)
            counts.add(key)
            self._keys.append(key)
            return Bucket(rate, limit.burst, counts.cell(key))

        self.messages = bucket(limit.messages_per_second, "messages")
        self._bytes = bucket(limit.bytes_per_second, "bytes")

    def take(self, messages: int, size: int, now: float) -> float:
        """Charge for messages and bytes. Returns the seconds until the greater debt is paid."""
        wait = 0.0 if self.messages is None else self.messages.take(messages, now)
        return wait if self._bytes is None else max(wait, self._bytes.take(size, now))

    def is_idle(self, now: float) -> bool:
        buckets_full = all(bucket is None or bucket.is_full(now) for bucket in (self.messages, self._bytes))
        return not self.sessions and buckets_full

    def forget(self) -> None:
        for key in self._keys:
            self._counts.remove(key)


class SessionRates:
    """The rates of one session. Call ``release`` when the session has ended."""

    __slots__ = ("_clock", "_limits", "_lock", "_rates", "_scopes")

    def __init__(
        self,
        limits: SessionLimits,
        scopes: tuple[_Scope, ...],
        rates: tuple[_Rate, ...],
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
    ) -> None:
        self._limits = limits
        self._scopes = scopes
        self._rates = rates
        self._clock = clock
        self._lock = lock

    @property
    def has_rates(self) -> bool:
        """Whether any rate is limited."""
        return bool(self._rates)

    @property
    def max_frames_per_turn(self) -> int:
        """The most frames of a turn, because one read may contain the messages of many seconds."""
        rates = [rate.messages.rate for rate in self._rates if rate.messages is not None]
        return max(1, int(min(rates) * _TURN)) if rates else NO_TURN_LIMIT

    def charge(self, messages: int, size: int) -> float:
        """Charge for messages and bytes. Returns the seconds for which the session must not be read, or 0.

        HOT: once per read of a client whose rate is limited.
        """
        now = self._clock()
        with self._lock:
            return max((rate.take(messages, size, now) for rate in self._rates), default=0.0)

    def release(self) -> None:
        """Stop counting the session, once."""
        scopes, self._scopes = self._scopes, ()
        if scopes:
            self._limits.remove(scopes, self._rates)


class SessionLimits:
    """Counts sessions and failed logins. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        failed_logins: FailedLoginLimits | None = None,
        counts: Counts | None = None,
        lock_outs: LockOuts | None = None,
    ) -> None:
        self._clock = clock
        self._counts = Counts() if counts is None else counts
        failed_logins = failed_logins or FailedLoginLimits()
        self.failed_logins = FailedLogins(failed_logins, clock, self._counts)
        self.lock_outs = lock_outs or LockOuts(failed_logins, clock, self._counts)
        # By scope and limits, because after a reload, sessions keep the rates that they logged in with.
        self._rates: dict[tuple[_Scope, tuple[object, ...]], _Rate] = {}

    def configure(self, failed_logins: FailedLoginLimits) -> None:
        """Use other limits for failed logins from now on. Limits of virtual hosts come with each login."""
        self.failed_logins.configure(failed_logins)
        self.lock_outs.configure(failed_logins)

    def sessions(self, virtual_host: str, *, login: str | None = None, host: str | None = None) -> int:
        """The number of sessions in a virtual host: all, those of one user, or those from one address."""
        if host is not None:
            return self._counts.total((virtual_host, _ADDRESS, network_of(host)))
        return self._counts.total((virtual_host, "", "") if login is None else (virtual_host, _USER, login))

    def check(self, virtual_host: VirtualHost, host: str) -> None:
        """Check the limits before the broker is asked about a login.

        ``add`` checks the limit of the user, because a client without the passcode must not learn about it.

        Raises:
            LimitReachedError: the limit of the virtual host or the address is reached.
        """
        limits, name = virtual_host.limits, virtual_host.name
        if limits.sessions is not None:
            _check(limits.sessions, self.sessions(name), f"The virtual host '{name}'")
        if limits.address.sessions is not None:
            _check(limits.address.sessions, self.sessions(name, host=host), f"The address {network_of(host)}")

    def add(self, virtual_host: VirtualHost, login: str, host: str) -> SessionRates:
        """Count a session whose login the broker has accepted.

        Raises:
            LimitReachedError: the limit of the virtual host, the address or the user is reached.
        """
        limits, name = virtual_host.limits, virtual_host.name
        user, address = (name, _USER, login), (name, _ADDRESS, network_of(host))
        scopes = (name, "", ""), user, address
        with self._counts.lock:
            self.check(virtual_host, host)
            if limits.user.sessions is not None:
                _check(limits.user.sessions, self.sessions(name, login=login), f"The user '{login}'")
            for scope in scopes:
                self._counts.add(scope)
            of_user, of_address = self._rate(user, limits.user), self._rate(address, limits.address)
        rates = tuple([rate for rate in (of_user, of_address) if rate is not None])
        return SessionRates(self, scopes, rates, self._clock, self._counts.lock)

    def _rate(self, scope: _Scope, limit: Limit) -> _Rate | None:
        """The rate for new sessions of a scope; None without a limit."""
        if limit.messages_per_second is None and limit.bytes_per_second is None:
            return None
        key = scope, (limit.messages_per_second, limit.bytes_per_second, limit.burst)
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = _Rate(scope, limit, self._counts)
        rate.sessions += 1
        return rate

    def remove(self, scopes: tuple[_Scope, ...], rates: tuple[_Rate, ...]) -> None:
        """Stop counting a session. ``SessionRates.release`` calls this."""
        for rate in rates:
            rate.sessions -= 1
        for scope in scopes:
            self._counts.remove(scope)

    def forget_idle(self) -> None:
        """Forget rates without sessions and debts. Call it about once a second."""
        now = self._clock()
        for key in [key for key, rate in self._rates.items() if rate.is_idle(now)]:
            self._rates.pop(key).forget()


def _check(limit: int, sessions: int, scope: str) -> None:
    if sessions >= limit:
        raise LimitReachedError(scope, limit)


class RateLimiter:
    """Holds a session while it is in debt."""

    __slots__ = ("_bytes", "_messages", "_rates", "_resume", "_session", "_timer", "_usual")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._resume: Callable[[], None] | None = None
        self._rates: SessionRates | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The messages and bytes for which the client was charged so far.
        self._messages = self._bytes = 0
        self._usual = NO_TURN_LIMIT

    def start(self, rates: SessionRates | None, resume: Callable[[], None]) -> None:
        """Apply rates from the login on. ``resume`` is called whenever a debt is paid."""
        if rates is not None and rates.has_rates:
            self._resume = resume
            self._rates = rates
            self._usual = self._session.max_frames_per_turn
            self._session.max_frames_per_turn = min(self._usual, rates.max_frames_per_turn)

    def charge(self, bytes_in: int) -> None:
        """Charge a client for its input since the last call. ``bytes_in`` counts from its first byte.

        HOT: once per read.
        """
        rates = self._rates
        if rates is None:
            return
        session = self._session
        # Frames may be left in the decoder, and perhaps no read will follow.
        has_more = session.reached_turn_limit
        # A session counts all frames, and by command those other than SEND.
        messages = session.traffic.frames_received - sum(session.traffic.commands.values())
        if messages == self._messages and bytes_in == self._bytes and not has_more:
            return
        wait = rates.charge(messages - self._messages, bytes_in - self._bytes)
        self._messages, self._bytes = messages, bytes_in
        if (wait > 0 or has_more) and self._timer is None:
            session.holds.add(Hold.RATE_LIMIT)
            self._timer = asyncio.get_running_loop().call_later(wait, self._debt_paid)

    def _debt_paid(self) -> None:
        self._release()
        if self._resume is not None:
            self._resume()

    def _release(self) -> None:
        self._session.holds.discard(Hold.RATE_LIMIT)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """Stop limiting, because the session is ending."""
        if self._rates is not None:
            self._rates = self._resume = None
            self._session.max_frames_per_turn = self._usual
            self._release()
