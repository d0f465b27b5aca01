"""Asking several workers the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.server.process.worker_channel import WorkerError, WorkerGoneError
from gateway.server.process.worker_process import WorkerProcess


@dataclass(slots=True)
class Asked:
    """What workers answered, by the id of the process; some cannot, and the ``silent`` have ended or hang."""

    answers: dict[int, Any] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)


async def ask(
    workers: Iterable[WorkerProcess],
    name: str,
    *arguments: object,
    within: float | None = None,
    enough: Callable[[Collection[Any]], bool] = lambda _: False,
) -> Asked:
    """Call all workers that run, each for at most so many seconds; until the answers that came are ``enough``."""
    asked = Asked()

    async def call(worker: WorkerProcess, pid: int) -> None:
        try:
            asked.answers[pid] = await worker.call(name, *arguments, within=within)
        except WorkerGoneError:
            asked.silent.append(pid)
        except WorkerError:
            pass  # it is starting

    calls = [call(worker, worker.pid) for worker in workers if worker.pid is not None]
    for each in asyncio.as_completed(calls):
        await each
        if enough(asked.answers.values()):
            break
    # The others go on, and change nothing here.
    return Asked(asked.answers.copy(), asked.silent.copy())
