"""CONNECT: which version, which virtual host, whose credentials (STOMP 1.2, "CONNECT or STOMP Frame")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.session import refusals
from gateway.session.ops import Login
from gateway.session.settings import Resolve, Settings
from gateway.stomp.headers import printable

VERSIONS: Final = (b"1.2", b"1.1", b"1.0")
"""The versions spoken, best first."""


@dataclass(frozen=True, slots=True)
class Connect:
    """A CONNECT that makes sense: the version, the question for the broker, the heart-beat header to answer."""

    version: bytes
    login: Login
    heart_beat: bytes | None


def negotiate_version(headers: Mapping[bytes, bytes]) -> bytes:
    """Choose the best common version (STOMP 1.2, "Protocol Negotiation").

    Args:
        headers: of CONNECT, untrimmed. Without accept-version the client speaks 1.0.

    Raises:
        StompError: when there is none.
    """
    offered = headers.get(b"accept-version", b"1.0").split(b",")
    for version in VERSIONS:
        if version in offered:
            return version
    raise refusals.version_mismatch()


def trim(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Headers as STOMP 1.0 means them: without leading spaces in the values."""
    return {name: value.lstrip(b" ") for name, value in headers.items()}


def read_connect(headers: Mapping[bytes, bytes], resolve: Resolve) -> Connect:
    """Read the headers of CONNECT.

    Args:
        headers: as received.
        resolve: finds the settings of a virtual host.

    Raises:
        StompError: when there is no common version, no such virtual host, or nobody to log in as.
    """
    version = negotiate_version(headers)
    if version == b"1.0":
        headers = trim(headers)
    settings = _settings(headers.get(b"host"), resolve)
    login = headers.get(b"login", settings.default_login)
    passcode = headers.get(b"passcode", settings.default_passcode)
    if login is None or passcode is None:
        raise refusals.bad_connect("Missing login or passcode header(s)")
    return Connect(version, Login(settings, login, passcode), headers.get(b"heart-beat"))


def _settings(host: bytes | None, resolve: Resolve) -> Settings:
    try:
        settings = resolve(None if host is None else host.decode())
    except UnicodeDecodeError:
        settings = None
    if settings is None:
        shown = printable(b"" if host is None else host, 255)
        raise refusals.bad_connect(f"Virtual host {shown} access denied")
    return settings
