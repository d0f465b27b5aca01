"""How many sessions there are, and how fast they send: by virtual host, by user, by address.

Theory of operation. All sessions of one user in one virtual host are one *party*, and so are all from one address. A
party has a bucket for messages and one for bytes, as far as its virtual host limits them. A bucket fills at its rate
and holds a burst; a session pays for what was read from it after the fact, a read at a time, and may leave a debt. Who
is in debt is not read until it is paid. Every session waits for the debt that its own read left, so those of one party
take turns, and together they keep to the rate.

A party is forgotten when it has no session and its buckets are full, which is what a new one would be.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

from gateway.errors import GatewayError
from gateway.session.session import NO_TURN_LIMIT

if TYPE_CHECKING:
    from gateway.config import Limit, VirtualHost

_USER: Final = "user"
_ADDRESS: Final = "address"

# What one customer of a network is given, and may change its address within at will.
_PREFIX: Final = 64

# A client whose messages are limited goes in steps of so many seconds' worth.
_STRIDE: Final = 0.1

_RateScopeKey = tuple[str, str, str]
"""The virtual host, the kind of party, and its name."""


class LimitReachedError(GatewayError):
    """One session more than may be.

    Args:
        whose: sessions, for people.
        limit: how many there may be.
    """

    def __init__(self, whose: str, limit: int) -> None:
        super().__init__(f"{whose} has {limit} sessions")
        self.whose = whose
        self.limit = limit


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits.

    Args:
        host: an IP address as text.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, _PREFIX), strict=False))


class Bucket:
    """So much per second, and a burst after a rest.

    Args:
        rate: per second.
        burst: how many seconds' worth it holds.
        now: seconds on the clock of ``take``.
    """

    __slots__ = ("_at", "_left", "_size", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self._size = self._left = rate * burst
        self._at = now

    def take(self, amount: int, now: float) -> float:
        """Take something out, more than there is if need be.

        Returns:
            In how many seconds the debt is paid; 0 where there is none.
        """
        self._left = self._filled(now) - amount
        self._at = now
        return -self._left / self.rate if self._left < 0 else 0.0

    def is_full(self, now: float) -> bool:
        """Whether it is as a new one."""
        return self._filled(now) >= self._size

    def _filled(self, now: float) -> float:
        return min(self._size, self._left + (now - self._at) * self.rate)


class _RateScope:
    """All sessions of one user, or from one address, in one virtual host."""

    __slots__ = ("messages", "octets", "sessions")

    def __init__(self, limit: Limit, now: float) -> None:
        self.sessions = 0
        self.messages = None if limit.messages_per_second is None else _bucket(limit.messages_per_second, limit, now)
        self.octets = None if limit.bytes_per_second is None else _bucket(limit.bytes_per_second, limit, now)

    def take(self, messages: int, octets: int, now: float) -> float:
        """Pay for both; in how many seconds the greater debt is paid."""
        wait = 0.0 if self.messages is None else self.messages.take(messages, now)
        return wait if self.octets is None else max(wait, self.octets.take(octets, now))

    def is_forgotten(self, now: float) -> bool:
        """Whether nothing would be lost."""
        full = all(bucket is None or bucket.is_full(now) for bucket in (self.messages, self.octets))
        return not self.sessions and full


def _bucket(rate: int, limit: Limit, now: float) -> Bucket:
    return Bucket(rate, limit.burst, now)


class SessionRates:
    """One session's place among all the others. ``release`` it when the session is over.

    Args:
        limits: where it has its place.
        virtual_host: of the session, by name.
        parties: that it belongs to.
        clock: seconds, only going forward.
    """

    def __init__(
        self, limits: SessionLimits, virtual_host: str, scopes: tuple[_RateScope, ...], clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._virtual_host = virtual_host
        self._parties = scopes
        self.rated = tuple(each for each in scopes if each.messages is not None or each.octets is not None)
        self._clock = clock

    @property
    def has_rates(self) -> bool:
        """Whether what the session sends is to be paid for."""
        return bool(self.rated)

    @property
    def max_frames_per_turn(self) -> int:
        """Frames of the session to be carried out at one go: a read may hold the messages of many seconds."""
        rates = [party.messages.rate for party in self.rated if party.messages is not None]
        return max(1, int(min(rates) * _STRIDE)) if rates else NO_TURN_LIMIT

    def pay(self, messages: int, octets: int) -> float:
        """Pay for what was read from the session. HOT: once per read of a client whose rate is limited.

        Returns:
            For how many seconds it must not be read; 0 where it may.
        """
        now = self._clock()
        return max((party.take(messages, octets, now) for party in self.rated), default=0.0)

    def release(self) -> None:
        """The session is over."""
        scopes, self._parties = self._parties, ()
        if scopes:
            self._limits.left(self._virtual_host)
            for party in scopes:
                party.sessions -= 1


class SessionLimits:
    """The sessions of a gateway, counted.

    Args:
        clock: seconds, only going forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, int] = {}
        self._parties: dict[_RateScopeKey, _RateScope] = {}

    def sessions(self, virtual_host: str, *, login: str | None = None, host: str | None = None) -> int:
        """How many sessions there are now.

        Args:
            virtual_host: by its STOMP name.
            login: those of this user only.
            host: or those from this address.
        """
        if login is None and host is None:
            return self._sessions.get(virtual_host, 0)
        key = (virtual_host, _ADDRESS, network_of(host)) if host is not None else (virtual_host, _USER, login or "")
        party = self._parties.get(key)
        return 0 if party is None else party.sessions

    @property
    def scopes(self) -> int:
        """Users and addresses that are remembered."""
        return len(self._parties)

    def check(self, virtual_host: VirtualHost, host: str) -> None:
        """See whether one more from this address is worth asking the broker about.

        A user's sessions are not looked at here: whoever does not have the passcode need not know of them.

        Raises:
            LimitReachedError: it is not.
        """
        limits, name, network = virtual_host.limits, virtual_host.name, network_of(host)
        _check(limits.sessions, self.sessions(name), f"The virtual host '{name}'")
        _check(limits.address.sessions, self.sessions(name, host=host), f"The address {network}")

    def enter(self, virtual_host: VirtualHost, login: str, host: str) -> SessionRates:
        """Give a session its place; the broker has accepted its login.

        Raises:
            LimitReachedError: there is none left.
        """
        limits, name = virtual_host.limits, virtual_host.name
        self.check(virtual_host, host)
        _check(limits.user.sessions, self.sessions(name, login=login), f"The user '{login}'")
        keys = ((name, _USER, login), limits.user), ((name, _ADDRESS, network_of(host)), limits.address)
        scopes = tuple(self._party(key, limit) for key, limit in keys)
        for party in scopes:
            party.sessions += 1
        self._sessions[name] = self._sessions.get(name, 0) + 1
        return SessionRates(self, name, scopes, self._clock)

    def _party(self, key: _RateScopeKey, limit: Limit) -> _RateScope:
        known = self._parties.get(key)
        if known is None:
            known = self._parties[key] = _RateScope(limit, self._clock())
        return known

    def left(self, virtual_host: str) -> None:
        """A session of a virtual host is over."""
        count = self._sessions.get(virtual_host, 0) - 1
        if count > 0:
            self._sessions[virtual_host] = count
        else:
            self._sessions.pop(virtual_host, None)

    def forget_idle(self) -> None:
        """Forget who has no session and owes nothing. Called about once a second."""
        now = self._clock()
        for key in [key for key, party in self._parties.items() if party.is_forgotten(now)]:
            del self._parties[key]


def _check(limit: int | None, sessions: int, whose: str) -> None:
    if limit is not None and sessions >= limit:
        raise LimitReachedError(whose, limit)


class SessionSlot:
    """Where one client comes in: its place, once it has one.

    Args:
        limits: of the gateway.
        host: the client's address.
    """

    def __init__(self, limits: SessionLimits, host: str) -> None:
        self.place: SessionRates | None = None
        self._limits = limits
        self._host = host

    def check(self, virtual_host: VirtualHost) -> None:
        """See ``SessionLimits.check``."""
        self._limits.check(virtual_host, self._host)

    def enter(self, virtual_host: VirtualHost, login: str) -> None:
        """See ``SessionLimits.enter``."""
        self.place = self._limits.enter(virtual_host, login, self._host)

    def leave(self) -> None:
        """Make room for another."""
        place, self.place = self.place, None
        if place is not None:
            place.release()
