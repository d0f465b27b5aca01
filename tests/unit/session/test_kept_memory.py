"""What large headers leave behind: nothing, since one message may reach thousands of subscriptions."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pamqp.frame
import pytest
from pamqp import body, commands, header

from gateway.amqp.splitter import Sink, Splitter
from gateway.pieces import Body, joined
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import PendingAutoAcks, Subscription
from tests.support.playbook import Playbook, stomp

_LARGE = 60_000


@contextmanager
def _kept() -> Iterator[list[int]]:
    """The bytes that are allocated within and not freed."""
    kept: list[int] = []
    _ = gc.collect()
    tracemalloc.start()
    try:
        yield kept
        _ = gc.collect()
        kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def _message(tag: int) -> bytes:
    properties = commands.Basic.Properties(headers={"h": "x" * _LARGE})
    frames = (
        commands.Basic.Deliver("s1", tag, False, "amq.topic", "t"),
        header.ContentHeader(0, 1, properties),
        body.ContentBody(b"b"),
    )
    return b"".join(pamqp.frame.marshal(frame, 1) for frame in frames)


def test_a_delivery_with_large_headers() -> None:
    splitter, output = Splitter(lambda *_: None), list[Body]()
    splitter.frame_max = 131_072
    subscription = Subscription(b"T_1", b"1", AckMode.AUTO, b"session-1", destination=b"/topic/t")
    subscription.set_channel(1)
    subscription.start(output, PendingAutoAcks())
    alike = subscription.deliver_alike
    splitter.register(1, Sink(subscription.deliver, lambda *_: None, None, deliver_alike=alike))
    messages = [_message(tag) for tag in (1, 2, 3)]
    with _kept() as kept:
        for message in messages:
            assert splitter.receive(message) == b""
            assert len(joined(output)) > _LARGE
            output.clear()
    assert kept[0] < 5000


@pytest.mark.parametrize("sends", [1, 3])
def test_a_large_receipt(sends: int) -> None:
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/topic/t", "receipt:first", body="x")
    play.prepare()
    play.published()
    play.confirm(1)
    frames = [stomp("SEND", "destination:/topic/t", f"receipt:{n}{'r' * _LARGE}", body="x") for n in range(sends)]
    play.said()
    with _kept() as kept:
        for frame in frames:
            play.data(frame)
            play.session.publisher.output.take()
        for number in range(sends):
            play.confirm(2 + number)
        assert len(joined(play.session.output)) > sends * _LARGE
        play.session.output.clear()
    assert kept[0] < 20_000
