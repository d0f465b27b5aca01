"""The operations that a session waits for, and the frames that asked for them.

A session waits for one operation at a time, with one exception: several SUBSCRIBEs in a row are under way together,
since each would cost its round trips to the broker. Their answers take effect in the order of the frames, so the client
cannot tell: an answer that comes before its turn waits (``defers``, ``next_answer``). A frame that is no SUBSCRIBE, or
that depends on a SUBSCRIBE before it, waits until all of them are answered (``postponed``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.session import ops
from gateway.session.subscription import Subscription
from gateway.stomp.frame import Frame

MOST_SUBSCRIBES: Final = 8
"""How many SUBSCRIBEs are under way together. What is delivered waits for its RECEIPT, so this bounds memory, too."""


# What happens to a consumer, perhaps before the answer to its SUBSCRIBE has had its turn.
_Late = ops.ConsumerCancelled | ops.QueueAway | ops.QueueBack


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation that is asked for, and the frame that asked for it.

    With ``retries`` the frame is carried out anew once the operation is done. ``is_started``: it was handed out.
    ``answers`` are the events that came before its turn.
    """

    operation: ops.Operation
    frame: Frame | None
    retries: bool
    is_started: bool = False
    answers: list[ops.Event] = field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        """Whether it was handed out and is not answered."""
        return self.is_started and not self.answers

    @property
    def subscription(self) -> Subscription | None:
        """What it subscribes to, if that is what it does."""
        return self.operation.subscription if isinstance(self.operation, ops.Subscribe) else None


class PendingOperations:
    """What a session has asked for, in the order of the frames; in front is what ends next."""

    __slots__ = (
        "_is_interrupted", "_is_recovering", "_late", "_one_by_one", "_recovery", "asked", "postponed", "retry",
    )  # fmt: skip

    def __init__(self) -> None:
        # For others to read.
        self.asked: list[PendingOperation] = []
        # The frame to carry out anew, and a frame that waits: until nothing is asked for any more.
        self.retry: Frame | None = None
        self.postponed: Frame | None = None
        # What happened to a subscription between its answer and its turn.
        self._late: list[ops.Event] = []
        # The recovery that is under way, and whether it was handed out.
        self._recovery: ops.Recover | None = None
        self._is_recovering = False
        # A lost link has interrupted what is in front. Afterwards all are asked for again, one by one: if one of them
        # makes the broker close the link, it must be clear which.
        self._is_interrupted = self._one_by_one = False

    # What is asked for.

    @property
    def last(self) -> ops.Operation | None:
        """What was asked for last."""
        return self.asked[-1].operation if self.asked else None

    @property
    def operation(self) -> ops.Operation | None:
        """What the session waits for first."""
        if self._recovery is not None:
            return self._recovery
        return self.asked[0].operation if self.asked else None

    @property
    def takes_nothing(self) -> bool:
        """Whether the frames behind have to wait."""
        asked = self.asked
        if not asked:
            return False
        is_subscribe = isinstance(asked[0].operation, ops.Subscribe) and not asked[0].retries
        return not is_subscribe or self.postponed is not None or len(asked) >= MOST_SUBSCRIBES

    @property
    def must_retry(self) -> bool:
        """Whether a frame is to be carried out anew, now or once what is asked for is done."""
        return self.retry is not None or any(each.retries for each in self.asked)

    @property
    def has_frame(self) -> bool:
        """Whether a frame waits here."""
        return self.retry is not None or self.postponed is not None

    def concerns(self, operation: ops.Subscribe) -> bool:
        """Whether a SUBSCRIBE depends on those before it, or must come alone.

        Without a prefetch nothing bounds what the broker delivers before its RECEIPT has its turn.
        """
        if not self.asked:
            return False
        before = [each.operation for each in self.asked if isinstance(each.operation, ops.Subscribe)]
        tag, queue = operation.subscription.tag, operation.queue_name
        is_related = any(each.subscription.tag == tag or each.queue_name == queue for each in before)
        return is_related or operation.needs_pausable_link

    def ask(self, operation: ops.Operation, frame: Frame | None, *, retries: bool) -> None:
        """Ask for an operation. It takes the place of a recovery."""
        self._recovery = None
        self.asked.append(PendingOperation(operation, frame, retries))

    def ask_instead(self, operation: ops.Subscribe) -> None:
        """Ask for another operation in place of the one in front."""
        self.asked[0].operation = operation
        self.asked[0].is_started = False

    def take(self) -> ops.Operation | None:
        """The next operation to carry out, each handed out once."""
        if self._recovery is not None:
            taken, self._is_recovering = None if self._is_recovering else self._recovery, True
            return taken
        if self._is_interrupted:
            return None
        for each in self.asked[:1] if self._one_by_one else self.asked:
            if not each.is_started:
                each.is_started = True
                return each.operation
        return None

    def take_frame(self, *, stopping: bool) -> Frame | None:
        """The frame whose turn has come, handed out once; with ``stopping`` only one that was begun before."""
        if self.retry is not None or stopping:
            frame, self.retry = self.retry, None
        else:
            frame, self.postponed = self.postponed, None
        return frame

    # What is answered.

    def defers(self, event: ops.Event, operation: ops.Operation | None) -> bool:
        """Keep an event whose turn has not come; whether that is so."""
        for each in self.asked[1:]:
            is_its = isinstance(event, _Late) and event.subscription is each.subscription
            if each.operation is operation or is_its:
                each.answers.append(event)
                return True
        return False

    def next_answer(self) -> ops.Event | None:
        """An event whose turn has come, handed out once."""
        if self._late:
            return self._late.pop(0)
        if self.asked and self.asked[0].answers:
            return self.asked[0].answers.pop(0)
        return None

    def done(self, *, failed: bool = False) -> Frame | None:
        """End the operation in front. Returns the frame that asked for it, or None if it is to be carried out anew."""
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
        """The session is over."""
        self.asked.clear()
        self._late.clear()
        self.retry = self.postponed = self._recovery = None

    # The loss of a link.

    @property
    def is_under_way(self) -> bool:
        """Whether an answer is still to come."""
        is_front = bool(self.asked) and not self._is_interrupted
        return self._recovery is not None or is_front or any(each.is_under_way for each in self.asked)

    @property
    def is_interrupted(self) -> bool:
        """Whether a lost link has interrupted what is in front."""
        return self._is_interrupted

    def interrupt(self) -> None:
        """What is in front was lost with a link. It is asked for again by ``resume``."""
        self._is_interrupted = True
        self.asked[0].is_started = False

    def lose(self, event: ops.LinkLost) -> None:
        """A link is lost: answers that wait for their turn may not be true any more."""
        for each in self.asked[1:]:
            if each.subscription in event.subscriptions and each.answers:
                each.answers[:] = [ops.OperationInterrupted(event.code, event.text)]

    def recover(self, operation: ops.Recover) -> None:
        """Ask for a recovery, which comes before everything else."""
        self._recovery, self._is_recovering = operation, False

    def recovered(self) -> None:
        """The recovery is over, but perhaps not all is back."""
        self._recovery = None

    def resume(self) -> None:
        """All is back: what was interrupted is asked for again."""
        self._one_by_one |= self._is_interrupted
        self._is_interrupted = False
        for each in self.asked:
            if each.answers and isinstance(each.answers[0], ops.OperationInterrupted):
                each.answers.clear()
                each.is_started = False
            request = None if each.is_started or each.subscription is None else each.subscription.request
            if isinstance(request, ops.Subscribe):
                # As after a loss: a queue that was declared before may be gone.
                each.operation = request
