"""The order of measurements: rounds of rows, the sides in alternation."""

from collections.abc import Callable, Sequence

from tests.bench.environment import Environment, Sample
from tests.bench.report import SIDES, Outcome
from tests.bench.rows import MEASURES
from tests.bench.targets import Row
from tests.bench.wire import NotMeasurableError, RowError

_WARM_UP = 0.05
_FEWEST = 10
_FRESH = "idle"
"""The row that needs processes that have not worked yet: used memory is not returned at once."""


def measure(
    environment: Environment, rows: Sequence[Row], rounds: int, scale: float, say: Callable[[str], None]
) -> list[Outcome]:
    """Measure all rows on all sides that there are.

    The memory row runs first, while the processes are fresh; then the others, once with few messages to warm up, then
    in rounds. Within a row the sides follow each other. Their order changes with each round (A B, B A, ...), so that a
    slow drift of the machine favours neither. A side that fails in a row is not measured again in it.

    Args:
        environment: what to measure.
        rows: which rows, in the order of the report.
        rounds: how often.
        scale: factor on every row's count.
        say: takes a line about the progress.

    Returns:
        An outcome for each row, in the same order.
    """
    outcomes = {row.name: Outcome(row) for row in rows}
    fresh = [outcome for name, outcome in outcomes.items() if name == _FRESH]
    worked = [outcome for name, outcome in outcomes.items() if name != _FRESH]
    _measure_rounds(environment, fresh, rounds, scale, say)
    for outcome in worked:
        say(f"warming up {outcome.row.name}")
        _take(environment, outcome, SIDES, scale * _WARM_UP)
    _measure_rounds(environment, worked, rounds, scale, say)
    return list(outcomes.values())


def order_of_sides(number: int) -> tuple[str, ...]:
    """Return the sides in the order of round `number`, counted from 0."""
    return SIDES if number % 2 == 0 else SIDES[::-1]


def _measure_rounds(
    environment: Environment, outcomes: Sequence[Outcome], rounds: int, scale: float, say: Callable[[str], None]
) -> None:
    for number in range(rounds):
        for outcome in outcomes:
            for side, sample in _take(environment, outcome, order_of_sides(number), scale):
                outcome.samples.setdefault(side, []).append(sample)
                figure = f"{sample.value:10,.1f} {outcome.row.unit}"
                say(f"round {number + 1}/{rounds}  {outcome.row.name:15} {side:8} {figure}")


def _take(environment: Environment, outcome: Outcome, order: Sequence[str], scale: float) -> list[tuple[str, Sample]]:
    count = max(round(outcome.row.count * scale), _FEWEST)
    taken: list[tuple[str, Sample]] = []
    for side in order:
        if side in environment.sides and not outcome.is_spoilt(side):
            try:
                taken.append((side, MEASURES[outcome.row.name](environment, environment.sides[side], count)))
            except (RowError, OSError) as error:
                outcome.failures[side] = str(error)
            except NotMeasurableError as error:
                outcome.omissions[side] = str(error)
    return taken
