"""How many bytecode instructions the hot functions execute: `python -m tests.bench.instructions`.

Times depend on the machine and on what else runs there; instructions do not, so a test can hold them to a figure. The
functions of `micro.BENCHES` run once, and Python reports each instruction. What C code does within one is not seen, so
a change of a hot function is timed, too: `python -m tests.bench.micro`.

The figures are recorded in `instructions.json`, by release of Python, because each compiles to other instructions.
"""

import argparse
import gc
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from gateway.stomp import decoder
from tests.bench import micro, payload
from tests.bench.micro import BENCHES, Bench

if TYPE_CHECKING:
    from _typeshed import TraceFunction

RECORDED = Path(__file__).with_suffix(".json")
RELEASE = ".".join(platform.python_version_tuple()[:2])
TOLERANCE = 0.10
HOW_TO_RECORD = "python -m tests.bench.instructions --record"
COUNTED = {name: bench for name, bench in BENCHES.items() if "(pamqp)" not in name}

_OURS = (__file__, micro.__file__, payload.__file__)
_MANY = 12


class NotCountableError(Exception):
    """Instructions cannot be counted or compared here; the message is a sentence for the report."""


def _without_collections(run: Callable[[], object]) -> None:
    """Run without garbage collections, which may run finalizers of other objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        run()
    finally:
        if was_enabled:
            gc.enable()


if sys.version_info >= (3, 12):

    def count_instructions(run: Callable[[], object]) -> Counter[CodeType]:
        """Return how many bytecode instructions `run` executes in each function, the benchmark's own left out."""
        counts: Counter[CodeType] = Counter()

        def on_instruction(code: CodeType, _: int) -> object:
            if code.co_filename in _OURS:
                return sys.monitoring.DISABLE
            counts[code] += 1
            return None

        monitoring, tool = sys.monitoring, _free_tool()
        monitoring.use_tool_id(tool, __name__)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, on_instruction)
        monitoring.set_events(tool, monitoring.events.INSTRUCTION)
        try:
            _without_collections(run)
        finally:
            monitoring.set_events(tool, monitoring.events.NO_EVENTS)
            monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(tool)
        return counts

    def _free_tool() -> int:
        # Debuggers, coverage and profilers have the numbers 0 to 2; the others are for anybody.
        return next(tool for tool in (3, 4) if sys.monitoring.get_tool(tool) is None)

else:

    def count_instructions(run: Callable[[], object]) -> Counter[CodeType]:
        """Return how many bytecode instructions `run` executes in each function, the benchmark's own left out."""
        counts: Counter[CodeType] = Counter()

        def on_instruction(frame: FrameType, event: str, _: object) -> "TraceFunction":
            if event == "opcode":
                counts[frame.f_code] += 1
            return on_instruction

        def on_call(frame: FrameType, event: str, _: object) -> "TraceFunction | None":
            if event != "call" or frame.f_code.co_filename in _OURS:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return on_instruction

        before = sys.gettrace()  # of a debugger, or of who measures coverage
        sys.settrace(on_call)
        try:
            _without_collections(run)
        finally:
            sys.settrace(before)
        return counts


def count_call(bench: Bench) -> Counter[CodeType]:
    """Return the instructions of one call of a benchmark in each function, once the caches know what comes."""
    run = bench.build()
    run()
    return count_instructions(run)


def count_all() -> dict[str, float]:
    """Return the instructions of one operation of each function that is counted.

    Raises:
        NotCountableError: the core is compiled and executes none.
    """
    if not decoder.__file__.endswith(".py"):
        raise NotCountableError("the core is compiled: it executes no bytecode")
    return {name: round(count_call(bench).total() / bench.operations, 2) for name, bench in COUNTED.items()}


def recorded() -> dict[str, float]:
    """Return the figures that are recorded for this release of Python.

    Raises:
        NotCountableError: there are none.
    """
    figures: dict[str, float] | None = _releases().get(RELEASE)
    if figures is None:
        raise NotCountableError(f"nothing is recorded for Python {RELEASE}; to record it: {HOW_TO_RECORD}")
    return figures


def record(figures: Mapping[str, float]) -> None:
    """Make `figures` the recorded ones for this release of Python."""
    RECORDED.write_text(json.dumps({**_releases(), RELEASE: dict(figures)}, indent=2, sort_keys=True) + "\n")


def as_text(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return a table of `now` beside what is recorded."""
    width = max(map(len, now))
    lines = [f"{'instructions per operation':{width}}  {'recorded':>9}  {'now':>9}  {'change':>7}"]
    for name, figure in now.items():
        known = before.get(name)
        old, change = ("", "") if known is None else (f"{known:,.1f}", f"{figure / known - 1:+.1%}")
        lines.append(f"{name:{width}}  {old:>9}  {figure:9,.1f}  {change:>7}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count as `arguments` (the process's own, if None) say; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.instructions",
        description=f"Counts the hot functions' instructions. The tests fail at {TOLERANCE:.0%} more than recorded.",
    )
    parser.add_argument("--record", action="store_true", help="record these figures for this release of Python")
    parser.add_argument("--functions", metavar="TEXT", help="show the functions of the entries whose name holds this")
    options = parser.parse_args(arguments)
    if options.functions is not None:
        print("\n\n".join(_functions(name) for name in COUNTED if options.functions.lower() in name.lower()))
        return 0
    try:
        before = recorded()
    except NotCountableError as error:
        before = {}
        print(error, file=sys.stderr)
    now = count_all()
    print(as_text(now, before))
    if options.record:
        record(now)
    return 0


def _releases() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def _functions(name: str) -> str:
    bench = COUNTED[name]
    most = count_call(bench).most_common(_MANY)
    lines = [f"{count / bench.operations:9,.1f}  {code.co_qualname} in {code.co_filename}" for code, count in most]
    return "\n".join([name, *lines])


if __name__ == "__main__":
    sys.exit(main())
