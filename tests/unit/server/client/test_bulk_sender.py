"""When a session sends much, and when it does not any more."""

from __future__ import annotations

import pytest

from gateway.server.client.bulk_sender import BulkSender
from gateway.session.destinations import DestinationKind
from gateway.session.traffic import SessionTraffic, TrafficCounter

LITTLE, MANY, LARGE = (99, 1000), (100, 1000), (1, 256 << 10)


class Sending:
    """A session that has published before."""

    def __init__(self) -> None:
        traffic = SessionTraffic()
        self.counter = traffic.sends.setdefault((b"/topic/t", DestinationKind.TOPIC), TrafficCounter(50_000, 5 << 30))
        self.sender = BulkSender(traffic)

    def publish(self, messages: int, size: int) -> None:
        self.counter.published += messages
        self.counter.published_bytes += size

    def held(self, *times: tuple[float, float], sends: tuple[int, int] = MANY) -> list[bool]:
        """Send, and be held from and to these times; whether it should move after each of them."""
        answers = []
        for begin, end in times:
            self.publish(*sends)
            answers.append(self.sender.window_full(begin))
            self.sender.window_open(end)
        return answers


@pytest.mark.parametrize(
    ("times", "moves"),
    [
        ([(1.0, 1.049), (1.06, 1.07)], [False, False]),
        ([(1.0, 1.051), (1.06, 1.07)], [False, True]),
        ([(1.0, 1.03), (1.5, 1.53), (2.5, 2.6)], [False, False, True]),
        ([(1.0, 1.2), (2.21, 2.4), (3.5, 3.6)], [False, False, False]),
    ],
    ids=["shortly", "long", "often", "with pauses"],
)
def test_a_session_that_sends_again_when_it_was_held_for_long_sends_much(
    times: list[tuple[float, float]], moves: list[bool]
) -> None:
    assert Sending().held(*times) == moves


@pytest.mark.parametrize(("sends", "moves"), [(LITTLE, False), (MANY, True), (LARGE, True)])
def test_one_that_only_waits_for_others_does_not_send_much(sends: tuple[int, int], moves: bool) -> None:
    assert Sending().held((1.0, 2.0), (2.1, 3.0), sends=sends) == [False, moves]


def test_it_moves_only_every_few_seconds() -> None:
    times = (1.0, 2.0), (2.0, 3.0), (3.1, 4.0), (4.1, 6.9), (7.1, 7.2)
    assert Sending().held(*times) == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("messages", "size", "calm"), [(999, 1 << 20, True), (1000, 10, False), (10, 4 << 20, False), (0, 0, True)]
)
def test_it_is_calm_after_five_seconds_with_little(messages: int, size: int, calm: bool) -> None:
    sending, looks = Sending(), list[bool]()
    for _ in range(5):
        sending.publish(messages, size)
        looks.append(sending.sender.is_calm())
    assert looks == [False, False, False, False, calm]


def test_one_that_is_still_held_is_not_calm() -> None:
    sender, looks = Sending().sender, list[bool]()
    for number in range(7):
        if number == 1:
            sender.window_full_again()
        looks.append(sender.is_calm())
    assert looks == [False] * 5 + [True] * 2
