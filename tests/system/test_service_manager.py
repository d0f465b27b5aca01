"""The notifications that systemd gets from a gateway with Type=notify."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.support.gateway import configuration, gateway_process

_WITHIN = 30.0


def test_systemd_is_notified_when_the_gateway_is_ready_when_it_reloads_and_when_it_stops(tmp_path: Path) -> None:
    """Without a broker: the gateway listens before it is connected to one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(_WITHIN)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with gateway_process(
            configuration("amqp://guest:guest@127.0.0.1:1"), environment=environment, from_nothing=True
        ) as process:
            assert manager.recv(4096) == b"READY=1"
            socket.create_connection(process.address, timeout=_WITHIN).close()

            process.child.send_signal(signal.SIGHUP)
            assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(4096) == b"READY=1"
            process.rewrite({"a mistake": True})
            process.child.send_signal(signal.SIGHUP)
            assert manager.recv(4096).startswith(b"RELOADING=1\n")
            assert manager.recv(4096) == b"READY=1"

            process.child.send_signal(signal.SIGTERM)
            assert manager.recv(4096).startswith(b"STOPPING=1\n")
            assert process.child.wait(_WITHIN) == 0
