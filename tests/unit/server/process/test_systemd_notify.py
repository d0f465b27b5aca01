"""What systemd is sent, on a socket like its own."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.server.process.systemd_notify import SystemdNotifier
from tests.support.deadline import PATIENCE


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE)
        yield listening


def _heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


async def test_ready_and_stopping_are_sent(manager: socket.socket) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready()
    assert _heard(manager) == ["READY=1"]
    notifier.stopping(3)
    assert _heard(manager) == ["STOPPING=1", "STATUS=Draining 3 sessions"]
    notifier.close()


async def test_a_reload_is_announced_with_its_time_and_ended_by_ready(manager: socket.socket) -> None:
    """As Type=notify-reload wants it: the time tells systemd which READY belongs to the reload that it asked for."""
    before = time.monotonic_ns() // 1000
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.reloading()
    state, moment = _heard(manager)
    assert state == "RELOADING=1"
    assert before <= int(moment.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    notifier.reloaded()
    assert _heard(manager) == ["READY=1"]


async def test_the_socket_may_have_an_abstract_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # Linux chooses an abstract name
        listening.settimeout(PATIENCE)
        SystemdNotifier({"NOTIFY_SOCKET": "@" + listening.getsockname().decode()[1:]}).ready()
        assert _heard(listening) == ["READY=1"]


async def test_the_watchdog_is_served_until_the_end(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    notifier = SystemdNotifier(environment)
    notifier.ready()
    assert _heard(manager) == ["READY=1"]
    for _ in range(3):
        assert await asyncio.to_thread(_heard, manager) == ["WATCHDOG=1"]
    notifier.close()  # the leak check sees a timer that is left


async def test_the_watchdog_of_another_process_is_not_ours(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    notifier = SystemdNotifier(environment)
    notifier.ready()  # and nothing to close: no timer
    assert _heard(manager) == ["READY=1"]


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1000"}])
async def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = SystemdNotifier(environment)
    notifier.ready()
    notifier.stopping(0)
    notifier.close()


async def test_a_service_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with capture_logs() as logged:
        notifier.ready()
    notifier.close()
    assert [(line["event"], line["state"]) for line in logged] == [("service manager not told", "READY")]
