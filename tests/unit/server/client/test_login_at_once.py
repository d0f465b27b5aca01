"""A login that the broker need not be asked about is answered at once; whatever is in the way, it is as any other."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.config.model import GatewayConfig, Logging
from gateway.config.virtual_host import VirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.client_log import ClientLog
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.session_limits import SessionLimits
from gateway.server.listen.accepted_connection import Peer
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts
from gateway.session import ops
from tests.support.scripted_broker import ScriptedBroker

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Logins:
    """Clients that log in, to a broker that accepts everybody; ``dials`` says how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = ScriptedBroker()
        self.dials = 0
        logins = self

        async def open_link(
            _: Dialer, virtual_host: VirtualHost, whose: Credentials, *args: object, one_by_one: bool
        ) -> Link:
            logins.dials += 1
            return await logins.broker.open_link(virtual_host, whose, "login")

        monkeypatch.setattr(Dialer, "open_link", open_link)
        clock = asyncio.get_running_loop().time
        log_limits, self.limits = LogLimits(Logging(), clock), SessionLimits(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self.pool = LinkPool(
            clock, self._spawn, Journal(GatewayConfig()), GatewayStats(("/",)), "node", TlsContexts(), log_limits,
            PacedWork(),
        )  # fmt: skip

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.add(task := asyncio.ensure_future(work))
        return task

    def client(self, host: str = HERE) -> LoginHandler:
        """Another client, at an address."""
        until = asyncio.get_running_loop().time() + 3600
        peer = Peer(host, 1)
        return LoginHandler(self.pool, self.limits, Mock(ClientLog), peer, "session", until)

    async def close(self) -> None:
        await self.pool.close()
        await asyncio.gather(*self._tasks)


def login(passcode: bytes = b"right", name: bytes = b"a", **settings: object) -> ops.Login:
    return ops.Login(VirtualHost.model_validate({"name": "/", **settings}), name, passcode)


async def test_a_login_that_the_broker_has_just_accepted_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Logins(monkeypatch)
    one, other = logins.client(), logins.client()
    assert one.log_in_at_once(login()) is None
    assert isinstance(await one.log_in(login()), ops.LoggedIn)
    answer = other.log_in_at_once(login())
    assert answer == ops.LoggedIn(one.links.broker_version)
    assert (logins.dials, other.links is one.links, one.links.sessions) == (1, True, 2)
    assert logins.limits.sessions("/", login="a") == 2
    links = one.links
    for each in (one, other):
        each.close()
        each.release_links()
    assert (links.sessions, logins.limits.sessions("/", login="a")) == (0, 0)
    await logins.close()


@pytest.mark.parametrize(
    ("host", "operation", "settings"),
    [
        (THERE, login, {}),
        (HERE, lambda **settings: login(b"wrong", **settings), {}),
        (HERE, lambda **settings: login(name=b"b", **settings), {}),
        (HERE, lambda **settings: login(b"", **settings), {}),
        (HERE, lambda **settings: login(b"\xff", **settings), {}),
        (HERE, login, {"login_cache": 0}),
        (HERE, login, {"links": "dedicated"}),
        (HERE, lambda: login(links="dedicated"), {}),
        (HERE, login, {"limits": {"sessions": 1}}),
        (HERE, login, {"limits": {"user": {"sessions": 1}}}),
        (HERE, login, {"limits": {"address": {"sessions": 1}}}),
    ],
)
async def test_any_other_login_is_not(
    host: str, operation: Callable[..., ops.Login], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = Logins(monkeypatch)
    one, other = logins.client(), logins.client(host)
    assert isinstance(await one.log_in(login(**settings)), ops.LoggedIn)
    assert other.log_in_at_once(operation(**settings)) is None
    if not one.links.is_dedicated:
        assert one.links.sessions == 1
    assert logins.limits.sessions("/") == 1
    one.release_links()
    await logins.close()


async def test_after_the_loss_of_the_link_the_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Logins(monkeypatch)
    one, other = logins.client(), logins.client()
    await one.log_in(login())
    logins.broker.lose()
    assert other.log_in_at_once(login()) is None
    await other.log_in(login())
    assert logins.dials == 2
    for each in (one, other):
        each.release_links()
    await logins.close()


@pytest.mark.parametrize(
    ("user", "named"),
    [
        ("app", "app"),
        ("grün" * 51, "grün" * 51),
        ("grün" * 52, "token"),
        ("x" * 300_000, "token"),
        ("app\0guest", "token"),
        ("\ud800", "token"),
        ("", "token"),
        (["app"], "token"),
        ({"app": 1}, "token"),
        (1, "token"),
        (None, "token"),
    ],
)
async def test_what_a_token_calls_its_user_is_used_only_if_it_can_be_a_login(
    user: object, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has verified the token yet, and RabbitMQ takes any login with it."""
    logins = Logins(monkeypatch)
    client = logins.client()
    token = b"e30.%b." % urlsafe_b64encode(json.dumps({"sub": user}).encode()).rstrip(b"=")
    assert isinstance(await client.log_in(login(token, name=b"")), ops.LoggedIn)
    assert client.links.login == named
    client.release_links()
    await logins.close()


async def test_a_new_token_with_a_nul_is_refused_and_the_broker_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Logins(monkeypatch)
    client = logins.client()
    await client.log_in(login())
    with pytest.raises(UpstreamError, match="ACCESS_REFUSED"):
        await client.renew("e30.\0.")
    assert logins.dials == 1
    client.release_links()
    await logins.close()
