"""The rows about sessions and subscriptions that come and go, and about waiting beside others.

Like those in `rows`, each proves that nothing was lost before it returns a figure.
"""

import itertools
import select
import socket
import statistics
import struct
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from tests.bench import payload
from tests.bench.broker import EXPIRES
from tests.bench.environment import LIMIT, Environment, Sample, Side, Stopwatch, await_quiet
from tests.bench.wire import PATIENCE, NotMeasurableError, RowError, Wire, pump

_TOGETHER = 100
_BEATS_SESSIONS = 800
_INTERVAL = 1.0
_MESSAGE_SIZE = 1024
_FLOOD = 100
_TAKEN = b"BEGIN\ntransaction:flood\nreceipt:taken\n\n\0ABORT\ntransaction:flood\n\n\0"
"""Asks how far the server has come. The receipt of a SEND would have the plugin use confirms, which cost it more."""
_FLOODED = 1.0
"""Seconds until all buffers between the flooding clients and the broker are full, and for which their rate is seen."""
_RESET = struct.pack("ii", 1, 0)
"""What SO_LINGER needs so that a close throws away what is unsent."""
_numbers = itertools.count(1)


def measure_subscribe(environment: Environment, side: Side, count: int) -> Sample:
    """SUBSCRIBE to a topic of its own each, on one session, the next one after the RECEIPT."""
    with side.open() as wire:
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            for number in range(count):
                wire.subscribe(f"/topic/{environment.prefix}.subscribe.{number}", number)
    return watch.rate(count)


def measure_first_sends(environment: Environment, side: Side, count: int) -> Sample:
    """The first SEND of a session to each of many queues that exist: it declares them; ends at the last receipt."""
    if side.name == LIMIT:
        raise NotMeasurableError("a publish of AMQP declares no queue")
    with environment.queues("first_sends", count) as queues, side.open() as wire:
        heads = [f"SEND\ndestination:/queue/{queue}\nx-expires:{EXPIRES}\n" for queue in queues]
        wire.load("".join([*(f"{head}\n\0" for head in heads[:-1]), f"{heads[-1]}receipt:last\n\n\0"]).encode())
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({wire: 1}, nap=environment.nap)
        wire.require_last_receipt()
        for queue in queues:
            environment.broker.require_depth(queue, 1)
    return watch.rate(count)


def measure_visit(environment: Environment, side: Side, count: int) -> Sample:
    """Sessions one after the other: connect, subscribe to a topic, send a message, get it, disconnect."""
    destination = f"/topic/{environment.prefix}.visit"
    await_quiet(environment)
    with Stopwatch(environment, side) as watch:
        for _ in range(count):
            with side.open() as wire:
                wire.subscribe(destination)
                wire.expect(_MESSAGE_SIZE)
                wire.load_sends(destination, 1)
                pump({wire: 1})
                if complaint := wire.complaint_about_messages(1):
                    raise RowError(complaint + wire.error_clause())
    return watch.rate(count)


def measure_connect_together(environment: Environment, side: Side, count: int) -> Sample:
    """Sessions opened 100 at a time and closed when all of these are there."""
    each = min(count, _TOGETHER)
    await_quiet(environment)
    with Stopwatch(environment, side) as watch:
        for _ in range(count // each):
            with ExitStack() as sockets:
                opened = [sockets.enter_context(side.wire.begin(side.account)) for _ in range(each)]
                for sock in opened:
                    side.wire.await_begun(sock)
    return watch.rate(count // each * each)


def measure_connect_logins(environment: Environment, side: Side, count: int) -> Sample:
    """Sessions opened one after the other, each with a login that nobody had before, so that nothing is shared."""
    logins = [f"{environment.prefix}-{next(_numbers)}" for _ in range(count)]
    environment.broker.add_users(logins, side.account.virtual_host)
    try:
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            for login in logins:
                side.wire.connect(replace(side.account, login=login, passcode=login)).close()
    finally:
        environment.broker.delete_users(logins)
    return watch.rate(count)


def measure_connect(environment: Environment, side: Side, count: int) -> Sample:
    """Sessions opened one after the other: TCP, CONNECT, CONNECTED, close."""
    await_quiet(environment)
    with Stopwatch(environment, side) as watch:
        for _ in range(count):
            side.connect().close()
    return watch.rate(count)


def measure_rtt(environment: Environment, side: Side, count: int) -> Sample:
    """SEND to a topic, MESSAGE back on the same connection, one at a time; the figure is the median in microseconds."""
    destination = f"/topic/{environment.prefix}.rtt"
    with side.open() as wire:
        wire.subscribe(destination)
        await_quiet(environment)
        watch = Stopwatch(environment, side)
        times = _round_trips(wire, destination, count, watch)
    return _rtt_sample(times, watch, {})


def measure_rtt_busy(environment: Environment, side: Side, count: int, flooders: int = 1) -> Sample:
    """As `rtt`, while other clients send to a topic that nobody has subscribed to, as fast as they may."""
    if side.name == LIMIT:
        raise NotMeasurableError("a flood without confirms fills the broker's own queues")
    destination = f"/topic/{environment.prefix}.rtt_busy"
    with side.open() as wire:
        wire.subscribe(destination)
        await_quiet(environment)
        watch = Stopwatch(environment, side)
        with _Flood(environment, side, flooders) as flood:
            time.sleep(_FLOODED)
            before, started = flood.taken(), time.perf_counter()
            times = _round_trips(wire, destination, count, watch)
            # Round trips may take less time than the flood needs to show its rate.
            time.sleep(max(0.0, started + _FLOODED - time.perf_counter()))
            rate = (flood.taken() - before) / (time.perf_counter() - started)
    sample = _rtt_sample(times, watch, {"flood_per_second": rate})
    # CPU time is for each message of both, since that of a round trip would be mostly the flood's.
    return replace(sample, operations=len(times) + round(rate * watch.seconds))


def _round_trips(wire: Wire, destination: str, count: int, watch: Stopwatch) -> list[int]:
    """Send a message, await it, and so on, with the watch running; return the nanoseconds of each.

    Raises:
        RowError: not every message came once and whole.
    """
    wire.expect(count * _MESSAGE_SIZE)
    size = wire.load_sends(destination, count)
    wire.sock.settimeout(PATIENCE)
    clock, times = time.perf_counter_ns, []
    with watch:
        for number in range(count):
            started = clock()
            wire.write_blocking(size)
            while wire.frames <= number:
                wire.read()
            times.append(clock() - started)
    wire.sock.setblocking(False)
    if complaint := wire.complaint_about_messages(count):
        raise RowError(complaint + wire.error_clause())
    return times


def _rtt_sample(times: list[int], watch: Stopwatch, others: dict[str, float]) -> Sample:
    """Return the sample of round trips: the median in microseconds, and the 99th percentile."""
    cuts = statistics.quantiles(times, n=100)
    return Sample(cuts[49] / 1000, len(times), watch.seconds, watch.cpu, {"p99": cuts[98] / 1000, **others})


def measure_beats(environment: Environment, side: Side, count: int) -> Sample:
    """800 sessions that exchange heart-beats once a second and do nothing else, for `count` seconds.

    The figure is the CPU time of broker and gateway per session and second, in microseconds.
    """
    if side.name == LIMIT:
        raise NotMeasurableError("AMQP has other heart-beats")
    account = replace(side.account, heart_beat="1000,1000")
    with ExitStack() as sockets, select.epoll() as poller:
        by_number = {}
        for _ in range(_BEATS_SESSIONS):
            sock = sockets.enter_context(side.wire.connect(account))
            sock.setblocking(False)
            poller.register(sock.fileno(), select.EPOLLIN)
            by_number[sock.fileno()] = sock
        with Stopwatch(environment, side) as watch:
            beats = 0
            for _ in range(count):
                ends = time.monotonic() + _INTERVAL
                for sock in by_number.values():
                    sock.send(b"\n")
                while (rest := ends - time.monotonic()) > 0:
                    for number, _ in poller.poll(rest):
                        data = by_number[number].recv(4096)
                        if data.strip(b"\n") or not data:
                            raise RowError(f"a session that only beat was ended: {data[:200]!r}")
                        beats += len(data)
    operations = _BEATS_SESSIONS * count
    if beats < operations // 2:
        raise RowError(f"only {beats:,} heart-beats came in {operations:,} seconds of sessions")
    used = [seconds for seconds in (watch.cpu.broker, watch.cpu.gateway) if seconds is not None]
    if watch.cpu.broker is None or not (side.pids or side.in_broker):
        raise NotMeasurableError("the processes are not on this machine, or may not be seen")
    return Sample(sum(used) / operations * 1e6, operations, watch.seconds, watch.cpu)


class _Flood:
    """Clients that send as fast as they can until the end of the block, from threads that mostly wait in the kernel."""

    def __init__(self, environment: Environment, side: Side, flooders: int) -> None:
        self._wires = [side.open() for _ in range(flooders)]
        self._threads = [threading.Thread(target=self._send, args=(wire,)) for wire in self._wires]
        self._is_over = False
        self._failure: OSError | None = None
        for wire in self._wires:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            wire.sock.settimeout(PATIENCE)
            wire.load(payload.sends(f"/topic/{environment.prefix}.flood", _FLOOD) + _TAKEN)

    def _send(self, wire: Wire) -> None:
        try:
            while not self._is_over:
                wire.write_all()
        except OSError as error:
            if not self._is_over:
                self._failure = error

    def taken(self) -> int:
        """Return how many messages the server has taken. Thousands of those that were sent may be in buffers."""
        for wire in self._wires:
            while select.select([wire.sock], [], [], 0)[0]:
                wire.read()
        return sum(wire.frames for wire in self._wires) * _FLOOD

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        for wire in self._wires:
            # Ends a write that waits.
            wire.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for wire in self._wires:
            # A reset: what is in the buffers would keep the broker busy for many seconds.
            wire.sock.close()
        if self._failure is not None and kind is None:
            raise RowError(f"a flooding client could not go on: {self._failure}")
