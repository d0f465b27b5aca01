"""Whether a queue is there, deleted or away, from what the broker refuses."""

from __future__ import annotations

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import LoginLinks
from gateway.server.broker.queue_watch import QueueState
from tests.support.scripted_broker import ScriptedBroker, usual_answer
from tests.support.virtual_time import run_in_virtual_time

NO_QUEUE = (404, "NOT_FOUND - no queue 'q' in vhost '/'")
STOPPED = (404, "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor")
INVALID = (406, "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'q' in vhost '/': -1")
DIFFERS = (
    406,
    "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '-1' of type "
    "'byte' but current is none",
)


@pytest.mark.parametrize(
    ("passive", "active", "state"),
    [
        (None, None, QueueState.THERE),
        (NO_QUEUE, INVALID, QueueState.DELETED),
        (NO_QUEUE, (404, "NOT_FOUND - home node is down or inaccessible"), QueueState.AWAY),
        # A node of RabbitMQ 3.10 that stops in good order stops its queues first.
        (STOPPED, DIFFERS, QueueState.AWAY),
    ],
)
def test_what_the_broker_refuses_tells_whether_a_queue_is_away(
    passive: tuple[int, str] | None, active: tuple[int, str] | None, state: QueueState
) -> None:
    def script(_link: Link, method: Frame) -> Frame | None:
        if isinstance(method, commands.Queue.Declare):
            refusal = passive if method.passive else active
            if refusal is not None:
                return commands.Channel.Close(*refusal, 50, 10)
        return usual_answer(method)

    async def scene() -> QueueState:
        broker = ScriptedBroker()
        broker.script = script
        links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), broker.open_link)
        return await links.queue_watch.state("q")

    assert run_in_virtual_time(scene()) is state
