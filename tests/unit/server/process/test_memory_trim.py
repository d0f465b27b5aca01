"""When memory is given back to the system."""

from __future__ import annotations

import asyncio
import gc
import platform
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from gateway.server.process.memory import MemoryTrim, find_trim


@pytest.fixture
def gc_disabled() -> Iterator[None]:
    """Python itself collects nothing meanwhile: it would whenever enough objects were made, here or by another test."""
    gc.disable()
    yield
    gc.enable()


class _Circle:
    """Nothing frees it but a search."""

    def __init__(self) -> None:
        self.itself = self


class _Trim:
    """Stands in for the C library, and for what the gateway knows."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ended = 0
        self.threads: list[threading.Thread] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.is_idle = False
        self.memory = MemoryTrim(lambda: self.ended, lambda: self.is_idle, lambda: self.now, self._trim)

    def _trim(self, pad: int) -> int:
        assert pad == 0
        self.threads.append(threading.current_thread())
        self.may_end.wait(30)
        return 1

    async def after(self, seconds: float, ended: int) -> int:
        """So many clients end, and so much later: how often memory was given back by then."""
        self.ended += ended
        self.memory.sweep()
        self.now += seconds
        self.memory.sweep()
        await self.memory.close()
        return len(self.threads)


async def test_memory_is_given_back_some_seconds_after_many_clients_have_ended() -> None:
    trim = _Trim()
    assert await trim.after(60, ended=199) == 0
    assert await trim.after(4, ended=1) == 0
    assert await trim.after(1, ended=1000) == 1
    # Those who ended meanwhile are counted.
    assert await trim.after(60, ended=199) == 1
    assert await trim.after(5, ended=1) == 2


async def test_the_event_loop_does_not_wait_for_it_and_it_is_not_begun_twice() -> None:
    trim = _Trim()
    trim.may_end.clear()
    for _ in range(5):
        trim.ended += 1000
        trim.memory.sweep()
        trim.now += 60
    trim.may_end.set()
    await trim.memory.close()
    assert len(trim.threads) == 1
    assert trim.threads[0] is not threading.main_thread()


@pytest.mark.usefixtures("gc_disabled")
async def test_python_searches_for_garbage_only_when_nobody_has_to_wait_for_it() -> None:
    trim = _Trim()
    garbage = _Circle()
    found = weakref.ref(garbage)
    del garbage
    await trim.after(5, ended=200)
    assert found() is not None
    trim.is_idle = True
    await trim.after(5, ended=200)
    assert found() is None


async def test_a_c_library_that_cannot_do_it_is_not_asked() -> None:
    memory = MemoryTrim(lambda: 1000, lambda: True, asyncio.get_running_loop().time, None)
    memory.sweep()
    await memory.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_glibc_can_do_it() -> None:
    trim = find_trim()
    assert trim is not None
    assert trim(0) in {0, 1}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc has these options")
def test_large_blocks_that_come_again_and_again_are_not_fetched_from_the_system_each_time() -> None:
    program = """
import resource
from gateway.server.process.memory import keep_freed
keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        blocks = [b"x" * (1 << 18) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # Each block has 64 pages.
    assert int(found.stdout) < 64 * 8
