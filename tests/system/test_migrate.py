"""`stomp-gateway migrate` on a running broker's own files: clients find again what they left with the plugin."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.local.broker import Broker
from deploy.local.node import PrivateNode
from deploy.local.ports import LOOPBACK, free_ports
from gateway.cli import main
from gateway.errors import ExitCode
from gateway.migrate.erlang_terms import read_terms
from tests.support.broker_files import BROKERS
from tests.support.certificates import Authority
from tests.support.deadline import within
from tests.support.erlang_text import formatted
from tests.support.gateway import Address, GatewayProcess, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def migrated(
    laboratory: Broker, web_stomp_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway beside the laboratory's plugin, with the configuration that migrate made of the broker's files."""
    assert isinstance(laboratory, PrivateNode)
    assert laboratory.stomp_port is not None
    made = tmp_path_factory.mktemp("migrate") / "gateway.yaml"
    offset = _free_offset(laboratory.stomp_port, web_stomp_port)
    files = [laboratory.data / "rabbitmq.conf", "--enabled-plugins", laboratory.data / "enabled_plugins"]
    assert main(["migrate", *map(str, files), f"--port-offset={offset}", "-o", str(made)]) == ExitCode.OK
    assert main(["check", "--config", str(made)]) == ExitCode.OK
    # Without the admin listener, whose port would be the same in all workers.
    document = yaml.safe_load(made.read_text()) | {"logging": {"format": "json"}, "admin": {"address": None}}
    with gateway_process(document) as process:
        assert process.address == (laboratory.host, laboratory.stomp_port + offset)
        yield process


def _free_offset(first: int, second: int) -> int:
    """What to add to both of these ports, so that they become free ones."""
    while True:
        offset = free_ports(1)[0] - first
        with socket.socket() as trial, contextlib.suppress(OSError, OverflowError):
            # Not a port that any connection may get.
            if second + offset < 32_768:
                trial.bind((LOOPBACK, second + offset))
                return offset


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


def test_the_broker_makes_the_same_of_its_files(laboratory: Broker, tmp_path: Path) -> None:
    """The configuration is that of the settings that RabbitMQ itself reads from the files, without its defaults."""
    identity = tmp_path / "identity"
    identity.mkdir()
    Authority.make(identity, "ca").identify(identity, "broker")
    judged = {name: case for name, case in BROKERS.items() if case.judged}
    questions, arguments = [], {}
    for name, case in judged.items():
        folder = tmp_path / name
        arguments[name] = case.write(folder)
        for file in identity.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        confs = [f'"{folder}/{file}"' for file in case.texts if file == "rabbitmq.conf"]
        advanced = next((f'"{folder}/{file}"' for file in case.texts if file.endswith(".config")), "undefined")
        questions.append(
            "rabbit_prelaunch_conf:generate_config_from_cuttlefish_files("
            f"rabbit_env:get_context(), [{', '.join(confs)}], {advanced})"
        )

    answer = read_terms(laboratory.ctl("eval", f"[{', '.join(questions)}].") + ".")[0]

    assert isinstance(answer, list)
    for name, settings in zip(judged, answer, strict=True):
        folder = tmp_path / name
        own = folder / "own.config"
        own.write_text(f"{formatted(settings)}.\n")
        documents = []
        for files in (
            arguments[name],
            [str(own), *(file for file in arguments[name] if "enabled" in file), "--lenient"],
        ):
            made = folder / "gateway.yaml"
            assert main(["migrate", *files, "-o", str(made), "--force"]) in (ExitCode.OK, ExitCode.FAILURE)
            document = yaml.safe_load(made.read_text())
            document["listeners"].sort(key=str)  # RabbitMQ opens them in any order
            documents.append(document)
        assert documents[0] == documents[1], name
