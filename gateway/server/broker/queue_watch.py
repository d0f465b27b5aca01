"""Finds out whether queues exist, are deleted or away, once for all sessions of a login.

A queue is away while its node is: the broker knows it, but nobody can use it. The gateway asks in two steps, because
RabbitMQ's releases answer differently:

1. A passive declaration. It is refused with 404 if the queue does not exist. If the queue is away, it is refused with
   404 (3.10), or not answered until the queue is back (4.3).
2. After a 404, a declaration with an invalid argument, which never creates a queue. It is refused with 404 only if the
   queue is away. While a node is being stopped, its queues stop first: then the refusal says that the argument differs
   from the queue's, which it does not say about a deleted queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from gateway.server.broker.broker_errors import ACCESS_REFUSED, NOT_FOUND, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.redial import Backoff

PROMPT: Final = 2.0
"""If the broker does not answer within this many seconds, a queue counts as away."""

# How long a question lives after the last session has stopped waiting for it, in seconds.
_LINGERS: Final = 2.0

# RabbitMQ's words for an argument that differs from the queue's.
_DIFFERS: Final = "inequivalent arg"
# RabbitMQ 3.10's words for a queue that is away, if the user may not declare it.
_NODE_IS_AWAY: Final = "is down or inaccessible"


class QueueState(Enum):
    """The state of a queue on the broker."""

    THERE = "there"
    AWAY = "away"
    DELETED = "deleted"


class _Question:
    """The question about one queue. ``first``: the state, known soon. ``settled``: done when the queue is not away."""

    __slots__ = ("first", "settled", "waiting")

    def __init__(self) -> None:
        self.first: asyncio.Future[QueueState] = asyncio.get_running_loop().create_future()
        self.settled: asyncio.Task[QueueState]
        self.waiting = 0

    @property
    def is_away(self) -> bool:
        """Whether the queue is known to be away."""
        first = self.first
        return first.done() and first.exception() is None and first.result() is QueueState.AWAY

    def learn(self, state: QueueState) -> None:
        """Set ``first``, unless it is set: to the first answer, or to AWAY without one in time."""
        if not self.first.done():
            self.first.set_result(state)


class QueueWatch:
    """The questions of one login. ``consuming_link`` and ``come_back``: see `LoginLinks`."""

    def __init__(self, consuming_link: Callable[[], Awaitable[Link]], come_back: Callable[[], Awaitable[None]]) -> None:
        self._consuming_link = consuming_link
        self._come_back = come_back
        self._questions: dict[str, _Question] = {}

    @property
    def knows_away(self) -> bool:
        """Whether any queue is known to be away."""
        return any(question.is_away for question in self._questions.values())

    def is_away(self, queue: str) -> bool:
        """Whether a queue is known to be away, because some session is waiting for it. False may mean unknown."""
        question = self._questions.get(queue)
        return question is not None and question.is_away

    async def state(self, queue: str) -> QueueState:
        """The state of a queue, within `PROMPT` seconds.

        Raises:
            UpstreamError: the broker refuses the question or the login.
        """
        return await self._wait_for(queue, lambda question: question.first)

    async def settled(self, queue: str) -> QueueState:
        """Wait until a queue is no longer away. Returns THERE or DELETED. Raises as ``state`` does."""
        return await self._wait_for(queue, lambda question: question.settled)

    async def _wait_for(self, queue: str, answer: Callable[[_Question], asyncio.Future[QueueState]]) -> QueueState:
        question = self._questions.get(queue)
        if question is None:
            question = self._questions[queue] = _Question()
            question.settled = asyncio.create_task(self._ask(queue, question), name="queue watch")
            # Retrieves the exception, because perhaps no session awaits this one.
            question.settled.add_done_callback(lambda task: task.cancelled() or task.exception())
        question.waiting += 1
        try:
            return await asyncio.shield(answer(question))
        finally:
            question.waiting -= 1
            if not question.waiting and not question.settled.done():
                # A session that learns that a queue is away will soon wait for it.
                asyncio.get_running_loop().call_later(_LINGERS, self._end_if_alone, queue, question)

    def _end_if_alone(self, queue: str, question: _Question) -> None:
        if not question.waiting:
            question.settled.cancel()
            self._forget(queue, question)

    def _forget(self, queue: str, question: _Question) -> None:
        if self._questions.get(queue) is question:
            del self._questions[queue]

    async def _ask(self, queue: str, question: _Question) -> QueueState:
        loop, backoff = asyncio.get_running_loop(), Backoff()
        late = loop.call_later(PROMPT, question.learn, QueueState.AWAY)
        try:
            while True:
                try:
                    state = await _state(await self._consuming_link(), queue)
                    question.learn(state)
                    if state is not QueueState.AWAY:
                        return state
                except LinkDownError:
                    await self._come_back()
                await asyncio.sleep(backoff.next())
        except UpstreamError as refusal:
            if not question.first.done():
                question.first.set_exception(refusal)
                question.first.exception()
            raise
        finally:
            late.cancel()
            self._forget(queue, question)


async def _state(link: Link, queue: str) -> QueueState:
    """Ask the broker, without a time limit. A late 404 means away: the one for a deleted queue comes at once."""
    asked_at = asyncio.get_running_loop().time()
    refusal = await LinkChannel.refusal(link, lambda channel: channel.declare_passive(queue))
    if refusal is None:
        return QueueState.THERE
    if refusal.code != NOT_FOUND:
        # For example, the queue is exclusive to another connection.
        return QueueState.THERE
    if asyncio.get_running_loop().time() - asked_at > PROMPT:
        return QueueState.AWAY
    declared = await LinkChannel.refusal(link, lambda channel: channel.may_declare(queue))
    if declared is not None and declared.code == ACCESS_REFUSED:
        return QueueState.AWAY if _NODE_IS_AWAY in refusal.text else QueueState.DELETED
    is_away = declared is not None and (declared.code == NOT_FOUND or _DIFFERS in declared.text)
    return QueueState.AWAY if is_away else QueueState.DELETED
