"""Starts gateways for tests without loading the gateway for each: a process that has loaded it forks.

Loading is nearly all that a start costs, and the tests start hundreds. What is forked runs the same command line as
`python -m gateway`, with the environment, working directory and standard error that it would have had.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

_ROOT: Final = Path(__file__).parents[2]
_LARGEST: Final = 1 << 18
"""Bytes of a request: arguments and environment."""
_ENDS_WITHIN: Final = 10.0


class ChildProcess(Protocol):
    """What the tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ForkedProcess:
    """A child of the process that forks, to be used like one's own.

    Args:
        status: where its process id is read, and at its end its exit code.
    """

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        told = status.recv(64)
        if not told:
            raise RuntimeError("the process that forks gateways has ended; its standard error says why")
        self.pid = int(told)
        self._code: int | None = None
        # A thread may wait while another one asks: the last one closes the socket.
        self._lock = threading.Lock()
        self._asking = 0

    def poll(self) -> int | None:
        """Its exit code, if it has ended; negative is a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code, or raise `subprocess.TimeoutExpired`."""
        with self._lock:
            if self._code is not None:
                return self._code
            self._asking += 1
        try:
            # `select` takes no descriptor above 1,023, and tests may have more sockets open.
            status = select.poll()
            status.register(self._status, select.POLLIN)
            if not status.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("gateway", timeout or 0.0)
            with self._lock:
                if self._code is None:
                    self._code = self._received()
                return self._code
        finally:
            with self._lock:
                self._asking -= 1
                if self._code is not None and not self._asking:
                    self._status.close()

    def _received(self) -> int:
        told = self._status.recv(64)
        if told:
            return int(told)
        # The process that forks has ended, so nobody would ever end this one, or know how it has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return -signal.SIGKILL

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Loaded:
    """The process that has loaded the gateway, started when the first gateway is."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], errors: int) -> ForkedProcess:
        if self._requests is None or self._process is None or self._process.poll() is not None:
            self.close()
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "tests.support.prefork", str(theirs.fileno())]
                # Without the variables of one test: each gateway is given its own.
                self._process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()])
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps([list(arguments), dict(environment)]).encode()
            socket.send_fds(self._requests, [request], [errors, theirs.fileno()])
        return ForkedProcess(status)

    def close(self) -> None:
        if self._requests is not None and self._process is not None:
            self._requests.close()
            try:
                self._process.wait(_ENDS_WITHIN)
            except subprocess.TimeoutExpired:  # a process that a test left behind has the socket, too
                self._process.kill()
                self._process.wait()


_loaded: _Loaded | None = None


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Let `start` fork, until the end of the block."""
    global _loaded  # noqa: PLW0603 - one for all tests of a process
    _loaded = _Loaded()
    try:
        yield
    finally:
        _loaded.close()
        _loaded = None


def start(arguments: Sequence[str], environment: Mapping[str, str], errors: int) -> ChildProcess:
    """Start `python -m gateway`, by a fork where `forking` is in force.

    Args:
        arguments: of the command.
        environment: all its variables.
        errors: the descriptor of its standard error.
    """
    if _loaded is not None:
        return _loaded.fork(arguments, environment, errors)
    return subprocess.Popen([sys.executable, "-m", "gateway", *arguments], cwd=_ROOT, stderr=errors, env=environment)


# ---------------------------------------------------------------- the process that forks


def _load() -> None:
    """Import what `serve` imports, now or with the first request to its admin listener."""
    modules = ("admin.admin_listener", "admin.gateway_view", "admin.http_server", "cli", "server.process.serving")
    for name in ("uvloop", "encodings.idna", "aiohttp.web", *(f"gateway.{module}" for module in modules)):
        importlib.import_module(name)


def _serve_forks(requests: socket.socket) -> list[str]:
    """Fork for each request, until nobody is there to ask. In a forked process, return the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    while True:
        readable, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_of_the_ended(children)
        if requests.fileno() not in readable:
            continue
        request, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 2)
        if not request:
            os._exit(0)
        errors, status = descriptors
        pid = os.fork()
        if pid == 0:
            break
        try:
            os.write(status, b"%d" % pid)
        except OSError:  # who asked was interrupted, and would never end it
            os.kill(pid, signal.SIGKILL)
        children[pid] = status
        os.close(errors)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(errors, sys.stderr.fileno())
    requests.detach()
    os.closerange(3, 4096)
    arguments, environment = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


def _tell_of_the_ended(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = children.pop(pid)
        with contextlib.suppress(OSError):  # nobody may wait for it
            os.write(descriptor, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(descriptor)


if __name__ == "__main__":
    _load()
    from gateway.cli import main

    sys.exit(main(_serve_forks(socket.socket(fileno=int(sys.argv[1])))))
