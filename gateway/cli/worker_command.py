"""The process of one worker, which its supervisor starts: `python -m gateway.cli.worker_command CALLS FILES NUMBER`.

CALLS and FILES are file descriptors: Unix sockets for calls, and for sockets that are passed.
"""

from __future__ import annotations

import signal
import socket
import sys

from gateway.admin.worker_answers import WorkerAnswers
from gateway.cli.commands import run_coroutine
from gateway.server.process.worker import SUPERVISED, Worker


async def _run(number: int, calls: socket.socket, files: socket.socket) -> None:
    await Worker(number, WorkerAnswers(), files).run(calls)


def main() -> None:
    """Run a worker until its supervisor stops it, or dies."""
    for each in SUPERVISED:
        signal.signal(each, signal.SIG_IGN)
    calls, files, number = map(int, sys.argv[1:])
    run_coroutine(_run(number, socket.socket(fileno=calls), socket.socket(fileno=files)))


if __name__ == "__main__":
    main()
