"""A circuit: a broker that does not answer goes to the end of the order, and is tried again after longer and longer."""

from __future__ import annotations

from gateway.config.addresses import BrokerUrl
from gateway.server.broker.broker_state import Circuit

_GOOD, _LATE, _DEAD = 0, 1, 2


def circuit() -> Circuit:
    return Circuit(BrokerUrl("amqp", "rabbit-a", 5672))


def failed(times: int) -> tuple[Circuit, float]:
    """A circuit whose broker failed so often, each time when it was due; and the time."""
    broken, now = circuit(), 0.0
    for _ in range(times):
        broken.failed("refused", now, is_trial=broken.begin(now))
        now += 1000
    return broken, now - 1000


def test_a_broker_that_failed_is_dialled_last_until_it_is_time_to_try_it_again() -> None:
    broken, now = failed(1)
    assert broken.rank(now) == broken.rank(now + 0.4) == _DEAD
    assert broken.rank(now + 1.0) == _GOOD


def test_only_one_dial_tries_it_again() -> None:
    broken, now = failed(1)
    assert broken.begin(now + 1)
    assert not broken.begin(now + 1)
    assert broken.rank(now + 1) == _DEAD


def test_the_wait_doubles_with_each_failure_up_to_half_a_minute() -> None:
    for times, shortest, longest in (
        (2, 1.0, 2.0),
        (3, 2.0, 4.0),
        (5, 8.0, 16.0),
        (8, 15.0, 30.0),
        (10_000, 15.0, 30.0),
    ):
        broken, now = failed(times)
        assert broken.rank(now + shortest - 0.01) == _DEAD
        assert broken.rank(now + longest) == _GOOD


def test_many_dials_that_fail_together_count_as_one() -> None:
    broken = circuit()
    trials = [broken.begin(0) for _ in range(50)]
    for trial in trials:
        broken.failed("refused", 0, is_trial=trial)
    assert broken.rank(1) == _GOOD


def test_gateways_do_not_try_again_in_the_same_moment() -> None:
    assert len({failed(8)[0].rank(7000 + seconds / 10) for seconds in range(150, 300)}) == 2
    due = {next(tenth for tenth in range(150, 301) if failed(8)[0].rank(7000 + tenth / 10) == _GOOD) for _ in range(20)}
    assert len(due) > 1


def test_an_answer_forgets_the_failures() -> None:
    broken, now = failed(8)
    broken.answered(now)
    assert (broken.rank(now), broken.reason) == (_GOOD, "")
    broken.failed("refused", now, is_trial=False)
    assert broken.rank(now + 1) == _GOOD


def test_a_broker_that_keeps_a_dial_waiting_is_dialled_after_those_that_answer() -> None:
    slow = circuit()
    slow.is_late = True
    assert slow.rank(0) == _LATE
    slow.answered(0)
    assert slow.rank(0) == _GOOD


def test_it_remembers_when_the_broker_went_or_came() -> None:
    changing = circuit()
    changing.answered(1)
    assert changing.changed_at < 0
    changing.failed("refused", 2, is_trial=False)
    changing.failed("refused", 3, is_trial=True)
    assert changing.changed_at == 2
    changing.answered(4)
    changing.answered(5)
    assert changing.changed_at == 4
