"""The fault boundary: whose fault it is, who hears of it, and that everybody else goes on."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.server.fault_boundary import all_done, guarded, report


class Owner:
    """Keeps its faults; ``cannot_end`` if even its end is one."""

    def __init__(self, *, cannot_end: bool = False) -> None:
        self.faults: list[str] = []
        self._cannot_end = cannot_end

    def failed(self, error: Exception) -> None:
        self.faults.append(str(error))
        if self._cannot_end:
            raise RuntimeError("cannot end")


def fail(text: str, *, kind: type[BaseException] = ValueError) -> None:
    raise kind(text)


def test_a_call_gets_its_arguments_and_its_fault_is_its_owners() -> None:
    owner, called = Owner(), list[tuple[int, int]]()
    guarded(owner, lambda a, b: called.append((a, b)), 1, b=2)
    assert (called, owner.faults) == ([(1, 2)], [])
    guarded(owner, fail, "one", kind=KeyError)
    assert owner.faults == ["'one'"]


def test_a_cancellation_is_no_fault() -> None:
    owner = Owner()
    with pytest.raises(asyncio.CancelledError):
        guarded(owner, fail, "", kind=asyncio.CancelledError)
    assert owner.faults == []


def test_an_owner_that_cannot_even_end_is_logged_and_the_caller_goes_on() -> None:
    owner = Owner(cannot_end=True)
    with structlog.testing.capture_logs() as lines:
        report(owner, ValueError("one"))
    assert owner.faults == ["one"]
    (line,) = lines
    assert (line["event"], line["log_level"], str(line["exc_info"])) == ("internal error", "error", "cannot end")


async def test_all_work_is_done_whatever_of_it_fails() -> None:
    owner, done = Owner(), list[str]()

    async def work(name: str, *, fails: bool) -> None:
        await asyncio.sleep(0)
        if fails:
            raise ValueError(name)
        done.append(name)

    await all_done(owner, work("a", fails=True), work("b", fails=False), work("c", fails=True), work("d", fails=False))
    assert (owner.faults, done) == (["a", "c"], ["b", "d"])
