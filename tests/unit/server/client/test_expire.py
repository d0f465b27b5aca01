"""Ending a wait before its time: always allowed, also when its time is up in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.client.expire import expire


async def waiting(bound: asyncio.Timeout, *, expires: str) -> None:
    """Wait for ever within a timeout that expires at the beginning or at the end."""
    async with bound:
        if expires == "early":
            expire(bound)
        try:
            await asyncio.Event().wait()
        finally:
            expire(bound)


async def test_a_wait_ends_at_once() -> None:
    with pytest.raises(TimeoutError):
        await waiting(asyncio.timeout(3600), expires="early")


async def test_what_has_expired_already_expires_once() -> None:
    with pytest.raises(TimeoutError):
        await waiting(asyncio.timeout(0), expires="by itself")


def test_without_a_wait_nothing_happens() -> None:
    expire(None)
