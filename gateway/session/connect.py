"""CONNECT and TOKEN: the version, virtual host and credentials of a client (STOMP 1.2, "CONNECT or STOMP Frame").

The broker judges the login. The gateway only chooses the version, finds the virtual host, and decides whose credentials
count.

TOKEN is an extension of the gateway, for clients whose passcode is a token: it brings a new one. The broker judges
tokens too. The gateway reads only when one expires (RFC 7519, section 4.1.4), because RabbitMQ before 4.3 goes on
delivering on a connection whose token has expired, and whether another one grants the same, before sessions that share
links get it. The server asks ``has_expired`` about once a second and closes the session. What the broker itself refuses
because of an expired token is recognised in ``error_frames.broker_error``.
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
# Of a JWT: header, claims and signature.
_PARTS: Final = 3
# Claims that differ between two tokens of one user: times (RFC 7519, 4.1; OpenID Connect, 2) and identifiers, those
# that Keycloak, Entra ID and UAA add included. RabbitMQ takes no right from them.
_OF_ONE_TOKEN: Final = frozenset((
    "exp", "iat", "nbf", "jti", "auth_time", "nonce", "at_hash", "c_hash", "sid", "session_state", "aio", "rh", "uti",
    "rev_sig",
))  # fmt: skip
# From this release on RabbitMQ itself ends a connection whose token has expired.
_ENDS_EXPIRED: Final = (4, 3)
# A refusal that the server brought, and logged with the broker's own words.
_LOGGED: Final = RefusedLogin(is_logged=True)
_NO_PASSCODE: Final = b"CONNECT has a login and no passcode"
_ADD_CERTIFICATE: Final = "add that name, or everyone, to certificate_users of this virtual host"
_ADD_ALIAS: Final = "if clients are right to send it as host, add it to aliases of their virtual host"


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts about a client that are not in its frames.

    ``is_local``: it connects from this machine. ``certificate_name``: the name in its certificate, where that may stand
    in for a login. ``is_certificate_broken``: that name cannot be read. ``credentials``: login and passcode that came
    with the WebSocket handshake and win over CONNECT's. ``implicit_connect``: its listener allows it to leave out
    CONNECT.
    """

    is_local: bool = True
    certificate_name: str | None = None
    is_certificate_broken: bool = False
    credentials: tuple[bytes, bytes] | None = field(default=None, repr=False)
    implicit_connect: bool = False


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A valid CONNECT: the version, the login to check, the heart-beat header to answer.

    ``is_implicit``: there was no such frame; another one came first, and the listener allows that.
    """

    version: bytes
    login: ops.Login
    heart_beat: bytes | None
    is_implicit: bool = False

    def accept(self, *, is_local: bool) -> Heartbeats:
        """Check what RabbitMQ's adapter checks only after the broker has accepted the login; agree on heart-beats.

        Raises:
            StompError: when the user may not connect from elsewhere, or the heart-beat header is malformed.
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
        StompError: when there is no common version.
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
    """Read the headers of CONNECT.

    Raises:
        StompError: when there is no common version, no such virtual host, or no login.
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
    # A byte that is not UTF-8 becomes a lone surrogate, which no name has.
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
    """A login header wins over a certificate, and a certificate over the default user."""
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
    # The broker refuses every login without a passcode, and cannot be asked about a NUL: PLAIN separates the two by it.
    if passcode is None or b"\0" in login + passcode:
        error = error_frames.access_refused(login, settings)
        reason = _NO_PASSCODE if passcode is None else b""
        error.refused_login = RefusedLogin(settings.name, headers.get(b"login"), reason=reason)
        raise error
    return ops.Login(settings, login, passcode, is_from_file=sent is None)


@lru_cache(maxsize=16)
def _server_header(broker_version: tuple[int, ...], product: bytes) -> bytes:
    """The broker as server-name and the gateway as comment (STOMP 1.2, "CONNECTED Frame").

    Libraries choose the dialect of RabbitMQ by the name with the slash after it. A broker may not tell its version, or
    be lost already.
    """
    return b"RabbitMQ/%b %b" % (".".join(map(str, broker_version)).encode() or b"unknown", product)


_UNKNOWN_CLIENT: Final = ClientFacts()
_NO_HEARTBEATS: Final = Heartbeats()


def _nobody() -> None:
    """No observer."""


class ConnectHandler:
    """The session until it is connected: CONNECT, or the first frame of a client that may leave CONNECT out."""

    __slots__ = ("_context", "_observe", "_product", "_request", "_resolve", "client", "heartbeats")

    def __init__(self, context: SessionContext, product: bytes, resolve: FindVirtualHost) -> None:
        self.client = _UNKNOWN_CLIENT
        self.heartbeats = _NO_HEARTBEATS
        self._context = context
        self._product = product
        self._resolve = resolve
        self._request: ConnectRequest | None = None
        self._observe: Callable[[], SessionObserver | None] = _nobody

    def set_client(self, client: ClientFacts, observe: Callable[[], SessionObserver | None]) -> None:
        """See `Session.set_client`."""
        self.client = client
        self._observe = observe

    def forget_observer(self) -> None:
        """See `Session.forget`."""
        self._observe = _nobody

    def connect(self, frame: Frame) -> None:
        """CONNECT or STOMP."""
        self._check_certificate()
        headers = frame.headers
        if self.client.credentials is not None:
            login, passcode = self.client.credentials
            headers = {**headers, b"login": login, b"passcode": passcode}
        self._ask(read_connect(headers, self._resolve, self.client.certificate_name), frame)

    def connect_again(self, frame: Frame) -> None:
        """CONNECT or STOMP of a client that is connected: always an error."""
        raise error_frames.already_connected()

    def connect_implicitly(self, frame: Frame) -> None:
        """A frame that should come after CONNECT. Where the listener allows it, log in and carry it out."""
        if not self.client.implicit_connect:
            raise error_frames.not_connected()
        # The client speaks STOMP 1.0, whether it is let in or not.
        self._context.trims_values = True
        try:
            self._check_certificate()
            request = read_connect({}, self._resolve, self.client.certificate_name, is_implicit=True)
        except StompError as error:
            raise error_frames.closed_for(error, CloseReason.LOGIN_REFUSED) from None
        self._ask(request, frame)

    def _check_certificate(self) -> None:
        # Another user, the default one for instance, would be a guess.
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
        """The broker accepted the login. Returns whether the session is connected: the gateway may still refuse."""
        request, context = self._request, self._context
        if request is None or context.state is not State.AUTHENTICATING:
            context.operation_done()
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
        context.queue_rules = QueueRules.of(event.broker_version, settings)
        context.destination_rules = DestinationRules(settings, request.login.login)
        if concerns(settings.on_send_error.logins, request.login.login):
            context.on_send_error = settings.on_send_error.action
        context.move(State.CONNECTED)
        context.observer = self._observe()
        self.forget_observer()
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
        """The broker refused the login."""
        if self._request is not None:
            login = self._request.login
            self._refuse(error_frames.login_failed(event.code, event.text, login.login, login.settings), _LOGGED)

    def not_tried(self, event: ops.LoginNotTried) -> None:
        """The broker was not asked about the login."""
        self._refuse(event.error, _LOGGED if event.is_logged else None)

    def _refuse(self, error: StompError, refused: RefusedLogin | None) -> None:
        """Refuse the client. It may send another CONNECT; one that left CONNECT out is closed."""
        error.refused_login = refused
        request, self._request = self._request, None
        context = self._context
        frame = context.operation_failed()
        if context.state is not State.AUTHENTICATING:
            return
        context.move(State.CONNECTING)
        if request is not None and request.is_implicit and error.close is None:
            error = error_frames.closed_for(error, CloseReason.LOGIN_REFUSED)
        context.fail(error, context.receipt_of(frame))


def claims_of(passcode: bytes) -> dict[str, object] | None:
    """The claims of a token; None if the passcode is not a token."""
    parts = passcode.split(b".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def expiry_of(passcode: bytes) -> float | None:
    """When a passcode expires, in seconds since the epoch; None if it is no token, or one without an expiry."""
    expiry = (claims_of(passcode) or {}).get("exp")
    return expiry if isinstance(expiry, int | float) and not isinstance(expiry, bool) else None


def grant_the_same(token: bytes, another: bytes) -> bool:
    """Whether both are tokens, and only their times and identifiers differ. None of this is verified."""
    claims, others = claims_of(token), claims_of(another)
    if claims is None or others is None:
        return False
    return all(claims.get(name) == others.get(name) for name in (claims.keys() | others.keys()) - _OF_ONE_TOKEN)


def renews_tokens(settings: VirtualHost, broker_version: tuple[int, ...]) -> bool:
    """Whether clients may renew tokens, and sessions end with them: where the broker ends them, or it is configured."""
    return broker_version >= _ENDS_EXPIRED if settings.token_renewal is None else settings.token_renewal


class TokenHandler:
    """The token of a session."""

    __slots__ = ("_context", "_expires", "_is_on")

    def __init__(self, context: SessionContext) -> None:
        # Seconds since the epoch; None where nothing expires.
        self._expires: float | None = None
        self._is_on = False
        self._context = context

    def logged_in(self, passcode: bytes, *, is_on: bool) -> None:
        """The client has logged in with this passcode, and may renew it or not; see `renews_tokens`."""
        self._is_on = is_on
        if self._is_on:
            self._expires = expiry_of(passcode)

    def renew(self, frame: Frame) -> None:
        """TOKEN: let the broker judge a new token."""
        context = self._context
        if not self._is_on:
            # There is no such command then.
            raise error_frames.bad_command(frame.command)
        token = context.headers(frame).get(_TOKEN)
        if not token:
            raise error_frames.missing_header(frame.command, _TOKEN)
        context.ask(ops.RenewToken(token), frame)

    def renewed(self, event: ops.TokenRenewed) -> None:
        """The broker accepted the new token on every link."""
        operation = self._context.operation
        if isinstance(operation, ops.RenewToken):
            self._expires = expiry_of(operation.token)
        self._context.send_receipt(self._context.operation_done())

    def refused(self, event: ops.TokenRefused) -> None:
        """The broker refused the new token; the old one is good until it expires."""
        context = self._context
        frame = context.operation_done()
        context.fail(error_frames.token_refused(event.text), context.receipt_of(frame))

    def has_expired(self, now: float) -> bool:
        """Whether the token has expired, and the broker is not checking a new one. ``now`` is since the epoch."""
        is_past = self._expires is not None and now >= self._expires
        return is_past and not isinstance(self._context.operation, ops.RenewToken)
