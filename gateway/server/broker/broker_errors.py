"""Errors between the gateway and a broker, with AMQP's reply codes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from gateway.amqp.codec import CONSUME
from gateway.errors import GatewayError

ACCESS_REFUSED: Final = 403
"""Reply code for a login, or an operation for which the user lacks a permission."""

NOT_ALLOWED: Final = 530
"""Reply code for something that the broker does not allow, such as too many channels."""

CONNECTION_FORCED: Final = 320
"""Reply code for a connection that the broker closed for its own reasons; also used if the reason is unknown."""

NOT_FOUND: Final = 404
"""Reply code for a queue or an exchange that does not exist, or whose node is down."""

RESOURCE_LOCKED: Final = 405
"""Reply code for an exclusive queue of another connection."""

PRECONDITION_FAILED: Final = 406
"""Reply code for a queue with other properties, bad arguments, or a stream without a replica on its node."""

INTERNAL_ERROR: Final = 541
"""Reply code for a fault of the broker."""


BROKER_FAULTS: Final = frozenset((CONNECTION_FORCED, INTERNAL_ERROR))
"""Reply codes that blame nothing that was sent: the broker is stopping or starting, has a fault, or an operator closed
the connection."""


# Codes of refusals that may be temporary after a fault: the broker is still starting, has not noticed yet that the old
# connection is dead (405), the node of a queue is down (404), or a virtual host is being made (530).
_PASSING: Final = frozenset((CONNECTION_FORCED, INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND, RESOURCE_LOCKED))


# RabbitMQ closes every connection with this text when it stops.
_STOPS: Final = "broker forced connection closure"


class UpstreamError(GatewayError):
    """The broker closed a channel or a connection, with this reply code and text.

    ``method``: the method that it refused, as class << 16 | method; 0 if it does not say.
    """

    def __init__(self, code: int, text: str, method: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.method = method


class LinkDownError(UpstreamError):
    """The AMQP connection is lost, or could not be opened. ``detail`` is for the log, and not for clients."""

    def __init__(self, code: int, text: str, detail: str = "") -> None:
        super().__init__(code, text)
        self.detail = detail or text


def passes(refusal: UpstreamError) -> bool:
    """Whether the refusal of a request that succeeded before may be temporary. 406 means a stream that is starting."""
    return refusal.code in _PASSING or (refusal.code == PRECONDITION_FAILED and refusal.method == CONSUME)


def is_shutdown(closed: UpstreamError) -> bool:
    """Whether a broker closed a connection because it is stopping, and not for an operator."""
    return closed.code == CONNECTION_FORCED and _STOPS in closed.text


def cause_of(error: BaseException, *known: UpstreamError | None) -> BaseException:
    """The error to raise for a failed call of the AMQP library: the first known cause, or the error itself.

    The library cancels a call if its answer can no longer arrive. If the calling task itself is being cancelled, the
    error is returned unchanged.
    """
    if isinstance(error, asyncio.CancelledError) and is_cancelled():
        return error
    for cause in known:
        if cause is not None:
            return cause
    if isinstance(error, asyncio.CancelledError):
        return LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the broker did not answer")
    return error


def is_cancelled() -> bool:
    """Whether the running task is being cancelled. If not, a CancelledError comes from the AMQP library."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def os_reason(error: OSError) -> str:
    """The operating system's text for an error."""
    # asyncio's text repeats the address. The number of a resolver's error is not an errno.
    known = error.errno in errno.errorcode and not isinstance(error, socket.gaierror)
    text = os.strerror(error.errno) if known and error.errno else error.strerror or str(error)
    return text[:1].lower() + text[1:]
