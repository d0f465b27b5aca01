"""`stomp-gateway migrate` on a running broker's own files: clients find again what they left with the plugin."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import yaml

from deploy.local.broker import Broker
from deploy.local.node import PrivateNode
from deploy.local.ports import free_ports
from gateway.cli import main
from gateway.errors import ExitCode
from tests.support.deadline import within
from tests.support.gateway import Address, GatewayProcess, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def migrated(laboratory: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway beside the laboratory's plugin, with the configuration that migrate made of the broker's files."""
    assert isinstance(laboratory, PrivateNode)
    assert laboratory.stomp_port is not None
    made = tmp_path_factory.mktemp("migrate") / "gateway.yaml"
    offset = free_ports(1)[0] - laboratory.stomp_port
    files = [laboratory.data / "rabbitmq.conf", "--enabled-plugins", laboratory.data / "enabled_plugins"]
    assert main(["migrate", *map(str, files), f"--port-offset={offset}", "-o", str(made)]) == ExitCode.OK
    assert main(["check", "--config", str(made)]) == ExitCode.OK
    document = yaml.safe_load(made.read_text()) | {"logging": {"format": "json"}}
    with gateway_process(document) as process:
        assert process.address == (laboratory.host, laboratory.stomp_port + offset)
        yield process


async def test_a_durable_subscription_moves_with_its_messages(
    migrated: GatewayProcess, laboratory_plugin: Address
) -> None:
    name = f"migrate-{secrets.token_hex(6)}"
    topic, durable = f"/topic/{name}", {"id": name, "durable": "true", "auto_delete": "false"}
    async with within(30):
        async with StompClient.logged_in(laboratory_plugin) as client:
            await client.ask("SUBSCRIBE", destination=topic, **durable)
            await client.disconnect()
        for address in (laboratory_plugin, migrated.address):
            async with StompClient.logged_in(address) as sender:
                await sender.ask("SEND", str(address[1]).encode(), destination=topic, persistent="true")
                await sender.disconnect()
        async with StompClient.logged_in(migrated.address) as client:
            client.write("SUBSCRIBE", destination=topic, ack="client-individual", **durable)
            found = await client.messages(2)
            assert [message.body for message in found] == [b"%d" % laboratory_plugin[1], b"%d" % migrated.address[1]]
            for message in found[:1]:
                await client.ask("ACK", id=message["ack"])
            await client.disconnect()
        # And back: the plugin delivers what was not acknowledged through the gateway.
        async with StompClient.logged_in(laboratory_plugin) as client:
            client.write("SUBSCRIBE", destination=topic, **durable)
            await client.expect("MESSAGE", b"%d" % migrated.address[1], redelivered="true")
            await client.ask("UNSUBSCRIBE", id=name, durable="true")
            await client.disconnect()


async def test_clients_without_a_login_and_with_any_host_are_served_as_before(
    migrated: GatewayProcess, laboratory_plugin: Address, vhost: str
) -> None:
    async with within():
        for address in (laboratory_plugin, migrated.address):
            for headers in ({}, {"host": "/"}, {"host": vhost}):
                async with StompClient.dialled(address) as client:
                    await client.connect(**headers)
                    await client.disconnect()
            async with StompClient.dialled(address) as client:
                client.write("CONNECT", accept_version="1.2", host="no such")
                refusal = await client.expect("ERROR", message="Bad CONNECT")
                assert b"no such" in refusal.body
