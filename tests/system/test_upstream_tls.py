"""amqps: the link to the broker is encrypted, and the broker's certificate is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from tests.support.brokers import private_broker
from tests.support.certificates import Authority
from tests.support.deadline import within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class TlsBroker:
    """A broker with a TLS port, and two authorities. The first has signed its certificate."""

    broker: Broker
    port: int
    authority: Authority
    stranger: Authority

    def document(self, host: str = "localhost", **tls: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
        """A gateway's configuration for it."""
        upstream = {"urls": [f"amqps://{host}:{self.port}"], "tls": tls, "connect_timeout": 5}
        return configuration(self.broker.amqp_url, upstream=upstream)


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    directory = tmp_path_factory.mktemp("certificates")
    authority, stranger = Authority.make(directory, "authority"), Authority.make(directory, "stranger")
    certificate, key = authority.sign(directory, "broker")
    [port] = free_ports(1)
    config = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {authority.certificate}",
        f"ssl_options.certfile = {certificate}",
        f"ssl_options.keyfile = {key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
    ]
    with private_broker(config=config) as broker:
        yield TlsBroker(broker, port, authority, stranger)


async def exchange(process: GatewayProcess) -> None:
    async with StompClient.logged_in(process.address) as client, within():
        await client.ask("SUBSCRIBE", id="a", destination="/topic/secret")
        body = b"x" * 300_000
        client.write("SEND", body, destination="/topic/secret", receipt="r")
        frames = {frame.command: frame for frame in [await client.receive(), await client.receive()]}
        assert frames["MESSAGE"].body == body
        assert frames["RECEIPT"]["receipt-id"] == "r"
        await client.disconnect()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_messages_pass_through_a_verified_link(tls_broker: TlsBroker, host: str) -> None:
    with gateway_process(tls_broker.document(host, ca_file=str(tls_broker.authority.certificate))) as process:
        await exchange(process)
        listing = await asyncio.to_thread(tls_broker.broker.ctl, "list_connections", "ssl", "ssl_protocol")
        assert "true\ttlsv1" in listing


async def test_a_client_certificate_is_shown_to_the_broker(tls_broker: TlsBroker, tmp_path: Path) -> None:
    certificate, key = tls_broker.authority.sign(tmp_path, "gateway")
    tls = {"ca_file": str(tls_broker.authority.certificate), "cert_file": str(certificate), "key_file": str(key)}
    with gateway_process(tls_broker.document(**tls)) as process:
        async with StompClient.logged_in(process.address) as client, within():
            listing = await asyncio.to_thread(tls_broker.broker.ctl, "list_connections", "peer_cert_subject")
            assert "CN=localhost" in listing
            await client.disconnect()


async def test_without_verification_any_certificate_will_do(tls_broker: TlsBroker) -> None:
    with gateway_process(tls_broker.document(verify=False)) as process:
        await exchange(process)


async def test_a_certificate_of_a_stranger_is_refused(tls_broker: TlsBroker) -> None:
    document = tls_broker.document(ca_file=str(tls_broker.stranger.certificate))
    document["upstream"]["ride_through"] = "1s"
    with gateway_process(document) as process:
        async with StompClient.dialled(process.address) as client, within():
            client.write("CONNECT", accept_version="1.2")
            error = await client.expect("ERROR", message="Upstream unavailable")
            # The client is told what concerns it; what is wrong inside is for the log.
            assert b"certificate" not in error.body
            await client.closed()
        (line,) = process.logged("upstream unreachable")
        assert line["reason"].startswith(f"amqps://localhost:{tls_broker.port}: ")
        assert "certificate verify failed" in line["reason"]
        assert "stomp-gateway check tries each step" in line["hint"]


async def test_new_links_follow_the_files_of_the_upstream(tls_broker: TlsBroker, tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.symlink_to(tls_broker.stranger.certificate)
    document = tls_broker.document(ca_file=str(trusted))
    document["upstream"]["ride_through"] = 0
    with gateway_process(document) as process:
        async with StompClient.dialled(process.address) as client, within():
            client.write("CONNECT", accept_version="1.2")
            await client.expect("ERROR", message="Upstream unavailable")
            await client.closed()
        renewed = tmp_path / "renewed.pem"
        renewed.symlink_to(tls_broker.authority.certificate)
        renewed.replace(trusted)
        await process.until_logged("certificate changed")
        await exchange(process)
        trusted.unlink()
        await process.until_logged("certificate unusable")
        await exchange(process)


@pytest.mark.parametrize(("ride_through", "login_timeout"), [(0, 10), (1, 10), (60, 1)])
async def test_a_broker_that_does_not_answer_is_named_in_the_log(
    broker_url: str, ride_through: int, login_timeout: int
) -> None:
    [port] = free_ports(1)
    document = configuration(
        broker_url,
        upstream={"urls": [f"amqp://127.0.0.1:{port}"], "ride_through": ride_through},
        listeners=[{"tcp": "127.0.0.1:0", "login_timeout": login_timeout}],
    )
    with gateway_process(document) as process:
        async with StompClient.dialled(process.address) as client, within():
            client.write("CONNECT", accept_version="1.2")
            await client.expect("ERROR", message="Upstream unavailable")
            await client.closed()
        (line,) = process.logged("upstream unreachable")
        assert line["reason"] == f"amqp://127.0.0.1:{port}: connection refused"
