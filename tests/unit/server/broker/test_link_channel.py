"""A channel of a link: what is sent at once, whose answer is whose, and when its number is free again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pamqp.frame
import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.amqp.methods import read_method
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link, Tuning
from gateway.session.queues import QueueSpec

NOT_FOUND = commands.Channel.Close(404, "NOT_FOUND - no exchange", 50, 20)


class _Link:
    """The socket side of a link: it keeps what is written."""

    def __init__(self) -> None:
        self.closed: LinkDownError | None = None
        self.tuning = Tuning()
        self.written = b""
        self.removed = 0

    def add_channel(self, channel: LinkChannel) -> int:
        return 7

    def remove_channel(self, channel: LinkChannel) -> None:
        self.removed += 1

    def write(self, data: bytes) -> None:
        self.written += data

    def write_method(self, data: bytes) -> None:
        self.written += data

    @property
    def methods(self) -> list[str]:
        names, data = [], self.written
        while data:
            size, channel, frame = pamqp.frame.unmarshal(data)
            assert channel == 7
            names.append(str(frame.name))
            data = data[size:]
        return names


@pytest.fixture
def link() -> _Link:
    return _Link()


def _begun(link: _Link) -> LinkChannel:
    return LinkChannel.begun(cast(Link, link))


def _tell(channel: LinkChannel, *frames: Frame) -> None:
    """The broker sends methods."""
    for frame in frames:
        channel.receive(frame.index, read_method(frame.index, pamqp.frame.marshal(frame, 7)))


async def test_what_a_subscription_needs_is_sent_before_the_first_answer(link: _Link) -> None:
    channel = _begun(link)
    channel.limit(5)
    _ = channel.declare(QueueSpec("q"), nowait=True)
    _ = channel.consume("q", {}, ("amq.topic", "key"))
    assert link.methods == ["Channel.Open", "Basic.Qos", "Queue.Declare", "Basic.Consume", "Queue.Bind"]


async def test_the_answer_to_the_last_method_is_that_of_those_with_nowait_before_it(link: _Link) -> None:
    channel = _begun(link)
    name = channel.declare(QueueSpec("q"), nowait=True)
    consuming = channel.consume("q", {}, ("amq.topic", "key"))
    _tell(channel, commands.Channel.OpenOk())
    assert not name.done()
    _tell(channel, commands.Queue.BindOk())
    assert await asyncio.wait_for(name, 1) == "q"
    await asyncio.wait_for(cast("asyncio.Future[object]", consuming), 1)


async def test_a_consume_ok_may_come_behind_the_answer_to_a_later_method(link: _Link) -> None:
    channel = _begun(link)
    name = channel.declare(QueueSpec(""))
    consuming = channel.consume("q", {})
    marked = channel.ask()
    _tell(
        channel,
        commands.Channel.OpenOk(),
        commands.Queue.DeclareOk("amq.gen-1", 0, 0),
        commands.Basic.QosOk(),
        commands.Basic.ConsumeOk("s7"),
    )
    assert await name == "amq.gen-1"
    await asyncio.wait_for(marked, 1)
    await asyncio.wait_for(cast("asyncio.Future[object]", consuming), 1)


async def test_a_refusal_is_for_the_method_and_for_those_behind_it(link: _Link) -> None:
    channel = _begun(link)
    told: list[UpstreamError] = []
    channel.on_closed = told.append
    name = channel.declare(QueueSpec("q"), nowait=True)
    consuming = channel.consume("q", {}, ("nowhere", "key"))
    _tell(channel, commands.Channel.OpenOk(), NOT_FOUND)
    assert await name == "q"
    with pytest.raises(UpstreamError, match="NOT_FOUND"):
        await consuming
    with pytest.raises(UpstreamError, match="NOT_FOUND"):
        await channel.declare_passive("q")
    assert link.methods[-1] == "Channel.CloseOk"
    assert (told, link.removed) == ([], 1)


@pytest.mark.parametrize(("refused", "is_declared"), [((50, 10), False), ((60, 20), True)])
async def test_a_queue_is_declared_if_a_later_method_is_refused(
    link: _Link, refused: tuple[int, int], is_declared: bool
) -> None:
    channel = _begun(link)
    name = channel.declare(QueueSpec("q"), nowait=True)
    consuming = channel.consume("q", {}, ("amq.topic", "key"))
    _tell(channel, commands.Channel.OpenOk(), commands.Channel.Close(403, "ACCESS_REFUSED", *refused))
    with contextlib.nullcontext() if is_declared else pytest.raises(UpstreamError):
        assert await name == "q"
    with pytest.raises(UpstreamError, match="ACCESS_REFUSED"):
        await consuming


async def test_a_close_that_nobody_waits_for_is_for_the_owner(link: _Link) -> None:
    channel = _begun(link)
    told: list[UpstreamError] = []
    channel.on_closed = told.append
    _tell(channel, commands.Channel.OpenOk())
    _tell(channel, NOT_FOUND)
    assert [error.code for error in told] == [404]


async def test_the_number_is_free_when_the_broker_has_answered(link: _Link) -> None:
    """Both sides may close at once: the broker still answers, and the answer must not reach another channel."""
    channel = _begun(link)
    _tell(channel, commands.Channel.OpenOk())
    closing = asyncio.ensure_future(channel.close())
    await asyncio.sleep(0)
    _tell(channel, NOT_FOUND)
    assert link.removed == 0
    _tell(channel, commands.Channel.CloseOk())
    await asyncio.wait_for(closing, 1)
    assert link.removed == 1


async def test_a_caller_that_gives_up_leaves_the_answer_to_others(link: _Link) -> None:
    channel = _begun(link)
    _tell(channel, commands.Channel.OpenOk())
    first, second = asyncio.ensure_future(channel.close()), asyncio.ensure_future(channel.close())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    _tell(channel, commands.Channel.CloseOk())
    await asyncio.wait_for(second, 1)
    assert link.methods.count("Channel.Close") == 1


async def test_a_lost_link_answers_every_call(link: _Link) -> None:
    channel = _begun(link)
    consuming = channel.consume("q", {})
    channel.link_lost(LinkDownError(CONNECTION_FORCED, "gone"))
    with pytest.raises(LinkDownError, match="gone"):
        await consuming


@pytest.mark.parametrize(("wants", "answers"), [(True, ["Basic.CancelOk"]), (False, [])])
async def test_a_cancelled_consumer_is_confirmed_where_the_broker_wants_it(
    link: _Link, wants: bool, answers: list[str]
) -> None:
    link.tuning = Tuning(wants_cancel_ok=wants)
    channel = _begun(link)
    cancelled: list[bool] = []
    channel.on_cancelled = lambda: cancelled.append(True)
    _tell(channel, commands.Basic.Cancel("s7", True))
    assert link.methods == ["Channel.Open", *answers]
    assert cancelled == [True]


async def test_a_consumer_is_not_confirmed_as_cancelled_behind_the_close_of_its_channel(link: _Link) -> None:
    """To the broker that is a channel nobody has opened, for which it closes the connection."""
    link.tuning = Tuning(wants_cancel_ok=True)
    channel = _begun(link)
    _ = channel.delete_queue("q")
    _ = channel.start_closing()
    _tell(channel, commands.Basic.Cancel("s7", True))
    assert link.methods == ["Channel.Open", "Queue.Delete", "Channel.Close"]
