"""A worker's process and its successors, with a program that serves nobody in a worker's place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from gateway.config.model import GatewayConfig
from gateway.server.process import worker_process
from gateway.server.process.worker_process import WorkerProcess
from gateway.server.process.worker_sockets import SocketSet
from gateway.server.shared_counts import SharedMemory
from tests.support import short_lived_worker
from tests.support.deadline import until, within


@asynccontextmanager
async def _worker(monkeypatch: pytest.MonkeyPatch, folder: Path) -> AsyncIterator[WorkerProcess]:
    monkeypatch.setattr(worker_process, "_MODULE", short_lived_worker.__name__)
    monkeypatch.setenv(short_lived_worker.FILE_VARIABLE, str(folder / "first"))
    config = GatewayConfig()
    worker = WorkerProcess(0, SocketSet(), SharedMemory.made(1), lambda: config, lambda: None)
    try:
        async with within():
            await worker.start()
            yield worker
    finally:
        await worker.end()


async def test_one_that_never_served_is_started_again_after_pauses_however_long_it_took_to_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # All have lived long enough, but the later ones did not serve.
    monkeypatch.setattr(worker_process, "_SERVED", 0.0)
    monkeypatch.setattr(worker_process, "_FIRST_PAUSE", 0.001)
    with structlog.testing.capture_logs() as lines:
        async with _worker(monkeypatch, tmp_path) as worker:
            worker.kill()

            async def failures() -> list[EventDict]:
                return [line for line in lines if line["event"] == "worker not started"]

            assert not worker.keeps_dying
            # The fourth one came after a pause of four times the first, which makes it one that keeps dying.
            await until(failures, lambda found: len(found) > 3)
            assert worker._pause >= 0.004
            assert worker.keeps_dying


async def test_one_whose_keeper_fails_does_not_fail_silently(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with _worker(monkeypatch, tmp_path) as worker:

            async def fail() -> None:
                raise RuntimeError("a fault of ours")

            monkeypatch.setattr(worker, "_wait_before_next", fail)
            worker.kill()

            async def faults() -> list[EventDict]:
                return [line for line in lines if line["event"] == "internal error"]

            (line,) = await until(faults, bool)
            assert str(line["exc_info"]) == "a fault of ours"


def test_a_worker_ignores_signals_before_it_loads_what_takes_a_second() -> None:
    """A signal in that second would end it; what a worker needs to serve is loaded behind it."""
    loaded = "import sys, gateway.cli.worker_command; print([name for name in sys.modules if 'gateway.server' in name])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"
