"""The operations that a session waits for, and the frames that asked for them.

A session waits for one operation at a time, except that consecutive SUBSCRIBEs are under way together, to save round
trips. Their answers take effect in the order of the frames, so the client sees no difference: an answer that arrives
early waits (``defers``, ``next_answer``). Any other frame, and a SUBSCRIBE that depends on one before it, waits until
all are answered (``postponed``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.session import ops
from gateway.session.subscription import Subscription
from gateway.stomp.frame import Frame

MOST_SUBSCRIBES: Final = 8
"""The most SUBSCRIBEs that are pending together. It also bounds memory, since deliveries wait for the RECEIPT."""


# Events of a consumer. They may arrive before the answer to its SUBSCRIBE is handled.
_Late = ops.ConsumerCancelled | ops.QueueAway | ops.QueueBack


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation, and the frame that asked for it.

    Args:
        retries: carry out the frame again after the operation.
        is_started: the server has taken the operation.
        was_interrupted: the operation was interrupted before the last recovery.
        answers: events for it that arrived before the answers to earlier operations.
    """

    operation: ops.Operation
    frame: Frame | None = None
    retries: bool = False
    is_started: bool = False
    was_interrupted: bool = False
    answers: list[ops.Event] = field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        """Whether the server has taken it, and has not answered."""
        return self.is_started and not self.answers

    def start(self) -> ops.Operation | None:
        """Return the operation, once."""
        taken, self.is_started = None if self.is_started else self.operation, True
        return taken

    @property
    def subscription(self) -> Subscription | None:
        """The subscription, if the operation is a SUBSCRIBE."""
        return self.operation.subscription if isinstance(self.operation, ops.Subscribe) else None


class PendingOperations:
    """The pending operations of a session, in the order of their frames. The first one ends first."""

    __slots__ = ("_late", "_one_by_one", "_recovery", "asked", "is_interrupted", "postponed", "retry")

    def __init__(self) -> None:
        self.asked: list[PendingOperation] = []
        # The frame to carry out again, and the one that waits until no operation is pending.
        self.retry: Frame | None = None
        self.postponed: Frame | None = None
        # Events of consumers whose SUBSCRIBEs have answers that are not handled yet.
        self._late: list[ops.Event] = []
        self._recovery: PendingOperation | None = None
        # Whether a lost link has interrupted the first operation. After the recovery all operations are asked for again
        # one by one: if one of them makes the broker close the link, it shows which.
        self.is_interrupted = self._one_by_one = False

    # Requests.

    @property
    def last(self) -> ops.Operation | None:
        """The operation that was asked for last."""
        return self.asked[-1].operation if self.asked else None

    @property
    def operation(self) -> ops.Operation | None:
        """The recovery, or else the first operation; None if there is none."""
        if self._recovery is not None:
            return self._recovery.operation
        return self.asked[0].operation if self.asked else None

    @property
    def holds_frames(self) -> bool:
        """Whether all later frames have to wait."""
        asked = self.asked
        if not asked:
            return False
        is_subscribe = isinstance(asked[0].operation, ops.Subscribe) and not asked[0].retries
        return not is_subscribe or self.postponed is not None or len(asked) >= MOST_SUBSCRIBES

    @property
    def must_retry(self) -> bool:
        """Whether a frame has to be carried out again, now or after a pending operation."""
        return self.retry is not None or any(each.retries for each in self.asked)

    @property
    def has_frame(self) -> bool:
        """Whether a frame waits here."""
        return self.retry is not None or self.postponed is not None

    def must_wait(self, operation: ops.Subscribe) -> bool:
        """Whether a SUBSCRIBE must wait for those before it: it has the same id or queue, or needs a pausable link.

        On a pausable link, nothing bounds what the broker delivers while its RECEIPT waits for its turn.
        """
        if not self.asked:
            return False
        before = [each.operation for each in self.asked if isinstance(each.operation, ops.Subscribe)]
        tag, queue = operation.subscription.tag, operation.queue_name
        is_related = any(each.subscription.tag == tag or each.queue_name == queue for each in before)
        return is_related or operation.needs_pausable_link

    def ask(self, operation: ops.Operation, frame: Frame | None, *, retries: bool) -> None:
        """Add an operation. It replaces a pending recovery."""
        self._recovery = None
        self.asked.append(PendingOperation(operation, frame, retries))

    def ask_instead(self, operation: ops.Subscribe) -> None:
        """Replace the first operation."""
        self.asked[0].operation = operation
        self.asked[0].is_started = False

    def take(self) -> ops.Operation | None:
        """Return the next operation to carry out, once; None if there is none."""
        if self._recovery is not None:
            return self._recovery.start()
        if self.is_interrupted:
            return None
        waiting = self.asked[:1] if self._one_by_one else self.asked
        return next((each.start() for each in waiting if not each.is_started), None)

    def take_frame(self, *, stopping: bool) -> Frame | None:
        """Return the next frame to carry out, once. With ``stopping``, only one that has begun before."""
        if self.retry is not None or stopping:
            frame, self.retry = self.retry, None
        else:
            frame, self.postponed = self.postponed, None
        return frame

    # Answers.

    def defers(self, event: ops.Event, operation: ops.Operation | None) -> bool:
        """Keep an event if earlier operations are not answered yet. Returns whether it was kept."""
        for each in self.asked[1:]:
            is_its = isinstance(event, _Late) and event.subscription is each.subscription
            if each.operation is operation or is_its:
                each.answers.append(event)
                return True
        return False

    def next_answer(self) -> ops.Event | None:
        """Return the next kept event whose turn has come, once."""
        if self._late:
            return self._late.pop(0)
        if self.asked and self.asked[0].answers:
            return self.asked[0].answers.pop(0)
        return None

    def done(self, *, failed: bool = False) -> Frame | None:
        """End the first operation. Returns the frame that asked for it, or None if that is carried out again."""
        if not self.asked:
            return None
        done = self.asked.pop(0)
        self._late += done.answers
        self._one_by_one = self._one_by_one and bool(self.asked)
        if done.retries and not failed:
            self.retry = done.frame
            return None
        return done.frame

    def clear(self) -> None:
        """Drop everything, at the end of the session."""
        self.asked.clear()
        self._late.clear()
        self.retry = self.postponed = self._recovery = None

    # The loss of a link.

    @property
    def is_under_way(self) -> bool:
        """Whether an answer is still to come."""
        is_front = bool(self.asked) and not self.is_interrupted
        return self._recovery is not None or is_front or any(each.is_under_way for each in self.asked)

    @property
    def is_interrupted_again(self) -> bool:
        """Whether the first operation is interrupted, and was so before the last recovery, too."""
        return self.is_interrupted and any(each.was_interrupted for each in self.asked[:1])

    def interrupt(self) -> None:
        """Note that the first operation was lost with a link. ``resume`` asks for it again."""
        self.is_interrupted = True
        self.asked[0].is_started = False

    def lose(self, event: ops.LinkLost) -> None:
        """Replace kept answers that are no longer true because their link is lost."""
        for each in self.asked[1:]:
            if each.subscription in event.subscriptions and each.answers:
                each.answers[:] = [ops.OperationInterrupted(event.code, event.text)]

    def recover(self, operation: ops.Recover) -> None:
        """Ask for a recovery, before all other operations."""
        self._recovery = PendingOperation(operation)
        if self.is_interrupted:
            self.asked[0].was_interrupted = True

    def recovered(self) -> None:
        """End the recovery, although something may not be restored."""
        self._recovery = None

    def resume(self) -> None:
        """Ask again for the interrupted operations, after a complete recovery."""
        self._one_by_one |= self.is_interrupted
        self.is_interrupted = False
        for each in self.asked:
            if each.answers and isinstance(each.answers[0], ops.OperationInterrupted):
                each.answers.clear()
                each.is_started = False
            request = None if each.is_started or each.subscription is None else each.subscription.request
            if request is not None:
                # This one declares the queue, too, even if the session declared it before the loss.
                each.operation = request
