"""Logins that the broker refuses: delayed, then limited, by login and by address, on a clock that is set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from gateway.config.addresses import BrokerUrl
from gateway.config.model import FailedLoginLimits, GatewayConfig, Logging
from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.errors import CloseReason
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.client_deadlines import OperationDeadline
from gateway.server.client.client_log import ClientLog
from gateway.server.client.failed_logins import FailedLogins, TooManyFailedLoginsError
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.session_limits import SessionLimits
from gateway.server.listen.accepted_connection import Peer
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts
from gateway.session import ops
from gateway.session.connect import read_connect
from tests.support.deadline import PATIENCE
from tests.support.scripted_broker import BridgedClient, ScriptedBroker
from tests.support.virtual_time import run_in_virtual_time

RIGHT = "right"
HERE, THERE = "192.0.2.1", "192.0.2.2"
HEALTHY = VirtualHost(name="/")
# Its broker is away.
DEAD = VirtualHost(name="dead", upstream=Upstream(urls=(BrokerUrl("amqp", "192.0.2.9", 5672),)))


class Door:
    """A broker that accepts one passcode, and what stands before it."""

    def __init__(self, **limits: object) -> None:
        self.now = 100.0
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.delays: list[float] = []
        self.failed = FailedLogins(FailedLoginLimits.model_validate(limits), lambda: self.now)

    async def _keep_back(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def log_in(
        self,
        passcode: str,
        login: str = "a",
        host: str = HERE,
        error: Callable[[], Exception] | None = None,
        virtual_host: VirtualHost = HEALTHY,
    ) -> str:
        """The outcome: accepted, refused, or until when no login is tried."""

        async def ask() -> str:
            self.asked += 1
            if virtual_host is DEAD:
                await asyncio.Event().wait()
            await self.open.wait()
            if error is not None:
                raise error()
            if passcode != RIGHT:
                raise UpstreamError(403, "ACCESS_REFUSED")
            return "accepted"

        try:
            return await self.failed.guard(host, virtual_host, Credentials(login, passcode), ask, self._keep_back)
        except TooManyFailedLoginsError as limit:
            return f"wait {limit.seconds}"
        except UpstreamError:
            return "refused"


def login_handler(limits: SessionLimits) -> LoginHandler:
    """What logs one client in."""
    clock = asyncio.get_running_loop().time
    journal, log_limits = Journal(GatewayConfig()), LogLimits(Logging(), clock)
    stats, contexts = GatewayStats(("/",)), TlsContexts()
    pool = LinkPool(clock, asyncio.ensure_future, journal, stats, "node", contexts, log_limits, PacedWork())
    return LoginHandler(pool, limits, Mock(ClientLog), Peer(HERE, 1), "s", clock() + 3600)


async def test_the_first_refusals_come_at_once_and_later_ones_late() -> None:
    door = Door(delay_after=2, delay=3)
    assert [await door.log_in("wrong") for _ in range(4)] == ["refused"] * 4
    assert door.delays == [0, 0, 3, 3]
    # Another login, another address: each has its own.
    await door.log_in("wrong", login="b")
    await door.log_in("wrong", host=THERE)
    assert door.delays[4:] == [0, 0]
    door.now += 61
    await door.log_in("wrong")
    assert door.delays[6:] == [0]
    assert door.failed.total == 7


async def test_after_too_many_refusals_the_broker_is_not_asked_until_the_window_ends() -> None:
    door = Door(per_login=3, window=60)
    assert [await door.log_in("wrong") for _ in range(3)] == ["refused"] * 3
    door.now += 20.5
    # However many attempts there are, the window does not get longer. The passcode may even be the right one.
    assert [await door.log_in(passcode) for passcode in ("wrong", "wrong", RIGHT)] == ["wait 40"] * 3
    assert (door.asked, door.failed.total) == (3, 3)
    assert await door.log_in(RIGHT, login="b") == "accepted"
    assert await door.log_in(RIGHT, host=THERE) == "accepted"
    door.now += 40
    assert await door.log_in(RIGHT) == "accepted"


async def test_an_address_that_tries_many_logins_is_limited_too() -> None:
    door = Door(per_address=5)
    assert [await door.log_in("wrong", login=str(n)) for n in range(7)] == ["refused"] * 5 + ["wait 60"] * 2
    assert await door.log_in(RIGHT, host=THERE) == "accepted"


async def test_a_client_that_was_accepted_is_never_locked_out_by_others_behind_its_address() -> None:
    door = Door(per_login=2, per_address=4)
    assert await door.log_in(RIGHT) == "accepted"
    for login in ("a", "a", "b", "b", "c"):
        await door.log_in("wrong", login=login)
    assert await door.log_in("wrong") == await door.log_in(RIGHT, login="b") == "wait 60"
    assert await door.log_in(RIGHT) == "accepted"
    # It was accepted from here, and not from elsewhere.
    for _ in range(2):
        await door.log_in("wrong", host=THERE)
    assert await door.log_in(RIGHT, host=THERE) == "wait 60"


async def test_an_acceptance_is_remembered_from_the_last_one_on() -> None:
    door = Door(per_login=2)
    for _ in range(4):
        assert await door.log_in(RIGHT) == "accepted"
        door.now += 3000
    assert [await door.log_in("wrong") for _ in range(3)] == ["refused", "refused", "wait 60"]
    assert await door.log_in(RIGHT) == "accepted"
    door.now += 3601
    assert [await door.log_in("wrong") for _ in range(3)] == ["refused", "refused", "wait 60"]
    assert await door.log_in(RIGHT) == "wait 60"


async def test_logins_that_wait_for_a_broker_that_is_away_do_not_hold_up_those_of_another() -> None:
    door = Door()
    waiting = [asyncio.ensure_future(door.log_in(str(number), virtual_host=DEAD)) for number in range(40)]
    while door.asked < 32:
        await asyncio.wait(waiting, timeout=0)
    assert await asyncio.wait_for(door.log_in(RIGHT), PATIENCE) == "accepted"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not door.failed._slots


@pytest.mark.parametrize("ride_through", [0, 60])
async def test_a_login_whose_session_is_over_waits_no_longer(
    ride_through: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def log_in(*_: object) -> LoginLinks:
        nonlocal asked
        asked += 1
        return await asyncio.Future()

    monkeypatch.setattr(LinkPool, "log_in", log_in)
    limits = SessionLimits(asyncio.get_running_loop().time)
    virtual_host = VirtualHost(name="/", upstream=Upstream(ride_through=ride_through))
    handlers = [login_handler(limits) for _ in range(33)]
    tasks = [asyncio.ensure_future(each.log_in(ops.Login(virtual_host, b"a", b"b"))) for each in handlers]
    while asked < 32:
        await asyncio.wait(tasks, timeout=0)
    # The last one waits for the others' answers; the first one has asked.
    for number in (-1, 0):
        handlers[number].close()
        outcome = await asyncio.wait_for(tasks[number], PATIENCE)
        assert isinstance(outcome, ops.LoginNotTried)
        assert outcome.error.close is CloseReason.BROKER_UNREACHABLE
    assert asked == 32
    for each in handlers:
        each.close()
    await asyncio.wait(tasks)
    assert not limits.failed_logins._slots


async def test_only_refused_credentials_count() -> None:
    door = Door(per_login=1)
    for error in (lambda: UpstreamError(530, "NOT_ALLOWED"), lambda: LinkDownError(403, "ACCESS_REFUSED - gone")):
        assert await door.log_in("wrong", error=error) == "refused"
    assert await door.log_in("wrong") == "refused"
    assert await door.log_in("wrong") == "wait 60"


async def test_without_limits_the_broker_is_always_asked() -> None:
    door = Door(per_login=None, per_address=None, delay=0)
    assert {await door.log_in("wrong") for _ in range(500)} == {"refused"}


async def test_attempts_at_the_same_moment_do_not_get_past_the_limit() -> None:
    door = Door(per_login=10)
    door.open.clear()
    tasks = [asyncio.ensure_future(door.log_in(f"wrong {number}")) for number in range(500)]
    while door.asked < 32:
        await asyncio.wait(tasks, timeout=0)
    door.open.set()
    outcomes = await asyncio.gather(*tasks)
    # Those that were asked about at once had no failure before them.
    assert (door.asked, outcomes.count("refused"), outcomes.count("wait 60")) == (32, 32, 468)
    assert not door.failed._slots


async def test_a_fleet_that_connects_at_once_is_let_in_as_soon_as_one_is() -> None:
    door = Door()
    door.open.clear()
    tasks = [asyncio.ensure_future(door.log_in(RIGHT)) for _ in range(500)]
    door.open.set()
    assert set(await asyncio.gather(*tasks)) == {"accepted"}
    assert not door.failed._slots


async def test_who_waits_with_credentials_that_were_accepted_meanwhile_is_not_limited() -> None:
    door = Door(per_login=1)
    door.open.clear()
    passcodes = [RIGHT, *(f"wrong {number}" for number in range(31)), RIGHT, "wrong"]
    tasks = [asyncio.ensure_future(door.log_in(passcode)) for passcode in passcodes]
    while door.asked < 32:
        await asyncio.wait(tasks, timeout=0)
    door.open.set()
    outcomes = await asyncio.gather(*tasks)
    assert (outcomes[0], outcomes[-2], outcomes[-1]) == ("accepted", "accepted", "wait 60")


def test_nobody_can_know_the_hash_of_a_passcode() -> None:
    clock = float
    one, other = (FailedLogins(FailedLoginLimits(), clock)._hash("a", "passcode") for _ in range(2))
    assert one != other


async def test_limits_may_change() -> None:
    door = Door()
    for _ in range(3):
        assert await door.log_in("wrong") == "refused"
    door.failed.configure(FailedLoginLimits(per_login=3, window=30))
    assert await door.log_in("wrong") == "wait 30"
    door.now += 31
    assert await door.log_in("wrong") == "refused"


def test_a_refused_token_that_is_kept_back_is_not_waited_for_at_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `delay` beyond `operation_timeout` would end the session otherwise."""

    async def work() -> None:
        broker, virtual_host = ScriptedBroker(), VirtualHost(name="/", token_renewal=True)

        async def open_link(host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
            if credentials.passcode == "wrong":
                raise UpstreamError(403, "ACCESS_REFUSED")
            return await broker.open_link(host, credentials, purpose, *more)

        async def log_in(*_: object) -> LoginLinks:
            links = LoginLinks(virtual_host, Credentials("guest", "guest"), open_link)
            await links.check_login()
            return links

        monkeypatch.setattr(LinkPool, "log_in", log_in)
        clock = asyncio.get_running_loop().time
        limits = SessionLimits(clock)
        limits.failed_logins.configure(FailedLoginLimits(delay_after=0, delay=100))
        client = BridgedClient(broker, virtual_host, login=login_handler(limits))
        await client.connect()
        deadline = OperationDeadline(client.session, client.bridge.must_wait)
        await client.say("TOKEN\ntoken:wrong\n\n")
        for _ in range(98):
            assert deadline.missed(clock()) is None
            await asyncio.sleep(1)
        assert b"ERROR" not in client.output
        await asyncio.sleep(2)
        assert b"message:Token refused" in client.output
        assert client.failures == []

    run_in_virtual_time(work())


CERTIFICATES = {"users": {"device": {"login": "app", "passcode": "old"}}}
OPERATORS = {"default_user": {"login": "app", "passcode": "old"}, "certificate_users": CERTIFICATES}


@pytest.mark.parametrize(
    ("headers", "certificate", "counts"),
    [
        ({}, None, False),
        ({b"login": b"app"}, None, False),
        ({}, "device", False),
        ({b"passcode": b"guess"}, None, True),
        ({b"login": b"a", b"passcode": b"guess"}, "device", True),
    ],
)
async def test_the_operators_own_wrong_passcode_locks_nobody_out(
    headers: dict[bytes, bytes], certificate: str | None, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def log_in(*_: object) -> LoginLinks:
        raise UpstreamError(403, "ACCESS_REFUSED")

    monkeypatch.setattr(LinkPool, "log_in", log_in)
    clock = asyncio.get_running_loop().time
    # The second attempt is one that the broker is not asked about.
    limits = SessionLimits(clock, FailedLoginLimits(delay=0, per_login=1, lock_out_after=2))
    virtual_host = VirtualHost.model_validate({"name": "/", **OPERATORS})
    for outcome in (ops.LoginFailed, ops.LoginNotTried):
        assert not limits.lock_outs.is_locked_out(HERE)
        request = read_connect(headers, lambda _: virtual_host, certificate)
        assert isinstance(await login_handler(limits).log_in(request.login), outcome)
    assert limits.lock_outs.is_locked_out(HERE) is counts


async def test_tokens_that_the_broker_is_not_asked_about_lead_to_a_lock_out() -> None:
    async def check(token: str) -> None:
        raise UpstreamError(403, "ACCESS_REFUSED")

    clock = asyncio.get_running_loop().time
    limits = SessionLimits(clock, FailedLoginLimits(delay=0, per_login=1, lock_out_after=3))
    handler = login_handler(limits)
    handler._links = Mock(LoginLinks, login="a", virtual_host=HEALTHY, check_passcode=check, is_dedicated=True)
    for outcome in (UpstreamError, TooManyFailedLoginsError, TooManyFailedLoginsError):
        assert not limits.lock_outs.is_locked_out(HERE)
        with pytest.raises(outcome):
            await handler.renew("wrong")
    assert limits.lock_outs.is_locked_out(HERE)


async def test_a_login_that_was_accepted_lately_does_not_wait_behind_others() -> None:
    door = Door()
    assert await door.log_in(RIGHT) == "accepted"
    door.open.clear()
    others = [asyncio.ensure_future(door.log_in(f"wrong {number}")) for number in range(40)]
    while door.asked < 33:
        await asyncio.wait(others, timeout=0)
    again = asyncio.ensure_future(door.log_in(RIGHT))
    await asyncio.wait([again], timeout=0)
    assert door.asked == 34
    door.open.set()
    assert await again == "accepted"
    await asyncio.wait(others)
