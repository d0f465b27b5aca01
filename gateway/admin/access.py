"""Access to the admin listener: by the Host header, and by HTTP Basic."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from ipaddress import ip_address
from typing import Final

from gateway.config.listener_settings import AdminSettings

_SCHEME: Final = "basic "


class Access:
    """Decides which requests to the admin listener are allowed."""

    def __init__(self, settings: AdminSettings) -> None:
        self._hosts = frozenset(host.lower().rstrip(".") for host in ("localhost", *settings.allowed_hosts))
        self._users = {_digest(user.login, user.passcode.get_secret_value()): user.login for user in settings.users}

    @property
    def is_open(self) -> bool:
        """Whether requests need no user."""
        return not self._users

    def user(self, authorization: str | None) -> str | None:
        """The user whose login and passcode an Authorization header holds; None if there is no such user.

        Takes the same time whichever login or passcode is wrong.
        """
        login, passcode = _credentials(authorization)
        given = _digest(login, passcode)
        found: str | None = None
        for digest, name in self._users.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found

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


def _credentials(authorization: str | None) -> tuple[str, str]:
    if authorization is None or not authorization.lower().startswith(_SCHEME):
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
