"""What each row does. Each proves that nothing was lost before it returns a figure.

A row prepares (encodes, declares, prefills, connects), waits until the servers are idle, starts the clock, and stops it
at the last frame. Contents are checked afterwards. Both sides get the same frames, queues and client.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.bench import payload
from tests.bench.environment import Environment, Sample, Side, Stopwatch, await_quiet
from tests.bench.idle import measure_idle
from tests.bench.wire import RowError, Wire, connected_socket, pump, subscribe_frame

Measure = Callable[[Environment, Side, int], Sample]

_MESSAGE_SIZE = 256 + 400
"""Bytes to reserve for one MESSAGE frame."""
_IN_FLIGHT = 2_000
_PREFETCH = 200
_ACK_HASTE = 5
"""The client rests so many times shorter where the server waits for its ACKs: a prefetch of 200 is soon used up."""
_SUBSCRIBERS = 10
_ACK_HEADER = re.compile(rb"\nack:([^\n]+)\n")


def measure_send(environment: Environment, side: Side, count: int) -> Sample:
    """Transient SENDs into one queue, as fast as the server takes them; ends at the receipt of the last."""
    with _queue(environment, "send") as queue, Wire(side.account) as wire:
        wire.load(payload.sends(f"/amq/queue/{queue}", count, receipt_on_last=True))
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({wire: 1}, nap=environment.nap)
        _require_receipt(wire)
        environment.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_send_confirmed(environment: Environment, side: Side, count: int) -> Sample:
    """Persistent SENDs with a receipt each, 2,000 unanswered at most; ends at the last receipt."""
    with _queue(environment, "send_confirmed") as queue, Wire(side.account) as wire:
        frames, length = payload.confirmed_sends(f"/amq/queue/{queue}", count)
        wire.expect(count * 64)
        wire.load(frames, allowed=_IN_FLIGHT * length)
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({wire: count}, lambda wire: wire.allow((wire.frames + _IN_FLIGHT) * length), nap=environment.nap)
        _refuse(payload.complaint_about_receipts(wire.received, count), wire)
        environment.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_receive(environment: Environment, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:auto, from SUBSCRIBE to the last MESSAGE."""
    with _full_queue(environment, "receive", count) as queue:
        with Wire(side.account) as wire:
            wire.expect(count * _MESSAGE_SIZE)
            wire.load(subscribe_frame(f"/amq/queue/{queue}", ack="auto"))
            await_quiet(environment)
            with Stopwatch(environment, side) as watch:
                pump({wire: count}, nap=environment.nap)
            _refuse(payload.complaint_about_messages(wire.received, count), wire)
        environment.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_receive_ack(environment: Environment, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:client-individual, a prefetch of 200 and an ACK each, written once per read."""
    with _full_queue(environment, "receive_ack", count) as queue:
        with Wire(side.account) as wire:
            wire.expect(count * _MESSAGE_SIZE)
            headers = {"ack": "client-individual", "prefetch_count": str(_PREFETCH)}
            wire.load(subscribe_frame(f"/amq/queue/{queue}", **headers))
            await_quiet(environment)
            with Stopwatch(environment, side) as watch:
                pump({wire: count}, Acknowledger(), nap=environment.nap / _ACK_HASTE)
            _refuse(payload.complaint_about_messages(wire.received, count), wire)
        environment.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_e2e(environment: Environment, side: Side, count: int) -> Sample:
    """One sender and one subscriber of a topic on connections of their own; ends when the subscriber has everything."""
    return _through_topic(environment, side, count, "e2e", subscribers=1)


def measure_fanout(environment: Environment, side: Side, count: int) -> Sample:
    """One sender and ten subscribers of a topic; the figure counts deliveries."""
    return _through_topic(environment, side, count, "fanout", subscribers=_SUBSCRIBERS)


def measure_rtt(environment: Environment, side: Side, count: int) -> Sample:
    """SEND to a topic, MESSAGE back on the same connection, one at a time; the figure is the median in microseconds."""
    destination = f"/topic/{environment.prefix}.rtt"
    with Wire(side.account) as wire:
        wire.subscribe(destination, ack="auto")
        wire.expect(count * _MESSAGE_SIZE)
        frame_of = payload.sends(destination, count)
        size = len(frame_of) // count
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            times = list(_round_trips(wire, memoryview(frame_of), size, count))
        _refuse(payload.complaint_about_messages(wire.received, count), wire)
    cuts = statistics.quantiles(times, n=100)
    return Sample(cuts[49] / 1000, count, watch.seconds, watch.cpu, {"p99": cuts[98] / 1000})


def measure_connect(environment: Environment, side: Side, count: int) -> Sample:
    """Sessions opened one after the other: TCP, CONNECT, CONNECTED, close."""
    await_quiet(environment)
    with Stopwatch(environment, side) as watch:
        for _ in range(count):
            connected_socket(side.account).close()
    return watch.rate(count)


MEASURES: dict[str, Measure] = {
    "send": measure_send,
    "send_confirmed": measure_send_confirmed,
    "receive": measure_receive,
    "receive_ack": measure_receive_ack,
    "e2e": measure_e2e,
    "fanout": measure_fanout,
    "rtt": measure_rtt,
    "connect": measure_connect,
    "idle": measure_idle,
}
"""The function behind each row of `targets.ROWS`. `count` is the row's at scale 1, times the scale."""


class Acknowledger:
    """Answer each read with the ACK frames of all messages that it completed: one pattern, one join, one write."""

    def __init__(self) -> None:
        self._answered = 0

    def __call__(self, wire: Wire) -> None:
        """Append the ACKs of what `wire` has received whole since the last call."""
        complete = wire.buffer.rfind(0, self._answered, wire.filled) + 1
        if complete:
            ids = _ACK_HEADER.findall(wire.buffer, self._answered, complete)
            self._answered = complete
            if ids:
                wire.append(b"ACK\nid:" + b"\n\n\0ACK\nid:".join(ids) + b"\n\n\0")


def _through_topic(environment: Environment, side: Side, count: int, row: str, subscribers: int) -> Sample:
    destination = f"/topic/{environment.prefix}.{row}"
    with ExitStack() as open_wires:
        receivers = [open_wires.enter_context(Wire(side.account)) for _ in range(subscribers)]
        sender = open_wires.enter_context(Wire(side.account))
        for receiver in receivers:
            receiver.subscribe(destination, ack="auto")
            receiver.expect(count * _MESSAGE_SIZE)
        sender.load(payload.sends(destination, count))
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({sender: 0, **dict.fromkeys(receivers, count)}, nap=environment.nap)
        for receiver in receivers:
            _refuse(payload.complaint_about_messages(receiver.received, count), receiver)
    return watch.rate(count * subscribers)


def _round_trips(wire: Wire, frames: memoryview, size: int, count: int) -> Iterator[int]:
    wire.sock.settimeout(10)
    clock = time.perf_counter_ns
    for number in range(count):
        started = clock()
        wire.sock.sendall(frames[number * size : (number + 1) * size])
        while wire.frames <= number:
            wire.read()
        yield clock() - started
    wire.sock.setblocking(False)


@contextmanager
def _queue(environment: Environment, row: str) -> Iterator[str]:
    queue = f"{environment.prefix}.{row}"
    environment.broker.declare(queue)
    try:
        yield queue
    finally:
        environment.broker.delete(queue)


@contextmanager
def _full_queue(environment: Environment, row: str, count: int) -> Iterator[str]:
    with _queue(environment, row) as queue:
        with Wire(environment.prefiller.account) as wire:
            wire.load(payload.sends(f"/amq/queue/{queue}", count, receipt_on_last=True))
            pump({wire: 1}, nap=environment.nap)
            _require_receipt(wire)
        environment.broker.require_depth(queue, count)
        yield queue


def _require_receipt(wire: Wire) -> None:
    if not wire.received.startswith(b"RECEIPT\nreceipt-id:last\n"):
        raise RowError(f"the last SEND was not answered by its receipt{wire.error_clause()}")


def _refuse(complaint: str | None, wire: Wire) -> None:
    if complaint is not None:
        raise RowError(complaint + wire.error_clause())
