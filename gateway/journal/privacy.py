"""What the journal may say of people and of the names that clients make up."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from gateway.journal.schema import OTHER
from gateway.patterns import Pattern
from gateway.session.destinations import Kind

KIND_CODES: Final = {
    Kind.QUEUE: "queue",
    Kind.TOPIC: "topic",
    Kind.EXCHANGE: "exchange",
    Kind.AMQ_QUEUE: "amqq",
    Kind.REPLY_QUEUE: "reply",
    Kind.TEMP_QUEUE: "temp",
}
"""The journal's short words for kinds of destinations."""

# Names that brokers and gateways generate: there is no end of them, and they say nothing.
_GENERATED: Final = re.compile(
    r"(?P<kept>/(?:temp-queue|reply-queue)/|/(?:amq/)?queue/(?:amq\.gen-|stomp-subscription-)).+", re.DOTALL
)
_KEY_NAME: Final = ".users.key"
_KEY_OCTETS: Final = 32
_LEAST_KEY_OCTETS: Final = 16
_HASH_OCTETS: Final = 8
_PREFIXES: Final = {4: 24, 6: 48}

# Destinations whose name is remembered, besides the distinct names.
_RECENT: Final = 4096

# Characters of a client's text in one line.
_LONGEST: Final = 300


def shown(octets: bytes) -> str:
    """A client's text as the journal holds it: UTF-8 as far as it is, and of bounded length."""
    text = octets.decode(errors="replace")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class Destinations:
    """Destinations as the journal shows them: without generated parts, and of a bounded number.

    Args:
        patterns: templates of the configuration; ``*`` stands for anything.
        most: distinct names; any further one is ``other``.
    """

    def __init__(self, patterns: Sequence[str] = (), most: int = 10_000) -> None:
        self._patterns = [(Pattern(pattern.encode()), pattern) for pattern in patterns]
        self._most = most
        self._known: set[str] = set()
        self._recent: dict[bytes, str] = {}

    def name(self, destination: bytes) -> str:
        """The name under which a destination is counted."""
        name = self._recent.get(destination)
        if name is None:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            name = self._recent[destination] = self._counted(destination)
        return name

    def _counted(self, destination: bytes) -> str:
        name = self._normalised(shown(destination))
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name

    def _normalised(self, text: str) -> str:
        generated = _GENERATED.fullmatch(text)
        if generated is not None:
            return f"{generated['kept']}*"
        octets = text.encode()
        for pattern, shown_as in self._patterns:
            if pattern.match(octets) is not None:
                return shown_as
        return text


class Users:
    """Logins as the journal shows them.

    Args:
        key: of the hash; None to show them as they are.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def name(self, login: bytes) -> str:
        """A login, or 16 hexadecimal digits that stand for it."""
        if self._key is None:
            return shown(login)
        return hmac.digest(self._key, login, sha256)[:_HASH_OCTETS].hex()


def users_key(directory: Path, given: Path | None) -> bytes:
    """The key with which logins are hashed: the given file's, or one kept in the journal's directory.

    Args:
        directory: of the journal; a key that is made is kept there, for the owner's eyes only.
        given: the configured file.

    Raises:
        OSError: when it can neither be read nor made, or is too short to keep anything secret.
    """
    path = directory / _KEY_NAME if given is None else given
    if given is None and not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) < _LEAST_KEY_OCTETS:
        raise OSError(errno.EINVAL, f"the key in {path} has fewer than {_LEAST_KEY_OCTETS} octets")
    return key


def _make_key(path: Path) -> None:
    """Make a key, whole or not at all; if another gateway does so at the same moment, one of the two stays."""
    file, name = tempfile.mkstemp(prefix=".key-", dir=path.parent)  # for the owner's eyes only
    fresh = Path(name)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(secrets.token_bytes(_KEY_OCTETS))
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()


def peer_name(host: str, how: str) -> str | None:
    """A client's address.

    Args:
        host: an IP address, or whatever the socket's other end is called.
        how: full, prefix (its /24 or /48) or none.
    """
    if how == "none":
        return None
    if how == "full":
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return str(ip_network((address, _PREFIXES[address.version]), strict=False))
