"""A gateway with several workers is seen whole."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.bench import processes

HOLD = "import sys; print('here', flush=True); sys.stdin.read()"


@pytest.fixture
def listening() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A port on which this process listens, and another one that inherited a socket of it."""
    with socket.create_server(("127.0.0.1", 0)) as mine:
        number = mine.fileno()
        with subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[number]
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline()
            yield mine.getsockname()[1], other


def test_all_processes_that_hold_a_port_are_found(listening: tuple[int, subprocess.Popen[bytes]]) -> None:
    port, other = listening

    assert {other.pid} < set(processes.listeners(port))
    assert len(processes.listeners(port)) == 2


def test_a_process_that_closes_something_meanwhile_is_found() -> None:
    """What it has closed is among its descriptors before the socket."""
    lower = os.open(os.devnull, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.close(lower)

        assert processes.listeners(listening.getsockname()[1]) == (os.getpid(),)


def test_figures_of_several_processes_are_added(listening: tuple[int, subprocess.Popen[bytes]]) -> None:
    _, other = listening
    figures = {1: 20.0, other.pid: 3.0}

    assert processes.sum_of(lambda pid: figures[pid], figures) == 23
    assert processes.sum_of(processes.memory_bytes, (other.pid, other.pid)) == pytest.approx(
        2 * processes.memory_bytes(other.pid), rel=0.5
    )


def test_nothing_is_the_sum_of_processes_that_cannot_be_seen() -> None:
    assert processes.sum_of(processes.cpu_seconds, ()) is None
    assert processes.sum_of(processes.cpu_seconds, (2**22 + 1,)) is None
