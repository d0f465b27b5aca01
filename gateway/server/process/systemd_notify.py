"""Notifications to systemd: ready, reloading, stopping, alive.

The protocol is that of `sd_notify`: datagrams with assignments to the socket in NOTIFY_SOCKET. Without this variable,
nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import structlog

from gateway.server.paced_work import PeriodicTimer

log = structlog.get_logger("gateway")

_MICROSECONDS: Final = 1_000_000


class SystemdNotifier:
    """Sends notifications, if the environment names a socket."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._interval = _watchdog_interval(environment)
        self._timer: PeriodicTimer | None = None

    def ready(self) -> None:
        """Note that every listener is open. From then on, systemd's watchdog gets keep-alives, if there is one."""
        self._send("READY=1")
        if self._interval is not None and self._address:
            # If the event loop hangs, the keep-alives stop and systemd restarts the gateway.
            send_alive = partial(self._send, "WATCHDOG=1")
            send_alive()
            self._timer = PeriodicTimer(self._interval, send_alive)

    def reloading(self) -> None:
        """Note that the configuration is being read again."""
        # So systemd knows to which reload the next READY belongs (Type=notify-reload).
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Note that the reload has ended, refused or not."""
        self._send("READY=1")

    def stopping(self, sessions: int) -> None:
        """Note that the gateway is draining ``sessions`` sessions."""
        self._send(f"STOPPING=1\nSTATUS=Draining {sessions} sessions")

    def close(self) -> None:
        """Stop the keep-alives."""
        if self._timer is not None:
            self._timer.stop()

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is in Linux' abstract namespace.
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger:
            messenger.setblocking(False)
            try:
                messenger.sendto(state.encode(), name)
            except OSError as error:
                log.warning("service manager not told", state=state.partition("=")[0], reason=str(error))


def _watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """Half of the watchdog's timeout, in seconds; None if systemd does not watch this process."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / _MICROSECONDS / 2
