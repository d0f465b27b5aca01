"""Tokens as passcodes: when the client's token expires, and the frame TOKEN that brings a new one.

TOKEN is an extension of the gateway. The broker judges every token, at the login and here. The gateway reads only when
it expires (RFC 7519, section 4.1.4), because RabbitMQ goes on delivering on a connection whose token has expired.
The server asks ``has_expired`` about once a second and closes the session; what the broker itself refuses because of an
expired token is recognised in ``error_frames.broker_error``.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode
from typing import Final

from gateway.session import error_frames, ops
from gateway.session.context import SessionContext
from gateway.stomp.frame import Frame

_HEADER: Final = b"token"

# Of a JWT: header, claims and signature.
_PARTS: Final = 3


def expiry_of(passcode: bytes) -> float | None:
    """When a passcode expires, in seconds since the epoch; None if it is no token, or one without an expiry."""
    parts = passcode.split(b".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return expiry if isinstance(expiry, int | float) and not isinstance(expiry, bool) else None


class TokenHandler:
    """The token of a session."""

    __slots__ = ("_context", "_expires")

    def __init__(self, context: SessionContext) -> None:
        # Seconds since the epoch; None where nothing expires.
        self._expires: float | None = None
        self._context = context

    def logged_in(self, passcode: bytes) -> None:
        """The client has logged in with this passcode."""
        if self._context.settings.token_renewal:
            self._expires = expiry_of(passcode)

    def renew(self, frame: Frame) -> None:
        """TOKEN: let the broker judge a new token.

        Raises:
            StompError: when the frame has no token, or token renewal is not configured: then there is no such command.
        """
        context = self._context
        if not context.settings.token_renewal:
            raise error_frames.bad_command(frame.command)
        token = context.headers(frame).get(_HEADER)
        if not token:
            raise error_frames.missing_header(frame.command, _HEADER)
        context.ask(ops.RenewToken(token), frame)

    def renewed(self, event: ops.TokenRenewed) -> None:
        """The broker accepted the new token on every link."""
        context = self._context
        operation = context.operation
        if isinstance(operation, ops.RenewToken):
            self._expires = expiry_of(operation.token)
        context.send_receipt(context.operation_done())

    def refused(self, event: ops.TokenRefused) -> None:
        """The broker refused the new token; the old one is good until it expires."""
        context = self._context
        frame = context.operation_done()
        context.fail(error_frames.token_refused(event.text), context.receipt_of(frame))

    def has_expired(self, now: float) -> bool:
        """Whether the token has expired, and the broker is not checking a new one.

        Args:
            now: seconds since the epoch.
        """
        is_past = self._expires is not None and now >= self._expires
        return is_past and not isinstance(self._context.operation, ops.RenewToken)
