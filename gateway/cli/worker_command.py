"""The process of one worker, which its supervisor starts: `python -m gateway.cli.worker_command CALLS FILES NUMBER`.

CALLS and FILES are file descriptors: Unix sockets for calls, and for sockets that are passed.
"""

from __future__ import annotations

import signal
import socket
import sys


def main() -> None:
    """Run a worker until its supervisor stops it, or dies."""
    # Terminals and systemd send these signals to all processes, but only the supervisor handles them. A signal may
    # arrive during the second that the imports below take.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    from gateway.admin.admin_listener import view_of  # noqa: PLC0415
    from gateway.cli.commands import run_coroutine  # noqa: PLC0415
    from gateway.server.process.worker import Worker  # noqa: PLC0415

    calls, files, number = map(int, sys.argv[1:])
    worker = Worker(number, view_of, socket.socket(fileno=files))
    run_coroutine(worker.run(socket.socket(fileno=calls)))


if __name__ == "__main__":
    main()
