"""The row about memory: what a connected session that does nothing costs, in broker and gateway together.

There are two ways to ask the broker, and neither is right alone:

* The node's proportional set size is the memory that the machine really provides. But it does not fall all the way when
  sessions end, so the side that is measured second reuses memory that counted for the first.
* The node's own count, `erlang:memory()`, is exact at any time. But it holds receive buffers as large as the kernel's
  socket buffers (two megabytes for each session of the plugin on a usual Linux), hardly a page of which is ever
  touched. So binaries are not counted, and with them the little that is touched.

Each therefore understates, and the row takes the larger. The garbage of all Erlang processes is collected before
either is read. A gateway's memory does not fall fast, so its growth is counted from the lowest
value that was ever seen without sessions.
"""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench import processes
from tests.bench.environment import Environment, Sample, Side, Stopwatch, await_quiet, raise_descriptor_limit
from tests.bench.wire import NotMeasurableError

_KILOBYTE = 1024
_SPARE_DESCRIPTORS = 100
_WARM_UP = 20


@dataclass(frozen=True)
class _Memory:
    broker_resident: int
    broker_allocated: int
    gateway: int


def measure_idle(environment: Environment, side: Side, count: int) -> Sample:
    """Open `count` sessions and divide the growth of memory by them; the figure is in kB (1,024 bytes) per session."""
    return _measure(environment, side, count, lambda sessions, _: sessions.enter_context(side.connect()))


def measure_idle_subscribed(environment: Environment, side: Side, count: int) -> Sample:
    """The same with sessions that have subscribed to a topic of their own each."""

    def open_session(sessions: ExitStack, number: int) -> object:
        wire = sessions.enter_context(side.open())
        wire.subscribe(f"/topic/{environment.prefix}.idle.{number}")
        return wire

    return _measure(environment, side, count, open_session)


def _measure(
    environment: Environment, side: Side, count: int, open_session: Callable[[ExitStack, int], object]
) -> Sample:
    broker = _require_processes(environment, side, count)
    for _ in range(_WARM_UP):  # what a server sets up once, for its first sessions, is not the cost of a session
        side.connect().close()
    before = _memory(environment, side, broker)
    lowest = environment.lowest_gateway_memory.setdefault(side.name, before.gateway)
    environment.lowest_gateway_memory[side.name] = min(lowest, before.gateway)
    with ExitStack() as sessions:
        with Stopwatch(environment, side) as watch:
            for number in range(count):
                open_session(sessions, number)
        after = _memory(environment, side, broker)
    parts = {
        "broker_resident_kb": (after.broker_resident - before.broker_resident) / _KILOBYTE / count,
        "broker_allocated_kb": (after.broker_allocated - before.broker_allocated) / _KILOBYTE / count,
        "gateway_kb": (after.gateway - environment.lowest_gateway_memory[side.name]) / _KILOBYTE / count,
    }
    figure = max(parts["broker_resident_kb"], parts["broker_allocated_kb"]) + parts["gateway_kb"]
    return Sample(figure, count, watch.seconds, watch.cpu, parts)


def _require_processes(environment: Environment, side: Side, count: int) -> int:
    limit = raise_descriptor_limit()
    if limit < count + _SPARE_DESCRIPTORS:
        raise NotMeasurableError(f"{count:,} sessions need as many open files, and this process may open {limit:,}")
    if environment.broker.pid is None:
        raise NotMeasurableError("the broker's process is not on this machine, or may not be seen")
    if side.pid is None and not side.in_broker:
        raise NotMeasurableError("the gateway's process is not on this machine, or may not be seen")
    return environment.broker.pid


def _memory(environment: Environment, side: Side, broker: int) -> _Memory:
    await_quiet(environment)
    gc.collect()
    allocated = environment.broker.allocated_after_collection()
    gateway = 0 if side.pid is None else processes.memory_bytes(side.pid)
    return _Memory(processes.memory_bytes(broker), allocated, gateway)
