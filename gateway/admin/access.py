"""Access to the admin listener: by the Host header, and by HTTP Basic."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, NamedTuple

from gateway.config.broker_user import AdminUser
from gateway.config.listener_settings import AdminSettings
from gateway.config.model import FailedLoginLimits
from gateway.server.broker.broker_errors import ACCESS_REFUSED, UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.client.failed_logins import FailedLogins
from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.address_checks import LockOuts
from gateway.server.stats import AdminLoginStats

_SCHEME: Final = "basic "

# bcrypt takes this many bytes of a passcode, and so does htpasswd.
_BCRYPT_BYTES: Final = 72

_READING: Final = frozenset(("GET", "HEAD"))


class _AdminListener(NamedTuple):
    """See `gateway.server.client.failed_logins.Realm`."""

    name: str = "admin"
    upstream: None = None


class WrongPasscodeError(UpstreamError):
    """There is no such user, or its passcode is another."""

    def __init__(self) -> None:
        super().__init__(ACCESS_REFUSED, "wrong user or passcode")


class Guesses:
    """Slows down those who guess passcodes of the admin listener, and locks them out, as `failed_logins` says.

    The numbers are its own: a client that is locked out for its STOMP logins may still look in here, and the other way
    round. They outlive reloads.
    """

    def __init__(self, limits: FailedLoginLimits, clock: Callable[[], float], stats: AdminLoginStats) -> None:
        self.lock_outs = LockOuts(limits, clock)
        self._failed = FailedLogins(limits, clock)
        self._stats = stats

    def configure(self, limits: FailedLoginLimits) -> None:
        """Other limits hold from now on."""
        self.lock_outs.configure(limits)
        self._failed.configure(limits)

    async def check(self, peer: Peer, login: str, passcode: str, access: Access) -> AdminUser:
        """The user with this login and passcode.

        Raises:
            WrongPasscodeError: there is none. After some such answers this one comes late.
            TooManyFailedLoginsError: nobody looked, because too many logins have failed.
        """

        async def failed(delay: float) -> None:
            self._stats.failed += 1
            self.lock_outs.login_failed(peer.host)
            self._stats.lock_outs = self.lock_outs.total
            await asyncio.sleep(delay)

        async def look() -> AdminUser:
            return await access.user(login, passcode)

        return await self._failed.guard(peer.host, _AdminListener(), Credentials(login, passcode), look, failed)


class Access:
    """Decides which requests to the admin listener are allowed, by one configuration."""

    def __init__(self, settings: AdminSettings) -> None:
        self._hosts = frozenset(host.lower().rstrip(".") for host in ("localhost", *settings.allowed_hosts))
        self._users = {
            _digest(user.login, user.passcode.get_secret_value()): user
            for user in settings.users
            if user.passcode is not None
        }
        self._hashed = tuple(user for user in settings.users if user.passcode_hash is not None)
        # Digests of what a hash has accepted. To try one takes a tenth of a second, and a browser asks twice a second.
        self._accepted: dict[bytes, AdminUser] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether requests need no user."""
        return not (self._users or self._hashed)

    def has_user(self, login: str) -> bool:
        """Whether there is a user of this name, whatever its passcode."""
        return any(user.login == login for user in (*self._users.values(), *self._hashed))

    async def user(self, login: str, passcode: str) -> AdminUser:
        """The user with this login and passcode. Takes the same time whichever of the two is wrong.

        Raises:
            WrongPasscodeError: there is none.
        """
        given = _digest(login, passcode)
        found: AdminUser | None = None
        for digest, user in (*self._users.items(), *self._accepted.items()):
            if hmac.compare_digest(digest, given):
                found = user
        if found is None and self._hashed:
            found = await self._by_hash(login, passcode)
            if found is not None:
                self._accepted[given] = found
        if found is None:
            raise WrongPasscodeError
        return found

    async def _by_hash(self, login: str, passcode: str) -> AdminUser | None:
        # Imported here, because few gateways have such users.
        import bcrypt  # noqa: PLC0415

        # For an unknown login another user's hash is tried, so that the answer takes as long.
        users = [user for user in self._hashed if user.login == login] or self._hashed[:1]
        text = passcode.encode(errors="surrogateescape")[:_BCRYPT_BYTES]
        for user in users:
            assert user.passcode_hash is not None  # noqa: S101 - see `__init__`
            hashed = user.passcode_hash.get_secret_value().encode()
            # In a thread, and one after the other: guesses must not take the processors from clients.
            async with self._one_at_a_time:
                is_right = await asyncio.to_thread(bcrypt.checkpw, text, hashed)
            if is_right and user.login == login:
                return user
        return None

    def is_host_known(self, header: str) -> bool:
        """Whether a Host header names this listener by an address, or by a name that is allowed.

        This stops DNS rebinding: a hostile page whose own name leads here has that name in the header.
        """
        host = _without_port(header).lower().rstrip(".")
        return host in self._hosts or _is_address(host)


def _digest(login: str, passcode: str) -> bytes:
    """A digest of both; with their lengths, so that `a:b` and `c` differ from `a` and `b:c`."""
    digest = hashlib.sha256()
    for text in (login, passcode):
        encoded = text.encode(errors="surrogateescape")
        digest.update(b"%d %b" % (len(encoded), encoded))
    return digest.digest()


def may(user: AdminUser, method: str, path: str) -> bool:
    """Whether a user's role allows a request."""
    if user.role == "full":
        return True
    return method in _READING and (user.role == "read_only" or path == "/metrics")


def credentials(authorization: str) -> tuple[str, str]:
    """Login and passcode of an Authorization header; two empty texts if it has none."""
    if not authorization.lower().startswith(_SCHEME):
        return "", ""
    try:
        decoded = base64.b64decode(authorization[len(_SCHEME) :].strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    login, _, passcode = decoded.partition(":")
    return login, passcode


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
