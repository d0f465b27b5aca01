"""The time that the broker may take for what a session waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.errors import StompError
from gateway.session import error_frames, ops
from gateway.session.context import Hold, State
from gateway.session.session import Session

_FOR_CONFIRMS: Final = frozenset((Hold.COMMIT, Hold.CONFIRM_WINDOW))


class OperationDeadline:
    """Looks at one session about once a second, so that an operation needs no timer of its own.

    An operation has ``upstream.operation_timeout``. The end of a session (DRAINING) has it once for all that it waits
    for. So has the oldest message of those whose confirms hold a session, because RabbitMQ may never confirm what it
    took for a stream whose leader went; or of those that stand behind a method without an answer. ``must_wait``
    says whether an operation, or a confirm (None), may take longer.
    """

    __slots__ = ("_must_wait", "_seen", "_session", "_since")

    def __init__(self, session: Session, must_wait: Callable[[ops.Operation | None], bool]) -> None:
        self._session = session
        self._must_wait = must_wait
        self._seen: object = None
        self._since = 0.0

    def missed(self, now: float) -> StompError | None:
        """The error that ends the session if the broker took too long; ``now`` is in seconds."""
        session = self._session
        is_draining, operation = session.state is State.DRAINING, session.operation
        waits_for: object = State.DRAINING if is_draining else operation or _awaited_confirm(session)
        if isinstance(operation, ops.Recover):
            # It has a deadline of its own, and what waited before it waits anew afterwards.
            self._seen = None
            return None
        if waits_for is not self._seen or (waits_for and not is_draining and self._must_wait(operation)):
            self._seen, self._since = waits_for, now
            return None
        upstream = session.settings.upstream
        timeout = upstream.operation_timeout
        if not is_draining and (operation is None or _concerns_lasting_queue(operation)):
            # RabbitMQ does not answer for a queue whose node is away, or that has no leader, before the node is back.
            timeout = max(timeout, upstream.ride_through)
        if waits_for is None or now - self._since <= timeout:
            return None
        messages = f"{count} messages" if (count := len(session.confirms)) > 1 else "a message"
        purpose = f"to confirm {messages}" if operation is None else operation.purpose
        return error_frames.operation_timeout(purpose, timeout)


def _awaited_confirm(session: Session) -> object:
    """The oldest unconfirmed message, if it is waited for, or stands behind a method without an answer; else None."""
    if session.holds.isdisjoint(_FOR_CONFIRMS):
        return next(iter(session.confirms.messages), session) if session.unanswered else None
    return next(iter(session.confirms.messages), None)


def _concerns_lasting_queue(operation: ops.Operation) -> bool:
    """Whether the broker is asked for a queue that may be on another node, and stays when that goes."""
    if isinstance(operation, ops.Subscribe):
        return operation.queue is None or operation.queue.durable
    return isinstance(operation, ops.PreparePublisher) and operation.queue is not None
