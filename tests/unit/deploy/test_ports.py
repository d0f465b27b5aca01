"""Free ports."""

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.ports import LOOPBACK, free_ports


def test_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, port))


def test_outgoing_connections_are_not_given_such_ports() -> None:
    with socket.socket() as outgoing:
        outgoing.bind((LOOPBACK, 0))
        lowest_seen = min(outgoing.getsockname()[1], 32_768)

    assert max(free_ports(20)) < lowest_seen


# Chooses among what it is given.
CHOOSING = """
import random, sys
from deploy.local.ports import free_ports
numbers = map(int, sys.argv[1:])
random.randint = lambda _lowest, _highest: next(numbers)
try:
    print(free_ports(1))
except StopIteration:
    print("none")
"""


def test_a_port_is_not_chosen_again_while_its_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody listens on it yet: neither by this process nor by another one."""
    [port] = free_ports(1)
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", CHOOSING, str(port)]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout == "none\n"
    numbers = iter([port])
    monkeypatch.setattr(random, "randint", lambda _lowest, _highest: next(numbers))
    with pytest.raises(StopIteration):
        free_ports(1)
