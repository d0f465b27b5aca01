"""The publish window: who floods waits for its turn, who sends little does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from gateway.server.broker.link import Link
from gateway.server.broker.publish_window import PublishWindow

LARGE, SMALL = 200 << 10, 100


class FakeChannel:
    """Answers a marker when the test says so."""

    asked: list[asyncio.Future[object]]
    closed: Exception | None = None

    @classmethod
    def begun(cls, link: object) -> FakeChannel:
        cls.asked = []
        return cls()

    def ask(self) -> asyncio.Future[object]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


class User:
    """A session that publishes."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name = name
        self.turns = turns
        self.is_held = False

    def window_full(self) -> None:
        self.is_held = True

    def window_open(self) -> None:
        self.is_held = False
        self.turns.append(self.name)

    def failed(self, error: Exception) -> None:
        raise error


class FakeLink:
    """A link with some users."""

    def __init__(self, *users: User) -> None:
        self.users = Counter(users)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("gateway.server.broker.publish_window.LinkChannel", FakeChannel)
    return []


def _window(*users: User) -> PublishWindow:
    return PublishWindow(cast(Link, FakeLink(*users)), lambda: 0.0)


async def _answer(number: int = 0) -> None:
    FakeChannel.asked.pop(number).set_result(None)
    await asyncio.sleep(0)


async def test_a_session_that_floods_waits_for_the_broker_and_one_that_sends_little_does_not(turns: list[str]) -> None:
    flooder, neighbour = User("flooder", turns), User("neighbour", turns)
    window = _window(flooder, neighbour)
    window.published(flooder, LARGE)
    window.published(neighbour, SMALL)
    assert (flooder.is_held, neighbour.is_held) == (True, False)
    await _answer()
    assert not flooder.is_held


async def test_sessions_that_flood_take_turns_in_their_order(turns: list[str]) -> None:
    users = [User(name, turns) for name in "abc"]
    window = _window(*users)
    for user in users:
        window.published(user, LARGE)
    for _ in users:
        await _answer()
    assert turns == ["a", "b", "c"]


async def test_who_is_about_to_send_much_waits_while_the_window_is_full(turns: list[str]) -> None:
    users = [User(name, turns) for name in "ab"]
    window = _window(*users)
    held = []
    window.hold_if_full(users[1])
    held.append(users[1].is_held)
    window.published(users[0], LARGE)
    window.hold_if_full(users[1])
    held.append(users[1].is_held)
    await _answer()
    assert (held, turns) == ([False, True], ["a", "b"])


async def test_a_window_that_has_shrunk_under_what_is_on_its_way_opens_again(turns: list[str]) -> None:
    """A session alone on its link may have more on its way than is marked once another one has joined."""
    users = [User(name, turns) for name in "ab"]
    link = FakeLink(users[0])
    window = PublishWindow(cast(Link, link), lambda: 0.0)
    window.published(users[0], LARGE)
    link.users[users[1]] += 1
    window.hold_if_full(users[1])
    assert users[1].is_held
    await _answer()
    assert turns == ["b"]


async def test_many_small_messages_together_wait_too(turns: list[str]) -> None:
    users = [User("a", turns), User("b", turns)]
    window = _window(*users)
    for _ in range(10_000):
        if not users[0].is_held:
            window.published(users[0], SMALL)
    assert users[0].is_held


async def test_a_session_that_is_gone_gets_no_turn(turns: list[str]) -> None:
    users = [User("a", turns), User("b", turns)]
    window = _window(*users)
    for user in users:
        window.published(user, LARGE)
    window.forget(users[0])
    await _answer()
    await _answer()
    assert turns == ["b"]


async def test_a_session_alone_on_its_link_may_have_more_on_its_way(turns: list[str]) -> None:
    user = User("a", turns)
    window = _window(user)
    window.published(user, LARGE)
    assert not user.is_held
    for _ in range(10):
        window.published(user, LARGE)
    assert user.is_held


async def test_a_channel_for_markers_that_the_broker_has_closed_is_replaced_and_not_counted(turns: list[str]) -> None:
    user = User("a", turns)
    window = _window(user, User("b", turns))
    window.published(user, LARGE)
    counts = [window.channels]
    cast(Any, window._channel).closed = OSError("closed")
    counts.append(window.channels)
    await _answer()
    window.published(user, LARGE)
    assert [*counts, window.channels] == [1, 0, 1]


async def test_a_lost_link_holds_nobody(turns: list[str]) -> None:
    users = [User("a", turns), User("b", turns)]
    window = _window(*users)
    for user in users:
        window.published(user, LARGE)
    for asked in FakeChannel.asked:
        asked.set_exception(OSError("lost"))
        asked.exception()
    await asyncio.sleep(0)
    assert not [user for user in users if user.is_held]


async def test_the_window_grows_up_to_four_megabytes_while_the_broker_is_quick(turns: list[str]) -> None:
    users = [User("a", turns), User("b", turns)]
    window = _window(*users)
    for _ in range(100):
        while not users[0].is_held:
            window.published(users[0], LARGE)
        while FakeChannel.asked:
            await _answer()
    published = 0
    while not users[0].is_held:
        window.published(users[0], SMALL << 10)
        published += SMALL << 10
    assert 3 << 20 < published <= (4 << 20) + (SMALL << 10)


class Timed:
    """A window of two users, on a clock that is set by hand; markers come back after so long."""

    def __init__(self, turns: list[str], start: float = 100.0) -> None:
        self.now = start
        self.user, self.other = User("a", turns), User("b", turns)
        self.window = PublishWindow(cast(Link, FakeLink(self.user, self.other)), lambda: self.now)

    async def answer(self, after: float) -> None:
        """The broker answers all markers, the last ones first: only the last answer makes room."""
        self.now += after
        while FakeChannel.asked:
            await _answer(-1)

    async def room(self) -> int:
        """How many bytes may be on their way, in kilobytes; they come back neither quickly nor slowly."""
        published = 0
        while not self.user.is_held:
            self.window.published(self.user, 9 << 10)
            published += 9
        await self.answer(0.02)
        return published - 9

    async def flood(self, after: float) -> None:
        """One marker, with a session that waits for it."""
        self.window.published(self.user, 8 << 20)
        await self.answer(after)


async def test_the_window_becomes_larger_by_a_quarter_with_each_quick_answer_that_somebody_waits_for(
    turns: list[str],
) -> None:
    timed = Timed(turns)
    assert 128 - 9 < await timed.room() <= 128
    await timed.flood(0.005)
    assert 160 - 9 < await timed.room() <= 160
    await timed.flood(0.005)
    assert 200 - 9 < await timed.room() <= 200
    # Nobody waits: the window was large enough.
    timed.window.published(timed.user, 60 << 10)
    await timed.answer(0.005)
    assert 200 - 9 < await timed.room() <= 200


@pytest.mark.parametrize(("after", "room"), [(0.01, 128), (0.025, 128), (0.0251, 96), (0.0099, 160)])
async def test_what_is_quick_and_what_is_slow(turns: list[str], after: float, room: int) -> None:
    timed = Timed(turns, 0.0)
    await timed.flood(after)
    assert room - 9 < await timed.room() <= room


async def test_the_window_becomes_smaller_by_a_quarter_with_each_slow_answer_and_keeps_its_least(
    turns: list[str],
) -> None:
    timed = Timed(turns)
    rooms = []
    for _ in range(8):
        timed.window.published(timed.user, 60 << 10)
        await timed.answer(0.03)
        rooms.append(await timed.room())
    # Rounded down to nine kilobytes.
    assert rooms[:4] == [90, 72, 54, 36]
    assert rooms[-1] == 27


async def test_an_answer_that_makes_no_room_gives_no_turn(turns: list[str]) -> None:
    timed = Timed(turns)
    for _ in range(3):
        timed.window.published(timed.user, LARGE)
    FakeChannel.asked.pop(0).set_result(None)
    await asyncio.sleep(0)
    assert turns == []
    await timed.answer(0.02)
    assert turns


async def test_a_session_whose_turn_is_a_fault_takes_nobody_elses(turns: list[str]) -> None:
    faults: list[Exception] = []

    class Faulty(User):
        def window_open(self) -> None:
            raise ValueError("a fault")

        def failed(self, error: Exception) -> None:
            faults.append(error)

    users = [Faulty("a", turns), User("b", turns)]
    window = _window(*users)
    for user in users:
        window.published(user, LARGE)
    while FakeChannel.asked:
        await _answer()
    assert [str(each) for each in faults] == ["a fault"]
    assert turns == ["b"]


async def test_the_bounds_are_exact(turns: list[str]) -> None:
    timed = Timed(turns)
    window, piece = timed.window, 8 << 10
    for _ in range(4):
        window.published(timed.user, piece)
    assert len(FakeChannel.asked) == 0
    window.published(timed.user, piece)
    assert len(FakeChannel.asked) == 1
    # Who sends little passes until the window is full four times over.
    for _ in range(64 - 5):
        window.published(timed.user, piece)
    held = [timed.user.is_held]
    window.published(timed.user, 1)
    held.append(timed.user.is_held)
    await timed.answer(0.02)
    assert ([*held, timed.user.is_held], window._in_flight) == ([False, True, False], 0)


async def test_room_is_there_as_soon_as_the_window_is_not_more_than_full(turns: list[str]) -> None:
    timed = Timed(turns)
    timed.window.published(timed.other, 128 << 10)
    timed.window.published(timed.user, 10 << 10)
    held = [timed.other.is_held, timed.user.is_held]
    # Neither quick nor slow, so the window stays as it is.
    timed.now += 0.02
    await _answer(-1)
    assert [*held, timed.user.is_held] == [False, True, False]
    await timed.answer(0.02)
