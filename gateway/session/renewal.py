"""Tokens as passcodes: how long the client's is good for, and the frame TOKEN that brings another.

TOKEN is an extension of the gateway's. The broker judges every token, at the login and here; the gateway reads of it
only when it expires (RFC 7519, section 4.1.4), because RabbitMQ goes on delivering to whoever logged in with it.
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

# RabbitMQ's words for what it refuses because of an expired token.
_EXPIRED: Final = "token has expired"


def expiry_of(passcode: bytes) -> float | None:
    """When a passcode expires, in seconds since the epoch; None for one that is no token, or says nothing of it."""
    parts = passcode.split(b".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return expiry if isinstance(expiry, int | float) and not isinstance(expiry, bool) else None


class Renewal:
    """The token of a session.

    Args:
        context: of the session.
    """

    __slots__ = ("_context", "expires")

    def __init__(self, context: SessionContext) -> None:
        # Seconds since the epoch; None where nothing expires.
        self.expires: float | None = None
        self._context = context

    def start(self, passcode: bytes) -> None:
        """The client has logged in with this passcode."""
        if self._context.settings.token_renewal:
            self.expires = expiry_of(passcode)

    def renew(self, frame: Frame) -> None:
        """TOKEN: let the broker decide on another token. Unless it is configured, there is no such command.

        Raises:
            StompError: there is none, or no token in it.
        """
        context = self._context
        if not context.settings.token_renewal:
            raise error_frames.bad_command(frame.command)
        token = context.headers(frame).get(_HEADER)
        if not token:
            raise error_frames.missing_header(frame.command, _HEADER)
        context.ask(ops.RenewToken(token), frame)

    def renewed(self) -> None:
        """The broker took the new token on every link."""
        context = self._context
        operation = context.operation
        if isinstance(operation, ops.RenewToken):
            self.expires = expiry_of(operation.token)
        frame = context.answered()
        if frame is not None:
            context.send_receipt(frame)

    def refused(self, event: ops.TokenRefused) -> None:
        """The broker did not take the new token; the old one is good until it expires."""
        context = self._context
        frame = context.answered()
        receipt = None if frame is None else context.receipt_of(frame)
        context.fail(error_frames.token_refused(event.text), receipt)

    def has_expired(self, now: float) -> bool:
        """Whether the token is past its time, and no other is being tried.

        Args:
            now: seconds since the epoch.
        """
        is_past = self.expires is not None and now >= self.expires
        return is_past and not isinstance(self._context.operation, ops.RenewToken)

    def was_cause(self, text: str) -> bool:
        """Whether the broker refused something because the token has expired.

        Args:
            text: the broker's reply text.
        """
        return self._context.settings.token_renewal and _EXPIRED in text
