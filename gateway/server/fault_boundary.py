"""The fault boundary: a fault of the gateway in one session ends that session, and affects no other.

A link serves many sessions, and so does periodic work. They call a session through `guarded`, and continue if it
raises. The splitter has its own boundary (``Splitter.failures``), because another call for each message would cost too
much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol

import structlog

log = structlog.get_logger("gateway")

Arguments = ParamSpec("Arguments")


class FaultOwner(Protocol):
    """The owner of a fault, usually one session."""

    def failed(self, error: Exception) -> None:
        """Log an unexpected error in work of the owner, and end that work."""


def guarded(
    owner: FaultOwner, call: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> None:
    """Call something for an owner. If it raises, the owner has failed, and the caller continues."""
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - the caller serves others, too
        report(owner, error)


async def all_done(owner: FaultOwner, *work: Awaitable[object]) -> None:
    """Wait until all of an owner's work is done, even if some of it fails."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, Exception):
            report(owner, outcome)


def report(owner: FaultOwner, error: Exception) -> None:
    """Tell an owner that it has failed. If that raises, too, log it."""
    try:
        owner.failed(error)
    except Exception as second:
        log.error("internal error", exc_info=second)


async def cancelled(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
