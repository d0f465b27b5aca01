"""What the broker alone costs for what the gateway promises: `python -m tests.bench.floor`.

AMQP without STOMP is measured twice beside plugin and gateway, in alternation: as `limit`, which loses what is on its
way, and at least once, with confirms and acknowledgements as the gateway has them (`AtLeastOnceWire`). The second,
divided by the plugin, is what a gateway could reach that needs no CPU time itself.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.bench.amqp_wire import AtLeastOnceWire
from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, Environment, Sample, raise_descriptor_limit
from tests.bench.rows import MEASURES
from tests.bench.startup import StartOptions, started_environment
from tests.bench.targets import ROWS
from tests.support.long_run import SUCCESS, status_of

AT_LEAST_ONCE = "at least once"
_SIDES = (PLUGIN, LIMIT, AT_LEAST_ONCE, GATEWAY)
_ROWS = ("send", "send_confirmed", "receive", "receive_ack", "e2e", "fanout")
_WARM_UP = 0.1
_MICRO = 1_000_000

Samples = dict[str, dict[str, list[Sample]]]
"""By row and side."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, and print a table."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _measure_and_report(options))


def _measure_and_report(options: argparse.Namespace) -> int:
    raise_descriptor_limit()
    with started_environment(StartOptions(), _say) as environment:
        samples = _measure(_with_promises(environment), options.rows.split(","), options.rounds, options.scale)
    print("\n".join(table(samples)))
    return SUCCESS


def _with_promises(environment: Environment) -> Environment:
    promising = replace(environment.sides[LIMIT], name=AT_LEAST_ONCE, wire=AtLeastOnceWire)
    return replace(environment, sides={**environment.sides, AT_LEAST_ONCE: promising})


def _measure(environment: Environment, rows: Sequence[str], rounds: int, scale: float) -> Samples:
    """Measure the rows on all sides, whose order turns from round to round; the first round only warms up."""
    samples: Samples = {row: {side: [] for side in _SIDES} for row in rows}
    for row in rows:
        for number in range(rounds + 1):
            turn = number % len(_SIDES)
            for side in (*_SIDES[turn:], *_SIDES[:turn]):
                count = round(ROWS[row].count * scale * (1 if number else _WARM_UP))
                sample = MEASURES[row](environment, environment.sides[side], count)
                if number:
                    samples[row][side].append(sample)
                    _say(f"round {number}/{rounds}  {row:15} {side:14} {_cost([sample]):8.1f} us")
    return samples


def table(samples: Samples) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield (
        "| row | plugin | limit | at least once | broker behind gateway | gateway "
        "| limit/plugin | at least once/plugin | both/plugin | target |"
    )
    yield "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
    for row, by_side in samples.items():
        broker = {side: _cost(some) for side, some in by_side.items()}
        both = _cost(by_side[GATEWAY], with_gateway=True)
        costs = (*broker.values(), both - broker[GATEWAY])
        ratios = (broker[LIMIT], broker[AT_LEAST_ONCE], both)
        cells = (
            f"`{row}`",
            *(f"{cost:,.1f}" for cost in costs),
            *(f"{cost / broker[PLUGIN]:.2f}" for cost in ratios),
            str(ROWS[row].cpu_target),
        )
        yield f"| {' | '.join(cells)} |"


def _cost(samples: Sequence[Sample], *, with_gateway: bool = False) -> float:
    """CPU microseconds of an operation: the least seen, since others on the machine only ever add to it."""
    return min(
        _MICRO * ((sample.cpu.broker or 0.0) + (sample.cpu.gateway or 0.0) * with_gateway) / sample.operations
        for sample in samples
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.floor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(_ROWS), help="which (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the rows' counts (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
