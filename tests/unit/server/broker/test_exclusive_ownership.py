"""Who owns an exclusive queue on a link that sessions share: one session, until the queue is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link, LinkUser
from gateway.server.broker.login_links import LoginLinks
from gateway.server.broker.queue_declare import ExclusiveQueues, declare_or_accept
from gateway.session.delivery_ledger import AckMode
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription

MINE, AUTO = QueueSpec("mine", exclusive=True), QueueSpec("auto", exclusive=True, auto_delete=True)

# It is told of the loss of a link, of which there is none here.
SESSION = cast(LinkUser, None)


class SharedLink:
    """A link, and what its broker was asked on channels of their own."""

    is_full = is_draining = False

    def __init__(self) -> None:
        self.exclusive_queues: dict[str, ExclusiveQueues] = {}
        self.closed: UpstreamError | None = None
        self.asked: list[str] = []
        # What the broker answers to the next requests of a kind: a refusal.
        self.refusals: dict[str, UpstreamError] = {}

    @property
    def as_link(self) -> Link:
        return cast(Link, self)

    def ask(self, kind: str, name: str) -> None:
        self.asked.append(f"{kind} {name}")
        if kind in self.refusals:
            raise self.refusals[kind]


class Channel:
    def __init__(self, link: SharedLink) -> None:
        self._link = link

    async def declare_passive(self, name: str) -> None:
        self._link.ask("look for", name)

    async def declare(self, queue: QueueSpec) -> None:
        self._link.ask("declare", queue.name)

    async def delete_queue(self, name: str) -> None:
        self._link.ask("delete", name)

    def start_closing(self) -> None:
        """Its end is not waited for."""


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SharedLink:
    @asynccontextmanager
    async def opened(link: SharedLink) -> AsyncIterator[Channel]:
        yield Channel(link)

    monkeypatch.setattr(LinkChannel, "opened", opened)
    monkeypatch.setattr(LinkChannel, "begun", Channel)
    return SharedLink()


async def declared(queues: ExclusiveQueues, link: SharedLink, queue: QueueSpec, name: str = "") -> str:
    async def declare(spec: QueueSpec) -> str:
        link.ask("claim", spec.name)
        return name or spec.name

    return await queues.declare(queue, link.as_link, declare)


def of_session() -> ExclusiveQueues:
    settings = VirtualHost.model_validate({"name": "/"})
    return ExclusiveQueues(SESSION, lambda: LoginLinks(settings, Credentials("guest", "guest"), _no_link))


async def _no_link(*whose: object) -> Link:
    raise AssertionError("the link has room")


def subscription() -> Subscription:
    return Subscription(b"T_1", b"1", AckMode.AUTO, b"s")


async def test_a_queue_belongs_to_the_session_that_declared_it_until_that_ends(link: SharedLink) -> None:
    owner, other = of_session(), of_session()
    assert await declared(owner, link, MINE) == "mine"
    assert await declared(owner, link, MINE) == "mine"
    assert (owner.link_of("mine"), other.link_of("mine")) == (link.as_link, None)
    assert (owner.has_any(link.as_link), other.has_any(link.as_link)) == (True, False)
    with pytest.raises(UpstreamError) as refused:
        await declared(other, link, MINE)
    assert refused.value.code == 405
    assert link.asked == ["claim mine", "claim mine", "look for mine"]
    assert refused.value.text == (
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )
    owner.start_closing()
    waiting = asyncio.ensure_future(declared(other, link, MINE))
    await asyncio.sleep(0)
    assert not waiting.done()
    await owner.delete()
    assert await waiting == "mine"
    assert link.exclusive_queues == {"mine": other}


async def test_a_session_that_ends_leaves_no_queue(link: SharedLink) -> None:
    queues = of_session()
    await declared(queues, link, MINE)
    assert await declared(queues, link, QueueSpec("", exclusive=True), "amq.gen-1") == "amq.gen-1"
    link.asked.clear()
    await queues.delete()
    # One whose name the broker chose cannot be declared again.
    assert link.asked == ["declare mine", "delete mine", "delete amq.gen-1"]
    assert link.exclusive_queues == {}
    assert not queues.has_any(link.as_link)


async def test_a_queue_of_another_connection_is_not_deleted_and_the_others_are(link: SharedLink) -> None:
    queues = of_session()
    for name in ("a", "b"):
        await declared(queues, link, QueueSpec(name, exclusive=True))
    link.asked.clear()
    link.refusals["declare"] = UpstreamError(405, "RESOURCE_LOCKED")
    await queues.delete()
    assert link.asked == ["declare a", "declare b"]
    assert link.exclusive_queues == {}


async def test_a_lost_link_is_asked_for_nothing(link: SharedLink) -> None:
    queues = of_session()
    await declared(queues, link, MINE)
    link.asked.clear()
    link.closed = UpstreamError(320, "")
    await queues.delete()
    assert link.asked == []


async def test_a_queue_that_has_gone_unnoticed_is_free(link: SharedLink) -> None:
    owner, other = of_session(), of_session()
    await declared(owner, link, MINE)
    link.refusals["look for"] = UpstreamError(404, "NOT_FOUND")
    assert await declared(other, link, MINE) == "mine"
    assert link.exclusive_queues == {"mine": other}
    # The old owner knows that it has nothing more.
    assert owner.link_of("mine") is None
    await owner.delete()
    assert link.exclusive_queues == {"mine": other}


@pytest.mark.parametrize("refusal", [UpstreamError(405, "LOCKED"), UpstreamError(403, "REFUSED")])
async def test_a_queue_that_may_not_be_looked_at_is_there(link: SharedLink, refusal: UpstreamError) -> None:
    await declared(of_session(), link, MINE)
    link.refusals["look for"] = refusal
    with pytest.raises(UpstreamError, match="RESOURCE_LOCKED"):
        await declared(of_session(), link, MINE)


async def test_a_link_that_is_lost_meanwhile_is_no_answer(link: SharedLink) -> None:
    await declared(of_session(), link, MINE)
    link.refusals["look for"] = LinkDownError(404, "gone")
    with pytest.raises(LinkDownError):
        await declared(of_session(), link, MINE)


async def test_two_that_want_one_name_at_once_get_it_one_after_the_other(link: SharedLink) -> None:
    first, second = of_session(), of_session()
    answer = asyncio.get_running_loop().create_future()

    async def slow(queue: QueueSpec) -> str:
        return str(await answer)

    one = asyncio.ensure_future(first.declare(MINE, link.as_link, slow))
    await asyncio.sleep(0)
    two = asyncio.ensure_future(declared(second, link, MINE))
    await asyncio.sleep(0)
    assert not two.done()
    answer.set_exception(UpstreamError(406, "PRECONDITION_FAILED"))
    with pytest.raises(UpstreamError, match="PRECONDITION"):
        await one
    assert await two == "mine"
    assert first.link_of("mine") is None


async def test_a_declaration_that_is_cancelled_may_have_made_the_queue(link: SharedLink) -> None:
    queues = of_session()

    async def never(queue: QueueSpec) -> str:
        await asyncio.Event().wait()
        return ""

    task = asyncio.ensure_future(queues.declare(MINE, link.as_link, never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await queues.delete()
    assert link.asked == ["declare mine", "delete mine"]


async def test_a_lost_link_takes_its_queues_and_those_with_a_name_may_come_back(link: SharedLink) -> None:
    queues, another = of_session(), SharedLink()
    await declared(queues, link, MINE)
    await declared(queues, link, QueueSpec("", exclusive=True), "amq.gen-1")
    await declared(queues, another, AUTO)
    assert queues.link_lost(link.as_link) == [MINE]
    assert (link.exclusive_queues, another.exclusive_queues) == ({}, {"auto": queues})
    assert queues.link_lost(link.as_link) == []


async def test_an_auto_delete_queue_goes_with_its_last_consumer_and_others_stay(link: SharedLink) -> None:
    queues, one, two, three = of_session(), subscription(), subscription(), subscription()
    await declared(queues, link, MINE)
    await declared(queues, link, AUTO)
    for consumer, name in ((one, "auto"), (two, "auto"), (three, "mine")):
        queues.consumed(consumer, name)
    queues.consumer_closed(one)
    assert queues.link_of("auto") is link.as_link
    queues.consumer_closed(two)
    queues.consumer_closed(three)
    assert (queues.link_of("auto"), queues.link_of("mine")) == (None, link.as_link)


async def test_a_consumer_that_the_broker_cancels_has_lost_its_queue(link: SharedLink) -> None:
    queues, one, stranger = of_session(), subscription(), subscription()
    await declared(queues, link, MINE)
    queues.consumed(one, "mine")
    queues.consumed(stranger, "shared with others")
    queues.consumer_cancelled(stranger)
    assert queues.link_of("mine") is link.as_link
    queues.consumer_cancelled(one)
    assert link.exclusive_queues == {}


async def test_an_auto_delete_queue_whose_consumers_are_gone_is_not_made_again_to_be_deleted(link: SharedLink) -> None:
    queues = of_session()
    await declared(queues, link, AUTO)
    queues.consumed(subscription(), "auto")
    link.asked.clear()
    await queues.delete()
    assert link.asked == []


@pytest.mark.parametrize(
    ("code", "looked", "outcome"),
    [(406, None, "accepted"), (406, 404, "refused"), (403, None, "refused"), (0, None, "declared")],
)
async def test_only_a_queue_that_is_there_can_be_taken_as_it_is(
    link: SharedLink, code: int, looked: int | None, outcome: str
) -> None:
    if looked is not None:
        link.refusals["look for"] = UpstreamError(looked, "NOT_FOUND")

    async def declare(channel: LinkChannel) -> None:
        await channel.declare(MINE)
        if code:
            raise UpstreamError(code, "differs")

    try:
        found = await declare_or_accept(MINE, link.as_link, declare)
    except UpstreamError:
        assert outcome == "refused"
    else:
        assert outcome == ("declared" if found is None else "accepted")
        assert found is None or found.text == "differs"
    assert link.asked[0] == "declare mine"


async def test_of_two_that_wait_for_a_name_the_second_is_refused_when_the_first_has_it(link: SharedLink) -> None:
    first, second, third = of_session(), of_session(), of_session()
    answer = asyncio.get_running_loop().create_future()

    async def slow(queue: QueueSpec) -> str:
        return str(await answer)

    one = asyncio.ensure_future(first.declare(MINE, link.as_link, slow))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(declared(each, link, MINE)) for each in (second, third)]
    await asyncio.sleep(0)
    answer.set_exception(UpstreamError(406, "PRECONDITION_FAILED"))
    outcomes = await asyncio.gather(one, *waiting, return_exceptions=True)
    assert [getattr(each, "code", each) for each in outcomes] == [406, "mine", 405]
    assert link.exclusive_queues == {"mine": second}


async def test_what_is_gone_already_is_forgotten_once(link: SharedLink) -> None:
    owner, other, consumer = of_session(), of_session(), subscription()
    owner.forget("never there")
    await declared(owner, link, AUTO)
    owner.consumed(consumer, "auto")
    owner.link_lost(link.as_link)
    owner.consumer_closed(consumer)
    await declared(owner, link, MINE)
    # The name is another session's by now.
    link.exclusive_queues["mine"] = other
    owner.forget("mine")
    assert link.exclusive_queues == {"mine": other}
