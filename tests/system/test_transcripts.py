"""Every transcript is played against RabbitMQ's plugin, the oracle, and against the gateway, over sockets."""

import pytest

from gateway.parity.transcript import Transcript, load_departures
from tests.support.gateway import Address
from tests.support.transcripts import TRANSCRIPTS, check_transcript, parametrize_transcripts


@pytest.mark.system
@parametrize_transcripts("plain")
async def test_plugin(transcript: Transcript, plugin_address: Address, broker_url: str) -> None:
    await check_transcript(transcript, plugin_address, broker_url, "plugin")


@pytest.mark.system
@parametrize_transcripts("plain")
async def test_gateway(transcript: Transcript, gateway_address: Address, broker_url: str) -> None:
    await check_transcript(transcript, gateway_address, broker_url, "gateway")


def test_transcripts_name_every_row_of_the_departures_that_has_one() -> None:
    named = {departure for transcript in TRANSCRIPTS for departure in transcript.departures}
    assert named == {row.plugin for row in load_departures().values() if row.has_transcript}


def test_a_transcript_names_a_departure_only_if_a_step_is_for_one_side() -> None:
    without_reason = [
        each.name for each in TRANSCRIPTS if each.departures and not any(step.side for step in each.steps)
    ]
    assert not without_reason


def test_transcripts_do_not_depend_on_a_user_or_a_virtual_host() -> None:
    """`guest` and `/` are written only if the rule is about the default user or the default virtual host."""
    about_defaults = {"connect/default-user", "connect/passcode-alone"}
    texts = {each.name: each.path.read_text("utf-8") for each in TRANSCRIPTS if each.setup == "plain"}
    words = ("login:guest", "passcode:guest", "'guest'", "host:/\n", "vhost '/'")
    assert {name for name, text in texts.items() if any(word in text for word in words)} <= about_defaults
