"""The fault boundary: a fault of the gateway in one session ends that session, and is felt by no other.

A link serves many sessions, and so do the sweeps of the gateway. Whatever of a session they call, they call it through
`guarded`, and go on if it raises. The splitter has a boundary of its own
(``Splitter.failures``), because a call more for each message would cost too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol

import structlog

log = structlog.get_logger("gateway")

Arguments = ParamSpec("Arguments")


class FaultOwner(Protocol):
    """Whom a fault belongs to: mostly one session."""

    def failed(self, error: Exception) -> None:
        """Something of the owner has raised an error that nobody expected: log it, and end the owner's work."""


def guarded(
    owner: FaultOwner, call: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> None:
    """Call something that belongs to an owner. If it raises, the owner has failed, and the caller goes on."""
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - the caller serves others, too
        report(owner, error)


async def all_done(owner: FaultOwner, *work: Awaitable[object]) -> None:
    """Wait until all of an owner's work is done, whatever of it fails."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, Exception):
            report(owner, outcome)


def report(owner: FaultOwner, error: Exception) -> None:
    """Tell an owner that it has failed. If it cannot even end, that is logged."""
    try:
        owner.failed(error)
    except Exception as second:
        log.error("internal error", exc_info=second)


async def cancelled(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task if there is one, and wait until it has ended, in whatever way."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
