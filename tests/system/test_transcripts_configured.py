"""The conversations that need servers configured otherwise, on RabbitMQ's plugin and on the gateway, both set up so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.broker import running
from deploy.local.given import GivenBroker
from gateway.parity import Conversation
from tests.support.setups import Setups
from tests.support.transcripts import every_conversation, play_on

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def setups() -> Iterator[Setups]:
    """A broker of their own: what they change would disturb everybody else."""
    with running(plugins=["rabbitmq_stomp"]) as broker:
        if isinstance(broker, GivenBroker):
            pytest.skip("the broker that AMQP_URL names is not ours to configure")
        with Setups.on(broker) as setups:
            yield setups


# The setups follow each other, since the plugin is started anew for each.


@every_conversation("configured", "no-default-user", "restricted-user")
async def test_plugin(conversation: Conversation, setups: Setups) -> None:
    await play_on(conversation, setups.plugin(conversation.setup), setups.amqp_url, "plugin")


@every_conversation("configured", "no-default-user", "restricted-user")
async def test_gateway(conversation: Conversation, setups: Setups) -> None:
    await play_on(conversation, setups.gateway(conversation.setup), setups.amqp_url, "gateway")
