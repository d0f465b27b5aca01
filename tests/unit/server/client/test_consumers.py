"""A consumer that is to come back: what a refusal says about its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.server.broker.broker_errors import NOT_FOUND, RESOURCE_LOCKED, LinkDownError, UpstreamError
from gateway.server.client.consumers import Consumers
from gateway.session import ops
from gateway.session.subscription import Subscription


class OfStream:
    """A subscription that has had seven messages of a stream, or something else than a stream."""

    queue_gone = Subscription.queue_gone

    def __init__(self, next_offset: int | None = 7) -> None:
        self.next_offset = next_offset

    def lost(self) -> None:
        pass


class Refused(Consumers):
    """The broker refuses."""

    __slots__ = ("refusal",)
    refusal: UpstreamError

    async def start(self, operation: ops.Subscribe) -> ops.Subscribed:
        raise self.refusal


@pytest.mark.parametrize(
    ("refusal", "goes_on_at"),
    [
        (UpstreamError(NOT_FOUND, "NOT_FOUND - no queue 's' in vhost '/'"), 0),
        # As RabbitMQ 3.10.8 says it while a stream starts.
        (
            UpstreamError(
                NOT_FOUND, "NOT_FOUND - home node 'a@b' of durable queue 's' in vhost '/' is down or inaccessible"
            ),
            7,
        ),
        (UpstreamError(RESOURCE_LOCKED, "RESOURCE_LOCKED"), 7),
        (LinkDownError(320, "CONNECTION_FORCED"), 7),
    ],
)
async def test_a_stream_that_is_gone_is_read_from_its_beginning_when_it_is_made_again(
    refusal: UpstreamError, goes_on_at: int
) -> None:
    consumers = Refused(*[cast(Any, None)] * 5)
    consumers.refusal = refusal
    for subscription, expected in ((OfStream(), goes_on_at), (OfStream(None), None)):
        with pytest.raises(UpstreamError):
            await consumers.restore(cast(Any, SimpleNamespace(subscription=subscription)))
        assert subscription.next_offset == expected
