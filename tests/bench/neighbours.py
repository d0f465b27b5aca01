"""What one client's work costs its neighbours: `python -m tests.bench.neighbours`, or `make bench-neighbours`.

A neighbour sends one message at a time to a topic that it subscribes to, and waits for it, while another client does
what a row says: at the plugin, then at the gateway, on one private broker. There are two neighbours, one with the other
client's login, so that both share links, and one with a login of its own; they run in a process of their own. The
figures are the neighbours' waits in milliseconds: the median, the 99th percentile and the worst. The row `nothing`
shows what the machine itself adds, `late` how late the neighbour's process woke from its own rests.

A row passes if the worst wait of each neighbour is at most 50 ms, or at most the plugin's where that is more, and if
what the other client does is done within the row's own aim, where it has one, or no later than at the plugin. A row
that misses is measured again, since one long wait may be the machine's, and has missed if it does so twice of three.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from deploy.local.errors import LocalError
from tests.bench import processes
from tests.bench.environment import GATEWAY, PLUGIN
from tests.bench.neighbour_loads import LOADS, Load
from tests.bench.neighbour_run import Run
from tests.bench.neighbour_servers import Server, started_servers
from tests.bench.startup import StartError
from tests.bench.wire import NotMeasurableError, RowError

_AIM: Final = 50.0
# How often a row is measured at most, and how often it must miss its aim to have missed it.
_MOST_TIMES: Final = 3
_MOST_MISSED: Final = 2
_WARM_UP: Final = 0.3
# Cores that idle servers may still use, in how long a look in seconds, and how long to wait for that.
_QUIET: Final = 0.3
_LOOK: Final = 0.15
_QUIET_WITHIN: Final = 10.0
_RESULTS: Final = Path("var") / "bench-neighbours.json"


@dataclass(frozen=True)
class Waits:
    """The waits of one neighbour, in milliseconds."""

    p50: float
    p99: float
    worst: float
    count: int

    @classmethod
    def of(cls, waits: Sequence[float]) -> Waits:
        """Summed up."""
        if not waits:
            return cls(0.0, 0.0, 0.0, 0)
        in_order = sorted(waits)
        return cls(statistics.median(in_order), in_order[int(len(in_order) * 0.99)], in_order[-1], len(in_order))

    def __str__(self) -> str:
        return f"{self.p50:6.1f} {self.p99:7.1f} {self.worst:8.1f}"


@dataclass(frozen=True)
class Measured:
    """A row at one server: the neighbours' waits, the process's own lateness, and the seconds of the work.

    Raises:
        RowError: a neighbour has no sample.
    """

    same: Waits
    other: Waits
    late: Waits
    seconds: float | None

    def __post_init__(self) -> None:
        if not self.same.count or not self.other.count:
            raise RowError("a neighbour has no sample")

    def meets(self, load: Load, plugin: Measured | None, scale: float = 1.0) -> bool:
        """Whether the aims hold, beside what the plugin did."""
        same = max(_AIM, plugin.same.worst if plugin else 0.0)
        other = max(_AIM, plugin.other.worst if plugin else 0.0)
        return self.same.worst <= same and self.other.worst <= other and self._is_quick(load, plugin, scale)

    def _is_quick(self, load: Load, plugin: Measured | None, scale: float) -> bool:
        if load.within is None:
            return True
        # Without seconds nothing was seen of the work.
        return self.seconds is not None and self.seconds <= max(load.within * scale, (plugin and plugin.seconds) or 0.0)


class Neighbour:
    """The process that samples; see `neighbour_probe`."""

    def __init__(self, server: Server) -> None:
        command = [sys.executable, "-m", "tests.bench.neighbour_probe"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        accounts = [dataclasses.asdict(server.account(other=other)) for other in (False, True)]
        self._say(json.dumps(accounts))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def take(self) -> list[Waits]:
        """The waits since the last call: of both neighbours, and the process's lateness.

        Raises:
            RowError: a neighbour lost its session.
        """
        assert self._process.stdout is not None
        try:
            self._say("take")
        except BrokenPipeError:
            pass
        answer = json.loads(self._process.stdout.readline() or '"the neighbour has ended"')
        if isinstance(answer, str):
            raise RowError(answer)
        return [Waits.of(waits) for waits in answer]

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def measure(server: Server, load: Load, scale: float) -> Measured:
    """Measure one row at one server.

    Raises:
        RowError: the row did not do what it should.
        NotMeasurableError: the row does not exist there.
    """
    return uvloop.run(_measure(server, load, scale))


async def _measure(server: Server, load: Load, scale: float) -> Measured:
    run = Run(server, load.transport, load.links, scale)
    try:
        if load.prepare is not None:
            await load.prepare(run)
            await asyncio.to_thread(_await_quiet, server)
        neighbour = Neighbour(server)
        try:
            await asyncio.sleep(_WARM_UP)
            await asyncio.to_thread(neighbour.take)
            seconds = await load.work(run)
            await asyncio.sleep(load.tail)
            same, other, late = await asyncio.to_thread(neighbour.take)
        finally:
            neighbour.stop()
    finally:
        await run.close()
        await asyncio.to_thread(_await_quiet, server)
    return Measured(same, other, late, seconds)


def _await_quiet(server: Server) -> None:
    """Wait until the servers have finished earlier work."""
    deadline, calm = time.monotonic() + _QUIET_WITHIN, 0
    while calm < 3 and time.monotonic() < deadline:
        before = sum(map(processes.cpu_seconds, server.pids))
        time.sleep(_LOOK)
        calm = calm + 1 if sum(map(processes.cpu_seconds, server.pids)) - before <= _LOOK * _QUIET else 0
    if calm < 3:
        _note(f"{server.name} still works after {_QUIET_WITHIN:g} s of rest: the next figures may show earlier work")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0, or 1 when a row failed or missed its aim, or 2 when nothing could be started."""
    options = _options(arguments)
    changes = {} if options.defaults is None else json.loads(options.defaults)
    results: dict[str, dict[str, Measured]] = {}
    is_good = True
    try:
        with started_servers(_note, changes) as servers:
            print(_HEADING, flush=True)
            for load in options.rows:
                done = results[load.name] = {}
                for name in options.sides:
                    is_good &= _row(servers[name], load, options.scale, done)
    except (StartError, LocalError) as error:
        print(error, file=sys.stderr)
        return 2
    _write(results)
    return 0 if is_good else 1


_HEADING: Final = (
    f"{'':44}{'':8}  same login: ms          other login: ms         late\n"
    f"{'what another client does':44}{'':8}  {'p50':>4} {'p99':>7} {'worst':>8}  {'p50':>6} {'p99':>7} {'worst':>8}"
    f"  {'worst':>6}  {'in all':>8}"
)


def _row(server: Server, load: Load, scale: float, done: dict[str, Measured]) -> bool:
    """Measure and print one row at one server; whether it is as it should be."""
    if server.name == PLUGIN and not load.plugin:
        return True
    met: list[bool] = []
    # One long wait may be the machine's: a row that misses its aim passes if it meets it in two of three measurements.
    while not met or (len(met) < _MOST_TIMES and not met[0] and met.count(False) < _MOST_MISSED):
        try:
            measured = measure(server, load, scale)
        except NotMeasurableError as error:
            print(f"{load.text:44}{server.name:8}  not measured: {error}", flush=True)
            # What the plugin does not have is no fault of the gateway.
            return server.name == PLUGIN
        except (RowError, OSError, TimeoutError) as error:
            print(f"{load.text:44}{server.name:8}  FAILED: {error!r}", flush=True)
            return False
        done[server.name] = measured
        met.append(server.name != GATEWAY or measured.meets(load, done.get(PLUGIN), scale))
        _print_row(server.name, load, scale, measured, met)
    return met.count(False) < _MOST_MISSED


def _print_row(server: str, load: Load, scale: float, measured: Measured, met: Sequence[bool]) -> None:
    seconds = "" if measured.seconds is None else f"{measured.seconds:6.2f} s"
    verdict = ""
    if server == GATEWAY:
        aim = "" if load.within is None else f" (aim {load.within * scale:g} s)"
        missed = "MISSED" if met.count(False) == _MOST_MISSED else "missed, once more"
        verdict = f"{aim}  {'ok' if met[-1] else missed}"
    waits = f"{measured.same}  {measured.other}  {measured.late.worst:6.1f}"
    print(f"{load.text:44}{server:8}{waits}  {seconds:>8}{verdict}", flush=True)


def _write(results: dict[str, dict[str, Measured]]) -> None:
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    document = {row: {side: dataclasses.asdict(one) for side, one in sides.items()} for row, sides in results.items()}
    _RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    _note(f"written to {_RESULTS}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    rows = "\n".join(f"  {load.name:22} {load.text}" for load in LOADS.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.neighbours",
        description=__doc__,
        epilog=f"rows:\n{rows}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=_rows, default=list(LOADS.values()), help="names, with commas between (default: all)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the rows' counts (default: %(default)s)")
    parser.add_argument(
        "--sides", type=_sides, default=[PLUGIN, GATEWAY], help="plugin, gateway, or both (default: both)"
    )
    parser.add_argument("--defaults", metavar="JSON", help="settings for the gateway's virtual hosts")
    return parser.parse_args(arguments)


def _rows(text: str) -> list[Load]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in LOADS]:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are {', '.join(LOADS)}")
    return [LOADS[name] for name in names]


def _sides(text: str) -> list[str]:
    names = [name for name in (PLUGIN, GATEWAY) if name in text.split(",")]
    if len(names) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not plugin, gateway or both")
    return names


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
