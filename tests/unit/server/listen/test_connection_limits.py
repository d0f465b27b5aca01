"""The connections of a listener, counted from the accept to the close, and by address until the login."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import structlog

from gateway.config.loader import parse
from gateway.server.counts import Counts
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.connection_limits import ConnectionLimits, TooManyConnectionsError
from gateway.server.log_limits import LogRateLimiter
from gateway.server.stats import Refusal

HERE, THERE = Peer("192.0.2.1", 1000), Peer("192.0.2.2", 1000)


class Door:
    """The limits of one listener."""

    def __init__(self, **settings: int) -> None:
        more = "".join(f", {name}: {value}" for name, value in settings.items())
        self.settings = parse(f"listeners: [{{tcp: '127.0.0.1:0'{more}}}]", environment={}).listeners[0]
        self.refused = Counter[str]()
        self.counts = Counts()
        self.limits = ConnectionLimits("127.0.0.1:1", LogRateLimiter(lambda: 0.0), self.refused, self.counts)

    def enter(self, peer: Peer = HERE) -> AcceptedConnection:
        accepted = self.limits.accept(self.settings, peer, 12.5)
        self.limits.admit(self.settings, accepted)
        return accepted


def test_a_connection_beyond_the_listeners_is_refused_until_another_closes() -> None:
    door = Door(max_connections=2)
    first, _ = door.enter(), door.enter(THERE)
    assert (first.peer, first.accepted_at) == (HERE, 12.5)
    with structlog.testing.capture_logs() as lines, pytest.raises(TooManyConnectionsError) as refused:
        door.enter()
    assert (refused.value.whose, refused.value.most) == ("The listener", 2)
    assert str(refused.value) == "The listener has 2 connections"
    (line,) = lines
    assert (line["event"], line["address"], line["whose"], line["most"]) == (
        "too many connections", "127.0.0.1:1", "The listener", 2,
    )  # fmt: skip
    assert (door.refused, door.counts.total(("", ""))) == ({Refusal.LISTENER: 1}, 2)
    first.on_closed()
    assert door.counts.total(("", "")) == 1
    door.enter()


def test_a_connection_beyond_those_of_its_address_is_refused_until_another_logs_in_or_closes() -> None:
    door = Door(max_unauthenticated_per_address=2)
    first, second = door.enter(), door.enter(replace(HERE, port=1001))
    door.enter(THERE)
    for leave in (partial(first.on_login, False), second.on_closed):
        with pytest.raises(TooManyConnectionsError) as refused:
            door.enter()
        assert (refused.value.whose, refused.value.most) == ("The address 192.0.2.1", 2)
        leave()
        door.enter()
    assert door.refused == {Refusal.ADDRESS: 2}


def test_a_connection_beyond_those_of_its_address_is_refused_also_if_all_have_logged_in() -> None:
    door = Door(max_connections_per_address=2)
    first, second = door.enter(), door.enter(Peer("::ffff:192.0.2.1", 1001))
    for each in (first, second):
        each.on_login(False)
    with pytest.raises(TooManyConnectionsError) as refused:
        door.enter()
    assert (refused.value.whose, refused.value.most) == ("The address 192.0.2.1", 2)
    door.enter(THERE)
    second.on_closed()
    door.enter()
    assert door.refused == {Refusal.ADDRESS: 1}


def test_a_limit_for_an_address_that_comes_later_counts_from_then_on() -> None:
    door = Door()
    early = door.enter()
    door.settings = door.settings.model_copy(update={"max_connections_per_address": 1})
    second = door.enter()
    early.on_closed()
    with pytest.raises(TooManyConnectionsError):
        door.enter()
    second.on_closed()
    door.enter()


def test_a_connection_gives_its_place_back_once() -> None:
    door = Door(max_unauthenticated_per_address=2)
    first = door.enter()
    log_in = partial(first.on_login, True)
    for leave in (log_in, log_in, first.on_closed, first.on_closed, log_in):
        leave()
    # One that was never let in took no place.
    door.limits.accept(door.settings, HERE, 0).on_closed()
    for _ in range(2):
        door.enter()
    with pytest.raises(TooManyConnectionsError):
        door.enter()


def test_of_connections_that_are_gone_nothing_is_kept() -> None:
    door = Door(max_unauthenticated_per_address=2, max_connections_per_address=2)
    for _ in range(3):
        accepted = door.enter()
        accepted.on_login(False)
        accepted.on_closed()
        accepted.on_closed()
        door.limits.accept(door.settings, THERE, 0).on_closed()
    assert not door.counts._counts


@pytest.mark.parametrize("host", ["192.0.2.1", ""])
def test_a_connection_counts_for_its_address_until_it_is_closed_also_if_that_is_not_known(host: str) -> None:
    door, peer = Door(max_unauthenticated_per_address=1), Peer(host, 1)
    first = door.enter(peer)
    with pytest.raises(TooManyConnectionsError):
        door.enter(peer)
    door.enter(THERE)
    first.on_closed()
    second = door.enter(peer)
    second.on_login(False)
    door.enter(peer)
