"""Limits of log lines, on a clock that is set by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import structlog

from gateway.config.model import Logging
from gateway.server.log_limits import LogLimits, LogRateLimiter


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_cause_has_its_lines_and_the_next_line_tells_what_is_missing() -> None:
    clock = Clock()
    limiter = LogRateLimiter(clock, lines=2, seconds=10)
    assert [limiter.left_out("a") for _ in range(5)] == [0, 0, None, None, None]
    assert limiter.left_out("b") == 0
    assert limiter.unsaid() == 3
    clock.now += 10.5
    assert [limiter.left_out("a") for _ in range(3)] == [3, 0, None]
    assert limiter.unsaid() == 1


def test_a_session_remembers_few_causes() -> None:
    limiter = LogLimits(Logging(), Clock()).of_session()
    assert [limiter.left_out(number) for number in range(65)] == [0] * 65
    assert (limiter.left_out(64), limiter.left_out(0)) == (None, 0)


def test_the_table_of_a_limiter_is_bounded() -> None:
    clock = Clock()
    limiter = LogRateLimiter(clock, lines=1)
    for number in range(12_000):
        limiter.left_out(f"192.0.2.{number}")
        limiter.left_out(f"192.0.2.{number}")
    # What is left out of forgotten causes is not told any more.
    assert limiter.unsaid() == 10_000


def test_the_lines_of_an_address_are_bounded_and_counted() -> None:
    clock = Clock()
    limits = LogLimits(Logging(lines_per_address=3), clock)
    assert [limits.for_address("192.0.2.1") for _ in range(5)] == [0, 0, 0, None, None]
    # An IPv6 network of 64 bits is one address, and an IPv4 address in IPv6 is itself.
    assert limits.for_address("::ffff:192.0.2.1") is None
    assert [limits.for_address(f"2001:db8::{number}") for number in range(4)] == [0, 0, 0, None]
    assert limits.left_out == 4
    clock.now += 11
    assert limits.for_address("192.0.2.1") == 3


def test_a_fleet_that_comes_back_from_one_address_loses_no_line() -> None:
    """3,000 sessions behind a load balancer without PROXY headers: each ends, and starts again."""
    limits = LogLimits(Logging(), Clock())
    assert {limits.for_address("192.0.2.1") for _ in range(2 * 3000)} == {0}


def test_without_limits_every_line_is_written() -> None:
    limits = LogLimits(Logging(lines_per_address=None, repeat_interval=0), Clock())
    assert {limits.for_address("192.0.2.1") for _ in range(15_000)} == {0}
    session = limits.of_session()
    assert {session.left_out("Bad transaction") for _ in range(5000)} == {0}
    assert limits.left_out == 0


def test_a_sessions_errors_are_logged_once_a_minute_by_kind() -> None:
    clock = Clock()
    limits = LogLimits(Logging(), clock)
    session = limits.of_session()
    assert [session.left_out("Transaction too large") for _ in range(3)] == [0, None, None]
    assert session.left_out("Bad transaction") == 0
    assert session.unsaid() == limits.left_out == 2
    clock.now += 59
    assert session.left_out("Transaction too large") is None
    clock.now += 2
    assert session.left_out("Transaction too large") == 3
    # Each session has its own.
    assert limits.of_session().left_out("Transaction too large") == 0


def test_a_listener_writes_few_lines_before_a_login() -> None:
    limits = LogLimits(Logging(), Clock())
    with structlog.testing.capture_logs() as lines:
        listener = limits.of_listener()
        for _ in range(30):
            listener.warning("too many connections")
            listener.info("tls handshake failed")
    assert len(lines) == 10
    assert limits.left_out == 50


def test_a_broker_that_is_gone_is_a_few_lines_however_many_clients_log_in() -> None:
    limits = LogLimits(Logging(), Clock())
    found = [limits.for_virtual_host("/") for _ in range(2000)]
    assert found.count(None) == 1990
    assert limits.for_virtual_host("other") == 0


def test_limits_may_change() -> None:
    limits = LogLimits(Logging(), Clock())
    assert limits.for_address("192.0.2.1") == limits.for_address("192.0.2.1") == 0
    limits.configure(Logging(lines_per_address=2, repeat_interval=0))
    assert limits.for_address("192.0.2.1") is None
    session = limits.of_session()
    assert session.left_out("Bad transaction") == session.left_out("Bad transaction") == 0


def test_a_line_has_its_details_and_how_many_were_left_out_before_it() -> None:
    now = 100.0
    limiter = LogRateLimiter(lambda: now, 1)
    with structlog.testing.capture_logs() as lines:
        written = [limiter.info("one", peer="a"), limiter.info("two"), limiter.info("three")]
        now += 11
        limiter.info("four", peer="b")
    assert written == [True, False, False]
    assert lines == [
        {"event": "one", "log_level": "info", "peer": "a", "left_out": 0},
        {"event": "four", "log_level": "info", "peer": "b", "left_out": 2},
    ]


def test_lines_about_links_count_for_the_clients_address_or_for_the_login_that_shares_them() -> None:
    limits = LogLimits(Logging(lines_per_address=1), lambda: 100.0)
    assert limits.for_link("192.0.2.1:5000", "/", "a") == 0
    assert limits.for_link("192.0.2.1:5001", "/", "b") is None
    assert limits.for_link("[2001:db8::1]:5000", "/", "a") == 0
    assert limits.for_address("2001:db8::1") is None
    assert limits.for_link("", "/", "a") == limits.for_link("", "/", "b") == limits.for_link("", "x", "a") == 0
    assert limits.for_link("", "/", "a") is None
    assert limits.left_out == 3


def test_what_nobody_handles_is_logged_by_the_event_loop_and_not_endlessly() -> None:
    told: list[dict[str, object]] = []
    loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(default_exception_handler=told.append))
    clock = Clock()
    limits = LogLimits(Logging(), clock)
    for _ in range(1000):
        limits.unhandled(loop, {"message": "a fault"})
    count = len(told)
    assert 0 < count < 1000
    assert all(each == {"message": "a fault"} for each in told)
    clock.now += 1e6
    limits.unhandled(loop, {"message": "a fault"})
    assert told[count] == {"message": "a fault", "left_out": 1000 - count}
