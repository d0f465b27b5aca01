"""Slows down guessing of passcodes: a delay, and limits for one login from an address and for all logins from it.

Many clients may share an address. So no limit applies to credentials that the broker lately accepted from that address,
and a limit ends with its window, whatever was tried meanwhile.

With several workers, refusals and acceptances are counted together (`Counts`), and each worker gets a share of the
logins that may be under way at once.
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

# The most logins from one address that one upstream is asked about at a time. Otherwise a thousand connections could
# each try a passcode before the first answer.
_MAX_AT_ONCE: Final = 32

# How long accepted credentials are remembered after their last use, in seconds.
_REMEMBERED: Final = 3600.0

_HASH_SIZE: Final = 16

Answer = TypeVar("Answer")


class Realm(Protocol):
    """The target of a login: a virtual host with its brokers, or the admin listener."""

    @property
    def name(self) -> str:
        """A unique name."""

    @property
    def upstream(self) -> Hashable:
        """The brokers that are asked."""


_SlotKey = tuple[str, Hashable]
"""An address, and the upstream that checks its logins."""


class TooManyFailedLoginsError(GatewayError):
    """Too many logins from an address have failed. Others are refused for ``seconds``."""

    def __init__(self, seconds: int) -> None:
        super().__init__("too many failed logins")
        self.seconds = seconds


class FailedLogins:
    """Counts the logins that brokers refuse. ``clock`` is monotonic, in seconds.

    Logins and passcodes are kept as keyed hashes, because logins may be long, and passcodes are secret.
    """

    def __init__(self, limits: FailedLoginLimits, clock: Callable[[], float], counts: Counts | None = None) -> None:
        # The number of logins that brokers have refused.
        self.total = 0
        self._limits = limits
        counts = Counts() if counts is None else counts
        self._key = counts.secret
        self._by_login = counts.recent(Recently.REFUSED_OF_LOGIN, clock, limits.window)
        self._by_address = counts.recent(Recently.REFUSED_OF_ADDRESS, clock, limits.window)
        self._accepted = counts.recent(Recently.ACCEPTED, clock, _REMEMBERED)
        self._at_once = counts.share(_MAX_AT_ONCE)
        # By address and upstream, because a login may wait long for an upstream that is away: the slots of logins that
        # are being checked, and the number of users of these.
        self._slots: dict[_SlotKey, asyncio.Semaphore] = {}
        self._users: dict[_SlotKey, int] = {}

    def configure(self, limits: FailedLoginLimits) -> None:
        """Use other limits from now on."""
        self._limits = limits
        self._by_login.seconds = self._by_address.seconds = limits.window

    async def guard(
        self,
        host: str,
        realm: Realm,
        credentials: Credentials,
        ask: Callable[[], Awaitable[Answer]],
        failed: Callable[[float], Awaitable[None]],
        time_limit: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> Answer:
        """Ask the broker about a login. A refusal is counted, and delayed after several of them.

        Args:
            host: the client's address.
            realm: the target of the login.
            credentials: login and passcode.
            ask: asks the broker.
            failed: called if the broker refuses the passcode or is not asked, with the delay of the answer in seconds.
                It must wait for that time.
            time_limit: a context that bounds the time for the answer.

        Raises:
            TooManyFailedLoginsError: the broker was not asked.
            Exception: whatever ``ask`` raises.
        """
        address = network_of(host)
        accepted = self._hash(address, realm.name, credentials.login, credentials.passcode)
        login = self._hash(address, credentials.login)
        try:
            async with time_limit():
                answer = await self._ask(accepted, login, (address, realm.upstream), ask)
        except TooManyFailedLoginsError:
            await failed(0.0)
            raise
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED and not isinstance(refusal, LinkDownError):
                await failed(self._refused(login, address))
            raise
        self._accepted.renew(accepted)
        return answer

    def at_once(
        self, host: str, realm: Realm, credentials: Credentials, log_in: Callable[[], Answer | None]
    ) -> Answer | None:
        """Return the result of ``log_in`` if these credentials were lately accepted from this address; else None."""
        accepted = self._hash(network_of(host), realm.name, credentials.login, credentials.passcode)
        answer = log_in() if self._accepted.count(accepted) else None
        if answer is not None:
            self._accepted.renew(accepted)
        return answer

    async def _ask(self, accepted: bytes, login: bytes, key: _SlotKey, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        if not self._accepted.count(accepted):
            async with self._slot(key):
                # The credentials may have been accepted for another connection meanwhile.
                if not self._accepted.count(accepted):
                    self._check(login, key[0])
                    answer = await ask()
                    # Before another connection gets the slot.
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
        """Count a refusal. Returns its delay in seconds."""
        self.total += 1
        self._by_address.add(address)
        return self._limits.delay if self._by_login.add(login) > self._limits.delay_after else 0.0

    def _hash(self, *parts: str) -> bytes:
        return blake2b("\0".join(parts).encode(), key=self._key, digest_size=_HASH_SIZE).digest()
