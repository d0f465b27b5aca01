"""What each row does. Every one of them proves that it was complete before it hands out a figure.

A row prepares (encodes, declares, prefills, connects), waits until the servers are at rest, starts the clock, and stops
it when the last frame is there. Contents are checked afterwards. Both sides get the same frames, queues and client.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.bench import payload
from tests.bench.idle import measure_idle
from tests.bench.stand import Sample, Side, Stand, Stopwatch, await_quiet
from tests.bench.wire import RowError, Wire, connected_socket, pump, subscribe_frame

Measure = Callable[[Stand, Side, int], Sample]

_MESSAGE_SIZE = 256 + 400
"""Bytes to reserve for one MESSAGE frame."""
_IN_FLIGHT = 2_000
_PREFETCH = 200
_ACK_HASTE = 5
"""How many times shorter the client rests where its ACKs are awaited: 200 in hand are soon used up."""
_SUBSCRIBERS = 10
_ACK_HEADER = re.compile(rb"\nack:([^\n]+)\n")


def measure_send(stand: Stand, side: Side, count: int) -> Sample:
    """Transient SENDs into one queue, as fast as they are taken; ends at the receipt of the last."""
    with _queue(stand, "send") as queue, Wire(side.account) as wire:
        wire.load(payload.sends(f"/amq/queue/{queue}", count, receipt_on_last=True))
        await_quiet(stand)
        with Stopwatch(stand, side) as watch:
            pump({wire: 1}, nap=stand.nap)
        _require_receipt(wire)
        stand.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_send_confirmed(stand: Stand, side: Side, count: int) -> Sample:
    """Persistent SENDs with a receipt each, 2,000 unanswered at most; ends at the last receipt."""
    with _queue(stand, "send_confirmed") as queue, Wire(side.account) as wire:
        frames, length = payload.confirmed_sends(f"/amq/queue/{queue}", count)
        wire.expect(count * 64)
        wire.load(frames, allowed=_IN_FLIGHT * length)
        await_quiet(stand)
        with Stopwatch(stand, side) as watch:
            pump({wire: count}, lambda wire: wire.allow((wire.frames + _IN_FLIGHT) * length), nap=stand.nap)
        _refuse(payload.complaint_about_receipts(wire.received, count), wire)
        stand.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_receive(stand: Stand, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:auto, from SUBSCRIBE to the last MESSAGE."""
    with _full_queue(stand, "receive", count) as queue:
        with Wire(side.account) as wire:
            wire.expect(count * _MESSAGE_SIZE)
            wire.load(subscribe_frame(f"/amq/queue/{queue}", ack="auto"))
            await_quiet(stand)
            with Stopwatch(stand, side) as watch:
                pump({wire: count}, nap=stand.nap)
            _refuse(payload.complaint_about_messages(wire.received, count), wire)
        stand.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_receive_ack(stand: Stand, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:client-individual, a prefetch of 200 and an ACK each, written once per read."""
    with _full_queue(stand, "receive_ack", count) as queue:
        with Wire(side.account) as wire:
            wire.expect(count * _MESSAGE_SIZE)
            headers = {"ack": "client-individual", "prefetch_count": str(_PREFETCH)}
            wire.load(subscribe_frame(f"/amq/queue/{queue}", **headers))
            await_quiet(stand)
            with Stopwatch(stand, side) as watch:
                pump({wire: count}, Acknowledger(), nap=stand.nap / _ACK_HASTE)
            _refuse(payload.complaint_about_messages(wire.received, count), wire)
        stand.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_e2e(stand: Stand, side: Side, count: int) -> Sample:
    """One sender and one subscriber of a topic on connections of their own; ends when the subscriber has everything."""
    return _through_topic(stand, side, count, "e2e", subscribers=1)


def measure_fanout(stand: Stand, side: Side, count: int) -> Sample:
    """One sender and ten subscribers of a topic; the figure counts deliveries."""
    return _through_topic(stand, side, count, "fanout", subscribers=_SUBSCRIBERS)


def measure_rtt(stand: Stand, side: Side, count: int) -> Sample:
    """SEND to a topic, MESSAGE back on the same connection, one at a time; the figure is the median in microseconds."""
    destination = f"/topic/{stand.prefix}.rtt"
    with Wire(side.account) as wire:
        wire.subscribe(destination, ack="auto")
        wire.expect(count * _MESSAGE_SIZE)
        frame_of = payload.sends(destination, count)
        size = len(frame_of) // count
        await_quiet(stand)
        with Stopwatch(stand, side) as watch:
            times = list(_round_trips(wire, memoryview(frame_of), size, count))
        _refuse(payload.complaint_about_messages(wire.received, count), wire)
    cuts = statistics.quantiles(times, n=100)
    return Sample(cuts[49] / 1000, count, watch.seconds, watch.cpu, {"p99": cuts[98] / 1000})


def measure_connect(stand: Stand, side: Side, count: int) -> Sample:
    """Sessions opened one after the other: TCP, CONNECT, CONNECTED, close."""
    await_quiet(stand)
    with Stopwatch(stand, side) as watch:
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


def _through_topic(stand: Stand, side: Side, count: int, row: str, subscribers: int) -> Sample:
    destination = f"/topic/{stand.prefix}.{row}"
    with ExitStack() as open_wires:
        receivers = [open_wires.enter_context(Wire(side.account)) for _ in range(subscribers)]
        sender = open_wires.enter_context(Wire(side.account))
        for receiver in receivers:
            receiver.subscribe(destination, ack="auto")
            receiver.expect(count * _MESSAGE_SIZE)
        sender.load(payload.sends(destination, count))
        await_quiet(stand)
        with Stopwatch(stand, side) as watch:
            pump({sender: 0, **dict.fromkeys(receivers, count)}, nap=stand.nap)
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
def _queue(stand: Stand, row: str) -> Iterator[str]:
    queue = f"{stand.prefix}.{row}"
    stand.broker.declare(queue)
    try:
        yield queue
    finally:
        stand.broker.delete(queue)


@contextmanager
def _full_queue(stand: Stand, row: str, count: int) -> Iterator[str]:
    with _queue(stand, row) as queue:
        with Wire(stand.prefiller.account) as wire:
            wire.load(payload.sends(f"/amq/queue/{queue}", count, receipt_on_last=True))
            pump({wire: 1}, nap=stand.nap)
            _require_receipt(wire)
        stand.broker.require_depth(queue, count)
        yield queue


def _require_receipt(wire: Wire) -> None:
    if not wire.received.startswith(b"RECEIPT\nreceipt-id:last\n"):
        raise RowError(f"the last SEND was not answered by its receipt{wire.last_words()}")


def _refuse(complaint: str | None, wire: Wire) -> None:
    if complaint is not None:
        raise RowError(complaint + wire.last_words())
