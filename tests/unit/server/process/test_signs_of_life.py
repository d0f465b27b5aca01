"""Workers that hang are found, and no others."""

from __future__ import annotations

import subprocess
import sys

from gateway.server.process.supervisor import SignsOfLife
from gateway.server.shared_counts import SharedMemory


def test_who_gives_no_sign_for_long_enough_hangs() -> None:
    memory = SharedMemory.made(2)
    signs, found = SignsOfLife(memory), []
    for second in range(6):
        memory.live(0, second)
        if second < 2:
            memory.live(1, second)
        found.append(signs.missing({100: 0, 101: 1}, 3))
    assert found == [[], [], [], [], [101], [101]]


def test_a_successor_has_its_own_time() -> None:
    memory = SharedMemory.made(1)
    signs = SignsOfLife(memory)
    looks = [signs.missing({process: 0}, 2) for process in (100, 100, 101, 101, 101)]
    assert looks == [[], [], [], [], [101]]


def test_who_waits_for_a_lock_is_not_taken_for_the_one_that_hangs_with_it() -> None:
    memory = SharedMemory.made(2)
    code = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1); print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(memory.descriptor)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[memory.descriptor],
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        workers = {holder.pid: 0, 999_999: 1}
        signs = SignsOfLife(memory)
        looks = [signs.missing(workers, 2) for _ in range(4)]
        assert looks == [[], [], [holder.pid], []]
        # The last sign of the one that waits is a look older.
        signs, looks = SignsOfLife(memory), []
        for second in range(4):
            memory.live(0, min(second, 1))
            looks.append(signs.missing(workers, 2))
        assert looks == [[], [], [], [holder.pid]]
    finally:
        holder.kill()
        holder.communicate()
