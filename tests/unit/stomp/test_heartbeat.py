import pytest

from gateway.stomp.heartbeat import HeartbeatMonitor, Heartbeats, negotiate


@pytest.mark.parametrize(
    ("header", "send", "expect", "answer"),
    [
        (None, 0, 0, b"0,0"),
        (b"0,0", 0, 0, b"0,0"),
        (b"1,1", 1, 1, b"1000,1000"),
        (b"999,999", 1, 1, b"1000,1000"),
        (b"1000,0", 0, 1, b"0,1000"),
        (b"0,1000", 1, 0, b"1000,0"),
        (b"2500,0", 0, 2, b"0,2000"),
        (b"1999,60999", 60, 1, b"60000,1000"),
        (b"-5,-1000", 0, 0, b"0,0"),
        (b"-1,1000", 1, 0, b"1000,0"),
        (b"007,00", 0, 1, b"0,1000"),
        (b"+2500,-0", 0, 2, b"0,2000"),
    ],
)
def test_intervals_are_whole_seconds_and_at_least_one(
    header: bytes | None, send: int, expect: int, answer: bytes
) -> None:
    agreed = negotiate(header)
    assert agreed == Heartbeats(send=send, expect=expect)
    assert agreed.header == answer


@pytest.mark.parametrize(
    "header",
    [
        b"", b",", b"1", b"1,", b",1", b"1,2,3", b"abc,1", b"1,abc", b" 1000,1000", b"1000, 1000", b"1000,1000 ",
        b"1000;1000", b"1.5,1", b"0x1,1", b"1,1\n", b"--1,1", b"+-1,1", b"+,1", b"9" * 5_000 + b",1",
    ],
)  # fmt: skip
def test_anything_but_two_integers_and_a_comma_is_no_agreement(header: bytes) -> None:
    assert negotiate(header) is None


def closes_at(interval: float, last_byte: float) -> float:
    """When a client that spoke in every interval up to the given time counts as gone."""
    monitor = HeartbeatMonitor()
    before = 0.0
    for check in range(1, 100):
        now = check * interval
        if monitor.tick(heard=before <= last_byte):
            return now
        before = now
    raise AssertionError("the client never counted as gone")


@pytest.mark.parametrize(
    ("interval", "last_byte", "closed"),
    [(1.0, 0.0, 3.0), (2.0, 0.0, 6.0), (1.0, 0.9, 3.0), (1.0, 1.0, 4.0), (1.0, 5.5, 8.0), (60.0, 60.0, 240.0)],
)
def test_a_client_counts_as_gone_two_to_three_intervals_after_its_last_byte(
    interval: float, last_byte: float, closed: float
) -> None:
    assert closes_at(interval, last_byte) == closed


def test_a_client_that_says_nothing_at_all_has_two_intervals() -> None:
    monitor = HeartbeatMonitor()
    assert [monitor.tick(heard=False) for _ in range(3)] == [False, True, True]


def test_a_client_that_misses_one_interval_now_and_then_stays() -> None:
    monitor = HeartbeatMonitor()
    assert not any(monitor.tick(heard=check % 2 == 0) for check in range(100))
