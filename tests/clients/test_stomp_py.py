"""stomp.py beyond the conversations of all libraries: TLS, reconnecting, ERROR frames."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import stomp

from deploy.local.ports import free_ports
from tests.clients.stomp_py import CLIENTS, StompPy, connected
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, happens
from tests.support.gateway import Address, configuration, gateway_process

pytestmark = pytest.mark.system

every_version = pytest.mark.parametrize("version", list(CLIENTS))
with_nack = pytest.mark.parametrize("version", ["1.1", "1.2"])


@pytest.fixture
def client(gateway_address: Address, version: str) -> Iterator[StompPy]:
    with connected(gateway_address, version) as client:
        yield client


@pytest.fixture
def destination() -> str:
    """A queue that is deleted with its last consumer; only for tests that subscribe."""
    return f"/queue/test-{secrets.token_hex(6)}"


def subscribe(client: StompPy, destination: str, identifier: str = "a", **headers: str) -> None:
    client.confirmed(client.connection.subscribe, destination, id=identifier, **{"auto-delete": "true", **headers})


def send(client: StompPy, destination: str, *bodies: str, **headers: str) -> None:
    for body in bodies:
        client.confirmed(client.connection.send, destination, body, **{"auto-delete": "true", **headers})


@with_nack
def test_a_refused_message_without_requeue_is_dead_lettered(client: StompPy, destination: str) -> None:
    dead = f"dead.{secrets.token_hex(4)}"
    letters = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": dead}
    subscribe(client, f"/topic/{dead}", "dead")
    subscribe(client, destination, ack="client-individual", **letters)
    send(client, destination, "unwanted", **letters)
    client.nack(client.inbox.message(), "a", requeue="false")
    message = client.inbox.message()
    assert (message.headers["subscription"], message.body) == ("dead", "unwanted")


@every_version
def test_an_ended_durable_subscription_collects_nothing(
    client: StompPy, gateway_address: Address, version: str
) -> None:
    topic = f"/topic/durable.{secrets.token_hex(4)}"
    durable = {"durable": "true", "auto-delete": "false"}
    with connected(gateway_address, version) as first:
        subscribe(first, topic, "d", **durable)
        first.confirmed(first.connection.unsubscribe, id="d", **{"durable": "true"})
    send(client, topic, "nobody wants it")
    with connected(gateway_address, version) as second:
        subscribe(second, topic, "d", **durable)
        send(client, topic, "anew")
        assert second.inbox.message().body == "anew"
        second.confirmed(second.connection.unsubscribe, id="d", **{"durable": "true"})


@every_version
def test_an_error_names_its_frame(client: StompPy) -> None:
    client.connection.send("/nonsense/x", "x", receipt="never")
    error = client.inbox.error()
    assert error.headers["message"] == "Unknown destination"
    assert error.headers["receipt-id"] == "never"
    assert not client.inbox.has_receipt("never")


def test_a_client_goes_on_after_the_gateway_was_killed_and_started_again(broker_url: str, destination: str) -> None:
    (port,) = free_ports(1)
    document = configuration(broker_url, listeners=[{"tcp": f"127.0.0.1:{port}"}])
    queue = {"ack": "client-individual", "auto-delete": "false", "x-expires": "60000"}

    def resume(client: StompPy) -> None:
        client.connection.connect("guest", "guest", wait=True)
        client.connection.subscribe(destination, id="a", **queue)

    with gateway_process(document) as gateway:
        client = StompPy(gateway.address, "1.2", reconnect_attempts_max=-1, reconnect_sleep_increase=0)
        resume(client)
        send(client, destination, "unfinished", persistent="true", **queue)
        assert client.inbox.message().headers["redelivered"] == "false"
        gateway.child.kill()
        gateway.child.wait()
        happens(client.inbox.disconnected)
    with ThreadPoolExecutor(1) as thread:
        resumed = thread.submit(resume, client)  # retries until a server listens again
        with gateway_process(document):
            resumed.result(PATIENCE)
            again = client.inbox.message()
            assert (again.body, again.headers["redelivered"]) == ("unfinished", "true")
            client.ack(again, "a")
            send(client, destination, "next", **queue)
            message = client.inbox.message()
            assert message.body == "next"
            client.ack(message, "a")
            client.disconnect()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def tls_address(broker_url: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A gateway with a TLS listener."""
    certificate, key = authority.sign(tmp_path_factory.mktemp("server"), "server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    with gateway_process(configuration(broker_url, listeners=[{"tcp": "127.0.0.1:0", "tls": tls}])) as gateway:
        yield gateway.address


def _over_tls(address: Address, version: str, certificate: Path) -> StompPy:
    client = StompPy(address, version, reconnect_attempts_max=1)
    client.connection.set_ssl(for_hosts=[address], ca_certs=str(certificate))
    return client


@every_version
def test_over_tls(tls_address: Address, authority: Authority, destination: str, version: str) -> None:
    client = _over_tls(tls_address, version, authority.certificate)
    client.connection.connect("guest", "guest", wait=True)
    subscribe(client, destination)
    large = "secret " * 30_000
    send(client, destination, large)
    assert client.inbox.message().body == large
    client.disconnect()


def test_a_certificate_of_an_unknown_authority_is_not_trusted(tls_address: Address, tmp_path: Path) -> None:
    client = _over_tls(tls_address, "1.2", Authority.make(tmp_path, "unknown").certificate)
    with pytest.raises(stomp.exception.ConnectFailedException):
        client.connection.connect("guest", "guest", wait=True)
