"""The client-properties of links, which leave room for long credentials; their log lines; the end of a link."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from pamqp import commands, frame
from pamqp.common import FieldTable

from gateway.config.addresses import BrokerUrl
from gateway.config.model import Logging
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.link import Link, Tuning
from gateway.server.broker.publish_window import PublishWindow
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from tests.support.virtual_time import run_in_virtual_time

# What RabbitMQ takes in one frame before the login, and what of it the gateway promises to credentials.
_FRAME = 4096
_CREDENTIALS = 3000

# What the AMQP library adds.
_OF_THE_LIBRARY: FieldTable = {
    "capabilities": dict.fromkeys(
        ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
         "publisher_confirms"), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("letter", ["v", "ü", "\N{GRINNING FACE}"])
def test_long_credentials_fit_into_the_first_frame(letter: str) -> None:
    long = letter * 255
    peer = "[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
    client_properties = ClientProperties("consume", long, long, long, peer, "session-" + "x" * 22)
    properties: FieldTable = {**_OF_THE_LIBRARY, **client_properties.as_table()}
    response = "\0" + "x" * _CREDENTIALS + "\0"
    data = frame.marshal(commands.Connection.StartOk(properties, "PLAIN", response, "en_US"), 0)
    assert len(data) <= _FRAME


def test_a_shared_link_names_no_session() -> None:
    client_properties = ClientProperties("publish", "/", "guest", "gw")
    assert client_properties.connection_name == "stomp-gateway publish / guest"
    assert not [key for key in client_properties.as_table() if key.startswith("stomp_")]


async def test_a_client_that_opens_links_of_its_own_again_and_again_does_not_fill_the_log() -> None:
    now = 0.0
    limits = LogLimits(Logging(lines_per_address=3), lambda: now)

    def open_and_close(client: str) -> None:
        whose = ClientProperties("own", "/", "guest", "gw", client, "s")
        link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, limits, PacedWork())
        link.opened(cast(Any, None), cast(Any, object()), Tuning())
        link.connection_lost(None, by_broker=True)

    with structlog.testing.capture_logs() as lines:
        for port in range(10):
            open_and_close(f"[2001:db8::{port}]:{port + 1000}")
        open_and_close("192.0.2.1:1000")
        now += 11
        open_and_close("[2001:db8::1]:2000")
    assert [line["event"].removeprefix("link ") for line in lines] == [
        *("opened", "closed", "opened"), *("opened", "closed"), *("opened", "closed"),
    ]  # fmt: skip
    assert [line.get("left_out") for line in lines] == [None] * 5 + [17, None]
    assert limits.left_out == 17


class User:
    """A session. Each time that it is told something, a millisecond passes."""

    def __init__(self, clock: list[float]) -> None:
        self.lost: list[Link] = []
        self._clock = clock

    def link_lost(self, link: Link) -> None:
        self._clock[0] += 0.001
        self.lost.append(link)

    def failed(self, error: Exception) -> None:
        raise error


async def test_the_sessions_of_a_lost_link_learn_it_little_by_little_and_write_nothing_to_it_meanwhile() -> None:
    now, written = [0.0], list[bytes]()
    whose = ClientProperties("publish", "/", "guest")
    paced = PacedWork(lambda: now[0])
    link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, LogLimits(Logging(), lambda: 0.0), paced)
    link.opened(cast(Any, None), cast(Any, SimpleNamespace(transport=SimpleNamespace(write=written.append))), Tuning())
    users = [User(now) for _ in range(100)]
    for user in users:
        link.add_user(cast(Any, user))
    link.write(b"before")
    closed: list[Link] = []
    link.on_closed = closed.append
    link.connection_lost(None, by_broker=True)
    assert closed == [link]
    most_at_once, told = 0, 0
    for _ in range(1000):
        now_told = sum(bool(user.lost) for user in users)
        most_at_once, told = max(most_at_once, now_told - told), now_told
        if told == len(users):
            break
        link.write(b"after")
        await asyncio.sleep(0)
    assert [user.lost for user in users] == [[link]] * len(users)
    assert 1 <= most_at_once <= 10
    assert written == [b"before"]


async def test_the_channel_of_the_publish_window_is_nobodys_and_keeps_no_link_open() -> None:
    whose, limits = ClientProperties("publish", "/", "guest"), LogLimits(Logging(), lambda: 0.0)
    link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, limits, PacedWork())
    tap = SimpleNamespace(transport=SimpleNamespace(write=lambda _data: None))
    link.opened(cast(Any, object()), cast(Any, tap), Tuning(channel_max=9))
    link.window = window = PublishWindow(link, lambda: 0.0)
    window.published(cast(Any, User([0.0])), 300 << 10)
    assert (window.channels, link.channels, link.is_idle) == (1, 0, True)
    LinkChannel.begun(link)
    assert (link.channels, link.is_idle) == (1, False)


def test_a_link_closes_in_time_although_the_library_waits_for_ever() -> None:
    aborted: list[bool] = []

    async def waits_for_ever() -> None:
        """Also when it is cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    async def scene() -> None:
        whose = ClientProperties("own", "/", "guest", "gw", "client", "s")
        limits = LogLimits(Logging(), lambda: 0.0)
        link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, limits, PacedWork())
        transport = SimpleNamespace(abort=lambda: aborted.append(True))
        tap = SimpleNamespace(transport=transport, resume_reading=lambda reason: None)
        under = SimpleNamespace(connection=SimpleNamespace(close=waits_for_ever))
        connection = SimpleNamespace(transport=under, close=partial(asyncio.sleep, 0))
        link.opened(cast(Any, connection), cast(Any, tap), Tuning())
        await asyncio.wait_for(link.close(), 10)

    run_in_virtual_time(scene())
    assert aborted == [True]
