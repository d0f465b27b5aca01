"""What must hold after a run. Pure functions of schedule and recording; each returns sentences about what does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.recording import (
    REPLIES,
    STRANGER,
    Began,
    Confirmed,
    Copy,
    Delivered,
    Ended,
    Fault,
    Recording,
    Sent,
    Settled,
)
from tests.chaos.schedule import (
    BROKER_ENDS,
    CLIENT_LOSSES,
    GATEWAY_ENDS,
    LINK_LOSSES,
    PROBE,
    Ack,
    Harm,
    Receipts,
    Schedule,
)

_SHOWN: Final = 3
"""Examples for each kind of finding."""

_GRACE: Final = 1.0
"""Seconds by which a client may see an effect after the fault, and a process act before it was recorded."""

_FORGOTTEN: Final = 5.0
"""Seconds of acknowledgements that RabbitMQ may not have written to disk when it is killed."""

_UNKNOWN: Final = 5.0
"""Seconds in which a message without a receipt is thought to be confirmed, whatever stalls."""

_LOGIN_TIMEOUT: Final = 12.0
"""Without riding through, logins fail so long after the link has gone: while the broker is sought."""

_LOGIN_WAITS: Final = 8.0
"""With riding through, logins fail if the broker was away for so long."""

_SLOW: Final = frozenset({Harm.LINK_STALL, Harm.LINK_DELAY})
_LOSSES: Final = LINK_LOSSES | BROKER_ENDS | GATEWAY_ENDS

Finding = str


@dataclass(frozen=True)
class Promise:
    """What the gateway is configured to do. With ``ride_through`` sessions outlive their links."""

    ride_through: bool


def findings(schedule: Schedule, recording: Recording, promise: Promise) -> list[Finding]:
    """Everything that does not hold."""
    checks: Sequence[Callable[[], Iterable[Finding]]] = (
        lambda: missing(schedule, recording),
        lambda: come_again(recording),
        lambda: out_of_order(schedule, recording),
        lambda: doubled(recording),
        lambda: not_whole(recording),
        lambda: of_aborted_transactions(recording),
        lambda: ended_sessions(recording, promise),
    )
    return [line for check in checks for line in _few(list(check()))]


def _few(found: list[Finding]) -> list[Finding]:
    rest = len(found) - _SHOWN
    return found if rest <= 0 else [*found[:_SHOWN], f"... and {rest} more like that"]


# Losses.


def missing(schedule: Schedule, recording: Recording) -> Iterable[Finding]:
    """A message whose receipt came is in every queue that should have it, or was delivered from there.

    Two losses are documented: a broker that ends loses messages that are not persistent, and under ``ack:auto`` a
    client that vanishes loses what was on its way.
    """
    sent = {(event.copy.producer, event.copy.number): event for event in recording.of(Sent)}
    seen = {(each.queue, each.copy.producer, each.copy.number) for each in recording.of(Delivered)}
    broker_ended = bool(recording.faults(BROKER_ENDS))
    lossy = _lossy_queues(schedule, recording)
    for event in recording.of(Confirmed):
        message = sent[event.copy.producer, event.copy.number]
        for queue in sorted(schedule.queues(message.place)):
            if (queue, event.copy.producer, event.copy.number) in seen or queue in lossy:
                continue
            if message.persistent or not broker_ended:
                yield f"lost: {event.copy}, receipt at {event.at:.3f}, is not in {queue} and was never delivered"


def _lossy_queues(schedule: Schedule, recording: Recording) -> set[str]:
    vanished = {event.client for event in recording.of(Ended) if not event.wanted}
    return {
        plan.queue
        for plan in schedule.consumers
        if schedule.place(plan.place).ack is Ack.AUTO and plan.name in vanished
    }


# Duplicates.


def come_again(recording: Recording) -> Iterable[Finding]:
    """A message does not come again after the receipt of its ACK.

    Documented: the loss of a link or of a process takes acknowledgements with it that were on their way, and the
    gateway publishes again what was not confirmed when a link was lost.
    """
    losses = _losses(recording)
    first: dict[tuple[str, Copy], float] = {}
    settled: dict[tuple[str, Copy], float] = {}
    publishing = _publishing_spans(recording)
    for event in recording.events:
        if isinstance(event, Settled):
            _ = settled.setdefault((event.queue, event.copy), event.at)
        if not isinstance(event, Delivered):
            continue
        key = (event.queue, event.copy)
        began = first.setdefault(key, event.at)
        if key not in settled or event.copy not in publishing:
            continue
        if not _overlap(losses, began, settled[key] + _GRACE) and not _overlap(losses, *publishing[event.copy]):
            yield (
                f"came again: {event.copy} at {event.at:.3f} from {event.queue} to {event.consumer}, "
                f"after the receipt of its ACK at {settled[key]:.3f}"
            )


def doubled(recording: Recording) -> Iterable[Finding]:
    """A copy is in a queue once: if it comes twice, the second says ``redelivered``.

    Documented: the gateway publishes again what was not confirmed when a link was lost. A broker that ends forgets what
    it has delivered, and a reply may be given twice.
    """
    if recording.faults(BROKER_ENDS):
        return
    losses = _losses(recording)
    publishing = _publishing_spans(recording)
    seen: set[tuple[str, Copy]] = set()
    for event in recording.of(Delivered):
        key = (event.queue, event.copy)
        is_double = key in seen and not event.redelivered and not event.queue.startswith(REPLIES)
        seen.add(key)
        if is_double and not _overlap(losses, *publishing.get(event.copy, (event.at, event.at))):
            yield f"twice: {event.copy} at {event.at:.3f} to {event.consumer} is not marked as redelivered"


def _publishing_spans(recording: Recording) -> dict[Copy, tuple[float, float]]:
    """From when until when each copy may have been without a confirm."""
    confirmed: dict[Copy, float] = {}
    for event in recording.of(Confirmed):
        _ = confirmed.setdefault(event.copy, event.at)
    return {event.copy: (event.at, confirmed.get(event.copy, event.at + _UNKNOWN)) for event in recording.of(Sent)}


def _losses(recording: Recording) -> list[tuple[float, float]]:
    """The times of losses. A link that was slow when it was lost loses what it held since it became slow."""
    slow = recording.faults(_SLOW)
    return [(_since(fault, slow), fault.until) for fault in recording.faults(_LOSSES)]


def _since(loss: Fault, slow: Sequence[Fault]) -> float:
    before = [fault.at for fault in slow if fault.at <= loss.until and loss.at <= fault.until + _GRACE]
    return min([loss.at, *before]) - (_FORGOTTEN if loss.harm is Harm.BROKER_KILL else _GRACE)


def _overlap(spans: Iterable[tuple[float, float]], begin: float, end: float) -> bool:
    return any(at <= end and begin <= until for at, until in spans)


# Order.


def out_of_order(schedule: Schedule, recording: Recording) -> Iterable[Finding]:
    """A consumer sees the messages of one producer in order, among those that nobody saw before.

    A producer that asks for all receipts, and so sends again what was not answered, keeps its order over all its
    connections; others keep it on each connection.
    """
    careful = {plan.name for plan in schedule.producers if plan.receipts is Receipts.ALL}
    seen: set[tuple[str, str, int, int]] = set()
    last: dict[tuple[str, str, int], int] = defaultdict(lambda: -1)
    for event in recording.of(Delivered):
        producer, number, connection = event.copy
        if producer in careful:
            connection = 0
        place = f"{event.queue} for {event.consumer}"
        if event.queue.startswith(REPLIES):
            continue  # several consumers may reply, and to a message that comes again once more
        known = (event.queue, producer, number, connection) in seen
        seen.add((event.queue, producer, number, connection))
        if event.redelivered or known:
            continue
        before = last[place, producer, connection]
        if number < before:
            yield f"out of order: {event.copy} at {event.at:.3f} comes after number {before} from {place}"
        last[place, producer, connection] = max(before, number)


# Content.


def not_whole(recording: Recording) -> Iterable[Finding]:
    """Headers and body arrive as they were sent, and nothing comes that nobody sent."""
    sent = {event.copy for event in recording.of(Sent)}
    killed = bool(recording.faults({Harm.BROKER_KILL}))
    for event in recording.of(Delivered):
        if event.copy == STRANGER and killed:
            continue  # of the run before: the broker has forgotten that it was settled
        if event.copy not in sent:
            yield f"never sent: {event.copy} came from {event.queue} to {event.consumer}"
        elif not event.whole:
            yield f"changed: {event.copy} came from {event.queue} to {event.consumer} with other headers or body"
        elif event.queue.startswith(REPLIES) and event.copy.producer != event.consumer:
            yield f"astray: the reply to {event.copy} came to {event.consumer}"


def of_aborted_transactions(recording: Recording) -> Iterable[Finding]:
    """What was aborted is never delivered."""
    aborted = {event.copy for event in recording.of(Sent) if event.aborted}
    for event in recording.of(Delivered):
        if event.copy in aborted:
            yield f"aborted: {event.copy} came from {event.queue} to {event.consumer}"


# Sessions.


def ended_sessions(recording: Recording, promise: Promise) -> Iterable[Finding]:
    """A session ends when its client wants it, when its connection or its gateway is lost, and for no other reason.

    Without riding through, the loss of a link ends it, too.
    """
    began = {(event.client, event.connection): event.at for event in recording.of(Began)}
    for event in recording.of(Ended):
        if event.wanted and not event.error:
            continue
        if not _is_excused(recording, promise, event):
            since = began.get((event.client, event.connection))
            told = "could not log in" if since is None else f"began at {since:.3f}"
            session = f"session {event.connection} of {event.client}"
            yield f"ended: {session}, {told}, at {event.at:.3f}: {event.error or '-'}"


def _is_excused(recording: Recording, promise: Promise, event: Ended) -> bool:
    own = [fault for fault in recording.faults(CLIENT_LOSSES) if fault.client == event.client]
    spans = [(fault.at, fault.until + _GRACE) for fault in (*own, *recording.faults(GATEWAY_ENDS))]
    logged_in = any(
        began.client == event.client and began.connection == event.connection for began in recording.of(Began)
    )
    if not promise.ride_through:
        spans += [(at, until + _LOGIN_TIMEOUT) for at, until in _losses(recording)]
    elif not logged_in:
        # A client that connects meanwhile waits for the broker as long as it may take to log in.
        away = [fault for fault in recording.faults(_LOSSES) if fault.until - fault.at >= _LOGIN_WAITS]
        spans += [(fault.at, fault.until + _GRACE) for fault in away]
    return _overlap(spans, event.at, event.at)


def unserved(schedule: Schedule, recording: Recording) -> list[str]:
    """The consumers that have not seen a probe."""
    served = {event.consumer for event in recording.of(Delivered) if event.copy.producer == PROBE.name}
    return [plan.name for plan in schedule.consumers if plan.name not in served]
