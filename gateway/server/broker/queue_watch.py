"""Whether queues are there, deleted or away, asked once for all sessions of a login that want to know.

A queue is away while its node is: the broker has not forgotten it, and nobody can use it. How RabbitMQ says so differs
from release to release, but it can be told without reading texts. A passive declaration is refused with 404 if the
queue does not exist; if the queue is away, it is refused with 404 (3.10), or not answered before the queue is back
(4.3). What tells the two refusals apart is a declaration that is not passive and has an argument that no queue may
have: it is refused with 404 only if the queue is away, and never makes a queue. While a node stops in good order, its
queues are stopped before it is away. Then the argument differs from that of the queue, which a deleted one has not.
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
"""A broker answers for a queue that is there within so many seconds, or the queue counts as away."""

# How long a question outlives those who have asked it, in seconds.
_LINGERS: Final = 2.0

# RabbitMQ says this of an argument that differs from the queue's own.
_DIFFERS: Final = "inequivalent arg"
# RabbitMQ 3.10 says this of a queue that is away, for users who may not declare it.
_NODE_IS_AWAY: Final = "is down or inaccessible"


class QueueState(Enum):
    """What a broker says of a queue."""

    THERE = "there"
    AWAY = "away"
    DELETED = "deleted"


class _Question:
    """A queue that somebody asks for. ``first`` is what is known soon; ``settled`` ends when the queue is not away."""

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
        """The first answer, or none in time."""
        if not self.first.done():
            self.first.set_result(state)


class QueueWatch:
    """The questions of one login. ``consuming_link`` and ``come_back`` are those of its `LoginLinks`."""

    def __init__(self, consuming_link: Callable[[], Awaitable[Link]], come_back: Callable[[], Awaitable[None]]) -> None:
        self._consuming_link = consuming_link
        self._come_back = come_back
        self._questions: dict[str, _Question] = {}

    @property
    def knows_away(self) -> bool:
        """Whether any queue is known to be away."""
        return any(question.is_away for question in self._questions.values())

    def is_away(self, queue: str) -> bool:
        """Whether somebody waits for a queue that is away. False means unknown."""
        question = self._questions.get(queue)
        return question is not None and question.is_away

    async def state(self, queue: str) -> QueueState:
        """Whether a queue is there, known within `PROMPT` seconds.

        Raises:
            UpstreamError: the broker does not tell, or refuses the login.
        """
        return await self._wait_for(queue, lambda question: question.first)

    async def settled(self, queue: str) -> QueueState:
        """Wait until a queue is not away: it is there, or deleted. Raises what ``state`` raises."""
        return await self._wait_for(queue, lambda question: question.settled)

    async def _wait_for(self, queue: str, answer: Callable[[_Question], asyncio.Future[QueueState]]) -> QueueState:
        question = self._questions.get(queue)
        if question is None:
            question = self._questions[queue] = _Question()
            question.settled = asyncio.create_task(self._ask(queue, question), name="queue watch")
            # It may be that nobody awaits this one.
            question.settled.add_done_callback(lambda task: task.cancelled() or task.exception())
        question.waiting += 1
        try:
            return await asyncio.shield(answer(question))
        finally:
            question.waiting -= 1
            if not question.waiting and not question.settled.done():
                # Whoever learns that a queue is away waits for it a moment later.
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
    """Ask the broker, and wait as long as it takes. A 404 that comes late is not that of a queue that was deleted."""
    asked_at = asyncio.get_running_loop().time()
    refusal = await LinkChannel.refusal(link, lambda channel: channel.declare_passive(queue))
    if refusal is None:
        return QueueState.THERE
    if refusal.code != NOT_FOUND:
        # Exclusive to another connection, for example.
        return QueueState.THERE
    if asyncio.get_running_loop().time() - asked_at > PROMPT:
        return QueueState.AWAY
    declared = await LinkChannel.refusal(link, lambda channel: channel.may_declare(queue))
    if declared is not None and declared.code == ACCESS_REFUSED:
        return QueueState.AWAY if _NODE_IS_AWAY in refusal.text else QueueState.DELETED
    is_away = declared is not None and (declared.code == NOT_FOUND or _DIFFERS in declared.text)
    return QueueState.AWAY if is_away else QueueState.DELETED
