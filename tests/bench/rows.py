"""What each row does. Each proves that nothing was lost before it returns a figure.

A row prepares (encodes, declares, prefills, connects), waits until the servers are idle, starts the clock, and stops it
at the last frame. Contents are checked afterwards. Both sides get the same frames, queues and client.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.bench import payload
from tests.bench.environment import TLS, WEBSOCKET, Environment, Sample, Side, Stopwatch, await_quiet
from tests.bench.idle import measure_idle, measure_idle_subscribed, measure_unacknowledged, measure_uncommitted
from tests.bench.payload import PLAIN, Shape
from tests.bench.session_rows import (
    measure_beats,
    measure_connect,
    measure_connect_logins,
    measure_connect_together,
    measure_first_sends,
    measure_rtt,
    measure_rtt_busy,
    measure_subscribe,
    measure_visit,
)
from tests.bench.wire import RowError, Wire, pump

Measure = Callable[[Environment, Side, int], Sample]

_HEADERS_SIZE = 400
_MESSAGE_SIZE = payload.BODY_SIZE + _HEADERS_SIZE
"""Bytes to reserve for one MESSAGE frame."""
_IN_FLIGHT = 2_000
_PREFETCH = 200
_ACK_HASTE = 5
"""The client rests so many times shorter where the server waits for its ACKs: a prefetch of 200 is soon used up."""
_SUBSCRIBERS = 10
_PAIRS = 50


def measure_send(environment: Environment, side: Side, count: int, shape: Shape = PLAIN) -> Sample:
    """Transient SENDs into one queue, as fast as the server takes them; ends at the receipt of the last."""
    with environment.queues("send") as (queue,), side.open() as wire:
        wire.load_sends(f"/amq/queue/{queue}", count, receipt_on_last=True, shape=shape)
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({wire: 1}, nap=environment.nap)
        wire.require_last_receipt()
        environment.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_send_confirmed(environment: Environment, side: Side, count: int) -> Sample:
    """Persistent SENDs with a receipt each, 2,000 unanswered at most; ends at the last receipt."""
    with environment.queues("send_confirmed") as (queue,), side.open() as wire:
        length = wire.load_confirmed_sends(f"/amq/queue/{queue}", count, _IN_FLIGHT)
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({wire: count}, lambda wire: wire.allow((wire.frames + _IN_FLIGHT) * length), nap=environment.nap)
        _refuse(wire.complaint_about_receipts(count), wire)
        environment.broker.require_depth(queue, count)
    return watch.rate(count)


def measure_receive(environment: Environment, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:auto, from SUBSCRIBE to the last MESSAGE."""
    with _full_queue(environment, "receive", count) as queue:
        with side.open() as wire:
            wire.expect(count * _MESSAGE_SIZE)
            wire.load_subscribe(f"/amq/queue/{queue}", ack="auto")
            await_quiet(environment)
            with Stopwatch(environment, side) as watch:
                pump({wire: count}, nap=environment.nap)
            _refuse(wire.complaint_about_messages(count), wire)
        environment.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_receive_ack(environment: Environment, side: Side, count: int) -> Sample:
    """A full queue emptied with ack:client-individual, a prefetch of 200 and an ACK each, written once per read."""
    with _full_queue(environment, "receive_ack", count) as queue:
        with side.open() as wire:
            wire.expect(count * _MESSAGE_SIZE)
            wire.load_subscribe(f"/amq/queue/{queue}", ack="client-individual", prefetch=_PREFETCH)
            await_quiet(environment)
            with Stopwatch(environment, side) as watch:
                pump({wire: count}, wire.acknowledger(), nap=environment.nap / _ACK_HASTE)
            _refuse(wire.complaint_about_messages(count), wire)
        environment.broker.require_depth(queue, 0)
    return watch.rate(count)


def measure_e2e(environment: Environment, side: Side, count: int, shape: Shape = PLAIN) -> Sample:
    """One sender and one subscriber of a topic on connections of their own; ends when the subscriber has everything."""
    return _through_topic(environment, side, count, "e2e", subscribers=1, shape=shape)


def measure_fanout(environment: Environment, side: Side, count: int) -> Sample:
    """One sender and ten subscribers of a topic; the figure counts deliveries."""
    return _through_topic(environment, side, count, "fanout", subscribers=_SUBSCRIBERS)


def measure_many(environment: Environment, side: Side, count: int) -> Sample:
    """50 senders, each with a queue of its own that has one subscriber."""
    each = max(count // _PAIRS, 1)
    with environment.queues("many", _PAIRS) as queues, ExitStack() as open_wires:
        goals: dict[Wire, int] = {}
        for queue in queues:
            receiver, sender = (open_wires.enter_context(side.open()) for _ in range(2))
            receiver.subscribe(f"/amq/queue/{queue}")
            receiver.expect(each * _MESSAGE_SIZE)
            sender.load_sends(f"/amq/queue/{queue}", each)
            goals |= {sender: 0, receiver: each}
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump(goals, nap=environment.nap)
        for wire, goal in goals.items():
            if goal:
                _refuse(wire.complaint_about_messages(each), wire)
    return watch.rate(each * _PAIRS)


def _over(transport: str, measure: Measure) -> Measure:
    """The same row over another transport."""
    return lambda environment, side, count: measure(environment, side.over(transport), count)


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
    "subscribe": measure_subscribe,
    "visit": measure_visit,
    "first_sends": measure_first_sends,
    "many": measure_many,
    "send_headers": partial(measure_send, shape=Shape(headers=12)),
    "e2e_64": partial(measure_e2e, shape=Shape(size=64)),
    "e2e_16k": partial(measure_e2e, shape=Shape(size=16 * 1024)),
    "e2e_tls": _over(TLS, measure_e2e),
    "e2e_websocket": _over(WEBSOCKET, measure_e2e),
    "rtt_busy": measure_rtt_busy,
    "rtt_busy_50": partial(measure_rtt_busy, flooders=50),
    "connect_together": measure_connect_together,
    "connect_logins": measure_connect_logins,
    "beats": measure_beats,
    "unacknowledged": measure_unacknowledged,
    "uncommitted": measure_uncommitted,
    "idle_subscribed": measure_idle_subscribed,
    "idle_many": measure_idle,
    "idle_many_subscribed": measure_idle_subscribed,
}
"""The function behind each row of `targets.ROWS`. `count` is the row's at scale 1, times the scale."""


def _through_topic(
    environment: Environment, side: Side, count: int, row: str, subscribers: int, shape: Shape = PLAIN
) -> Sample:
    destination = f"/topic/{environment.prefix}.{row}"
    with ExitStack() as open_wires:
        receivers = [open_wires.enter_context(side.open()) for _ in range(subscribers)]
        sender = open_wires.enter_context(side.open())
        for receiver in receivers:
            receiver.subscribe(destination)
            receiver.expect(count * (_HEADERS_SIZE + shape.size))
        sender.load_sends(destination, count, shape=shape)
        await_quiet(environment)
        with Stopwatch(environment, side) as watch:
            pump({sender: 0, **dict.fromkeys(receivers, count)}, nap=environment.nap)
        for receiver in receivers:
            _refuse(receiver.complaint_about_messages(count, shape), receiver)
    return watch.rate(count * subscribers)


@contextmanager
def _full_queue(environment: Environment, row: str, count: int) -> Iterator[str]:
    with environment.queues(row) as (queue,):
        with environment.prefiller.open() as wire:
            wire.load_sends(f"/amq/queue/{queue}", count, receipt_on_last=True)
            pump({wire: 1}, nap=environment.nap)
            wire.require_last_receipt()
        environment.broker.require_depth(queue, count)
        yield queue


def _refuse(complaint: str | None, wire: Wire) -> None:
    if complaint is not None:
        raise RowError(complaint + wire.error_clause())
