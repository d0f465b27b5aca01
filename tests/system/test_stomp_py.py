"""The most used Python client against the gateway, in all three versions of STOMP."""

from __future__ import annotations

import queue as queues
import secrets
from collections.abc import Iterator

import pytest
import stomp

from tests.support.deadline import happens
from tests.support.gateway import Address
from tests.support.stomp_py import CLIENTS, StompPy, connected

pytestmark = pytest.mark.system

every_version = pytest.mark.parametrize("version", list(CLIENTS))
with_nack = pytest.mark.parametrize("version", ["1.1", "1.2"])


@pytest.fixture
def client(gateway_address: Address, version: str) -> Iterator[StompPy]:
    with connected(gateway_address, version) as client:
        yield client


@pytest.fixture
def other(gateway_address: Address, version: str) -> Iterator[StompPy]:
    with connected(gateway_address, version) as client:
        yield client


@pytest.fixture
def destination() -> str:
    """A queue that goes away with its last consumer; only tests that subscribe use it."""
    return f"/queue/test-{secrets.token_hex(6)}"


def subscribe(client: StompPy, destination: str, identifier: str = "a", **headers: str) -> None:
    client.confirmed(client.connection.subscribe, destination, id=identifier, **{"auto-delete": "true", **headers})


def send(client: StompPy, destination: str, *bodies: str, **headers: str) -> None:
    for body in bodies:
        client.confirmed(client.connection.send, destination, body, **{"auto-delete": "true", **headers})


@every_version
def test_messages_arrive_with_their_headers(client: StompPy, destination: str) -> None:
    subscribe(client, destination)
    send(client, destination, "äöü: text", content_type="text/plain", persistent="true", colour="red:green")
    message = client.inbox.message()
    assert message.body == "äöü: text"
    assert message.headers["subscription"] == "a"
    assert message.headers["destination"] == destination
    assert message.headers["persistent"] == "true"
    assert message.headers["redelivered"] == "false"
    if client.version != "1.0":
        # Version 1.0 has no escapes, and stomp.py's client for it undoes none.
        assert message.headers["colour"] == "red:green"


@every_version
def test_a_refused_login(gateway_address: Address, version: str) -> None:
    client = StompPy(gateway_address, version, reconnect_attempts_max=1)
    with pytest.raises(stomp.exception.ConnectFailedException):
        client.connection.connect("guest", "wrong", wait=True)
    error = client.inbox.error()
    assert error.headers["message"] == "Bad CONNECT"
    assert error.body == "Access refused for user 'guest'\n"
    client.connection.transport.stop()


@every_version
def test_order_is_kept(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(client, destination)
    for number in range(300):
        other.connection.send(destination, str(number), **{"auto-delete": "true"})
    assert [client.inbox.message().body for _ in range(300)] == [str(number) for number in range(300)]


@every_version
def test_unacknowledged_messages_go_to_the_next_consumer(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination, "keeps", ack="client-individual", **{"prefetch-count": "3"})
    send(client, destination, "one", "two", "three")
    messages = [other.inbox.message() for _ in range(3)]
    other.ack(messages[1], "keeps")
    subscribe(client, destination, "next", ack="client-individual")
    other.disconnect()
    again = [client.inbox.message() for _ in range(2)]
    assert [message.body for message in again] == ["one", "three"]
    assert {message.headers["redelivered"] for message in again} == {"true"}
    for message in again:
        client.ack(message, "next")


@every_version
def test_a_client_acknowledgement_is_cumulative(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination, "all", ack="client", **{"prefetch-count": "10"})
    send(client, destination, "one", "two", "three", "four")
    messages = [other.inbox.message() for _ in range(4)]
    other.ack(messages[2], "all")
    subscribe(client, destination, "rest")
    other.disconnect()
    assert client.inbox.message().body == "four"
    with pytest.raises(queues.Empty):
        client.inbox.messages.get(timeout=0.3)


@with_nack
def test_a_refused_message_comes_again(client: StompPy, destination: str) -> None:
    subscribe(client, destination, ack="client-individual")
    send(client, destination, "again")
    client.nack(client.inbox.message(), "a")
    message = client.inbox.message()
    assert (message.body, message.headers["redelivered"]) == ("again", "true")
    client.ack(message, "a")


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
def test_a_committed_transaction_happens_as_a_whole(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination)
    transaction = client.connection.begin()
    for body in ("one", "two"):
        client.connection.send(destination, body, transaction=transaction, **{"auto-delete": "true"})
    with pytest.raises(queues.Empty):
        other.inbox.messages.get(timeout=0.3)
    client.confirmed(client.connection.commit, transaction)
    assert [other.inbox.message().body for _ in range(2)] == ["one", "two"]


@every_version
def test_an_aborted_transaction_never_happened(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination)
    transaction = client.connection.begin()
    client.connection.send(destination, "never", transaction=transaction, **{"auto-delete": "true"})
    client.confirmed(client.connection.abort, transaction)
    send(client, destination, "outside")
    assert other.inbox.message().body == "outside"


@every_version
def test_acknowledgements_in_a_transaction(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination, "t", ack="client-individual")
    send(client, destination, "one", "two")
    one, two = other.inbox.message(), other.inbox.message()
    for message, end in ((one, other.connection.commit), (two, other.connection.abort)):
        transaction = other.connection.begin()
        other.ack(message, "t", transaction=transaction)
        other.confirmed(end, transaction)
    subscribe(client, destination, "rest")
    other.disconnect()
    assert client.inbox.message().body == "two"


@every_version
def test_a_durable_subscription_keeps_what_was_sent_meanwhile(
    client: StompPy, gateway_address: Address, version: str
) -> None:
    topic = f"/topic/durable.{secrets.token_hex(4)}"
    durable = {"durable": "true", "auto-delete": "false"}
    with connected(gateway_address, version) as first:
        subscribe(first, topic, "d", **durable)
        send(client, topic, "while there")
        assert first.inbox.message().body == "while there"
    send(client, topic, "while away", persistent="true")
    with connected(gateway_address, version) as second:
        subscribe(second, topic, "d", **durable)
        assert second.inbox.message().body == "while away"
        second.confirmed(second.connection.unsubscribe, id="d", **{"durable": "true"})
    send(client, topic, "nobody wants it")
    with connected(gateway_address, version) as third:
        subscribe(third, topic, "d", **durable)
        send(client, topic, "anew")
        assert third.inbox.message().body == "anew"
        third.confirmed(third.connection.unsubscribe, id="d", **{"durable": "true"})


@every_version
def test_a_question_is_answered_through_a_temporary_queue(client: StompPy, other: StompPy, destination: str) -> None:
    subscribe(other, destination)
    client.connection.send(destination, "ping", **{"reply-to": "/temp-queue/answers", "auto-delete": "true"})
    question = other.inbox.message()
    other.connection.send(question.headers["reply-to"], "pong")
    answer = client.inbox.message()
    assert (answer.body, answer.headers["subscription"]) == ("pong", "/temp-queue/answers")


@every_version
def test_unsubscribed_is_unsubscribed(client: StompPy, other: StompPy) -> None:
    topic = f"/topic/left.{secrets.token_hex(4)}"
    subscribe(client, topic, "a")
    subscribe(client, topic, "b")
    client.confirmed(client.connection.unsubscribe, id="a")
    send(other, topic, "one", "two")
    assert [client.inbox.message().headers["subscription"] for _ in range(2)] == ["b", "b"]


@every_version
def test_an_error_names_its_frame_and_leaves_the_session_open(client: StompPy, destination: str) -> None:
    client.connection.send("/nonsense/x", "x", receipt="never")
    error = client.inbox.error()
    assert error.headers["message"] == "Unknown destination"
    assert error.headers["receipt-id"] == "never"
    assert not client.inbox.has_receipt("never")
    subscribe(client, destination)
    send(client, destination, "still here")
    assert client.inbox.message().body == "still here"


@with_nack
def test_heart_beats_keep_an_idle_connection(gateway_address: Address, version: str) -> None:
    with connected(gateway_address, version, heartbeats=(1000, 1000)) as client:
        assert not client.inbox.heart_beat_timeout.wait(3.5)
        assert client.inbox.heart_beats >= 3
        send(client, "/topic/nobody", "still here")


@every_version
def test_disconnect_is_answered_before_the_end(gateway_address: Address, version: str) -> None:
    client = StompPy(gateway_address, version)
    client.connection.connect("guest", "guest", wait=True)
    client.connection.disconnect(receipt="bye")
    client.inbox.receipt("bye")
    happens(client.inbox.disconnected)
