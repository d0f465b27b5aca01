"""Codes of ERROR frames, as the journal and figures name them: a closed set, never a client's or the broker's text."""

from __future__ import annotations

from typing import Final

from gateway.errors import StompError
from gateway.journal.schema import OTHER

CODES: Final = frozenset(
    (
        # The gateway's own, in the order of a session's life.
        "malformed-frame", "illegal-command", "bad-command", "version-mismatch", "bad-connect", "upstream-unavailable",
        "session-limit-reached", "login-timeout", "missing-destination", "invalid-destination", "unknown-destination",
        "missing-header",
        "invalid-header", "invalid-id", "processing-error", "duplicated-subscription-identifier",
        "missing-destination-or-id", "no-subscription-found", "subscription-not-found", "server-cancelled-subscription",
        "missing-transaction", "bad-transaction", "transaction-limit-exceeded", "transaction-too-large",
        "transaction-expired", "message-rejected", "unroutable-message", "heart-beat-timeout", "slow-consumer",
        "token-refused", "token-expired",
        "closed-by-operator", "shutting-down",
        # The broker's: AMQP 0-9-1, section 1.2.
        "broker-error", "content-too-large", "no-route", "no-consumers", "connection-forced", "invalid-path",
        "access-refused", "not-found", "resource-locked", "precondition-failed", "frame-error", "syntax-error",
        "command-invalid", "channel-error", "unexpected-frame", "resource-error", "not-allowed", "not-implemented",
        "internal-error",
    )
)  # fmt: skip
"""Every code there is, besides ``other``."""


def code_of(error: StompError) -> str:
    """The code of an error: its message header in small letters with hyphens, if that is a known one."""
    code = error.message.lower().replace(" ", "-").replace("_", "-")
    return code if code in CODES else OTHER
