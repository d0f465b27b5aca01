"""How the cost of a message grows: `python -m tests.bench.growth`, which `make bench-growth` runs.

It measures CPU time per message at plugin and gateway against the number of sessions that send, the size of a body,
the number of headers that differ in each message, and the number of a session's subscriptions.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import payload
from tests.bench.environment import GATEWAY, PLUGIN, Environment, Sample, Side, Stopwatch, await_quiet
from tests.bench.growth_report import BEHIND, Curve, Growth, Point, growth_lines
from tests.bench.idle import open_all
from tests.bench.payload import Shape
from tests.bench.report import Circumstances, as_table
from tests.bench.rounds import least_disturbed
from tests.bench.rows import measure_e2e
from tests.bench.startup import StartOptions, started_environment
from tests.bench.wire import RowError, Wire, pump, subscribe_frame
from tests.support.long_run import SUCCESS, status_of

_MESSAGES = 20_000
_LEAST_MESSAGES = 400
_BYTES = 96 << 20
"""Of bodies in one measurement, at most, unless that were too few messages."""
_FRAME_SIZE = payload.BODY_SIZE + 400
_READ_EVERY = 64


def measure_sessions(environment: Environment, side: Side, sessions: int, count: int) -> Sample:
    """Let `sessions` send one message each in turn, in a write of its own, to a topic with one subscriber."""
    topic = f"/topic/{environment.prefix}.growth"
    with ExitStack() as opened:
        receiver = _subscribed(opened.enter_context(side.open()), [topic])
        senders = open_all(opened, lambda _: side.connect(), sessions)
        _send_in_turn(senders, receiver, payload.sends_in_turn([topic], sessions))  # which opens their channels
        frames = payload.sends_in_turn([topic], count)
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            _send_in_turn(senders, receiver, frames)
        _require(receiver, count)
    return watch.rate(count)


def measure_subscriptions(environment: Environment, side: Side, subscriptions: int, count: int) -> Sample:
    """Let one session send to as many topics in turn, and another one have a subscription for each."""
    topics = [f"/topic/{environment.prefix}.growth.{number}" for number in range(subscriptions)]
    with side.open() as receiver, side.open() as sender:
        _subscribed(receiver, topics)
        receiver.expect(count * _FRAME_SIZE)
        sender.load(b"".join(payload.sends_in_turn(topics, count)))
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({sender: 0, receiver: count}, nap=environment.nap)
        _require(receiver, count)
    return watch.rate(count)


def _measure_body(environment: Environment, side: Side, size: int, count: int) -> Sample:
    bounded = max(min(count, _BYTES // size), min(count, _LEAST_MESSAGES))
    return measure_e2e(environment, side, bounded, Shape(size=size))


def _measure_headers(environment: Environment, side: Side, headers: int, count: int) -> Sample:
    return measure_e2e(environment, side, count, Shape(headers=headers))


@dataclass(frozen=True)
class Series:
    """What grows, in which steps, and what measures a step with so many messages."""

    axis: str
    amounts: Sequence[int]
    measure: Callable[[Environment, Side, int, int], Sample]


SERIES = {
    "sessions": Series("sessions that send in turn", (1, 10, 100, 1_000, 5_000), measure_sessions),
    "body": Series("bytes of a body", (64, 256, 1_024, 4_096, 16_384, 65_536, 262_144), _measure_body),
    "headers": Series("headers that differ in each message", (0, 2, 4, 8, 16, 32, 64), _measure_headers),
    "subscriptions": Series("subscriptions of the session", (1, 10, 100, 1_000), measure_subscriptions),
}


def measure(
    environment: Environment, names: Sequence[str], rounds: int, scale: float, say: Callable[[str], None]
) -> list[Curve]:
    """Measure all steps of the series in each round, plugin and gateway in alternation."""
    sides = [environment.sides[name] for name in (PLUGIN, GATEWAY) if name in environment.sides]
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for side in sides:
        measure_e2e(environment, side, _LEAST_MESSAGES)  # which warms up
    for number in range(rounds):
        for name in names:
            for amount in SERIES[name].amounts:
                rounds_of = found.setdefault((name, amount), {})
                for side in sides if number % 2 == 0 else sides[::-1]:
                    sample = _sample(environment, side, SERIES[name], amount, round(_MESSAGES * scale))
                    _note(sample, side, rounds_of)
                say(f"round {number + 1}/{rounds}  {name} {amount:,}")
    return [
        Curve(name, SERIES[name].axis, [Point(amount, found[name, amount]) for amount in SERIES[name].amounts])
        for name in names
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; return the exit status."""
    options = _parser().parse_args(arguments)

    def measured() -> int:
        growth = _run(options)
        growth.write(options.json)
        for lines in growth_lines(growth):
            print(as_table(lines, left=1), end="\n\n")
        _say(f"written to {options.json}")
        return SUCCESS

    return status_of(measured)


def _run(options: argparse.Namespace) -> Growth:
    begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with started_environment(StartOptions(), _say) as environment:
        broker = environment.broker.version()
        curves = measure(environment, options.series, options.rounds, options.scale, _say)
    seconds = round(time.monotonic() - begun, 1)
    nap = environment.nap * 1000
    return Growth(Circumstances(broker, options.rounds, options.scale, started, seconds, nap), curves)


def _sample(environment: Environment, side: Side, series: Series, amount: int, count: int) -> Sample:
    return least_disturbed(lambda: series.measure(environment, side, amount, count), again=1)[0]


def _note(sample: Sample, side: Side, rounds: dict[str, list[float]]) -> None:
    parts = {PLUGIN: sample.cpu.broker} if side.in_broker else {BEHIND: sample.cpu.broker, GATEWAY: sample.cpu.gateway}
    for process, seconds in parts.items():
        if seconds is not None:
            rounds.setdefault(process, []).append(seconds / sample.operations * 1e6)


def _subscribed(wire: Wire, topics: Sequence[str]) -> Wire:
    frames = [
        subscribe_frame(topic, str(number), receipt=str(number), ack="auto") for number, topic in enumerate(topics)
    ]
    wire.expect(len(topics) * _FRAME_SIZE)
    wire.load(b"".join(frames))
    pump({wire: len(topics)})
    return wire


def _send_in_turn(senders: Sequence[socket.socket], receiver: Wire, frames: Sequence[bytes]) -> None:
    receiver.expect(len(frames) * _FRAME_SIZE)
    for number, frame in enumerate(frames):
        senders[number % len(senders)].sendall(frame)
        if number % _READ_EVERY == 0:
            receiver.read()
    pump({receiver: len(frames)})


def _require(receiver: Wire, count: int) -> None:
    if complaint := payload.complaint_about_messages(receiver.received, count, in_order=False):
        raise RowError(complaint + receiver.error_clause())


def _series(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in SERIES]:
        raise argparse.ArgumentTypeError(f"no series {', '.join(unknown)}; there are {', '.join(SERIES)}")
    return names


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.growth",
        description="Measures how the CPU time of a message grows, at plugin and gateway.",
    )
    parser.add_argument(
        "--series", type=_series, default=list(SERIES), help=f"names, with commas between (default: {','.join(SERIES)})"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each step is measured (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages (default: 1)")
    parser.add_argument(
        "--json", type=Path, default=Path("var/growth.json"), metavar="FILE", help="default: %(default)s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
