"""How the journal shows logins, addresses, destinations and other texts that clients choose."""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from gateway.errors import JournalKeyError
from gateway.journal.schema import OTHER
from gateway.patterns import Pattern
from gateway.session.destinations import DestinationKind
from gateway.stomp.block_cache import BlockCache
from gateway.whole_files import written_beside

KIND_CODES: Final = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.EXCHANGE: "exchange",
    DestinationKind.AMQ_QUEUE: "amqq",
    DestinationKind.REPLY_QUEUE: "reply",
    DestinationKind.TEMP_QUEUE: "temp",
}
"""Values of ``dk``."""

# Names that brokers and gateways generate: their number is unbounded, and they mean nothing.
_GENERATED: Final = re.compile(
    r"(?P<kept>/(?:temp-queue|reply-queue)/|/(?:amq/)?queue/(?:amq\.gen-|stomp\.gen-|stomp-subscription-)).+", re.DOTALL
)
KEY_NAME: Final = ".users.key"
_KEY_SIZE: Final = 32  # bytes
_MIN_KEY_SIZE: Final = 16
_HASH_SIZE: Final = 8
_REMEMBERED_PEERS: Final = 1024
_PREFIXES: Final = {4: 24, 6: 48}

# Bytes of the cached names of destinations: room for about 4096 of them.
_MOST_CACHED_BYTES: Final = 1 << 20
# Bytes of an entry besides its texts.
_ENTRY: Final = 180

# Characters of a client's text in one line.
_MAX_TEXT: Final = 300


def shown(text: bytes) -> str:
    """A client's text as the journal shows it: UTF-8 with replacement characters, and at most 300 characters."""
    decoded = text.decode(errors="replace")
    return decoded if len(decoded) <= _MAX_TEXT else decoded[: _MAX_TEXT - 1] + "…"


class DestinationNames:
    """Destinations as the journal shows them: without generated parts, and bounded in number.

    One that fits a pattern is shown as the pattern. After ``most`` distinct names, further ones are ``other``.
    """

    def __init__(self, patterns: Sequence[str] = (), most: int = 10_000) -> None:
        self._patterns = [(Pattern(pattern.encode()), pattern) for pattern in patterns]
        self._most = most
        self._known: set[str] = set()
        # Destinations that come once, such as those of replies, do not take the place of others.
        self._cache = BlockCache[str](_MOST_CACHED_BYTES, lambda destination: _ENTRY + 2 * len(destination))

    def name(self, destination: bytes) -> str:
        """The name under which a destination is counted."""
        name = self._cache.get(destination)
        if name is None:
            name = self._bounded(destination)
            self._cache.enter(destination, name)
        return name

    def _bounded(self, destination: bytes) -> str:
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
        encoded = text.encode()
        for pattern, template in self._patterns:
            if pattern.match(encoded) is not None:
                return template
        return text


class UserNames:
    """Logins as the journal shows them: hashed with a key, or unchanged without one."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def name(self, login: bytes) -> str:
        """A login, or 16 hexadecimal digits that stand for it."""
        if self._key is None:
            return shown(login)
        return hmac.digest(self._key, login, sha256)[:_HASH_SIZE].hex()


def users_key(directory: Path, given: Path | None) -> bytes:
    """The key that logins are hashed with: from the given file, else one that is made in the journal's directory.

    Raises `OSError` if it cannot be made, `JournalKeyError` if it cannot be read or is too short to be a secret.
    """
    path = directory / KEY_NAME if given is None else given
    if given is None and not path.exists():
        _make_key(path)
    try:
        key = path.read_bytes()
    except OSError as error:
        raise JournalKeyError(str(path), error.strerror or str(error)) from error
    if len(key) < _MIN_KEY_SIZE:
        raise JournalKeyError(str(path), f"it has fewer than {_MIN_KEY_SIZE} bytes")
    return key


def _make_key(path: Path) -> None:
    """Write a new key whole or not at all; if another gateway does so at the same moment, one of the two keys stays."""
    with written_beside(path, secrets.token_bytes(_KEY_SIZE), 0o600) as new, contextlib.suppress(FileExistsError):
        path.hardlink_to(new)


@lru_cache(_REMEMBERED_PEERS)
def peer_name(host: str, how: str) -> str | None:
    """A client's address as the journal shows it: full, its prefix (/24 or /48), or none."""
    if how == "none":
        return None
    if how == "full":
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return str(ip_network((address, _PREFIXES[address.version]), strict=False))
