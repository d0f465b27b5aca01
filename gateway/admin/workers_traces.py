"""Traces of several workers: one for the operator, of which each worker has its part."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.server.client.trace import FAULT, TracePart, TraceTarget
from gateway.server.process.worker_process import ask

if TYPE_CHECKING:
    from gateway.server.process.supervisor import Supervisor

# Seconds that a worker may take; one that hangs delays the lines of the others so long.
_WITHIN: Final = 2.0


@dataclass(slots=True)
class _WorkersTrace:
    """One trace, and the ids of the processes that have a part of it."""

    target: TraceTarget
    until: float
    pids: set[int | None] = field(default_factory=set)


class WorkersTraces:
    """The traces that run in the workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._traces: dict[str, _WorkersTrace] = {}

    async def begin(self, name: str, target: TraceTarget, seconds: float) -> int:
        """See `View.trace_begin`."""
        trace = _WorkersTrace(target, asyncio.get_running_loop().time() + seconds)
        self._traces[name] = trace
        return await self._begin_in(name, trace, {worker.pid for worker in self._supervisor.running})

    async def _begin_in(self, name: str, trace: _WorkersTrace, pids: set[int | None]) -> int:
        seconds = trace.until - asyncio.get_running_loop().time()
        workers = [worker for worker in self._supervisor.running if worker.pid in pids]
        asked = await ask(workers, "trace_begin", name, trace.target, seconds, within=_WITHIN)
        trace.pids |= {pid for pid, clients in asked.answers.items() if clients or trace.target.session is None}
        return sum(asked.answers.values())

    async def take(self, name: str) -> TracePart:
        """See `View.trace_take`. Workers that have started since have their part from now on."""
        trace = self._traces[name]
        running = {worker.pid for worker in self._supervisor.running}
        trace.pids &= running
        if trace.target.session is None and (new := running - trace.pids):
            await self._begin_in(name, trace, new)
        workers = [worker for worker in self._supervisor.running if worker.pid in trace.pids]
        parts: list[TracePart] = list((await ask(workers, "trace_take", name, within=_WITHIN)).answers.values())
        ends = [part.end for part in parts if part.end is not None]
        has_gone = not workers and trace.target.session is not None
        is_over = FAULT in ends or has_gone or 0 < len(workers) == len(ends)
        return TracePart(
            sorted((line for part in parts for line in part.lines), key=lambda line: line.time),
            sum(part.frames for part in parts),
            sum(part.left_out for part in parts),
            sum(part.clients for part in parts),
            sum(part.clients_left_out for part in parts),
            max(ends, default="its worker has ended") if is_over else None,
        )

    async def end(self, name: str) -> None:
        """See `View.trace_end`."""
        trace = self._traces.pop(name)
        workers = [worker for worker in self._supervisor.running if worker.pid in trace.pids]
        await ask(workers, "trace_end", name, within=_WITHIN)
