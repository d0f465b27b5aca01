"""Ending a wait before its time."""

from __future__ import annotations

import asyncio


def expire(bound: asyncio.Timeout | None) -> None:
    """Let a timeout expire now, if there is one and it has not expired yet."""
    if bound is not None and not bound.expired():
        bound.reschedule(asyncio.get_running_loop().time())
