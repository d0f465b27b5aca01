"""The transcripts that need another setup than `plain`, played on RabbitMQ's plugin and on the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.broker import running
from deploy.local.given import GivenBroker
from gateway.parity.transcript import Transcript
from tests.support.setups import Setups
from tests.support.transcripts import check_transcript, parametrize_transcripts

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def setups() -> Iterator[Setups]:
    """A broker of its own, because the setups change the plugin's configuration."""
    with running(plugins=["rabbitmq_stomp"]) as broker:
        if isinstance(broker, GivenBroker):
            pytest.skip("the tests may not configure the broker that AMQP_URL names")
        with Setups.on(broker) as setups:
            yield setups
        broker.kill()  # an orderly stop takes seconds


# One setup after the other, because the plugin restarts for each.


@parametrize_transcripts("configured", "no-default-user", "restricted-user")
async def test_plugin(transcript: Transcript, setups: Setups) -> None:
    await check_transcript(transcript, setups.plugin(transcript.setup), setups.amqp_url, "plugin")


@parametrize_transcripts("configured", "no-default-user", "restricted-user")
async def test_gateway(transcript: Transcript, setups: Setups) -> None:
    await check_transcript(transcript, setups.gateway(transcript.setup), setups.amqp_url, "gateway")
