"""Addresses that are locked out, on a clock that is set by hand."""

from __future__ import annotations

import pytest
import structlog

from gateway.config.model import FailedLoginLimits
from gateway.server.listen.address_checks import LockOuts
from gateway.server.shared_counts import SharedCounts, SharedMemory

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    """Lock-outs of one process, or (`workers`) of one of two."""

    def __init__(self, *, workers: bool, **limits: object) -> None:
        self.now = 100.0
        self.memory = SharedMemory.made(2) if workers else None
        self.limits = FailedLoginLimits.model_validate({"window": 60, "lock_out_for": 600} | limits)
        self.one = self.lock_outs(0)
        self.other = self.lock_outs(1) if workers else self.one

    def lock_outs(self, worker: int) -> LockOuts:
        counts = None if self.memory is None else SharedCounts(self.memory, worker, lambda: self.now)
        return LockOuts(self.limits, lambda: self.now, counts)


each = pytest.mark.parametrize("workers", [False, True])


@each
def test_an_address_is_locked_out_for_a_while_after_so_many_failed_logins(workers: bool) -> None:
    clock = Clock(workers=workers, lock_out_after=3)
    with structlog.testing.capture_logs() as lines:
        for lock_outs in (clock.one, clock.other, clock.one):
            assert not clock.other.is_locked_out(HERE)
            lock_outs.login_failed(HERE)
        assert clock.one.is_locked_out(HERE)
        assert clock.other.is_locked_out(f"::ffff:{HERE}")
        assert not clock.other.is_locked_out(THERE)
        # What fails meanwhile, on connections that were open, prolongs nothing.
        clock.now += 30
        clock.other.login_failed(HERE)
        clock.now += 569
        assert clock.one.is_locked_out(HERE)
        clock.now += 2
        assert not clock.one.is_locked_out(HERE)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("address locked out", "warning")
    assert (line["client"], line["failed"], line["seconds"]) == (HERE, 3, 600)
    assert (clock.one.total, clock.other.total) == (1, 0 if workers else 1)


@each
def test_after_a_lock_out_an_address_has_all_its_attempts_again(workers: bool) -> None:
    clock = Clock(workers=workers, lock_out_after=3, window=3600, lock_out_for=30)
    for _ in range(5):
        clock.one.login_failed(HERE)
    clock.now += 31
    for lock_outs in (clock.one, clock.other, clock.one):
        assert not clock.one.is_locked_out(HERE)
        lock_outs.login_failed(HERE)
    assert clock.one.is_locked_out(HERE)
    assert clock.one.total == 2


@each
def test_failed_logins_count_for_a_window_and_ipv6_addresses_of_one_customer_together(workers: bool) -> None:
    clock = Clock(workers=workers, lock_out_after=2)
    clock.one.login_failed(HERE)
    clock.now += 61
    clock.one.login_failed(HERE)
    assert not clock.one.is_locked_out(HERE)
    for host in ("2001:db8::1", "2001:db8::2"):
        clock.one.login_failed(host)
    assert clock.one.is_locked_out("2001:db8::3")
    assert not clock.one.is_locked_out("2001:db8:0:1::1")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.9", "", "unix:uid=1000"])
def test_this_machine_is_not_locked_out_and_nobody_without_an_address(host: str) -> None:
    clock = Clock(workers=False, lock_out_after=1)
    clock.one.login_failed(host)
    assert not clock.one.is_locked_out(host)
    assert clock.one.total == 0


def test_without_a_number_nobody_is_locked_out() -> None:
    clock = Clock(workers=False)
    for _ in range(1000):
        clock.one.login_failed(HERE)
    assert not clock.one.is_locked_out(HERE)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"lock_out_after": None}, 0),
        ({"lock_out_except": ["192.0.2.0/30"]}, 0),
        ({"lock_out_for": 20}, 11),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_limits_hold_at_once_also_for_who_is_locked_out(limits: dict[str, object], seconds: float) -> None:
    clock = Clock(workers=False, lock_out_after=1)
    clock.one.login_failed(HERE)
    clock.now += 10
    before = clock.limits.model_dump() | {"lock_out_except": []}
    clock.one.configure(FailedLoginLimits.model_validate(before | limits))
    assert clock.one.is_locked_out(HERE) is bool(seconds)
    clock.now += seconds
    assert not clock.one.is_locked_out(HERE)
