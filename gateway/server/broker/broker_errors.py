"""Errors between the gateway and a broker, with AMQP's reply codes."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.errors import GatewayError

ACCESS_REFUSED: Final = 403
"""Reply code of a login or an operation that the user has no right to."""

CONNECTION_FORCED: Final = 320
"""Reply code of a connection that the broker closed for its own reasons, or for an unknown reason."""

NOT_FOUND: Final = 404
"""Reply code for a queue or an exchange that does not exist, or whose node is down."""

RESOURCE_LOCKED: Final = 405
"""Reply code for an exclusive queue of another connection."""

NOT_ALLOWED: Final = 530
"""Reply code for a virtual host that does not exist, or is denied to the user, or is full."""

INTERNAL_ERROR: Final = 541
"""Reply code for a fault of the broker."""


class UpstreamError(GatewayError):
    """The broker closed a channel or a connection; ``code`` and ``text`` are the broker's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class LinkDownError(UpstreamError):
    """The AMQP connection is gone, or could not be opened. ``detail`` is for the log, not for clients."""

    def __init__(self, code: int, text: str, detail: str = "") -> None:
        super().__init__(code, text)
        self.detail = detail or text


def interrupted(error: BaseException) -> BaseException:
    """The error to raise for a failed call: the AMQP library cancels a call when its answer can no longer come."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling()):
        return LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the broker did not answer")
    return error
