"""The order of measurements: rounds of rows, the sides in alternation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.environment import PROXY, Environment, Sample
from tests.bench.report import SIDES, Outcome, is_disturbed
from tests.bench.rows import MEASURES
from tests.bench.targets import Row
from tests.bench.wire import NotMeasurableError, RowError

_WARM_UP = 0.05
_FEWEST = 10
_AGAIN = 2
_AGAIN_IN_ALL = 12
"""How often a disturbed measurement is made again; and in a whole run, since the machine may never be quiet."""


def measure(
    environment: Environment, rows: Sequence[Row], rounds: int, scale: float, say: Callable[[str], None]
) -> list[Outcome]:
    """Measure all rows on all sides that there are.

    The rows about memory run first, while the processes are fresh, because used memory is not returned at once; then
    the others, once with few messages to warm up, then in rounds. Within a row the sides follow each other. Their order
    changes with each round (A B C, C B A, ...), so that a slow drift of the machine favours none. A side that fails in
    a row is not measured again in it. What something else on the machine has disturbed is measured again.

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
    fresh = [outcome for outcome in outcomes.values() if outcome.row.is_memory]
    worked = [outcome for outcome in outcomes.values() if not outcome.row.is_memory]
    run = _Run(environment, scale, say)
    run.measure_rounds(fresh, rounds)
    for outcome in worked:
        say(f"warming up {outcome.row.name}")
        list(_Run(environment, scale * _WARM_UP, say, again=0).take(outcome, SIDES))
    run.measure_rounds(worked, rounds)
    return list(outcomes.values())


def order_of_sides(number: int) -> tuple[str, ...]:
    """Return the sides in the order of round `number`, counted from 0."""
    return SIDES if number % 2 == 0 else SIDES[::-1]


def least_disturbed(take: Callable[[], Sample], again: int) -> tuple[Sample, int]:
    """Measure until a sample is undisturbed, `again` more times at most; return the best one, and how many it took."""
    samples = [take()]
    while is_disturbed(samples[-1]) and len(samples) <= again:
        samples.append(take())
    return min(samples, key=lambda sample: sample.cpu.elsewhere / sample.seconds), len(samples)


@dataclass
class _Run:
    """One run over all rows. `again` is how many disturbed measurements it may still repeat."""

    environment: Environment
    scale: float
    say: Callable[[str], None]
    again: int = _AGAIN_IN_ALL

    def measure_rounds(self, outcomes: Sequence[Outcome], rounds: int) -> None:
        for number in range(rounds):
            for outcome in outcomes:
                if number < (outcome.row.most_rounds or rounds):
                    for side, sample in self.take(outcome, order_of_sides(number)):
                        outcome.samples.setdefault(side, []).append(sample)
                        figure = f"{sample.value:10,.1f} {outcome.row.unit}"
                        self.say(f"round {number + 1}/{rounds}  {outcome.row.name:20} {side:8} {figure}")

    def take(self, outcome: Outcome, order: Sequence[str]) -> Iterator[tuple[str, Sample]]:
        """Measure a row once on each side."""
        for side in order:
            is_asked = side != PROXY or outcome.row.is_proxied
            if is_asked and side in self.environment.sides and not outcome.is_spoilt(side):
                try:
                    yield side, self._sample(outcome.row, side)
                except (RowError, OSError) as error:
                    outcome.failures[side] = str(error)
                except NotMeasurableError as error:
                    outcome.omissions[side] = str(error)

    def _sample(self, row: Row, side: str) -> Sample:
        count = max(round(row.count * self.scale), _FEWEST)

        def take() -> Sample:
            return MEASURES[row.name](self.environment, self.environment.sides[side], count)

        sample, times = least_disturbed(take, min(_AGAIN, self.again) if not row.is_memory else 0)
        if times > 1:
            self.again -= times - 1
            self.say(
                f"{row.name} of the {side}: measured {times} times, because the machine was busy with something else"
            )
        return sample
