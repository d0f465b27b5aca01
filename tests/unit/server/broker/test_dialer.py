"""The dialer: what it remembers of brokers, and how long it waits for the first one."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.addresses import BrokerUrl
from gateway.config.model import Logging
from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.tls_contexts import TlsContexts
from tests.support.virtual_time import run_in_virtual_time


def upstream(*hosts: str) -> Upstream:
    return Upstream(urls=tuple(BrokerUrl("amqp", host, 5672) for host in hosts))


def test_what_is_known_of_a_broker_stays_as_long_as_the_broker_is_configured() -> None:
    dialer = Dialer(lambda: 0.0, TlsContexts(), LogLimits(Logging(), lambda: 0.0), PacedWork())
    for circuit in dialer.circuits(upstream("a", "b")):
        circuit.failed("refused", 0.0, is_trial=False)
    dialer.keep([upstream("b", "c")])
    assert [circuit.is_open for circuit in dialer.circuits(upstream("a", "b", "c"))] == [False, True, False]


@pytest.mark.parametrize(("one_by_one", "answers"), [(False, "b"), (True, "a")])
def test_a_link_that_nobody_waits_for_goes_to_the_first_broker_however_slow(
    monkeypatch: pytest.MonkeyPatch, *, one_by_one: bool, answers: str
) -> None:
    async def connect(link: Link, *_: object) -> None:
        await asyncio.sleep({"a": 2.0, "b": 0.1}[link.broker.host])

    async def scene() -> str:
        log_limits = LogLimits(Logging(), lambda: 0.0)
        dialer = Dialer(asyncio.get_running_loop().time, TlsContexts(), log_limits, PacedWork())
        virtual_host = VirtualHost(name="/", upstream=upstream("a", "b"))
        whose = ClientProperties("consume", "/", "guest")
        link = await dialer.open_link(
            virtual_host, Credentials("guest", "guest"), whose, lambda: None, one_by_one=one_by_one
        )
        return link.broker.host

    monkeypatch.setattr("gateway.server.broker.dialer.connect_link", connect)
    assert run_in_virtual_time(scene()) == answers


def test_one_link_of_several_that_is_cut_is_no_change_of_the_broker() -> None:
    now = 0.0
    dialer = Dialer(lambda: now, TlsContexts(), LogLimits(Logging(), lambda: now), PacedWork())
    [broker] = upstream("a").urls
    dialer.circuits(upstream("a"))[0].answered(now)
    before = dialer.changed_at(upstream("a"))
    dialer.link_cut(broker, is_last=False)
    now = 5.0
    dialer.link_cut(broker, is_last=False)
    assert dialer.changed_at(upstream("a")) == before
    # Two at a time are, and so is the only one.
    now = 5.5
    dialer.link_cut(broker, is_last=False)
    assert dialer.changed_at(upstream("a")) == 5.5
    now = 90.0
    dialer.link_cut(broker, is_last=True)
    assert dialer.changed_at(upstream("a")) == 90.0


def test_a_broker_that_has_not_answered_the_first_question_may_have_gone() -> None:
    """A gateway that starts while a node stands still does not know yet what that makes the others refuse."""
    dialer = Dialer(lambda: 7.0, TlsContexts(), LogLimits(Logging(), lambda: 0.0), PacedWork())
    known, silent = dialer.circuits(upstream("a", "b"))
    assert dialer.changed_at(upstream("a", "b")) < 0
    for circuit in (known, silent):
        assert not circuit.begin(6.0)
    known.answered(6.0)
    assert dialer.changed_at(upstream("a", "b")) == 7.0
    silent.answered(6.5)
    assert dialer.changed_at(upstream("a", "b")) < 0
