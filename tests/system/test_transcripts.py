"""Every transcript is played against RabbitMQ's plugin, the oracle, and against the gateway, over sockets."""

import pytest

from gateway.parity import Conversation
from gateway.parity.library import departures
from tests.support.gateway import Address
from tests.support.transcripts import EVERY, every_conversation, play_on


@pytest.mark.system
@every_conversation("plain")
async def test_plugin(conversation: Conversation, plugin_address: Address, broker_url: str) -> None:
    await play_on(conversation, plugin_address, broker_url, "plugin")


@pytest.mark.system
@every_conversation("plain")
async def test_gateway(conversation: Conversation, gateway_address: Address, broker_url: str) -> None:
    await play_on(conversation, gateway_address, broker_url, "gateway")


def test_departures_named_are_those_of_the_table_and_each_is_shown() -> None:
    named = {departure for conversation in EVERY for departure in conversation.departures}
    assert named == {row.plugin for row in departures().values() if row.is_shown}


def test_a_departure_is_named_only_where_the_two_sides_differ() -> None:
    idle = [each.name for each in EVERY if each.departures and not any(step.side for step in each.steps)]
    assert not idle


def test_conversations_do_not_depend_on_a_user_or_a_virtual_host() -> None:
    """`guest` and `/` are written only where the default user or the default virtual host is the matter."""
    the_matter = {"connect/default-user", "connect/passcode-alone"}
    texts = {each.name: each.path.read_text("utf-8") for each in EVERY if each.setup == "plain"}
    words = ("login:guest", "passcode:guest", "'guest'", "host:/\n", "vhost '/'")
    assert {name for name, text in texts.items() if any(word in text for word in words)} <= the_matter
