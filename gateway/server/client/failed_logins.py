"""Wrong passcodes at speed: a delay, and limits for one login from one address and for all logins from an address.

Many clients may share an address. So no limit concerns credentials that the broker accepted from that address lately,
and a limit ends with its window, however many attempts it has refused meanwhile.

With several workers, refusals and acceptances are counted together (`Counts`), and each worker asks about its share of
the logins that are under way at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from hashlib import blake2b
from typing import Final, Protocol, TypeVar

from gateway.config.model import FailedLoginLimits
from gateway.errors import GatewayError
from gateway.server.broker.broker_errors import ACCESS_REFUSED, LinkDownError, UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.client_address import network_of
from gateway.server.counts import Counts, Recently

# Logins of one address that one upstream is asked about at once. Otherwise a thousand connections could each try a
# passcode before the first answer.
_MAX_AT_ONCE: Final = 32

# How long accepted credentials are remembered after the last time, in seconds.
_REMEMBERED: Final = 3600.0

_HASH_SIZE: Final = 16

Answer = TypeVar("Answer")


class Realm(Protocol):
    """What a login is for: a virtual host, with the brokers that are asked about it; or the admin listener."""

    @property
    def name(self) -> str:
        """Distinguishes logins for this realm from those for others."""

    @property
    def upstream(self) -> Hashable:
        """The brokers that are asked."""


_SlotKey = tuple[str, Hashable]
"""An address, and where its logins are checked."""


class TooManyFailedLoginsError(GatewayError):
    """Too many logins from an address have failed. No other is tried for ``seconds``."""

    def __init__(self, seconds: int) -> None:
        super().__init__("too many failed logins")
        self.seconds = seconds


class FailedLogins:
    """Counts the logins that brokers refuse; ``clock`` is monotonic, in seconds.

    Logins and passcodes are kept as keyed hashes: a login may be long, and a passcode is secret.
    """

    def __init__(self, limits: FailedLoginLimits, clock: Callable[[], float], counts: Counts | None = None) -> None:
        # Logins that brokers have refused.
        self.total = 0
        self._limits = limits
        counts = Counts() if counts is None else counts
        self._key = counts.secret
        self._by_login = counts.recent(Recently.REFUSED_OF_LOGIN, clock, limits.window)
        self._by_address = counts.recent(Recently.REFUSED_OF_ADDRESS, clock, limits.window)
        self._accepted = counts.recent(Recently.ACCEPTED, clock, _REMEMBERED)
        self._at_once = counts.share(_MAX_AT_ONCE)
        # Addresses whose logins are being checked, and where: a login may wait long for a broker that is away.
        self._slots: dict[_SlotKey, asyncio.Semaphore] = {}
        self._users: dict[_SlotKey, int] = {}

    def configure(self, limits: FailedLoginLimits) -> None:
        """Other limits hold from now on."""
        self._limits = limits
        self._by_login.seconds = self._by_address.seconds = limits.window

    async def guard(
        self,
        host: str,
        realm: Realm,
        credentials: Credentials,
        ask: Callable[[], Awaitable[Answer]],
        refused: Callable[[float], Awaitable[None]],
        patience: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> Answer:
        """Ask the broker about a login from an IP address. A refusal is counted, and after some it comes late.

        ``refused`` is called for such a refusal, and waits so many seconds before it is passed on; ``patience`` bounds
        how long the answer may take.

        Raises:
            TooManyFailedLoginsError: the broker is not asked.
            Exception: those of ``ask``.
        """
        address = network_of(host)
        accepted = self._hash(address, realm.name, credentials.login, credentials.passcode)
        login = self._hash(address, credentials.login)
        try:
            async with patience():
                answer = await self._ask(accepted, login, (address, realm.upstream), ask)
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED and not isinstance(refusal, LinkDownError):
                await refused(self._refused(login, address))
            raise
        self._accepted.renew(accepted)
        return answer

    def at_once(
        self, host: str, realm: Realm, credentials: Credentials, log_in: Callable[[], Answer | None]
    ) -> Answer | None:
        """As ``guard`` for a login that the broker need not be asked about, if it was accepted from there lately."""
        accepted = self._hash(network_of(host), realm.name, credentials.login, credentials.passcode)
        answer = log_in() if self._accepted.count(accepted) else None
        if answer is not None:
            self._accepted.renew(accepted)
        return answer

    async def _ask(self, accepted: bytes, login: bytes, key: _SlotKey, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        if not self._accepted.count(accepted):
            async with self._slot(key):
                # Another connection may have been accepted while this one waited.
                if not self._accepted.count(accepted):
                    self._check(login, key[0])
                    answer = await ask()
                    # Before others get the slot.
                    self._accepted.renew(accepted)
                    return answer
        return await ask()

    @asynccontextmanager
    async def _slot(self, key: _SlotKey) -> AsyncIterator[None]:
        slots = self._slots.setdefault(key, asyncio.Semaphore(self._at_once))
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with slots:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._slots[key]

    def _check(self, login: bytes, address: str) -> None:
        limits = self._limits
        for most, counts, cause in (
            (limits.per_login, self._by_login, login),
            (limits.per_address, self._by_address, address),
        ):
            if most is not None and counts.count(cause) >= most:
                raise TooManyFailedLoginsError(math.ceil(counts.seconds_left(cause)))

    def _refused(self, login: bytes, address: str) -> float:
        """Count a refusal; how long it is kept back, in seconds."""
        self.total += 1
        self._by_address.add(address)
        return self._limits.delay if self._by_login.add(login) > self._limits.delay_after else 0.0

    def _hash(self, *parts: str) -> bytes:
        return blake2b("\0".join(parts).encode(), key=self._key, digest_size=_HASH_SIZE).digest()
