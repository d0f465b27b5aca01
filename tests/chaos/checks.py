"""What must hold of the messages of a run. Pure functions of its history, each with an outcome for all that it checks.

What is excused is what ``docs/reliability.md`` says, for the one message or session that it can be the reason for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.chaos.history import GRACE, History, Promise, Span, any_overlap
from tests.chaos.messages import content
from tests.chaos.recording import EARLIER, REMAINS, REPLIES, Copy, Delivered, Recording, Sent, Settled, Subscribed
from tests.chaos.schedule import (
    FOR_EACH,
    GATEWAY_KILLS,
    NODE_ENDS,
    NODE_SILENCES,
    PROBE,
    QUORUM_SUBSCRIPTIONS,
    QUORUMS,
    Ack,
    ConsumerPlan,
    Harm,
    Kind,
    Receipts,
    Schedule,
)
from tests.chaos.session_checks import ended_sessions
from tests.chaos.verdict import Check, Excuse, Outcome, Verdict

_COMES_BACK_WITHIN = 15.0
"""Seconds after the end of a fault in which a transient subscription is there again."""


def judged(schedule: Schedule, recording: Recording, promise: Promise) -> Verdict:
    """All checks."""
    history = History(schedule, recording, promise)
    verdict = Verdict()
    for check in (
        kept, to_each, settled, once, in_order, contents, replies, whole_transactions, ended_sessions,
    ):  # fmt: skip
        verdict.take(check(history))
    # At the least, the probes are kept and seen.
    verdict.findings += verdict.unproven((Check.CONTENT, Check.ORDER, Check.SESSION))
    return verdict


# Losses.


def kept(history: History) -> Iterator[Outcome]:
    """A message whose receipt came is in every queue that should have it, or was delivered from there."""
    seen = {(each.queue, each.copy.producer, each.copy.number) for each in history.deliveries}
    for copy, at in history.confirmed.items():
        for queue in sorted(history.schedule.queues(history.sent[copy].place)):
            if (queue, copy.producer, copy.number) in seen:
                yield Outcome(Check.KEPT)
            else:
                lost = f"lost: {copy}, receipt at {at:.3f}, is not in {queue} and was never delivered"
                yield Outcome(Check.KEPT, lost, _why_lost(history, copy, queue))


def _why_lost(history: History, copy: Copy, queue: str) -> Excuse | None:
    message, there_at = history.sent[copy], history.was_there_at(copy)
    place = history.schedule.place(message.place)
    if history.was_over_after({Harm.VHOST_DELETION}, there_at):
        return Excuse.VHOST_DELETED
    for deletion in history.deleted(queue):
        # A queue that the gateway declares is there again for what is sent later.
        gone_until = deletion.at if place.is_declared else deletion.until
        if there_at <= gone_until + GRACE:
            return Excuse.QUEUE_DELETED
    is_lost_with_node = place.kind is not Kind.QUORUM and not message.persistent
    if is_lost_with_node and any(there_at <= span.end for span in history.ends(queue)):
        return Excuse.NOT_PERSISTENT
    is_dropped = place.kind is Kind.DURABLE and history.promise.drops_for_absent
    # In a partition the queues of the others are away, too.
    away = [*history.ends(queue), *history.spans(NODE_SILENCES)]
    if is_dropped and any_overlap(away, *history.publishing[copy]):
        return Excuse.SUBSCRIPTION_AWAY
    if place.ack is Ack.AUTO and _may_be_on_its_way(history, copy, queue):
        return Excuse.ON_ITS_WAY
    return None


def _may_be_on_its_way(history: History, copy: Copy, queue: str) -> bool:
    """Whether a client vanished to which the message may have been sent, and which had not got one from behind it."""
    consumers = {plan.name for plan in history.schedule.consumers if plan.queue == queue}
    ends = [event for event in history.ended if event.client in consumers]
    for end in ends:
        if end.wanted or history.sent[copy].at > end.at + GRACE:
            continue
        # Until then, messages may have returned to their places in the queue.
        returned = [span.end for span in history.losses if span.end <= end.at]
        returned += [other.at for other in ends if other.at < end.at and other.client != end.client]
        got = [
            history.sent[event.copy].at
            for event in history.by_session[end.client, end.connection]
            if event.copy in history.sent and event.at > max(returned, default=0.0)
        ]
        if history.confirmed.get(copy, history.sent[copy].at) > max(got, default=0.0):
            return True
    return False


def to_each(history: History) -> Iterator[Outcome]:
    """Each subscriber of a topic or a stream gets what has a receipt and was sent while it was subscribed.

    A queue is in order: what was confirmed before another message was sent has come when that comes.
    """
    for plan in history.schedule.consumers:
        if history.schedule.place(plan.place).kind not in FOR_EACH:
            continue
        messages = [
            (history.sent[copy], at) for copy, at in history.confirmed.items() if history.sent[copy].place == plan.place
        ]
        for (client, connection), subscribed_at in history.subscribed.items():
            if client == plan.name:
                yield from _to_session(history, plan, (client, connection), subscribed_at, messages)


def _to_session(
    history: History,
    plan: ConsumerPlan,
    session: tuple[str, int],
    subscribed_at: float,
    messages: Iterable[tuple[Sent, float]],
) -> Iterator[Outcome]:
    got = [event for event in history.by_session[session] if event.copy in history.sent]
    numbers = {(event.copy.producer, event.copy.number) for event in got}
    for message, confirmed_at in messages:
        behind = next((event for event in got if history.sent[event.copy].at > confirmed_at), None)
        if message.at < subscribed_at or behind is None:
            continue
        if (message.copy.producer, message.copy.number) in numbers:
            yield Outcome(Check.TO_EACH)
            continue
        missed = f"missed: {message.copy}, receipt at {confirmed_at:.3f}, never came to {plan.name}"
        yield Outcome(Check.TO_EACH, missed, _why_missed(history, plan, got, message.at, behind.at))


def _why_missed(
    history: History, plan: ConsumerPlan, got: list[Delivered], sent_at: float, behind_at: float
) -> Excuse | None:
    if any_overlap(history.spans({Harm.VHOST_DELETION}), sent_at, behind_at):
        return Excuse.VHOST_DELETED
    if history.schedule.place(plan.place).kind is Kind.STREAM:
        deleted = history.recording.faults({Harm.VHOST_DELETION})
        if any(got[0].at < fault.until and fault.at < sent_at for fault in deleted):
            return Excuse.STREAM_MADE_AGAIN
        # It goes on behind the last message that the client was sent, if there is one.
        before = [Span(span.begin, span.end + GRACE) for span in history.lost if span.begin <= got[0].at]
        return Excuse.OFFSET_UNKNOWN if any_overlap(before, sent_at, behind_at) else None
    lost = [Span(loss.begin, _back_at(history, got, loss.end + GRACE)) for loss in history.lost]
    return Excuse.QUEUE_LOST if any_overlap(lost, sent_at, behind_at) else None


def _back_at(history: History, got: Iterable[Delivered], lost_until: float) -> float:
    """When a message came that was sent after a loss: the queue is there again."""
    back = (event.at for event in got if history.sent[event.copy].at > lost_until)
    return min(next(back, lost_until + _COMES_BACK_WITHIN), lost_until + _COMES_BACK_WITHIN)


# Duplicates.


def settled(history: History) -> Iterator[Outcome]:
    """A message does not come again after the receipt of its ACK."""
    first: dict[tuple[str, Copy], float] = {}
    done: dict[tuple[str, Copy], float] = {}
    for event in history.recording.events:
        if isinstance(event, Settled):
            if (event.queue, event.copy) not in done:
                done[event.queue, event.copy] = event.at
                yield Outcome(Check.SETTLED)
        elif isinstance(event, Delivered):
            key = (event.queue, event.copy)
            began = first.setdefault(key, event.at)
            if key in done and event.copy in history.sent:
                again = (
                    f"came again: {event.copy} at {event.at:.3f} from {event.queue} to {event.consumer}, "
                    f"after the receipt of its ACK at {done[key]:.3f}"
                )
                yield Outcome(Check.SETTLED, again, _why_again(history, event, began, done[key]))


def _why_again(history: History, event: Delivered, began: float, settled_at: float) -> Excuse | None:
    if any_overlap(history.losses, began, settled_at + GRACE):
        return Excuse.ACK_LOST
    if any_overlap(history.forgotten(event.queue), began, settled_at):
        return Excuse.ACK_FORGOTTEN
    return _published_again(history, event)


def _published_again(history: History, event: Delivered) -> Excuse | None:
    publishing = history.publishing.get(event.copy)
    if publishing is not None and any_overlap(history.losses, *publishing):
        return Excuse.NOT_CONFIRMED
    others = history.schedule.queues(history.sent[event.copy].place) - {event.queue} if publishing is not None else ()
    # No queue of the topic takes a message back because another one does not take it.
    if publishing is not None and any(history.deleted_during(queue, *publishing) for queue in others):
        return Excuse.REJECTED
    return None


def once(history: History) -> Iterator[Outcome]:
    """A copy is in a queue once: if it comes twice, the second says ``redelivered``."""
    last: dict[tuple[str, Copy], float] = {}
    refusing = {plan.name for plan in history.schedule.consumers if plan.nacks}
    for event in history.deliveries:
        key = (event.queue, event.copy)
        before, last[key] = last.get(key), event.at
        if before is None or event.queue.startswith(REPLIES):
            continue
        if event.redelivered:
            yield Outcome(Check.ONCE)
            continue
        twice = f"twice: {event.copy} at {event.at:.3f} to {event.consumer} is not marked as redelivered"
        # After a restart RabbitMQ 3.10 may not mark what a consumer has refused either: its own frames do not.
        from_when = 0.0 if event.consumer in refusing else before
        broker_ended = any_overlap(history.ends(event.queue), from_when, event.at)
        excuse = Excuse.DELIVERY_FORGOTTEN if broker_ended else _published_again(history, event)
        yield Outcome(Check.ONCE, twice, excuse)


# Order.


def in_order(history: History) -> Iterator[Outcome]:
    """A consumer sees the messages of one producer in order, among those that nobody saw before.

    A producer that asks for all receipts, and so sends again what was not answered, keeps its order over all its
    connections; others keep it on each connection.
    """
    careful = {plan.name for plan in history.schedule.producers if plan.receipts is Receipts.ALL}
    seen: set[tuple[str, str, int, int]] = set()
    last: dict[tuple[str, str, str, int, str], int] = defaultdict(lambda: -1)
    for event in history.deliveries:
        producer, number, connection = event.copy
        if producer in careful:
            connection = 0
        if event.queue.startswith(REPLIES) or event.copy == EARLIER:
            continue  # several consumers may reply, and to a message that comes again once more
        known = (event.queue, producer, number, connection) in seen
        seen.add((event.queue, producer, number, connection))
        if event.redelivered or known:
            continue
        key = (event.queue, event.consumer, producer, connection, _priority(history, event))
        before, last[key] = last[key], max(last[key], number)
        late = f"{event.copy} at {event.at:.3f} comes after number {before} from {event.queue} to {event.consumer}"
        if number > before:
            yield Outcome(Check.ORDER)
            continue
        publishing = history.publishing.get(event.copy)
        is_overtaken = publishing is not None and any_overlap(history.spans(NODE_ENDS), *publishing)
        yield Outcome(Check.ORDER, f"out of order: {late}", Excuse.OVERTAKEN if is_overtaken else None)


def _priority(history: History, event: Delivered) -> str:
    """What a message may overtake others for."""
    is_quorum = event.queue in (*QUORUMS, *(QUORUM_SUBSCRIPTIONS if history.promise.is_cluster else ()))
    if not is_quorum or not history.promise.quorum_queues_have_priorities:
        return ""
    plans = (*history.schedule.producers, PROBE)
    plan = next((plan for plan in plans if plan.name == event.copy.producer), None)
    return "" if plan is None else content(history.schedule.seed, plan, event.copy.number).headers.get("priority", "")


# Content.


def contents(history: History) -> Iterator[Outcome]:
    """Headers and body arrive as they were sent, and nothing comes that nobody sent or committed."""
    for event in history.deliveries:
        where = f"came from {event.queue} to {event.consumer}"
        if event.copy == EARLIER:
            forgotten = any(span.begin <= 0 and event.at >= span.begin for span in history.forgotten(event.queue))
            excuse = Excuse.EARLIER_RUN if forgotten else None
            yield Outcome(Check.CONTENT, f"of an earlier run: a message {where} at {event.at:.3f}", excuse)
        elif event.copy not in history.sent:
            yield Outcome(Check.CONTENT, f"never sent: {event.copy} {where}")
        elif history.sent[event.copy].aborted:
            yield Outcome(Check.CONTENT, f"aborted: {event.copy} {where}")
        elif not event.whole:
            yield Outcome(Check.CONTENT, f"changed: {event.copy} {where} with other headers or body")
        else:
            yield Outcome(Check.CONTENT)


def replies(history: History) -> Iterator[Outcome]:
    """A reply comes to who asked, and as often as the question came to somebody who answers."""
    asked = Counter(event.copy for event in history.deliveries if _is_question(event))
    answered: Counter[Copy] = Counter()
    for event in history.deliveries:
        if not event.queue.startswith(REPLIES):
            continue
        answered[event.copy] += not event.redelivered
        if event.copy.producer != event.consumer:
            yield Outcome(Check.REPLIES, f"astray: the reply to {event.copy} came to {event.consumer}")
        elif answered[event.copy] <= asked[event.copy]:
            yield Outcome(Check.REPLIES)
        else:
            # The consumer that replied asks for no receipts, so it is not known when its reply was confirmed.
            lost = any_overlap(history.losses, *history.publishing[event.copy]._replace(end=event.at))
            excuse = Excuse.NOT_CONFIRMED if lost else None
            yield Outcome(Check.REPLIES, f"answered too often: {event.copy} at {event.at:.3f}", excuse)


def _is_question(event: Delivered) -> bool:
    return not event.queue.startswith(REPLIES) and event.consumer != REMAINS


# Transactions.


def whole_transactions(history: History) -> Iterator[Outcome]:
    """Of each transaction, all messages are in a queue or were delivered from there, or none."""
    units: dict[tuple[str, int, int], list[Copy]] = defaultdict(list)
    for copy, event in history.sent.items():
        if event.unit is not None and not event.aborted:
            units[copy.producer, copy.connection, event.unit].append(copy)
    sizes = {plan.name: plan.unit_size for plan in history.schedule.producers}
    seen = {(each.queue, each.copy) for each in history.deliveries}
    for (producer, _, unit), copies in units.items():
        for queue in sorted(history.schedule.queues(history.sent[copies[0]].place)):
            missing = [copy for copy in copies if (queue, copy) not in seen]
            is_begun_only = len(copies) < sizes[producer] and len(missing) < len(copies)
            if not is_begun_only and len(missing) in (0, len(copies)):
                yield Outcome(Check.COMMIT)
                continue
            broken = f"not whole: of {len(copies)} messages of transaction {unit}, {copies[0]} and so on, "
            broken += f"{len(missing)} are missing in {queue}, and {sizes[producer]} were to be sent"
            excuse = None if is_begun_only else _why_not_whole(history, copies, missing, queue)
            yield Outcome(Check.COMMIT, broken, excuse)


def _why_not_whole(history: History, copies: list[Copy], missing: list[Copy], queue: str) -> Excuse | None:
    committing = Span(history.sent[copies[-1]].at, history.publishing[copies[-1]].end)
    if any_overlap(history.spans(GATEWAY_KILLS), *committing):
        return Excuse.GATEWAY_KILLED
    own = [
        Span(end.at - GRACE, end.at + GRACE)
        for end in history.ended
        if (end.client, end.connection) == (copies[0].producer, copies[0].connection)
    ]
    if any_overlap(own, *committing) and any_overlap(history.losses, *committing):
        return Excuse.CLIENT_AND_LINK
    reasons = [_why_lost(history, copy, queue) for copy in missing]
    return reasons[0] if all(reasons) else None


def unserved(schedule: Schedule, recording: Recording) -> list[str]:
    """The consumers that have not seen a probe."""
    served = {event.consumer for event in recording.of(Delivered) if event.copy.producer == PROBE.name}
    return [plan.name for plan in schedule.consumers if plan.name not in served]


def of_streams_made_again(schedule: Schedule, recording: Recording) -> list[str]:
    """The consumers that have to connect again: they may wait behind the end of a stream that was made again."""
    sessions = {event.consumer: event.connection for event in recording.of(Subscribed)}
    found = []
    for plan in schedule.consumers:
        if schedule.place(plan.place).kind is Kind.STREAM:
            session = plan.name, sessions.get(plan.name)
            got = [event.at for event in recording.of(Delivered) if (event.consumer, event.connection) == session]
            deletions = recording.faults({Harm.VHOST_DELETION})
            if any(at < fault.until for at in got for fault in deletions):
                found.append(plan.name)
    return found
