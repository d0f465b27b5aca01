"""The rows about sessions and subscriptions that come and go, and about waiting beside others.

Like those in `rows`, each proves that nothing was lost before it returns a figure.
"""

import itertools
import select
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tests.bench.broker import EXPIRES
from tests.bench.environment import LIMIT, Environment, Sample, Side, Stopwatch, await_quiet
from tests.bench.wire import PATIENCE, NotMeasurableError, RowError, Wire, pump

_TOGETHER = 100
_BEATS_SESSIONS = 800
_INTERVAL = 1.0
_MESSAGE_SIZE = 1024
_FLOOD = 100
_FLOODED = 1.0
"""Seconds until all buffers between the flooding clients and the broker are full."""
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
    destination = f"/topic/{environment.prefix}.rtt_busy"
    with side.open() as wire:
        wire.subscribe(destination)
        await_quiet(environment)
        watch = Stopwatch(environment, side)
        with _flood(environment, side, flooders) as sent:
            time.sleep(_FLOODED)
            before = sent()
            times = _round_trips(wire, destination, count, watch)
            flood = sent() - before
    return _rtt_sample(times, watch, {"flood_per_second": flood / watch.seconds})


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


@contextmanager
def _flood(environment: Environment, side: Side, flooders: int) -> Iterator[Callable[[], int]]:
    """Send from other threads until the end of the block; yield what says how many messages have gone out so far.

    The threads do little but wait in the kernel, so they do not keep the other client from its work.
    """
    stop = threading.Event()

    def send(wire: Wire, sent: list[int]) -> None:
        while not stop.is_set():
            wire.write_all()
            sent[0] += _FLOOD

    with ExitStack() as open_wires:
        wires = [side.open() for _ in range(flooders)]
        counts = [[0] for _ in wires]
        for wire in wires:
            # A DISCONNECT would wait behind all that is in the buffers.
            open_wires.callback(wire.sock.close)
            wire.load_sends(f"/topic/{environment.prefix}.flood", _FLOOD)
            wire.sock.settimeout(PATIENCE)
        threads = [threading.Thread(target=send, args=each) for each in zip(wires, counts, strict=True)]
        for thread in threads:
            thread.start()
        try:
            yield lambda: sum(count for (count,) in counts)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
