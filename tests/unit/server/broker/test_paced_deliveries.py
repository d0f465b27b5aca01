"""Deliveries to subscriptions with selectors take a part of each round of the event loop, and no more."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.amqp.splitter import Sink
from gateway.config.addresses import BrokerUrl
from gateway.config.model import Logging
from gateway.pieces import Body
from gateway.server.broker.channel import ignore_confirm
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.link import Link
from gateway.server.broker.paced_deliveries import PacedDeliveries
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork

ROUTE, PROPERTIES = b"\0\1q", b"\0\0"


class _Clock:
    """A quarter of a millisecond passes with each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.00025
        return self.now


class _Link:
    """Whether it is read."""

    def __init__(self) -> None:
        self.is_read = True
        self.heartbeats = 0

    def pause_reading(self, reason: str) -> None:
        del reason
        self.is_read = False

    def resume_reading(self, reason: str) -> None:
        del reason
        self.is_read = True

    def feed_heartbeat(self) -> None:
        self.heartbeats += 1


class _Session:
    """Owner of a channel and the channel itself: notes what comes."""

    def __init__(self) -> None:
        self.number = 1
        self.got: list[tuple[int, bool, Body]] = []
        self.dropped: list[int] = []
        self.flushed = 0
        self.faults: list[Exception] = []

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        assert (route, properties) == (ROUTE, PROPERTIES)
        if body == b"bad":
            raise ValueError(tag)
        self.got.append((tag, redelivered, body))

    def deliver_alike(self, tag: int, bodies: list[bytes]) -> None:
        self.got += [(number, False, body) for number, body in enumerate(bodies, tag)]

    def drop(self, tag: int, *rest: object) -> None:
        del rest
        self.dropped.append(tag)

    @property
    def sink(self) -> Sink:
        return Sink(self.deliver, ignore_confirm, self, deliver_alike=self.deliver_alike)

    def flush_batch(self) -> None:
        self.flushed += 1

    def failed(self, error: Exception) -> None:
        self.faults.append(error)

    def link_lost(self, *lost: object) -> None:
        del lost


class _Read:
    """Deliveries of one link to some sessions."""

    def __init__(self, count: int = 1) -> None:
        self.link = _Link()
        self.deliveries = PacedDeliveries(self.link, PacedWork(_Clock()))
        self.sessions = [_Session() for _ in range(count)]
        self.sinks = [self.deliveries.sink_before(session, session.sink) for session in self.sessions]

    def deliver(self, *tags: int, to: int = 0, body: bytes = b"x", redelivered: bool = False) -> None:
        for tag in tags:
            self.sinks[to].deliver(tag, redelivered, ROUTE, PROPERTIES, body)

    async def done(self) -> None:
        """Nothing waits any more."""
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.link.is_read


async def test_what_a_round_has_no_time_for_waits_in_order_and_the_link_is_not_read() -> None:
    read = _Read()
    read.deliver(1, 2)
    assert (len(read.sessions[0].got), read.link.is_read) == (2, True)
    read.deliver(*range(3, 101))
    got, rounds = read.sessions[0].got, 0
    while not read.link.is_read:
        before, flushed = len(got), read.sessions[0].flushed
        assert before < 100
        await asyncio.sleep(0)
        rounds += 1
        assert len(got) - before < 10
        assert read.sessions[0].flushed == flushed + (len(got) > before)
    assert got == [(tag, False, b"x") for tag in range(1, 101)]
    assert rounds > 10
    # The AMQP library would take a link that is not read for dead.
    assert read.link.heartbeats > 10


async def test_a_fault_while_deliveries_are_handled_leaves_no_link_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link serves other sessions, too."""
    read = _Read()

    def fault() -> None:
        monkeypatch.undo()
        raise ValueError

    monkeypatch.setattr(read.link, "feed_heartbeat", fault)
    read.deliver(*range(1, 101))
    await read.done()
    assert [tag for tag, *_ in read.sessions[0].got] == list(range(1, 101))
    assert len(read.sessions[0].faults) == 1


async def test_messages_that_are_like_one_that_waits_wait_behind_it() -> None:
    read = _Read(2)
    read.deliver(*range(1, 11))
    read.deliver(11, redelivered=True)
    alike = read.sinks[0].deliver_alike
    assert alike is not None
    alike(12, [b"a", b"b"])
    read.deliver(1, to=1)
    assert (len(read.sessions[0].got) < 10, read.sessions[1].got) == (True, [])
    await read.done()
    expected = [(tag, False, b"x") for tag in range(1, 11)]
    assert read.sessions[0].got == [*expected, (11, True, b"x"), (12, True, b"a"), (13, True, b"b")]
    assert read.sessions[1].got == [(1, False, b"x")]


async def test_messages_that_are_like_one_that_was_delivered_are_delivered_together() -> None:
    read = _Read()
    read.deliver(1)
    alike = read.sinks[0].deliver_alike
    assert alike is not None
    alike(2, [b"a", b"b"])
    assert read.sessions[0].got == [(1, False, b"x"), (2, False, b"a"), (3, False, b"b")]


async def test_what_waits_goes_where_the_channel_delivers_now_or_nowhere() -> None:
    read = _Read(2)
    read.deliver(*range(1, 11))
    read.deliver(*range(1, 11), to=1)
    first, second = read.sessions
    waiting = list(range(len(first.got) + 1, 11))
    assert waiting
    assert not second.got
    # The client of the first takes no messages any more; the channel of the second is closed.
    read.deliveries.sink_before(first, Sink(first.drop, ignore_confirm, first))
    read.deliveries.forget(second)
    await read.done()
    assert (first.dropped, second.got) == (waiting, [])


async def test_a_fault_in_one_session_ends_that_one_only() -> None:
    read = _Read(2)
    read.deliver(*range(1, 11))
    read.deliver(11, body=b"bad")
    read.deliver(12)
    read.deliver(1, to=1)
    await read.done()
    first, second = read.sessions
    assert ([tag for tag, *_ in first.got], len(first.faults)) == (list(range(1, 11)), 1)
    assert (second.got, second.faults) == ([(1, False, b"x")], [])


async def test_what_waits_is_thrown_away_with_its_link() -> None:
    """The broker delivers it again, on another channel, with other tags."""
    whose = ClientProperties("select", "/", "guest")
    limits = LogLimits(Logging(), lambda: 0.0)
    link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, limits, PacedWork(_Clock()))
    session = _Session()
    cast(Any, link)._channels[1] = session
    link.register_sink(cast(Any, session), session.sink, is_paced=True)
    sink = link.splitter.sinks[1]
    for tag in range(1, 21):
        sink.deliver(tag, False, ROUTE, PROPERTIES, b"x")
    before = len(session.got)
    assert before < 20
    link.connection_lost(None, by_broker=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(session.got) == before
