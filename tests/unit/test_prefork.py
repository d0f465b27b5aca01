"""The process that forks gateways for tests: what becomes of them if it ends, and if nobody waits for one."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from gateway.errors import ExitCode
from tests.support import prefork
from tests.support.deadline import happens

# Only a failing test waits so long; on a machine that is busy with other work a start can take a minute.
_WITHIN = 120.0


@pytest.fixture
def loaded() -> Iterator[prefork._Loaded]:
    loaded = prefork._Loaded()
    yield loaded
    loaded.close()


def forked(loaded: prefork._Loaded, log: Path, *arguments: str) -> prefork.ForkedProcess:
    with log.open("wb") as errors:
        return loaded.fork(arguments, os.environ, errors.fileno())


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_stays_behind_if_the_process_that_forks_dies(loaded: prefork._Loaded, tmp_path: Path) -> None:
    log, config = tmp_path / "log", tmp_path / "gateway.yaml"
    config.write_text("{listeners: [{tcp: '127.0.0.1:0'}], defaults: {journal: {level: off}}, admin: {address: null}}")
    gateway = forked(loaded, log, "serve", "--config", str(config))
    deadline = time.monotonic() + _WITHIN
    while b"listening" not in log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert gateway.poll() is None
    assert loaded._process is not None
    loaded._process.kill()

    assert gateway.wait(_WITHIN) == -signal.SIGKILL
    assert gateway.poll() == -signal.SIGKILL
    while runs(gateway.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)

    # The next test is served again.
    loaded._process.wait(_WITHIN)
    assert forked(loaded, log, "--version").wait(_WITHIN) == ExitCode.OK
    assert forked(loaded, log, "--nonsense").wait(_WITHIN) == ExitCode.CONFIGURATION


class _SlowSocket(socket.socket):
    """Another thread comes to its turn when something was received, and when it is closed."""

    def __init__(self, taken: socket.socket) -> None:
        super().__init__(fileno=taken.detach())
        self.has_received = threading.Event()

    def recv(self, size: int, flags: int = 0) -> bytes:
        told = super().recv(size, flags)
        self.has_received.set()
        return told

    def close(self) -> None:
        super().close()
        time.sleep(0.05)


def test_one_thread_may_ask_for_the_exit_code_while_another_one_receives_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status = _SlowSocket(ours)
    with theirs:
        theirs.send(b"4711")
        process = prefork.ForkedProcess(status)
        status.has_received.clear()
        with ThreadPoolExecutor(1) as waiting:
            code = waiting.submit(process.wait, _WITHIN)
            theirs.send(b"3")
            happens(status.has_received)
            while not code.done():
                assert process.poll() in {None, 3}
            assert code.result() == process.poll() == 3


def test_a_gateway_for_which_nobody_waits_ends(loaded: prefork._Loaded, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert forked(loaded, log, "--version").wait(_WITHIN) == ExitCode.OK
    assert loaded._process is not None
    assert loaded._requests is not None
    forks = psutil.Process(loaded._process.pid)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs, log.open("wb") as errors:
        request = json.dumps([["tap", "--listen", ":1", "--upstream", "a:1", "--journal", str(tmp_path)], {}])
        socket.send_fds(loaded._requests, [request.encode()], [errors.fileno(), theirs.fileno()])

    assert forked(loaded, log, "--version").wait(_WITHIN) == ExitCode.OK
    assert loaded._process.pid == forks.pid
    deadline = time.monotonic() + _WITHIN
    while forks.children():
        assert time.monotonic() < deadline
        time.sleep(0.02)
