"""What RabbitMQ's management pages show of the gateway's connections."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.local.broker import Broker
from gateway import __version__
from tests.support.deadline import until
from tests.support.gateway import gateway_here, parsed
from tests.support.management import PASSCODE, Management
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


async def _connections(management: Management, login: str, count: int) -> dict[str, dict[str, Any]]:
    """The client properties of a user's connections, by purpose."""

    async def observe() -> list[dict[str, Any]]:
        return [each["client_properties"] for each in await management.connections() if each.get("user") == login]

    found = await until(observe, lambda found: len(found) == count, seconds=60)
    return {each["gateway_purpose"]: each for each in found}


@pytest.mark.parametrize("links", ["shared", "dedicated"])
async def test_connections_name_the_client_that_they_serve(
    laboratory: Broker, management: Management, user: str, links: str
) -> None:
    config = parsed(
        laboratory.amqp_url,
        {"links": links, "journal": {"node": "gw-7"}},
        virtual_hosts={"orders": {"amqp_vhost": "/"}},
        default_vhost="orders",
    )
    async with gateway_here(config) as gateway:
        [address] = gateway.addresses
        async with StompClient.logged_in(address, host="orders", login=user, passcode=PASSCODE) as client:
            await client.ask("SEND", b"x", destination="/topic/names")
            await client.ask("SUBSCRIBE", id="1", destination="/topic/names", ack="auto")
            await client.ask("SUBSCRIBE", id="2", destination="/topic/names", ack="client")
            identity = client.connected["session"]
            peer = "{}:{}".format(*client.writer.get_extra_info("sockname"))
            found = await _connections(management, user, 3)
            assert set(found) == {"login", "consume", "own"}
            for purpose, properties in found.items():
                assert properties["product"] == "stomp-gateway"
                assert properties["version"] == __version__
                assert properties["platform"].startswith("CPython 3.")
                assert properties["gateway_node"] == "gw-7"
                assert properties["gateway_virtual_host"] == "orders"
                name = f"stomp-gateway {purpose} orders {user}"
                if links == "dedicated" or purpose == "own":
                    assert properties["connection_name"] == f"{name} {peer} {identity}"
                    shown = [properties[f"stomp_{word}"] for word in ("client", "login", "session")]
                    assert shown == [peer, user, identity]
                else:
                    assert properties["connection_name"] == name
                    assert not [key for key in properties if key.startswith("stomp_")]
            await client.disconnect()
