"""CONNECT and TOKEN: the version, virtual host and credentials of a client (STOMP 1.2, "CONNECT or STOMP Frame").

The broker checks the login. The gateway chooses the version, finds the virtual host, and decides which credentials to
use: the client's, its certificate's, or the default user's.

TOKEN is an extension of the gateway for clients whose passcode is a token: it replaces the token. The broker checks
tokens, too. The gateway only reads two things of a token:

* when it expires (RFC 7519, section 4.1.4), because RabbitMQ before 4.3 continues to deliver on a connection with an
  expired token. The server calls ``has_expired`` about once a second;
* whether two tokens grant the same, before sessions that share links get the new one.

If the broker itself refuses something because of an expired token, ``error_frames.broker_error`` recognises it.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from gateway.config.base_models import fits_short_string
from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.errors import CloseReason, RefusedLogin, StompError
from gateway.session import error_frames, ops
from gateway.session.context import SessionContext, State
from gateway.session.destination_rules import DestinationRules, concerns
from gateway.session.observer import SessionObserver
from gateway.session.queues import QueueRules
from gateway.stomp.frame import Frame
from gateway.stomp.headers import trim_values
from gateway.stomp.heartbeat import Heartbeats, negotiate

# The versions of STOMP that the gateway speaks, best first.
_VERSIONS: Final = (b"1.2", b"1.1", b"1.0")
_TOKEN: Final = b"token"
# The parts of a JWT: header, claims and signature.
_PARTS: Final = 3
# The claims that may differ between two tokens of one user: times (RFC 7519, 4.1; OpenID Connect, 2) and identifiers,
# including those of Keycloak, Entra ID and UAA. RabbitMQ derives no permissions from them.
_OF_ONE_TOKEN: Final = frozenset((
    "exp", "iat", "nbf", "jti", "auth_time", "nonce", "at_hash", "c_hash", "sid", "session_state", "aio", "rh", "uti",
    "rev_sig",
))  # fmt: skip
# From this release on RabbitMQ itself ends a connection whose token has expired.
_ENDS_EXPIRED: Final = (4, 3)
# For refusals that the server has already logged, in the broker's words.
_LOGGED: Final = RefusedLogin(is_logged=True)
_NO_PASSCODE: Final = b"CONNECT has a login and no passcode"
_ADD_CERTIFICATE: Final = "add that name, or everyone, to certificate_users of this virtual host"
_ADD_ALIAS: Final = "if clients are right to send it as host, add it to aliases of their virtual host"


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts about a client that are not in its frames.

    Args:
        is_local: it connects from this machine.
        certificate_name: the user's name in its certificate, if the listener accepts that as a login.
        is_certificate_broken: that name cannot be read.
        credentials: login and passcode of the WebSocket handshake, which take precedence over those of CONNECT.
        implicit_connect: its listener allows clients to omit CONNECT.
    """

    is_local: bool = True
    certificate_name: str | None = None
    is_certificate_broken: bool = False
    credentials: tuple[bytes, bytes] | None = field(default=None, repr=False)
    implicit_connect: bool = False


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A valid CONNECT.

    ``heart_beat``: the header, or None. ``is_implicit``: the client omitted CONNECT, as its listener allows.
    """

    version: bytes
    login: ops.Login
    heart_beat: bytes | None
    is_implicit: bool = False

    def accept(self, *, is_local: bool) -> Heartbeats:
        """Check what RabbitMQ's adapter checks after the login, and return the negotiated heart-beats.

        Raises:
            StompError: the user may connect only from this machine, or the heart-beat header is malformed.
        """
        if not is_local and self.login.login in self.login.settings.loopback_users:
            raise error_frames.bad_connect("non-loopback access denied")
        heartbeats = negotiate(self.heart_beat)
        if heartbeats is None:
            raise error_frames.processing_error()
        return heartbeats


def negotiate_version(headers: Mapping[bytes, bytes]) -> bytes:
    """Choose the best common version from CONNECT's untrimmed headers (STOMP 1.2, "Protocol Negotiation").

    Without accept-version the client speaks 1.0.

    Raises:
        StompError: there is no common version.
    """
    offered = headers.get(b"accept-version", b"1.0").split(b",")
    for version in _VERSIONS:
        if version in offered:
            return version
    raise error_frames.version_mismatch()


def read_connect(
    headers: Mapping[bytes, bytes],
    resolve: FindVirtualHost,
    certificate_name: str | None = None,
    *,
    is_implicit: bool = False,
) -> ConnectRequest:
    """Read the headers of CONNECT, which are not trimmed.

    ``resolve`` finds the virtual host with a name or alias, and with None the default one. ``is_implicit``: the client
    omitted CONNECT.

    Raises:
        StompError: there is no common version, no such virtual host, or no login.
    """
    version = negotiate_version(headers)
    if version == b"1.0":
        headers = trim_values(headers)
    settings = _settings(headers, resolve)
    try:
        login = _credentials(headers, settings, certificate_name)
    except StompError as error:
        error.refused_login = error.refused_login or RefusedLogin(settings.name, headers.get(b"login"))
        raise
    return ConnectRequest(version, login, headers.get(b"heart-beat"), is_implicit)


def _settings(headers: Mapping[bytes, bytes], resolve: FindVirtualHost) -> VirtualHost:
    host = headers.get(b"host")
    # Bytes that are not UTF-8 become lone surrogates, which no configured name has.
    name = None if host is None else host.decode(errors="surrogateescape")
    settings = resolve(name)
    if settings is None:
        host, name = host or b"", name or ""
        can_be_alias = bool(name) and fits_short_string(name)
        denied = error_frames.virtual_host_denied(host)
        error = error_frames.unknown_virtual_host(host) if can_be_alias else denied
        error.refused_login = RefusedLogin(
            host.decode(errors="replace"), headers.get(b"login"), _ADD_ALIAS if can_be_alias else "", denied.body
        )
        raise error
    return settings


def _credentials(headers: Mapping[bytes, bytes], settings: VirtualHost, certificate_name: str | None) -> ops.Login:
    """A login header takes precedence over a certificate, and a certificate over the default user."""
    login, default = headers.get(b"login"), settings.default_user
    if login is None and certificate_name is not None:
        certificates = settings.certificate_users
        user = certificates.users.get(certificate_name, certificates.everyone)
        if user is None:
            error = error_frames.access_refused(certificate_name.encode(), settings)
            error.refused_login = RefusedLogin(settings.name, hint=_ADD_CERTIFICATE)
            raise error
        return ops.Login(settings, *user.credentials, is_from_file=True)
    sent = passcode = headers.get(b"passcode")
    if default is not None:
        default_login, default_passcode = default.credentials
        login = default_login if login is None else login
        passcode = default_passcode if passcode is None else passcode
    if login is None:
        raise error_frames.bad_connect("Missing login or passcode header(s)")
    # The broker refuses every login without a passcode. A NUL cannot be sent to it, because PLAIN uses it as separator.
    if passcode is None or b"\0" in login + passcode:
        error = error_frames.access_refused(login, settings)
        reason = _NO_PASSCODE if passcode is None else b""
        error.refused_login = RefusedLogin(settings.name, headers.get(b"login"), reason=reason)
        raise error
    return ops.Login(settings, login, passcode, is_from_file=sent is None)


@lru_cache(maxsize=16)
def _server_header(broker_version: tuple[int, ...], product: bytes) -> bytes:
    """The broker as server-name and the gateway as comment (STOMP 1.2, "CONNECTED Frame").

    Client libraries recognise RabbitMQ's dialect by ``RabbitMQ/``. The version is empty if unknown.
    """
    return b"RabbitMQ/%b %b" % (".".join(map(str, broker_version)).encode() or b"unknown", product)


_UNKNOWN_CLIENT: Final = ClientFacts()
_NO_HEARTBEATS: Final = Heartbeats()


class ConnectHandler:
    """Handles CONNECT, and the first frame of a client that may omit CONNECT."""

    __slots__ = ("_context", "_product", "_request", "_resolve", "client", "heartbeats", "observe")

    def __init__(self, context: SessionContext, product: bytes, resolve: FindVirtualHost) -> None:
        # Set by `Session.set_client`. ``observe`` is called once and dropped, because it refers to the session.
        self.client = _UNKNOWN_CLIENT
        self.observe: Callable[[], SessionObserver | None] | None = None
        self.heartbeats = _NO_HEARTBEATS
        self._context = context
        self._product = product
        self._resolve = resolve
        # The CONNECT about which the broker is asked.
        self._request: ConnectRequest | None = None

    def connect(self, frame: Frame) -> None:
        """Handle CONNECT or STOMP: ask for the login."""
        self._check_certificate()
        headers = frame.headers
        if self.client.credentials is not None:
            login, passcode = self.client.credentials
            headers = {**headers, b"login": login, b"passcode": passcode}
        self._ask(read_connect(headers, self._resolve, self.client.certificate_name), frame)

    def connect_again(self, frame: Frame) -> None:
        """Refuse CONNECT or STOMP of a connected client."""
        raise error_frames.already_connected()

    def connect_implicitly(self, frame: Frame) -> None:
        """Log in before a first frame that is not CONNECT, if the listener allows it, and then carry the frame out."""
        if not self.client.implicit_connect:
            raise error_frames.not_connected()
        # Such a client speaks STOMP 1.0, and its ERROR, too, is for that version.
        self._context.trims_values = True
        try:
            self._check_certificate()
            request = read_connect({}, self._resolve, self.client.certificate_name, is_implicit=True)
        except StompError as error:
            raise error_frames.closed_for(error, CloseReason.LOGIN_REFUSED) from None
        self._ask(request, frame)

    def _check_certificate(self) -> None:
        # The client must not become another user, such as the default one.
        if self.client.is_certificate_broken:
            raise error_frames.certificate_unreadable()

    def _ask(self, request: ConnectRequest, frame: Frame) -> None:
        self._request = request
        context = self._context
        context.strict = request.login.settings.strict
        context.ask(request.login, frame, retry=request.is_implicit)
        context.move(State.AUTHENTICATING)

    # Answers of the broker.

    def logged_in(self, event: ops.LoggedIn) -> bool:
        """Complete the login that the broker accepted. Returns whether the session is connected: a check may fail."""
        request, context = self._request, self._context
        if request is None:
            return False
        try:
            self.heartbeats = request.accept(is_local=self.client.is_local)
        except StompError as error:
            self._refuse(error, RefusedLogin(request.login.settings.name, request.login.login))
            return False
        self._request = None
        context.operation_done()
        settings = request.login.settings
        context.version = request.version
        context.trims_values = request.version == b"1.0"
        context.login = request.login.login
        context.settings = settings
        context.rides_through = settings.upstream.ride_through > 0
        context.queue_rules = QueueRules.of(event.broker_version, settings)
        context.destination_rules = DestinationRules(settings, request.login.login)
        if concerns(settings.on_send_error.logins, request.login.login):
            context.on_send_error = settings.on_send_error.action
        context.move(State.CONNECTED)
        if self.observe is not None:
            context.observer, self.observe = self.observe(), None
        if not request.is_implicit:
            context.output.append(self._connected(request, event.broker_version))
        elif context.observer is not None:
            context.observer.used("implicit-connect")
        return True

    def _connected(self, request: ConnectRequest, broker_version: tuple[int, ...]) -> bytes:
        settings, server = request.login.settings, b""
        if not settings.hide_server_info:
            server = b"server:%b\n" % (settings.server_header or _server_header(broker_version, self._product))
        # Nothing here needs an escape.
        facts = server, self._context.identity, self.heartbeats.header, request.version
        return b"CONNECTED\n%bsession:%b\nheart-beat:%b\nversion:%b\n\n\0\n" % facts

    def login_failed(self, event: ops.LoginFailed) -> None:
        """Answer the CONNECT that the broker refused."""
        if self._request is not None:
            login = self._request.login
            self._refuse(error_frames.login_failed(event.code, event.text, login.login, login.settings), _LOGGED)

    def not_tried(self, event: ops.LoginNotTried) -> None:
        """Answer the CONNECT that the gateway refused."""
        self._refuse(event.error, _LOGGED if event.is_logged else None)

    def _refuse(self, error: StompError, refused: RefusedLogin | None) -> None:
        """Send an ERROR. The client may send another CONNECT, unless the error or strict mode closes the session.

        It also closes if the client omitted CONNECT.
        """
        request, self._request = self._request, None
        if request is None:
            return
        error.refused_login = refused
        context = self._context
        frame = context.operation_done(failed=True)
        context.move(State.CONNECTING)
        if request.is_implicit and error.close is None:
            error = error_frames.closed_for(error, CloseReason.LOGIN_REFUSED)
        context.fail(error, context.receipt_of(frame))


def claims_of(passcode: bytes) -> dict[str, object] | None:
    """The claims of a JWT, unverified; None if the passcode is not a JWT."""
    parts = passcode.split(b".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def expiry_of(passcode: bytes) -> float | None:
    """The expiry of a JWT in seconds since the epoch; None if the passcode is not a JWT, or has no expiry."""
    expiry = (claims_of(passcode) or {}).get("exp")
    return expiry if isinstance(expiry, int | float) and not isinstance(expiry, bool) else None


def grant_the_same(token: bytes, another: bytes) -> bool:
    """Whether both are JWTs that differ only in times and identifiers. Signatures are not verified."""
    claims, others = claims_of(token), claims_of(another)
    if claims is None or others is None:
        return False
    return all(claims.get(name) == others.get(name) for name in (claims.keys() | others.keys()) - _OF_ONE_TOKEN)


def renews_tokens(settings: VirtualHost, broker_version: tuple[int, ...]) -> bool:
    """Whether clients may renew tokens, and sessions end with their token.

    That is so if it is configured, and by default for brokers that end connections with an expired token. An unknown
    version is empty.
    """
    return broker_version >= _ENDS_EXPIRED if settings.token_renewal is None else settings.token_renewal


class TokenHandler:
    """Handles TOKEN, and knows when the session's token expires."""

    __slots__ = ("_context", "_expires", "_is_on")

    def __init__(self, context: SessionContext) -> None:
        # In seconds since the epoch; None if the passcode does not expire.
        self._expires: float | None = None
        self._is_on = False
        self._context = context

    def logged_in(self, passcode: bytes, *, is_on: bool) -> None:
        """Note the passcode of the login. ``is_on``: the result of `renews_tokens`."""
        self._is_on = is_on
        if self._is_on:
            self._expires = expiry_of(passcode)

    def renew(self, frame: Frame) -> None:
        """Handle TOKEN: let the broker check the new token."""
        context = self._context
        if not self._is_on:
            # Without token renewal, TOKEN is an unknown command.
            raise error_frames.bad_command(frame.command)
        token = context.headers(frame).get(_TOKEN)
        if not token:
            raise error_frames.missing_header(frame.command, _TOKEN)
        context.ask(ops.RenewToken(token), frame)

    def renewed(self, event: ops.TokenRenewed) -> None:
        """Answer the TOKEN: the broker accepted it, and the session now ends with it. See `ops.TokenRenewed`."""
        operation = self._context.operation
        if isinstance(operation, ops.RenewToken):
            self._expires = expiry_of(operation.token)
        self._context.send_receipt(self._context.operation_done())

    def refused(self, event: ops.TokenRefused) -> None:
        """Answer the TOKEN that was refused. The old token remains in use."""
        context = self._context
        frame = context.operation_done()
        context.fail(error_frames.token_refused(event.text), context.receipt_of(frame))

    def has_expired(self, now: float) -> bool:
        """Whether the token has expired, and the broker is not checking a new one. ``now``: seconds since the epoch."""
        is_past = self._expires is not None and now >= self._expires
        return is_past and not isinstance(self._context.operation, ops.RenewToken)
