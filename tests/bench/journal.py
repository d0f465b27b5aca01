"""What the traffic journal costs: `python -m tests.bench.journal`.

Three gateways in front of one broker, alike but for the level of their journal, are measured in alternation: a round
measures all levels one after the other, in an order that turns from round to round. The figure of a level is the median
over the rounds of its rate divided by the rate of `off` in the same round, and the same for the gateway's CPU per
message. Beside it the writer alone: CPU per event, encoding and writing included.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.local import broker as local
from deploy.local.address import Address
from deploy.local.ports import LOOPBACK, free_ports
from gateway.journal.schema import SendLine
from gateway.journal.writer import BATCH, Clock, Writer, WriterSettings
from tests.bench.broker import Broker
from tests.bench.environment import Environment, Sample, Side, raise_descriptor_limit
from tests.bench.rows import MEASURES
from tests.bench.startup import VAR, start_gateway
from tests.bench.targets import ROWS
from tests.bench.wire import Account

_LEVELS = ("off", "session", "message")
_TARGETS = {"session": 0.99, "message": 0.95}
_WRITER_TARGET = 1.0
_ROWS = ("send", "send_confirmed", "receive", "receive_ack", "e2e", "fanout", "rtt")
_WRITER_EVENTS = 1_000_000
_MICRO = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0, or 3 with --strict when a target was missed."""
    options = _options(arguments)
    print(f"writer: {_writer_cost():.2f} us of CPU per event (target: at most {_WRITER_TARGET:g})", flush=True)
    with _environment() as environment:
        samples = _measure(environment, options.rows.split(","), options.rounds, options.scale)
    met = _report(samples)
    return 0 if met or not options.strict else 3


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.journal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="how often (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the rows' counts (default: %(default)s)")
    parser.add_argument("--rows", default=",".join(_ROWS), help="which (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a target is missed")
    return parser.parse_args(arguments)


def _writer_cost() -> float:
    """Microseconds of CPU per event, all threads together."""
    folder = Path(tempfile.mkdtemp(prefix="stomp-bench-journal-"))
    try:
        clock = Clock()
        writer = Writer(WriterSettings(folder, "bench"), clock, 1)
        writer.files.probe()
        writer.files.start()
        before = _cpu()
        for number in range(_WRITER_EVENTS):
            line = SendLine(clock.time, 0, 17, "/", "app1", "/queue/orders", "queue", number, 256, 4, True, False, True)
            writer.events.append(line)
            if len(writer.events) >= BATCH:
                clock.tick()
                writer.flush()
                while writer.files.pending > BATCH * 64:
                    time.sleep(0.0005)
        if not writer.close(60) or writer.dropped:
            raise AssertionError("the writer did not write everything")
        return (_cpu() - before) / _WRITER_EVENTS * _MICRO
    finally:
        shutil.rmtree(folder)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def _environment() -> Iterator[Environment]:
    raise_descriptor_limit()
    shutil.rmtree(VAR / "journal-cost", ignore_errors=True)
    with ExitStack() as started:
        node = started.enter_context(local.running(order=local.PRIVATE, say=_say))
        address = Address.parse(node.amqp_url)
        sides = {}
        for level, port in zip(_LEVELS, free_ports(len(_LEVELS)), strict=True):
            journal = {"level": level, "directory": f"journal-cost/{level}"}
            child = start_gateway(started, address, port, journal, f"gateway-{level}")
            account = Account(LOOPBACK, port, address.login, address.passcode, address.vhost)
            sides[level] = Side(level, account, in_broker=False, pids=(child.pid,))
        yield Environment(
            Broker(address.url, lambda words: node.ctl(*words), node.os_pid), sides, "stomp-bench-journal"
        )
    shutil.rmtree(VAR / "journal-cost", ignore_errors=True)


_Samples = dict[str, dict[str, list[Sample]]]


def _measure(environment: Environment, rows: Sequence[str], rounds: int, scale: float) -> _Samples:
    samples: _Samples = {row: {level: [] for level in _LEVELS} for row in rows}
    for number in range(-1, rounds):
        turned = number % len(_LEVELS)
        order = (*_LEVELS[turned:], *_LEVELS[:turned])
        for row in rows:
            for level in order if number % 2 else order[::-1]:
                count = max(10, round(ROWS[row].count * (scale if number >= 0 else 0.05)))
                sample = MEASURES[row](environment, environment.sides[level], count)
                if number >= 0:  # the first one warms up
                    samples[row][level].append(sample)
        _say(f"round {number + 1} of {rounds}")
    return samples


def _report(samples: _Samples) -> bool:
    """Print the table; whether every target was met in the median over all rates."""
    print(
        f"{'row':16}{'unit':>14}{'off':>12}" + "".join(f"{level + ' /off':>16}{'CPU us +':>10}" for level in _TARGETS)
    )
    ratios: dict[str, list[float]] = {level: [] for level in _TARGETS}
    for row, by_level in samples.items():
        rates = ROWS[row].target.at_least
        cells = []
        for level in _TARGETS:
            ratio = _ratio(by_level, level, lambda sample: sample.value)
            more = _cpu_of(by_level[level]) - _cpu_of(by_level["off"])
            ratios[level].append(ratio if rates else 1 / ratio)
            cells.append(f"{ratio:16.3f}{more:10.2f}")
        middle = statistics.median(sample.value for sample in by_level["off"])
        print(f"{row:16}{ROWS[row].unit:>14}{middle:12,.0f}" + "".join(cells))
    met = True
    for level, target in _TARGETS.items():
        mean = statistics.geometric_mean(ratios[level])
        met = met and mean >= target
        print(f"{level}: {mean:.3f} of the throughput without a journal, all rows together (target: {target:g})")
    return met


def _ratio(by_level: dict[str, list[Sample]], level: str, figure: Callable[[Sample], float]) -> float:
    return statistics.median(
        figure(one) / figure(base) for one, base in zip(by_level[level], by_level["off"], strict=True)
    )


def _cpu_of(samples: Sequence[Sample]) -> float:
    """The gateway's CPU per operation, in microseconds; the least seen, since others only ever add to it."""
    return min((sample.cpu.gateway or 0.0) / sample.operations * _MICRO for sample in samples)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
