"""Reads `stomp-gateway trace --json` in a process of its own, as an operator's script does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from tests.support.deadline import PATIENCE, within
from tests.support.gateway import ROOT, GatewayProcess

Item = dict[str, Any]


class TraceReader:
    """A trace that runs.

    Args:
        process: the command.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.items: list[Item] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def begun(cls, gateway: GatewayProcess, *options: str) -> AsyncIterator[Self]:
        """Begin a trace, and end it with the block."""
        await gateway.until_logged("admin listening")
        host, port = gateway.admin
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "trace", "--json", "--url", f"http://{host}:{port}", *options,
            cwd=ROOT, env={**os.environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        reader = cls(process)
        try:
            # The command has to load first.
            await reader.until(lambda item: item.get("event") == "trace started", 3 * PATIENCE)
            yield reader
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def until(self, is_last: Callable[[Item], bool], seconds: float = PATIENCE) -> Item:
        """Read up to a line; which is among ``items`` afterwards, too."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with within(seconds):
            while line := await self._process.stdout.readline():
                self.items.append(json.loads(line))
                if is_last(self.items[-1]):
                    return self.items[-1]
            raise AssertionError((self.items, await self._process.stderr.read()))

    async def until_closed(self) -> Item:
        """Read up to the end of a session."""
        return await self.until(lambda item: item.get("event") == "closed")

    async def ended(self) -> int:
        """Read up to the end of the trace; the exit code of the command."""
        await self.until(lambda item: item.get("event") == "trace ended")
        return await self._process.wait()

    @property
    def frames(self) -> list[Item]:
        """The frames so far."""
        return [item for item in self.items if "command" in item]

    @property
    def said(self) -> list[str]:
        """The frames so far, as `> CONNECT` and `< CONNECTED`."""
        arrows = {"from-client": ">", "to-client": "<"}
        return [f"{arrows[item['direction']]} {item['command']}" for item in self.frames]
