"""Sessions and rates, counted on a clock that is set by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from gateway.config.loader import parse
from gateway.config.virtual_host import VirtualHost
from gateway.server.client.session_limits import Bucket, LimitReachedError, RateLimiter, SessionLimits
from gateway.server.client_address import network_of
from gateway.session.context import Hold
from tests.support.deadline import within
from tests.support.playbook import Playbook, stomp


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def virtual_host(limits: str = "{}", name: str = "/") -> VirtualHost:
    found = parse(f"defaults: {{limits: {limits}}}", environment={}).virtual_host("/")
    assert found is not None
    return found.model_copy(update={"name": name})


def test_a_session_that_leaves_gives_back_its_own_place_only() -> None:
    limits, host = SessionLimits(Clock()), virtual_host("{sessions: 2}")
    first, _ = (limits.add(host, f"user-{number}", f"10.0.{number}.1") for number in (1, 2))
    first.release()
    assert limits.sessions("/") == 1
    limits.add(host, "user-3", "10.0.3.1")
    with pytest.raises(LimitReachedError):
        limits.add(host, "user-4", "10.0.4.1")


def test_without_rates_nothing_is_owed() -> None:
    rates = SessionLimits(Clock()).add(virtual_host(), "user", "10.0.0.1")
    assert not rates.has_rates
    assert rates.charge(10**6, 10**9) == 0.0


# Buckets.


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = Bucket(10, burst=2, cell=([0.0], 0))
    assert [bucket.take(10, 0.0), bucket.take(10, 0.0)] == [0.0, 0.0]
    assert bucket.take(5, 0.0) == 0.5
    # The debt is paid after half a second, and from then on there is something again.
    assert bucket.take(0, 0.25) == 0.25
    assert bucket.take(0, 0.5) == 0.0
    assert bucket.take(5, 1.0) == 0.0
    assert bucket.take(1, 1.0) == pytest.approx(0.1)


def test_a_bucket_holds_no_more_than_its_burst_however_long_it_rests() -> None:
    bucket = Bucket(10, burst=0.5, cell=([0.0], 0))
    assert bucket.take(5, 1_000.0) == 0.0
    assert bucket.take(1, 1_000.0) == pytest.approx(0.1)


def test_a_debt_may_be_larger_than_the_burst() -> None:
    bucket = Bucket(1000, burst=0.001, cell=([0.0], 0))
    assert bucket.take(4_000_001, 0.0) == pytest.approx(4000.0)
    assert not bucket.is_full(4000.0)
    assert bucket.is_full(4000.002)


def test_sessions_in_debt_take_turns_and_together_keep_to_the_rate() -> None:
    """Ten sessions that always have much to say: each is served, and together they send at the rate."""
    bucket = Bucket(100, burst=1, cell=([0.0], 0))
    due = dict.fromkeys(range(10), 0.0)
    sent = dict.fromkeys(range(10), 0)
    while (now := min(due.values())) < 100:
        session = min(due, key=lambda each: due[each])
        sent[session] += 20
        due[session] = now + bucket.take(20, now)
    assert 100 * 100 <= sum(sent.values()) <= 100 * 100 + 100 + 10 * 20
    # The burst belongs to the first that send.
    assert max(sent.values()) - min(sent.values()) <= 100 + 20


# Addresses.


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
    ],
)
def test_what_counts_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network


# Sessions.


def test_sessions_are_counted_whether_limited_or_not() -> None:
    limits, plain = SessionLimits(Clock()), virtual_host()
    rates = [limits.add(plain, login, host) for login, host in (("a", "::1"), ("a", "10.0.0.1"), ("b", "10.0.0.1"))]
    assert limits.sessions("/") == 3
    assert (limits.sessions("/", login="a"), limits.sessions("/", login="b")) == (2, 1)
    assert (limits.sessions("/", host="10.0.0.1"), limits.sessions("/", host="::2")) == (2, 1)
    assert limits.sessions("other") == limits.sessions("other", login="a") == 0
    assert not any(each.has_rates for each in rates)
    for each in rates:
        each.release()
        each.release()
    assert limits.sessions("/") == limits.sessions("/", login="a") == limits.sessions("/", host="10.0.0.1") == 0
    limits.forget_idle()
    assert len(limits._counts._counts) == 0


@pytest.mark.parametrize(
    ("config", "scope"),
    [
        ("{sessions: 2}", "The virtual host '/'"),
        ("{user: {sessions: 2}}", "The user 'a'"),
        ("{address: {sessions: 2}}", "The address 10.0.0.1"),
    ],
)
def test_one_session_too_many_is_refused_until_another_ends(config: str, scope: str) -> None:
    limits, limited = SessionLimits(Clock()), virtual_host(config)
    first = limits.add(limited, "a", "10.0.0.1")
    limits.add(limited, "a", "10.0.0.1")
    with pytest.raises(LimitReachedError) as refusal:
        limits.add(limited, "a", "10.0.0.1")
    assert (refusal.value.scope, refusal.value.limit) == (scope, 2)
    # A refused session does not count, and each virtual host has its own count.
    assert limits.sessions("/") == 2
    limits.add(virtual_host(config, "other"), "a", "10.0.0.1")
    first.release()
    limits.add(limited, "a", "10.0.0.1")


def test_each_user_and_address_has_a_limit_of_its_own() -> None:
    limits, limited = SessionLimits(Clock()), virtual_host("{user: {sessions: 1}, address: {sessions: 1}}")
    for number in range(1, 5):
        limits.add(limited, f"user-{number}", f"10.0.0.{number}")
    assert limits.sessions("/") == 4


def test_before_the_login_a_user_is_not_looked_at() -> None:
    """Otherwise anybody could find out how many sessions a user has."""
    limits, limited = SessionLimits(Clock()), virtual_host("{user: {sessions: 1}, address: {sessions: 2}}")
    limits.add(limited, "a", "10.0.0.1")
    limits.check(limited, "10.0.0.1")
    limits.add(limited, "b", "10.0.0.1")
    with pytest.raises(LimitReachedError):
        limits.check(limited, "10.0.0.1")


def test_a_client_that_logs_in_again_counts_once() -> None:
    limits, limited = SessionLimits(Clock()), virtual_host("{user: {sessions: 1}}")
    rates = limits.add(limited, "a", "10.0.0.1")
    rates.release()
    rates.release()
    limits.add(limited, "a", "10.0.0.1")
    assert limits.sessions("/", login="a") == 1


# Rates.


def test_all_sessions_of_a_user_and_all_from_an_address_pay_into_one_bucket() -> None:
    clock = Clock()
    limits = SessionLimits(clock)
    limited = virtual_host("{user: {messages_per_second: 10, burst: 1}, address: {bytes_per_second: 1000, burst: 1s}}")
    first, second = limits.add(limited, "a", "10.0.0.1"), limits.add(limited, "a", "10.0.0.2")
    same_address, other = limits.add(limited, "b", "10.0.0.2"), limits.add(limited, "c", "10.0.0.3")
    assert first.charge(10, 0) == 0
    assert second.charge(5, 0) == 0.5
    assert same_address.charge(10, 1000) == 0
    # The longer of both waits counts.
    assert second.charge(0, 2000) == 2.0
    assert other.charge(10, 1000) == 0
    clock.now += 2.0
    assert (first.charge(0, 0), second.charge(0, 0), same_address.charge(0, 0)) == (0, 0, 0)


def test_a_debt_outlives_the_session() -> None:
    clock = Clock()
    limits, limited = SessionLimits(clock), virtual_host("{user: {messages_per_second: 1, burst: 1}}")
    rates = limits.add(limited, "a", "10.0.0.1")
    assert rates.charge(11, 0) == 10.0
    rates.release()
    limits.forget_idle()
    again = limits.add(limited, "a", "10.0.0.1")
    assert again.charge(0, 0) == 10.0
    again.release()
    clock.now += 10.9
    limits.forget_idle()
    assert len(limits._counts._counts) == 1
    clock.now += 0.2
    limits.forget_idle()
    assert len(limits._counts._counts) == 0


def test_after_a_reload_sessions_keep_the_rates_that_they_logged_in_with() -> None:
    limits = SessionLimits(Clock())
    slow, fast = (virtual_host(f"{{user: {{messages_per_second: {rate}, burst: 1}}}}") for rate in (1, 100))
    free = limits.add(virtual_host(), "a", "10.0.0.1")
    first, second, third = (limits.add(host, "a", "10.0.0.1") for host in (slow, fast, slow))
    assert first.charge(11, 0) == 10.0
    # Those with the same rate share it, and no others.
    assert (second.charge(50, 0), free.charge(1000, 0)) == (0, 0)
    assert third.charge(1, 0) == 11.0
    assert limits.add(fast, "a", "10.0.0.1").charge(60, 0) == pytest.approx(0.1)
    # The number of sessions is that of all.
    with pytest.raises(LimitReachedError):
        limits.add(virtual_host("{user: {sessions: 5, messages_per_second: 1}}"), "a", "10.0.0.1")
    # A changed number of sessions leaves the rate as it is.
    more = virtual_host("{user: {sessions: 9, messages_per_second: 1, burst: 1}}")
    assert limits.add(more, "a", "10.0.0.1").charge(0, 0) == 11.0


# The rate_limiter of one client.


def a_sender() -> Playbook:
    """A session that has sent a message."""
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/topic/t")
    play.prepare()
    return play


def _nothing() -> None:
    """Nobody has to know that a debt is paid."""


async def test_a_session_in_debt_is_not_read_until_it_is_paid() -> None:
    clock = Clock()
    limits = SessionLimits(clock)
    play, resumed = a_sender(), asyncio.Event()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(
        limits.add(virtual_host("{user: {messages_per_second: 100, burst: 20ms}}"), "a", "10.0.0.1"), resumed.set
    )
    # What was sent before is charged, too: one message, of the two that may come at once.
    rate_limiter.charge(100)
    assert play.session.holds == set()
    play.data(stomp("SEND", "destination:/topic/t") * 3 + stomp("ACK", "id:nothing"))
    rate_limiter.charge(200)
    assert play.session.holds == {Hold.RATE_LIMIT}
    play.client("SEND", "destination:/topic/t", body="held")
    assert "amq.topic t held" not in play.published()
    async with within():
        await resumed.wait()
    assert play.session.holds == set()
    play.go_on()
    assert play.published() == ["amq.topic t held"]


async def test_a_client_that_is_gone_is_held_no_longer() -> None:
    limits = SessionLimits(Clock())
    play = Playbook()
    play.connect()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(
        limits.add(virtual_host("{address: {bytes_per_second: 1, burst: 1}}"), "a", "10.0.0.1"), _nothing
    )
    rate_limiter.charge(10_000)
    assert play.session.holds == {Hold.RATE_LIMIT}
    rate_limiter.stop()
    assert play.session.holds == set()
    rate_limiter.charge(20_000)
    assert play.session.holds == set()


async def test_a_client_without_rates_is_never_held() -> None:
    limits = SessionLimits(Clock())
    play = Playbook()
    play.connect()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(limits.add(virtual_host("{user: {sessions: 5}}"), "a", "10.0.0.1"), _nothing)
    rate_limiter.charge(1 << 40)
    assert play.session.holds == set()


async def test_what_comes_in_one_read_goes_out_in_steps() -> None:
    """However much a client sends at once, no more than the burst and a step of it reach the broker at once."""
    clock = Clock()
    limits = SessionLimits(clock)
    play, resumed = a_sender(), asyncio.Event()
    play.published()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(
        limits.add(virtual_host("{user: {messages_per_second: 1000, burst: 100ms}}"), "a", "10.0.0.1"), resumed.set
    )
    rate_limiter.charge(1)
    play.data(stomp("SEND", "destination:/topic/t") * 1000)
    steps = [len(play.published())]
    while sum(steps) < 1000:
        rate_limiter.charge(2)
        assert play.session.holds == {Hold.RATE_LIMIT}
        async with within():
            await resumed.wait()
        resumed.clear()
        play.go_on()
        steps.append(len(play.published()))
    assert steps == [100] * 10


async def test_the_end_of_a_client_lets_all_through_that_it_sent() -> None:
    limits = SessionLimits(Clock())
    play = a_sender()
    play.published()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(limits.add(virtual_host("{user: {messages_per_second: 10}}"), "a", "10.0.0.1"), _nothing)
    play.data(stomp("SEND", "destination:/topic/t") * 50)
    rate_limiter.charge(1)
    rate_limiter.stop()
    before = len(play.published())
    play.go_on()
    assert before + len(play.published()) == 50


async def test_who_has_sent_nothing_new_is_not_held_for_the_debt_of_others() -> None:
    limits = SessionLimits(Clock())
    host = virtual_host("{user: {bytes_per_second: 1, burst: 1}}")
    busy, idle = Playbook(), Playbook()
    limiters = []
    for play in (busy, idle):
        play.connect()
        limiters.append(RateLimiter(play.session))
        limiters[-1].start(limits.add(host, "a", "10.0.0.1"), _nothing)
    limiters[1].charge(0)
    limiters[0].charge(10_000)
    limiters[1].charge(0)
    assert (busy.session.holds, idle.session.holds) == ({Hold.RATE_LIMIT}, set())
    limiters[0].stop()


async def test_messages_that_waited_are_charged_when_they_are_carried_out() -> None:
    limits = SessionLimits(Clock())
    play = a_sender()
    rate_limiter = RateLimiter(play.session)
    rate_limiter.start(
        limits.add(virtual_host("{user: {messages_per_second: 1, burst: 1s}}"), "a", "10.0.0.1"), _nothing
    )
    rate_limiter.charge(100)
    play.session.holds.add(Hold.LINK_WRITE)
    play.data(stomp("SEND", "destination:/topic/t") * 3)
    rate_limiter.charge(200)
    assert play.session.holds == {Hold.LINK_WRITE}
    play.session.holds.discard(Hold.LINK_WRITE)
    play.go_on()
    rate_limiter.charge(200)
    assert play.session.holds == {Hold.RATE_LIMIT}
    rate_limiter.stop()
