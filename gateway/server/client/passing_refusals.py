"""Whether the broker's refusal of an operation may be temporary, because a node is away or still starting."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.amqp.codec import CONSUME, PUBLISH, QUEUE_BIND, QUEUE_DECLARE
from gateway.server.broker.broker_errors import NOT_FOUND, PRECONDITION_FAILED, UpstreamError
from gateway.server.broker.queue_watch import QueueState
from gateway.server.client.bridge_context import BridgeContext
from gateway.session import ops

# For this many seconds after links were lost or opened, a missing exchange may belong to a node that is still starting.
# For as long after the first refusal, a stream without a replica on the node may still get one.
_STARTS_WITHIN: Final = 10.0

# RabbitMQ says this while a replica is starting because the stream's leader has moved, and also if there is none.
_NO_REPLICA: Final = "replica on the local node"


class PassingRefusals:
    """Judges the refusals of one session's operations."""

    __slots__ = ("_context", "_no_replica_since")

    def __init__(self, context: BridgeContext) -> None:
        self._context = context
        # The time since when the broker refuses a stream because it has no replica.
        self._no_replica_since: float | None = None

    def subscribed(self) -> None:
        """Note that a SUBSCRIBE has succeeded."""
        self._no_replica_since = None

    async def may_pass(self, operation: ops.Operation, refusal: UpstreamError) -> bool:
        """Whether an operation may succeed later."""
        if refusal.code == NOT_FOUND and await self._may_be_there_later(operation, refusal):
            return True
        return self._may_get_replica(refusal)

    async def _may_be_there_later(self, operation: ops.Operation, refusal: UpstreamError) -> bool:
        """Judge a 404. A declaration never fails because a queue does not exist. If it gets 404, the queue is away."""
        context = self._context
        is_asked = isinstance(operation, ops.Subscribe | ops.PreparePublisher)
        if not is_asked or refusal.method == PUBLISH or not context.ride_through:
            return False
        state = QueueState.AWAY if refusal.method == QUEUE_DECLARE else QueueState.DELETED
        is_starting = refusal.method == QUEUE_BIND
        if refusal.method == CONSUME and isinstance(operation, ops.Subscribe):
            # If this SUBSCRIBE declared the queue, RabbitMQ has deleted it as one of a lost node, by its name.
            is_starting = operation.queue is not None
            try:
                state = await context.links.queue_watch.state(operation.queue_name)
            except UpstreamError:
                return False
        if state is QueueState.AWAY:
            context.note_away(refusal.text)
        if state is not QueueState.DELETED:
            return True
        return is_starting and context.pool.brokers_changed(context.session.settings, _STARTS_WITHIN)

    def _may_get_replica(self, refusal: UpstreamError) -> bool:
        """Whether the refusal says that a stream has no replica, and has done so only for a few seconds."""
        is_lack = refusal.code == PRECONDITION_FAILED and refusal.method == CONSUME and _NO_REPLICA in refusal.text
        if not is_lack:
            self._no_replica_since = None
            return False
        now = asyncio.get_running_loop().time()
        since = self._no_replica_since = self._no_replica_since or now
        return now - since < _STARTS_WITHIN

    async def find(self, operation: ops.FindQueues) -> ops.QueuesFound:
        """Find out whether the broker rejects messages because their queue is away or deleted."""
        watch = self._context.links.queue_watch
        states = await asyncio.gather(*map(watch.state, operation.queues), return_exceptions=True)
        if QueueState.AWAY in states:
            self._context.note_away()
        # The session declares deleted queues again.
        return ops.QueuesFound(QueueState.AWAY in states or QueueState.DELETED in states)
