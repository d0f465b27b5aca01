"""Each client library holds the same conversations with RabbitMQ's plugin and with the gateway, and sees the same."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

import pytest

from tests.clients.both import Both, comparable
from tests.clients.library import EVERY_FRAME, LIBRARIES, Library
from tests.clients.peer import Peer, Seen

pytestmark = pytest.mark.system

LARGE = "lärge " * 30_000
NOTE = "a:b\\d\ne"
"""Each character that is escaped; the backslash stands before none of c, n and r, which two libraries would take for
an escape when they undo theirs."""
INDIVIDUAL = {"ack": "client-individual", "prefetch-count": "10"}


def held(versions: Callable[[Library], Collection[str]] = lambda library: library.versions) -> pytest.MarkDecorator:
    """A test for each library in each version of STOMP that it speaks, or in some of them.

    Args:
        versions: gives those in which the library can do what is tested.
    """
    pairs = [
        pytest.param(
            library,
            version,
            marks=() if library.in_python else (pytest.mark.clients,),
            id=f"{library.name}-{version}",
        )
        for library in LIBRARIES
        for version in library.versions
        if version in versions(library)
    ]
    return pytest.mark.parametrize(("library", "version"), pairs)


def name() -> str:
    """A name that no other conversation uses; both servers have the same broker behind them."""
    return f"test-{secrets.token_hex(6)}"


def receive(peer: Peer, connection: str, count: int) -> list[Seen]:
    return [peer.receive(connection) for _ in range(count)]


def bodies(messages: list[Seen]) -> list[str]:
    return [message["body"] for message in messages]


def acknowledge(peer: Peer, how: str, connection: str, message: Seen, **headers: str) -> Seen:
    subscription = message["headers"]["subscription"]
    return peer.ask(how, connection, message=message["headers"], subscription=subscription, headers=headers)


def leave(peer: Peer, *connections: str) -> None:
    for connection in connections:
        assert peer.ask("disconnect", connection) == {"receipt": True}


@held()
def test_connect(both: Both, version: str) -> None:
    def conversation(peer: Peer) -> list[Seen]:
        seen = peer.connect("a", version)
        leave(peer, "a")
        return [seen]

    (seen,) = both.hold(conversation)
    if both.library.shows_connected:
        assert seen["connected"]["version"] == version


@held()
def test_a_refused_login(both: Both, version: str) -> None:
    (seen,) = both.hold(lambda peer: [peer.connect("a", version, passcode="wrong")])
    assert seen["refused"]["headers"]["message"] == "Bad CONNECT"
    assert seen["refused"]["body"].strip() == "Access refused for user 'guest'"


@held()
def test_the_plugin_knows_no_virtual_host_by_the_name_that_a_client_dialled(both: Both, version: str) -> None:
    """The gateway knows it for an alias. This is what users of these libraries win by moving."""

    def conversation(peer: Peer) -> list[Seen]:
        seen = peer.connect("a", version, virtual_host=None, dialled="localhost")
        if "connected" in seen:
            leave(peer, "a")
        return [seen]

    (plugin,), (gateway,) = both.hear(conversation)
    assert "connected" in gateway
    if version in both.library.sends_host:
        assert plugin["refused"]["body"] == "Virtual host 'localhost' access denied"
    else:
        assert comparable(plugin) == comparable(gateway)


@held()
def test_a_message_and_its_headers(both: Both, version: str) -> None:
    headers = {"content-type": "text/plain", "persistent": "true", "colour": "röd"}
    if version in both.library.escapes:
        headers["note"] = NOTE

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.subscribe("a", destination)
        for body in ("grüße\n\nand more", "", "with\0NUL", LARGE):
            peer.send("a", destination, body, headers)
        seen = receive(peer, "a", 4)
        leave(peer, "a")
        return seen

    seen = both.hold(conversation)
    assert bodies(seen) == ["grüße\n\nand more", "", "with\0NUL", LARGE]
    for message in seen:
        assert headers.items() <= message["headers"].items()
        assert message["headers"]["destination"].startswith("/queue/test-")
        assert message["headers"]["redelivered"] == "false"


@held()
def test_order_is_kept(both: Both, version: str) -> None:
    numbers = [str(number) for number in range(1, 101)]

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.subscribe("a", destination)
        for number in numbers:
            peer.send("a", destination, number, unconfirmed=True)
        seen = receive(peer, "a", len(numbers))
        leave(peer, "a")
        return seen

    assert bodies(both.hold(conversation)) == numbers


@held()
def test_receipts(both: Both, version: str) -> None:
    """Those that the library can ask for, and tells about when they come."""

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        seen = {
            "subscribe": peer.subscribe("a", destination, "r", INDIVIDUAL),
            "send": peer.send("a", destination, "x"),
            "ack": acknowledge(peer, "ack", "a", peer.receive("a")),
            "unsubscribe": peer.ask("unsubscribe", "a", id="r", destination=destination, headers={}),
        }
        for end in ("abort", "commit"):
            seen["begin"] = peer.ask("begin", "a", transaction=end)
            seen[end] = peer.ask(end, "a", transaction=end)
        seen["disconnect"] = peer.ask("disconnect", "a")
        return [seen]

    (seen,) = both.hold(conversation)
    confirmed = {request for request, answer in seen.items() if answer.get("receipt")}
    assert confirmed == both.library.receipts & (EVERY_FRAME - {"nack"})


@held()
def test_acknowledging_the_third_acknowledges_two_before(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("a", destination, headers={"ack": "client", "prefetch-count": "10"})
        for body in ("one", "two", "three", "four"):
            peer.send("b", destination, body)
        messages = receive(peer, "a", 4)
        acknowledge(peer, "ack", "a", messages[2])
        peer.subscribe("b", destination)
        leave(peer, "a")
        again = peer.receive("b")
        peer.send("b", destination, "the end")
        last = peer.receive("b")
        leave(peer, "b")
        return [*messages, again, last]

    *_, again, last = both.hold(conversation)
    assert bodies([again, last]) == ["four", "the end"]
    assert again["headers"]["redelivered"] == "true"


@held()
def test_acknowledging_one_leaves_the_others(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("a", destination, headers=INDIVIDUAL)
        for body in ("one", "two", "three"):
            peer.send("b", destination, body)
        messages = receive(peer, "a", 3)
        acknowledge(peer, "ack", "a", messages[1])
        peer.subscribe("b", destination)
        leave(peer, "a")
        again = receive(peer, "b", 2)
        leave(peer, "b")
        return [*messages, *again]

    again = both.hold(conversation)[3:]
    assert bodies(again) == ["one", "three"]
    assert {message["headers"]["redelivered"] for message in again} == {"true"}


@held(lambda library: library.refuses_in)
def test_a_refused_message_is_delivered_again(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.subscribe("a", destination, headers=INDIVIDUAL)
        peer.send("a", destination, "again")
        first = peer.receive("a")
        acknowledge(peer, "nack", "a", first)
        second = peer.receive("a")
        acknowledge(peer, "ack", "a", second)
        leave(peer, "a")
        return [first, second]

    seen = both.hold(conversation)
    assert [(message["body"], message["headers"]["redelivered"]) for message in seen] == [
        ("again", "false"),
        ("again", "true"),
    ]


@held()
def test_a_committed_transaction_happens_as_a_whole(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("b", destination)
        peer.ask("begin", "a", transaction="t")
        for body in ("one", "two"):
            peer.send("a", destination, body, {"transaction": "t"}, unconfirmed=True)
        peer.send("a", destination, "outside")
        outside = peer.receive("b")
        peer.ask("commit", "a", transaction="t")
        seen = [outside, *receive(peer, "b", 2)]
        leave(peer, "a", "b")
        return seen

    assert bodies(both.hold(conversation)) == ["outside", "one", "two"]


@held()
def test_an_aborted_transaction_never_happened(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("b", destination)
        peer.ask("begin", "a", transaction="t")
        peer.send("a", destination, "never", {"transaction": "t"}, unconfirmed=True)
        peer.ask("abort", "a", transaction="t")
        peer.send("a", destination, "outside")
        seen = [peer.receive("b")]
        leave(peer, "a", "b")
        return seen

    assert bodies(both.hold(conversation)) == ["outside"]


@held(lambda library: library.versions if library.acknowledges_in_transactions else ())
def test_acknowledgements_in_a_transaction(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("a", destination, headers=INDIVIDUAL)
        for body, end in (("one", "commit"), ("two", "abort")):
            peer.send("a", destination, body)
            message = peer.receive("a")
            peer.ask("begin", "a", transaction=end)
            acknowledge(peer, "ack", "a", message, transaction=end)
            peer.ask(end, "a", transaction=end)
        peer.subscribe("b", destination)
        leave(peer, "a")
        seen = [peer.receive("b")]
        leave(peer, "b")
        return seen

    assert bodies(both.hold(conversation)) == ["two"]


@held()
def test_no_message_arrives_after_unsubscribe(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        topic = f"/topic/{name()}"
        peer.connect("a", version)
        for identifier in ("left", "stays"):
            peer.subscribe("a", topic, identifier)
        peer.ask("unsubscribe", "a", id="left", destination=topic, headers={})
        for body in ("one", "two"):
            peer.send("a", topic, body)
        seen = receive(peer, "a", 2)
        leave(peer, "a")
        return seen

    seen = both.hold(conversation)
    assert bodies(seen) == ["one", "two"]
    if both.library.chooses_subscription_id:
        assert {message["headers"]["subscription"] for message in seen} == {"stays"}


@held()
def test_a_durable_subscription_keeps_what_was_sent_meanwhile(both: Both, version: str) -> None:
    def conversation(peer: Peer) -> list[Seen]:
        topic = f"/topic/{name()}"
        durable = {"durable": "true", "auto-delete": "false", "x-expires": "60000"}
        if not both.library.chooses_subscription_id:
            durable["x-queue-name"] = name()
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("a", topic, "d", durable)
        peer.send("b", topic, "while there")
        seen = [peer.receive("a")]
        leave(peer, "a")
        peer.send("b", topic, "while away", {"persistent": "true"})
        peer.connect("a", version)
        peer.subscribe("a", topic, "d", durable)
        seen.append(peer.receive("a"))
        peer.ask("unsubscribe", "a", id="d", destination=topic, headers={"durable": "true"})
        leave(peer, "a", "b")
        return seen

    seen = both.hold(conversation)
    assert bodies(seen) == ["while there", "while away"]


@held(lambda library: library.versions if library.temporary_queues else ())
def test_a_question_is_answered_through_a_temporary_queue(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.connect("b", version)
        peer.subscribe("b", destination)
        peer.send("a", destination, "ping", {"reply-to": "/temp-queue/answers"})
        question = peer.receive("b")
        # The answer goes to a queue that the broker named and that no header may make an auto-delete one.
        peer.send("b", question["headers"]["reply-to"], "pong", {"auto-delete": "false"})
        answer = peer.receive("a")
        leave(peer, "a", "b")
        return [question, answer]

    question, answer = both.hold(conversation)
    assert question["headers"]["reply-to"].startswith("/reply-queue/")
    assert (answer["body"], answer["headers"]["subscription"]) == ("pong", "/temp-queue/answers")


@held(lambda library: library.heart_beats)
def test_heart_beats_keep_an_idle_connection(both: Both, version: str) -> None:
    def conversation(peer: Peer) -> list[Seen]:
        seen = peer.connect("a", version, heart_beat=[1000, 1000])
        peer.ask("beats", "a", count=2)
        peer.send("a", f"/topic/{name()}", "still here")
        leave(peer, "a")
        return [seen]

    (seen,) = both.hold(conversation)
    if both.library.shows_connected:
        assert seen["connected"]["heart-beat"] == "1000,1000"


@held()
def test_an_error_leaves_the_session_open(both: Both, version: str) -> None:

    def conversation(peer: Peer) -> list[Seen]:
        destination = f"/queue/{name()}"
        peer.connect("a", version)
        peer.send("a", "/nonsense/x", "x", unconfirmed=True)
        error = peer.ask("error", "a")
        peer.subscribe("a", destination)
        peer.send("a", destination, "still here")
        seen = [error, peer.receive("a")]
        leave(peer, "a")
        return seen

    error, message = both.hold(conversation)
    assert error["headers"]["message"] == "Unknown destination"
    assert message["body"] == "still here"
