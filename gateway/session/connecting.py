"""CONNECT: which version, which virtual host, whose credentials (STOMP 1.2, "CONNECT or STOMP Frame")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.session import error_frames
from gateway.session.ops import Login
from gateway.stomp.heartbeat import Heartbeats, negotiate

VERSIONS: Final = (b"1.2", b"1.1", b"1.0")
"""The versions spoken, best first."""


@dataclass(frozen=True, slots=True)
class Connect:
    """A CONNECT that makes sense: the version, the question for the broker, the heart-beat header to answer.

    ``implicit`` says that there was no such frame: another one came first, and the listener allows that.
    """

    version: bytes
    login: Login
    heart_beat: bytes | None
    implicit: bool = False

    def accept(self, *, is_local: bool) -> Heartbeats:
        """Check what only counts once the broker has accepted the login, as RabbitMQ's adapter does.

        Args:
            is_local: whether the client connects from this machine.

        Returns:
            The heart-beats agreed on.

        Raises:
            StompError: when the user may not connect from elsewhere, or the heart-beat header makes no sense.
        """
        if not is_local and self.login.login in self.login.settings.loopback_users:
            raise error_frames.bad_connect("non-loopback access denied")
        heartbeats = negotiate(self.heart_beat)
        if heartbeats is None:
            raise error_frames.processing_error()
        return heartbeats


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
    raise error_frames.version_mismatch()


def trim(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Headers as STOMP 1.0 means them: without leading spaces in the values."""
    return {name: value.lstrip(b" ") for name, value in headers.items()}


def read_connect(
    headers: Mapping[bytes, bytes],
    resolve: FindVirtualHost,
    certificate_name: str | None = None,
    *,
    implicit: bool = False,
) -> Connect:
    """Read the headers of CONNECT.

    Args:
        headers: as received; none for a CONNECT that was left out.
        resolve: finds the settings of a virtual host.
        certificate_name: the name in the client's certificate, where that may stand in for a login.
        implicit: whether there was no such frame.

    Raises:
        StompError: when there is no common version, no such virtual host, or nobody to log in as.
    """
    version = negotiate_version(headers)
    if version == b"1.0":
        headers = trim(headers)
    settings = _settings(headers.get(b"host"), resolve)
    login = _credentials(headers, settings, certificate_name)
    return Connect(version, login, headers.get(b"heart-beat"), implicit)


def _settings(host: bytes | None, resolve: FindVirtualHost) -> VirtualHost:
    try:
        settings = resolve(None if host is None else host.decode())
    except UnicodeDecodeError:
        settings = None
    if settings is None:
        raise error_frames.virtual_host_denied(b"" if host is None else host)
    return settings


def _credentials(headers: Mapping[bytes, bytes], settings: VirtualHost, certificate_name: str | None) -> Login:
    """A login header wins over a certificate, and a certificate over the default user."""
    login, default = headers.get(b"login"), settings.default_user
    if login is None and certificate_name is not None:
        certificates = settings.certificate_users
        user = certificates.users.get(certificate_name, certificates.everyone)
        if user is None:
            raise error_frames.access_refused(certificate_name.encode(), settings)
        return Login(settings, *user.credentials)
    passcode = headers.get(b"passcode")
    if default is not None:
        default_login, default_passcode = default.credentials
        login = default_login if login is None else login
        passcode = default_passcode if passcode is None else passcode
    if login is None:
        raise error_frames.bad_connect("Missing login or passcode header(s)")
    if passcode is None:
        # The adapter asks the broker, which lets nobody in without one.
        raise error_frames.access_refused(login, settings)
    if b"\0" in login + passcode:
        # AMQP's PLAIN separates the two by NUL, so no broker can be asked about them, and none would accept them.
        raise error_frames.access_refused(login, settings)
    return Login(settings, login, passcode)
