"""Free TCP ports on loopback."""

import atexit
import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"

_LOWEST = 15_000
_FIRST_EPHEMERAL = 32_768
_ATTEMPTS = 1_000
# A broker needs seconds until it listens on the ports that were chosen for it, and may be restarted. Until this process
# ends, a UDP socket with the same number marks the port as taken for other processes that choose ports here.
_claims = ExitStack()
atexit.register(_claims.close)


def free_ports(count: int) -> list[int]:
    """Choose TCP ports on loopback that are free, and that no other process gets from here while this one lives.

    They are below the kernel's range for outgoing connections. Otherwise any client on this machine could occupy the
    port of a broker while it is restarted.

    Args:
        count: how many; all are different.

    Returns:
        The port numbers.

    Raises:
        OSError: no free port was found.
    """
    highest = max(_first_ephemeral_port(), _LOWEST + 1_000) - 1
    ports: list[int] = []
    with ExitStack() as held:  # holding each until all are chosen keeps them different
        for _ in range(_ATTEMPTS):
            if len(ports) == count:
                return ports
            port = random.randint(_LOWEST, highest)  # noqa: S311 - spreads parallel runs; no secret
            listener = held.enter_context(socket.socket())
            claim = socket.socket(type=socket.SOCK_DGRAM)
            try:
                listener.bind((LOOPBACK, port))
                claim.bind((LOOPBACK, port))
            except OSError:
                claim.close()
                continue
            _claims.enter_context(claim)
            ports.append(port)
    raise OSError(f"no {count} free TCP ports between {_LOWEST} and {highest}")


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _FIRST_EPHEMERAL
