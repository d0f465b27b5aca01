"""A session's way to the model of a broker, one step at a time, and with all that may go wrong on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pamqp.exceptions import PAMQPException

from gateway.session import error_frames, ops
from gateway.session.pending_operations import MOST_SUBSCRIBES
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from tests.fuzz.violation import ViolationError, demand
from tests.support.model_broker import ModelBroker, RefusalError
from tests.support.model_channel import Channel
from tests.support.session_peer import ModelBridge

_SYNTAX_ERROR: Final = 502


def _interrupted(operation: ops.Operation) -> ops.Event:
    if isinstance(operation, ops.Login):
        return ops.LoginNotTried(error_frames.broker_unreachable())
    if isinstance(operation, ops.Recover):
        return ops.RecoveryFailed()
    return ops.OperationInterrupted(320, "CONNECTION_FORCED - gone")


def _refused(operation: ops.Operation, *, close: bool) -> ops.Event:
    if isinstance(operation, ops.Login):
        refused = ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused")
        return ops.LoginNotTried(error_frames.broker_unreachable()) if close else refused
    if isinstance(operation, ops.CloseUpstream):  # which has no other answer
        return ops.UpstreamClosed()
    if isinstance(operation, ops.Recover):
        return ops.RecoveryFailed(403, "ACCESS_REFUSED - access to exchange 'amq.default' refused")
    return ops.OperationFailed(403, "ACCESS_REFUSED - access to exchange 'amq.default' refused")


_FAILURES: Final[tuple[Callable[[ops.Operation], ops.Event], ...]] = (
    lambda operation: _refused(operation, close=False),
    lambda operation: _refused(operation, close=True),
    _interrupted,
)


class SteppedBridge(ModelBridge):
    """Carries out what a session asks when it is told to.

    Args:
        session: whose operations are carried out.
        broker: where.
    """

    def __init__(self, session: Session, broker: ModelBroker) -> None:
        super().__init__(session, broker)
        self.rejects = False
        self.sheds = False
        self._failure: int | None = None
        self._asked: list[ops.Operation] = []
        # Whether the broker answers first what it was asked for last.
        self.newest_first = False

    def write(self) -> None:
        """Write what the session has for the broker, as the owner does after each batch."""
        if self._publishing is not None:
            self._publishing.write(b"".join(self._session.publisher.output.take()))
        for subscription, settlements in self._session.subscriptions.take_settlements():
            channel = self._consuming.get(subscription)
            if channel is not None:
                channel.write(settlements)
        while (operation := self._session.take_operation()) is not None:
            self._asked.append(operation)
            several = [each for each in self._asked if isinstance(each, ops.Subscribe)]
            demand(len(self._asked) == 1 or several == self._asked, "one operation at a time, or several SUBSCRIBEs")
            demand(len(self._asked) <= MOST_SUBSCRIBES, "the operations under way are bounded")

    def step(self) -> bool:
        """Let the broker answer one thing: the oldest of what it has to say, else an operation under way.

        Returns:
            Whether there was anything.
        """
        if self._heard:
            self._heard.popleft()()
            return True
        if not self._asked:
            return False
        operation = self._asked.pop(-1 if self.newest_first else 0)
        failure, self._failure = self._failure, None
        if failure is not None:
            self._session.handle(_FAILURES[failure % len(_FAILURES)](operation), operation)
        else:
            self._session.handle(self._carried_out(operation), operation)
        return True

    def fail_next(self, kind: int) -> None:
        """Let the next operation fail."""
        self._failure = kind

    def drop_for_requeue(self, sheds: bool) -> None:
        """Keep only the tags of what is delivered, or return all that and deliver again."""
        self.sheds = sheds
        for subscription, channel in list(self._consuming.items()):
            channel._deliver = subscription.drop_for_requeue if sheds else subscription.deliver
            if not sheds:
                subscription.ledger.requeue_dropped()
                channel.write(subscription.ledger.take_frames())

    @property
    def is_idle(self) -> bool:
        """Whether the broker has nothing to do or to say."""
        return not self._asked and not self._heard

    @property
    def consuming(self) -> dict[Subscription, Channel]:
        """The channels of subscriptions."""
        return self._consuming

    def _perform(self, operation: ops.Operation) -> ops.Event:
        if isinstance(operation, ops.Subscribe):
            event = self._subscribe(operation)
            self._make_lenient(self._consuming[operation.subscription])
            return event
        prepared = super()._perform(operation)
        if self._publishing is not None:
            self._make_lenient(self._publishing)
        return prepared

    def _recover(self, operation: ops.Recover) -> ops.Recovered:
        recovered = super()._recover(operation)
        for channel in (*self._consuming.values(), *([self._publishing] if self._publishing else [])):
            self._make_lenient(channel)
        return recovered

    def lose_link(self, code: int = 320, text: str = "CONNECTION_FORCED - gone") -> None:
        """As in the model; the operations under way get no other answer, but a recovery goes on with what is lost."""
        interrupted = [each for each in self._asked if not isinstance(each, ops.Recover)]
        self._asked = [each for each in self._asked if each not in interrupted]
        super().lose_link(code, text)
        for operation in interrupted:
            self._session.handle(_interrupted(operation), operation)

    def _make_lenient(self, channel: Channel) -> None:
        """Pamqp reads text and dates. What is none is refused, though RabbitMQ takes any bytes and numbers there."""
        original = channel._frames

        def frames(data: bytes) -> Iterator[tuple[Any, bytes]]:
            _check_frames(data, channel.number)
            try:
                yield from original(data)
            except (ValueError, OverflowError, PAMQPException) as error:
                if not _is_beyond_python(error):
                    raise
                raise RefusalError(_SYNTAX_ERROR, "SYNTAX_ERROR - no text") from None

        if "_frames" not in vars(channel):
            channel._frames = frames  # type: ignore[method-assign]

    def _confirmed(self, sequence: int, multiple: bool, accepted: bool) -> None:
        super()._confirmed(sequence, multiple, accepted and not self.rejects)

    def _closed(self, refusal: RefusalError, *, publishing: bool) -> None:
        if not publishing:
            raise ViolationError(f"no settlement is refused: {refusal.text}")
        super()._closed(refusal, publishing=publishing)


def _is_beyond_python(error: BaseException | None) -> bool:
    """Whether it is about bytes that are no UTF-8, or a time stamp after the year 9999."""
    while error is not None:
        if isinstance(error, UnicodeDecodeError | OverflowError) or "year" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_frames(data: bytes, channel: int) -> None:
    """Walk over AMQP frames without pamqp: type, channel, size, and the byte at the end."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7], "big")
        end = at + 7 + size
        demand(int.from_bytes(data[at + 1 : at + 3], "big") == channel, "a frame is for its channel")
        demand(data[end : end + 1] == b"\xce", "an AMQP frame ends where its size says")
        at = end + 1
