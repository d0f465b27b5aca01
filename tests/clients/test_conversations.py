"""Each client library has the same conversations with RabbitMQ's plugin and with the gateway, with the same results."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

import pytest

from tests.clients.client_program import ClientProgram, Seen
from tests.clients.comparison import Comparison, comparable
from tests.clients.library import EVERY_FRAME, LIBRARIES, Library

pytestmark = pytest.mark.system

LARGE = "lärge " * 30_000
NOTE = "a:b\\d\ne"
"""Each character that is escaped. No c, n or r follows the backslash: two libraries would unescape that again."""
INDIVIDUAL = {"ack": "client-individual", "prefetch-count": "10"}


def each_library(
    versions: Callable[[Library], Collection[str]] = lambda library: library.versions,
) -> pytest.MarkDecorator:
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
    """A name that no other conversation uses, since both servers have the same broker."""
    return f"test-{secrets.token_hex(6)}"


def receive(program: ClientProgram, connection: str, count: int) -> list[Seen]:
    return [program.receive(connection) for _ in range(count)]


def bodies(messages: list[Seen]) -> list[str]:
    return [message["body"] for message in messages]


def acknowledge(program: ClientProgram, how: str, connection: str, message: Seen, **headers: str) -> Seen:
    subscription = message["headers"]["subscription"]
    return program.ask(how, connection, message=message["headers"], subscription=subscription, headers=headers)


def connect(program: ClientProgram, version: str, *connections: str) -> str:
    """Open connections, and return the destination of a queue for this conversation."""
    for connection in connections:
        program.connect(connection, version)
    return f"/queue/{name()}"


def leave(program: ClientProgram, *connections: str) -> None:
    for connection in connections:
        assert program.ask("disconnect", connection) == {"receipt": True}


@each_library()
def test_connect(comparison: Comparison, version: str) -> None:
    def conversation(program: ClientProgram) -> list[Seen]:
        seen = program.connect("a", version)
        leave(program, "a")
        return [seen]

    (seen,) = comparison.compare(conversation)
    if comparison.library.shows_connected:
        assert seen["connected"]["version"] == version


@each_library()
def test_a_refused_login(comparison: Comparison, version: str) -> None:
    (seen,) = comparison.compare(lambda program: [program.connect("a", version, passcode="wrong")])
    assert seen["refused"]["headers"]["message"] == "Bad CONNECT"
    assert seen["refused"]["body"].strip() == "Access refused for user 'guest'"


@each_library()
def test_only_the_gateway_accepts_the_dialled_name_as_a_virtual_host(comparison: Comparison, version: str) -> None:
    """The gateway has it as an alias, which helps users of these libraries."""

    def conversation(program: ClientProgram) -> list[Seen]:
        seen = program.connect("a", version, virtual_host=None, dialled="localhost")
        if "connected" in seen:
            leave(program, "a")
        return [seen]

    (plugin,), (gateway,) = comparison.run(conversation)
    assert "connected" in gateway
    if version in comparison.library.sends_host:
        assert plugin["refused"]["body"] == "Virtual host 'localhost' access denied"
    else:
        assert comparable(plugin) == comparable(gateway)


@each_library()
def test_a_message_and_its_headers(comparison: Comparison, version: str) -> None:
    headers = {"content-type": "text/plain", "persistent": "true", "colour": "röd"}
    if version in comparison.library.escapes:
        headers["note"] = NOTE

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a")
        program.subscribe("a", destination)
        for body in ("grüße\n\nand more", "", "with\0NUL", LARGE):
            program.send("a", destination, body, headers)
        seen = receive(program, "a", 4)
        leave(program, "a")
        return seen

    seen = comparison.compare(conversation)
    assert bodies(seen) == ["grüße\n\nand more", "", "with\0NUL", LARGE]
    for message in seen:
        assert headers.items() <= message["headers"].items()
        assert message["headers"]["destination"].startswith("/queue/test-")
        assert message["headers"]["redelivered"] == "false"


@each_library()
def test_order_is_kept(comparison: Comparison, version: str) -> None:
    numbers = [str(number) for number in range(1, 101)]

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a")
        program.subscribe("a", destination)
        for number in numbers:
            program.send("a", destination, number, unconfirmed=True)
        seen = receive(program, "a", len(numbers))
        leave(program, "a")
        return seen

    assert bodies(comparison.compare(conversation)) == numbers


@each_library()
def test_receipts(comparison: Comparison, version: str) -> None:
    """The receipts that the library can ask for, and that it reports."""

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a")
        seen = {
            "subscribe": program.subscribe("a", destination, "r", INDIVIDUAL),
            "send": program.send("a", destination, "x"),
            "ack": acknowledge(program, "ack", "a", program.receive("a")),
            "unsubscribe": program.ask("unsubscribe", "a", id="r", destination=destination, headers={}),
        }
        for end in ("abort", "commit"):
            seen["begin"] = program.ask("begin", "a", transaction=end)
            seen[end] = program.ask(end, "a", transaction=end)
        seen["disconnect"] = program.ask("disconnect", "a")
        return [seen]

    (seen,) = comparison.compare(conversation)
    confirmed = {request for request, answer in seen.items() if answer.get("receipt")}
    assert confirmed == comparison.library.receipts & (EVERY_FRAME - {"nack"})


@each_library()
def test_acknowledging_the_third_acknowledges_two_before(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("a", destination, headers={"ack": "client", "prefetch-count": "10"})
        for body in ("one", "two", "three", "four"):
            program.send("b", destination, body)
        messages = receive(program, "a", 4)
        acknowledge(program, "ack", "a", messages[2])
        program.subscribe("b", destination)
        leave(program, "a")
        again = program.receive("b")
        program.send("b", destination, "the end")
        last = program.receive("b")
        leave(program, "b")
        return [*messages, again, last]

    *_, again, last = comparison.compare(conversation)
    assert bodies([again, last]) == ["four", "the end"]
    assert again["headers"]["redelivered"] == "true"


@each_library()
def test_acknowledging_one_leaves_the_others(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("a", destination, headers=INDIVIDUAL)
        for body in ("one", "two", "three"):
            program.send("b", destination, body)
        messages = receive(program, "a", 3)
        acknowledge(program, "ack", "a", messages[1])
        program.subscribe("b", destination)
        leave(program, "a")
        again = receive(program, "b", 2)
        leave(program, "b")
        return [*messages, *again]

    again = comparison.compare(conversation)[3:]
    assert bodies(again) == ["one", "three"]
    assert {message["headers"]["redelivered"] for message in again} == {"true"}


@each_library(lambda library: library.refuses_in)
def test_a_refused_message_is_delivered_again(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a")
        program.subscribe("a", destination, headers=INDIVIDUAL)
        program.send("a", destination, "again")
        first = program.receive("a")
        acknowledge(program, "nack", "a", first)
        second = program.receive("a")
        acknowledge(program, "ack", "a", second)
        leave(program, "a")
        return [first, second]

    seen = comparison.compare(conversation)
    assert [(message["body"], message["headers"]["redelivered"]) for message in seen] == [
        ("again", "false"),
        ("again", "true"),
    ]


@each_library()
def test_a_committed_transaction_happens_as_a_whole(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("b", destination)
        program.ask("begin", "a", transaction="t")
        for body in ("one", "two"):
            program.send("a", destination, body, {"transaction": "t"}, unconfirmed=True)
        program.send("a", destination, "outside")
        outside = program.receive("b")
        program.ask("commit", "a", transaction="t")
        seen = [outside, *receive(program, "b", 2)]
        leave(program, "a", "b")
        return seen

    assert bodies(comparison.compare(conversation)) == ["outside", "one", "two"]


@each_library()
def test_an_aborted_transaction_never_happened(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("b", destination)
        program.ask("begin", "a", transaction="t")
        program.send("a", destination, "never", {"transaction": "t"}, unconfirmed=True)
        program.ask("abort", "a", transaction="t")
        program.send("a", destination, "outside")
        seen = [program.receive("b")]
        leave(program, "a", "b")
        return seen

    assert bodies(comparison.compare(conversation)) == ["outside"]


@each_library(lambda library: library.versions if library.acknowledges_in_transactions else ())
def test_acknowledgements_in_a_transaction(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("a", destination, headers=INDIVIDUAL)
        for body, end in (("one", "commit"), ("two", "abort")):
            program.send("a", destination, body)
            message = program.receive("a")
            program.ask("begin", "a", transaction=end)
            acknowledge(program, "ack", "a", message, transaction=end)
            program.ask(end, "a", transaction=end)
        program.subscribe("b", destination)
        leave(program, "a")
        seen = [program.receive("b")]
        leave(program, "b")
        return seen

    assert bodies(comparison.compare(conversation)) == ["two"]


@each_library()
def test_no_message_arrives_after_unsubscribe(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        topic = f"/topic/{name()}"
        program.connect("a", version)
        for identifier in ("left", "stays"):
            program.subscribe("a", topic, identifier)
        program.ask("unsubscribe", "a", id="left", destination=topic, headers={})
        for body in ("one", "two"):
            program.send("a", topic, body)
        seen = receive(program, "a", 2)
        leave(program, "a")
        return seen

    seen = comparison.compare(conversation)
    assert bodies(seen) == ["one", "two"]
    if comparison.library.chooses_subscription_id:
        assert {message["headers"]["subscription"] for message in seen} == {"stays"}


@each_library()
def test_a_durable_subscription_keeps_what_was_sent_meanwhile(comparison: Comparison, version: str) -> None:
    def conversation(program: ClientProgram) -> list[Seen]:
        topic = f"/topic/{name()}"
        durable = {"durable": "true", "auto-delete": "false", "x-expires": "60000"}
        if not comparison.library.chooses_subscription_id:
            durable["x-queue-name"] = name()
        program.connect("a", version)
        program.connect("b", version)
        program.subscribe("a", topic, "d", durable)
        program.send("b", topic, "while there")
        seen = [program.receive("a")]
        leave(program, "a")
        program.send("b", topic, "while away", {"persistent": "true"})
        program.connect("a", version)
        program.subscribe("a", topic, "d", durable)
        seen.append(program.receive("a"))
        program.ask("unsubscribe", "a", id="d", destination=topic, headers={"durable": "true"})
        leave(program, "a", "b")
        return seen

    seen = comparison.compare(conversation)
    assert bodies(seen) == ["while there", "while away"]


@each_library(lambda library: library.versions if library.temporary_queues else ())
def test_a_question_is_answered_through_a_temporary_queue(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a", "b")
        program.subscribe("b", destination)
        program.send("a", destination, "ping", {"reply-to": "/temp-queue/answers"})
        question = program.receive("b")
        # The answer goes to a queue that the broker named and that no header may make an auto-delete one.
        program.send("b", question["headers"]["reply-to"], "pong", {"auto-delete": "false"})
        answer = program.receive("a")
        leave(program, "a", "b")
        return [question, answer]

    question, answer = comparison.compare(conversation)
    assert question["headers"]["reply-to"].startswith("/reply-queue/")
    assert (answer["body"], answer["headers"]["subscription"]) == ("pong", "/temp-queue/answers")


@each_library(lambda library: library.heart_beats)
def test_heart_beats_keep_an_idle_connection(comparison: Comparison, version: str) -> None:
    def conversation(program: ClientProgram) -> list[Seen]:
        seen = program.connect("a", version, heart_beat=[1000, 1000])
        program.ask("beats", "a", count=2)
        program.send("a", f"/topic/{name()}", "still here")
        leave(program, "a")
        return [seen]

    (seen,) = comparison.compare(conversation)
    if comparison.library.shows_connected:
        assert seen["connected"]["heart-beat"] == "1000,1000"


@each_library()
def test_an_error_leaves_the_session_open(comparison: Comparison, version: str) -> None:

    def conversation(program: ClientProgram) -> list[Seen]:
        destination = connect(program, version, "a")
        program.send("a", "/nonsense/x", "x", unconfirmed=True)
        error = program.ask("error", "a")
        program.subscribe("a", destination)
        program.send("a", destination, "still here")
        seen = [error, program.receive("a")]
        leave(program, "a")
        return seen

    error, message = comparison.compare(conversation)
    assert error["headers"]["message"] == "Unknown destination"
    assert message["body"] == "still here"
