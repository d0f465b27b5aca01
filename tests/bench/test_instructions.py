"""No hot function executes more instructions than recorded. This is no timing: it fails on every machine or on none."""

import gc
import sys
from collections.abc import Callable

import pytest

from gateway.stomp import decoder
from tests.bench import instructions
from tests.bench.instructions import (
    COUNTED,
    HOW_TO_RECORD,
    TOLERANCE,
    NotCountableError,
    count_all,
    count_instructions,
    recorded,
)

AGAIN = f"If it is worth that: {HOW_TO_RECORD}"


@pytest.fixture(scope="module")
def now_and_recorded() -> tuple[dict[str, float], dict[str, float]]:
    try:
        return count_all(), recorded()
    except NotCountableError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", COUNTED)
def test_a_hot_function_executes_no_more_instructions_than_recorded(
    name: str, now_and_recorded: tuple[dict[str, float], dict[str, float]]
) -> None:
    now, before = now_and_recorded
    assert name in before, f"{name} is not recorded. {AGAIN}"
    growth = now[name] / before[name] - 1
    assert growth <= TOLERANCE, (
        f"{name}: {now[name]:,.1f} instructions, {before[name]:,.1f} are recorded, {growth:+.0%}. {AGAIN}"
    )


def test_each_instruction_of_a_function_and_of_those_that_it_calls_is_counted_and_always_the_same() -> None:
    def called(times: int) -> int:
        return sum([number for number in range(times)])

    def run(times: int) -> Callable[[], object]:
        return lambda: called(times)

    sizes = [sum(count_instructions(run(times)).values()) for times in (10, 20, 30, 30)]

    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] >= 10
    assert called.__code__ in count_instructions(run(1))


class _Left:
    """Is in a reference cycle, and has a finalizer that executes something."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum([number for number in range(100)])


def test_what_a_garbage_collection_executes_is_not_counted() -> None:
    def run() -> object:
        return [[] for _ in range(10_000)]  # after some hundreds Python collects garbage

    before = count_instructions(run)
    gc.collect()
    _Left()

    assert count_instructions(run) == before
    assert gc.isenabled()


def test_counting_leaves_the_tracer_of_a_debugger_in_place_even_when_the_function_raises() -> None:
    def tracer(*_: object) -> None:
        """Trace nothing."""

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(ZeroDivisionError):
            count_instructions(lambda: 1 // 0)
        found = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is tracer


def test_a_release_of_python_without_figures_says_how_to_record_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "RELEASE", "3.99")

    with pytest.raises(NotCountableError, match=rf"Python 3.99; to record it: {HOW_TO_RECORD}"):
        recorded()


def test_a_compiled_core_is_not_taken_for_one_that_executes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "__file__", "gateway/stomp/decoder.cpython-311-x86_64-linux-gnu.so")

    with pytest.raises(NotCountableError, match="compiled"):
        count_all()
