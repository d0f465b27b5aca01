"""Every conversation with a queue again, in a virtual host where queues are quorum queues unless they say otherwise.

Managed brokers have such virtual hosts. The plugin and the gateway play each conversation at the same time and must say
exactly the same, as for `stomp-gateway parity`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from deploy.local.broker import Broker
from gateway.parity.amqp_broker import AmqpBroker
from gateway.parity.comparison import Comparison, Outcome, Verdict
from gateway.parity.steps import (
    ANY_OTHER_HEADERS,
    ExpectFrame,
    ExpectFramesInAnyOrder,
    ExpectInBroker,
    FrameTemplate,
    Release,
    Side,
    Step,
)
from gateway.parity.transcript import Setup, Transcript
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.stomp_client import StompClient
from tests.support.transcripts import TRANSCRIPTS, identity

pytestmark = [pytest.mark.system, pytest.mark.brokers]

_HOST = "quorum"
_SETUPS: tuple[Setup, ...] = ("plain",)

# From 4.3 on the plugin makes every queue of such a virtual host durable and none exclusive, whatever the client asked
# for. Over AMQP nobody can ask for the default type of queues, so the gateway does what the client asked for.
_DIFFERENT_FROM_4_3 = {
    "destination/queue-exclusive",
    "destination/queue-flags",
    "destination/queue-of-another",
    "send/persistent-false-existing",
    "send/persistent-false-queue",
    "subscribe/queue-transient",
}
# Says what RabbitMQ calls a classic queue.
_NOT_AS_WRITTEN = {"subscribe/stream-offset-elsewhere"}


@pytest.fixture(scope="module")
def url(own_broker: Broker) -> str:
    """The AMQP URL of the virtual host."""
    own_broker.ctl("await_startup")
    own_broker.ctl("add_vhost", _HOST, "--default-queue-type", "quorum")
    own_broker.ctl("set_permissions", "-p", _HOST, "guest", ".*", ".*", ".*")
    return f"{own_broker.amqp_url}{_HOST}"


@pytest.fixture
def gateway(own_broker: Broker) -> Iterator[Address]:
    with gateway_process(configuration(own_broker.amqp_url, virtual_hosts={"/": {}, _HOST: {}})) as process:
        yield process.address


_StepT = TypeVar("_StepT", bound=Step)


def _with_any_other_headers(step: _StepT) -> _StepT:
    """A step that accepts what a quorum queue adds, above all `x-delivery-count`; what both add must still be equal."""
    if isinstance(step, ExpectFramesInAnyOrder):
        return replace(step, expected=tuple(map(_with_any_other_headers, step.expected)))
    if isinstance(step, ExpectFrame) and step.frame.command == "MESSAGE":
        return replace(step, frame=_with_others(step.frame))
    if isinstance(step, ExpectInBroker):
        return replace(step, message=_with_others(step.message))
    return step


def _with_others(frame: FrameTemplate) -> FrameTemplate:
    return replace(frame, headers=(*frame.headers, ANY_OTHER_HEADERS))


def _conversations() -> list[Transcript]:
    with_queues = [each for each in TRANSCRIPTS if each.setup in _SETUPS and "/queue/" in each.path.read_text("utf-8")]
    return [replace(each, steps=tuple(map(_with_any_other_headers, each.steps))) for each in with_queues]


async def test_plugin_and_gateway_do_the_same(url: str, plugin_address: Address, gateway: Address) -> None:
    verdicts: list[Verdict] = []
    async with AmqpBroker.connected(url) as amqp:
        release = amqp.release
        assert release is not None
        servers: dict[Side, Address] = {"plugin": plugin_address, "gateway": gateway}
        comparison = Comparison(servers, amqp, release, identity(url), _SETUPS, jobs=8)
        await comparison.run(_conversations(), verdicts.append, lambda: None)
    different = {each.transcript.name: each.remarks for each in verdicts if each.outcome is Outcome.DIFFERENT}
    assert set(different) == (_DIFFERENT_FROM_4_3 if release >= Release(4, 3) else set()), different
    remarked = {
        each.transcript.name: each.remarks for each in verdicts if each.outcome is Outcome.EQUAL and each.remarks
    }
    assert set(remarked) == _NOT_AS_WRITTEN, remarked


async def test_a_queue_of_a_client_is_a_quorum_queue(own_broker: Broker, url: str, gateway: Address) -> None:
    del url
    async with StompClient.logged_in(gateway, host=_HOST) as client:
        await client.ask("SEND", b"hello", destination="/queue/made")
    assert "made\tquorum" in await asyncio.to_thread(own_broker.ctl, "list_queues", "-p", _HOST, "name", "type")
