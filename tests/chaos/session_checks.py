"""What must hold of the sessions of a run: none ends without a reason."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.client import GAVE_UP
from tests.chaos.history import GRACE, LOSSES, History, Span, any_overlap
from tests.chaos.recording import Ended, Fault
from tests.chaos.schedule import CLIENT_LOSSES, GATEWAY_ENDS, NODE_ENDS, OF_NODES, Harm, Kind
from tests.chaos.verdict import Check, Excuse, Outcome

_LOGIN_TIMEOUT = 12.0
"""Without riding through, logins fail so long after the link has gone: while the broker is sought."""

_LOGIN_WAITS = 8.0
"""With riding through, logins fail if the broker was away for so long."""

_WAITED = 9.5
"""A login that took so long has waited for ``login_timeout``, 10 seconds, in which the clocks differ a little."""

_LONGEST_PAUSE = 3.0
"""Seconds between two dials: for so long a broker may be there before it is found."""

_REFUSED = "access_refused"
_OF_DELETED_QUEUES = ("Server cancelled subscription", "not_found")

_NO_CONFIRM = ("Broker timeout", GAVE_UP)

_CARRIED_OUT_WITHIN = 10.0
"""Seconds in which what a half-closed client sent is carried out, once there is a broker."""


def ended_sessions(history: History) -> Iterator[Outcome]:
    """A session ends when its client wants it, when its connection or its gateway is lost, and for no other reason."""
    cuts = dict(enumerate(history.recording.faults(CLIENT_LOSSES)))
    for event in history.ended:
        if event.wanted and not event.error:
            yield Outcome(Check.SESSION)
            continue
        since = history.began.get((event.client, event.connection))
        told = "could not log in" if since is None else f"began at {since:.3f}"
        ended = f"ended: session {event.connection} of {event.client}, {told}, at {event.at:.3f}: {event.error or '-'}"
        # One cut of a connection is the end of one session.
        cut = next((each for each, fault in cuts.items() if _is_cut_by(history, event, since, fault)), None)
        if cut is not None:
            del cuts[cut]
        excuse = Excuse.CLIENT_CUT if cut is not None else _why_ended(history, event, since)
        yield Outcome(Check.SESSION, ended, excuse)


def _is_cut_by(history: History, event: Ended, since: float | None, fault: Fault) -> bool:
    if fault.client != event.client or event.at < fault.at:
        return False
    if fault.harm is Harm.CLIENT_HALF_CLOSE and since is not None and since <= fault.at:
        # What it sent is carried out first, however long the broker is away.
        losses = [loss for loss in history.losses if loss.begin <= event.at]
        return event.at <= max([fault.until, *(loss.end for loss in losses)]) + _CARRIED_OUT_WITHIN
    return event.at <= fault.until + GRACE


def _why_ended(history: History, event: Ended, since: float | None) -> Excuse | None:
    # A worker that is killed says nothing.
    harms = GATEWAY_ENDS - {Harm.WORKER_KILL} if event.error else GATEWAY_ENDS
    ends = [Span(fault.at, fault.until + GRACE) for fault in history.recording.faults(harms)]
    if any(span.overlaps(event.at, event.at) and (since is None or since <= span.end - GRACE) for span in ends):
        return Excuse.GATEWAY_ENDED
    faults = history.recording.faults(LOSSES)
    if not history.promise.ride_through:
        lost = [Span(fault.at - GRACE, fault.until + _LOGIN_TIMEOUT) for fault in faults]
        return Excuse.NOT_RIDING if any_overlap(lost, event.at, event.at) else None
    absent = [Span(fault.at, fault.until + GRACE) for fault in history.recording.faults({Harm.VHOST_DELETION})]
    if any_overlap(absent, event.at, event.at) and (since is None or any_overlap(absent, since, since)):
        return Excuse.NO_VHOST
    if since is None:
        if history.promise.is_cluster:
            faults = [fault for fault in faults if fault.harm not in OF_NODES or fault.harm is Harm.ALL_DOWN]
        # A client that connects meanwhile waits for the broker as long as it may take to log in.
        unseen = GRACE + (_LONGEST_PAUSE if event.at - _tried_at(history, event) >= _WAITED else 0.0)
        away = [Span(each.at, each.until + unseen) for each in faults if each.until - each.at >= _LOGIN_WAITS]
        if any_overlap(away, event.at, event.at):
            return Excuse.NO_BROKER
    return _why_refused(history, event)


def _why_refused(history: History, event: Ended) -> Excuse | None:
    if any_overlap(history.spans({Harm.PERMISSION_LOSS}), event.at, event.at) and _REFUSED in event.error:
        return Excuse.PERMISSION_TAKEN
    if _was_not_answered(history, event):
        return Excuse.NOT_ANSWERED
    return Excuse.CANCELLED if _is_of_deleted_queue(history, event) else None


def _was_not_answered(history: History, event: Ended) -> bool:
    """Whether it waited for the confirm of something that it sent to a stream when a node went."""
    if not history.promise.forgets_to_confirm or not event.error.startswith(_NO_CONFIRM):
        return False
    silences = history.spans(NODE_ENDS)
    return any(
        history.schedule.place(message.place).kind is Kind.STREAM
        and copy not in history.confirmed
        and (copy.producer, copy.connection) == (event.client, event.connection)
        and any_overlap(silences, message.at, message.at)
        for copy, message in history.sent.items()
    )


def _is_of_deleted_queue(history: History, event: Ended) -> bool:
    queues = {plan.queue for plan in history.schedule.consumers if plan.name == event.client}
    deletions = [fault for queue in queues for fault in history.deleted(queue)]
    during = any(fault.at <= event.at <= fault.until + GRACE for fault in deletions)
    return during and event.error.startswith(_OF_DELETED_QUEUES)


def _tried_at(history: History, event: Ended) -> float:
    """About when a login began: a client connects again at once."""
    before = (each.at for each in history.ended if each.client == event.client and each.connection < event.connection)
    return max(before, default=0.0)
