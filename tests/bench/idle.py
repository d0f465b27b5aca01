"""The rows about memory: what sessions that do nothing cost, and messages in flight, in broker and gateway together.

There are two ways to ask the broker, and neither is right alone:

* The node's proportional set size is the memory that the machine really provides. But it does not fall all the way when
  sessions end, so the side that is measured second reuses memory that counted for the first.
* The node's own count, `erlang:memory()`, is exact at any time. But it holds receive buffers as large as the kernel's
  socket buffers (two megabytes for each session of the plugin on a usual Linux), hardly a page of which is ever
  touched. So binaries are not counted, and with them the little that is touched.

For sessions each therefore understates, and the row takes the larger. Messages are binaries; while they come, the
number of sessions stays the same, and so for them the node's own count is right, with binaries. The garbage of all
Erlang processes is collected before either is read. A gateway's memory does not fall fast, so its growth is counted
from the lowest value that was ever seen before.
"""

import gc
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.bench import payload, processes
from tests.bench.environment import LIMIT, Environment, Sample, Side, Stopwatch, await_quiet, raise_descriptor_limit
from tests.bench.payload import Shape
from tests.bench.wire import NotMeasurableError, RowError, Wire, pump

_KILOBYTE = 1024
_SPARE_DESCRIPTORS = 100
_WARM_UP = 20
_AT_ONCE = 8
"""Sessions that are opened at the same time: ten thousand would take minutes one by one."""
_ENDED_WITHIN = 180.0
"""Seconds that a broker may take to end ten thousand sessions and delete their queues."""
_HOLDERS = 50
_HELD = Shape(size=1024)
_FRAME_SIZE = 1024 + 400


@dataclass(frozen=True)
class _Memory:
    """Bytes: the broker's proportional set size, what it has allocated without and for binaries; the gateway's."""

    broker_resident: int
    broker_allocated: int
    broker_binaries: int
    gateway: int


def measure_idle(environment: Environment, side: Side, count: int) -> Sample:
    """Open `count` sessions and divide the growth of memory by them; the figure is in kB (1,024 bytes) per session."""
    return _measure_sessions(environment, side, count, lambda _: side.connect())


def measure_idle_subscribed(environment: Environment, side: Side, count: int) -> Sample:
    """The same with sessions that have subscribed to a topic of their own each."""

    def open_session(number: int) -> socket.socket:
        wire = side.open()
        wire.subscribe(f"/topic/{environment.prefix}.idle.{number}")
        return wire.sock

    return _measure_sessions(environment, side, count, open_session)


def measure_unacknowledged(environment: Environment, side: Side, count: int) -> Sample:
    """Deliver `count` messages to 50 sessions that acknowledge none; kB of memory per MB of bodies."""
    each = max(count // _HOLDERS, 1)
    with environment.queues("unacknowledged", _HOLDERS) as queues, ExitStack() as open_wires:
        receivers = []
        for queue in queues:
            receivers.append(open_wires.enter_context(_abandoned(side)))
            receivers[-1].expect(each * _FRAME_SIZE)
            receivers[-1].load_subscribe(f"/amq/queue/{queue}", ack="client-individual", prefetch=each)
        pump(dict.fromkeys(receivers, 0))
        sender = open_wires.enter_context(side.open())

        def deliver() -> None:
            for queue, receiver in zip(queues, receivers, strict=True):
                sender.load_sends(f"/amq/queue/{queue}", each, shape=_HELD)
                pump({sender: 0, receiver: each})

        sample = _measure_held(environment, side, each * _HOLDERS, deliver)
        for receiver in receivers:
            if complaint := receiver.complaint_about_messages(each, _HELD):
                raise RowError(complaint + receiver.error_clause())
    return sample


def measure_uncommitted(environment: Environment, side: Side, count: int) -> Sample:
    """Send `count` messages in 50 transactions that stay open; kB of memory per MB of bodies."""
    if side.name == LIMIT:
        raise NotMeasurableError("AMQP has other transactions")
    each = max(count // _HOLDERS, 1)
    head = b"SEND\ndestination:/topic/%s.uncommitted\ntransaction:1\n\n" % environment.prefix.encode()
    frames = b"".join(b"%b%b\0" % (head, payload.body(number, _HELD.size)) for number in range(each))
    with ExitStack() as open_wires:
        senders = [open_wires.enter_context(_abandoned(side)) for _ in range(_HOLDERS)]

        def fill() -> None:
            for sender in senders:
                # Frames are taken in order: when the second transaction has begun, the first one holds everything.
                sender.ask(b"BEGIN\ntransaction:1\n\n\0" + frames + b"BEGIN\ntransaction:2\nreceipt:held\n\n\0")

        return _measure_held(environment, side, each * _HOLDERS, fill)


@contextmanager
def _abandoned(side: Side) -> Iterator[Wire]:
    """A connection that is cut at the end, since what it holds shall not be finished."""
    wire = side.open()
    try:
        yield wire
    finally:
        wire.sock.close()


def _measure_sessions(
    environment: Environment, side: Side, count: int, open_session: Callable[[int], socket.socket]
) -> Sample:
    _require_processes(environment, side, count)
    await_quiet(environment, _ENDED_WITHIN)
    # When ten thousand sessions have ended, a broker neither lets anybody in nor makes a queue for half a minute. This
    # waits for both.
    with environment.queues("idle"):
        pass
    for _ in range(_WARM_UP):  # what a server sets up once, for its first sessions, is not the cost of a session
        side.connect().close()
    before = _memory(environment, side)
    with ExitStack() as sockets:
        with Stopwatch(environment, side) as watch:
            open_all(sockets, open_session, count)
        after = _memory(environment, side)
    parts = {
        "broker_resident_kb": (after.broker_resident - before.broker_resident) / _KILOBYTE / count,
        "broker_allocated_kb": (after.broker_allocated - before.broker_allocated) / _KILOBYTE / count,
        "gateway_kb": _gateway_growth(environment, side.name, before, after) / _KILOBYTE / count,
    }
    figure = max(parts["broker_resident_kb"], parts["broker_allocated_kb"]) + parts["gateway_kb"]
    return Sample(figure, count, watch.seconds, watch.cpu, parts)


def open_all(sockets: ExitStack, open_session: Callable[[int], socket.socket], count: int) -> list[socket.socket]:
    """Open `count` sessions, some at the same time; `sockets` closes them."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [sockets.enter_context(sock) for sock in threads.map(open_session, range(count))]


def _measure_held(environment: Environment, side: Side, count: int, hold: Callable[[], None]) -> Sample:
    """Let `hold` bring `count` messages in flight, and divide the growth of memory by their megabytes."""
    _require_processes(environment, side, _HOLDERS)
    before = _memory(environment, side)
    with Stopwatch(environment, side) as watch:
        hold()
    after = _memory(environment, side)
    megabytes = count * _HELD.size / _KILOBYTE**2
    broker = after.broker_allocated + after.broker_binaries - before.broker_allocated - before.broker_binaries
    parts = {
        "broker_kb": broker / _KILOBYTE / megabytes,
        "gateway_kb": _gateway_growth(environment, f"{side.name}, held", before, after) / _KILOBYTE / megabytes,
    }
    return Sample(sum(parts.values()), count, watch.seconds, watch.cpu, parts)


def _gateway_growth(environment: Environment, kind: str, before: _Memory, after: _Memory) -> int:
    lowest = min(environment.lowest_gateway_memory.get(kind, before.gateway), before.gateway)
    environment.lowest_gateway_memory[kind] = lowest
    return after.gateway - lowest


def _require_processes(environment: Environment, side: Side, count: int) -> None:
    limit = raise_descriptor_limit()
    if limit < count + _SPARE_DESCRIPTORS:
        raise NotMeasurableError(f"{count:,} sessions need as many open files, and this process may open {limit:,}")
    if environment.broker.pid is None:
        raise NotMeasurableError("the broker's process is not on this machine, or may not be seen")
    if not (side.pids or side.in_broker):
        raise NotMeasurableError("the gateway's process is not on this machine, or may not be seen")


def _memory(environment: Environment, side: Side) -> _Memory:
    await_quiet(environment, _ENDED_WITHIN)
    gc.collect()
    allocated, binaries = environment.broker.allocated_after_collection()
    resident, gateway = (
        int(processes.sum_of(processes.memory_bytes, pids) or 0) for pids in (environment.broker.pids, side.pids)
    )
    return _Memory(resident, allocated, binaries, gateway)
