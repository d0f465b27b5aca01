"""A child process that cannot outlive this one."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

# This shell reads a pipe whose other end only this process holds. When this process ends, even by SIGKILL, the shell
# ends its process group, which is the child's. (PR_SET_PDEATHSIG would be shorter, but it fires when the *thread* that
# forked ends, and tests start brokers from worker threads.) The shell also keeps the number of the group from reuse.
_LIFELINE = 'trap "" TERM HUP INT; cat >/dev/null; kill -TERM 0; sleep 15; kill -KILL 0'


class Child:
    """A program in a process group of its own, so that Ctrl-C in a terminal reaches this process only.

    Its standard input is empty. It ends at `stop` or `kill`, at the latest when this process ends, even by SIGKILL.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        """Start the program.

        Args:
            argv: program and arguments; no shell is involved.
            env: its whole environment; by default that of this process.
            log: file that its standard output and error are appended to; by default those of this process.

        Raises:
            OSError: the program cannot be started, or the log cannot be written.
        """
        with contextlib.ExitStack() as opened:
            output: IO[bytes] | None = opened.enter_context(log.open("ab")) if log else None
            self._process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                process_group=0,
            )
        self._lifeline = self._tie()
        self._ended = False

    def _tie(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                ["sh", "-c", _LIFELINE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=self._process.pid,
            )
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id, which is also the number of its process group."""
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the program to end.

        Args:
            timeout: seconds; None waits for ever, 0 only looks.

        Returns:
            Its exit status (negative: the number of the signal that ended it), or None while it runs.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace: float = 20.0) -> None:
        """Ask the program to end, and kill it and its children if it does not. Calling it again does nothing.

        Args:
            grace: seconds that it has to end by itself.
        """
        descendants = self._descendants()  # to be listed before the program ends: later their parent is unknown
        try:
            self._process.terminate()
            self.wait(grace)
        finally:
            self._end(descendants)

    def kill(self) -> None:
        """Kill the program and its children (SIGKILL), and wait for their end. Calling it again does nothing."""
        self._end(self._descendants())

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True) if self.wait(0) is None else []
        except psutil.NoSuchProcess:
            return []

    def _end(self, descendants: list[psutil.Process]) -> None:
        if self._ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._lifeline.wait()
        if self._lifeline.stdin:
            self._lifeline.stdin.close()
        self._ended = True
        end_all(descendants, grace=1.0)  # children in groups of their own end with their pipes, or now


def end_all(processes: list[psutil.Process], grace: float) -> None:
    """Wait for processes to end, which need not be our children, and kill them after ``grace`` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=grace)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5.0)
