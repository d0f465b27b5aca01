"""What the gateway tells the service manager that started it, where one wants to know: ready, stopping, alive.

The protocol is systemd's `sd_notify`: a datagram of assignments to the socket that NOTIFY_SOCKET names. Without that
variable nothing is sent, and nothing of it costs anything.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final

import structlog

log = structlog.get_logger("gateway")

_MICROSECONDS: Final = 1_000_000


class Notifier:
    """The way to the service manager.

    Args:
        environment: where NOTIFY_SOCKET and WATCHDOG_USEC are looked up.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._interval = _watchdog_interval(environment)
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Every listener is open. From now on the event loop's life is told, too, if it is asked for."""
        self._tell("READY=1")
        if self._interval is not None and self._address:
            self._alive(self._interval)

    def stopping(self, sessions: int) -> None:
        """The gateway drains.

        Args:
            sessions: how many there still are.
        """
        self._tell(f"STOPPING=1\nSTATUS=Draining {sessions} sessions")

    def close(self) -> None:
        """Tell nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _alive(self, interval: float) -> None:
        """The loop's own timer tells: a loop that hangs tells nothing, and is restarted."""
        self._timer = asyncio.get_running_loop().call_later(interval, self._alive, interval)
        self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is in Linux' abstract name space.
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger:
            messenger.setblocking(False)
            try:
                messenger.sendto(state.encode(), name)
            except OSError as error:
                log.warning("service manager not told", state=state.partition("=")[0], reason=str(error))


def _watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """Half of what the service manager waits for, in seconds; None if it does not watch this process."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / _MICROSECONDS / 2
