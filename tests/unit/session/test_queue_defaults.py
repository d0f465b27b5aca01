"""Arguments that the operator wants queues declared with, and what becomes of them where they do not go."""

from __future__ import annotations

import pytest

from gateway.config.rules import QueueArguments
from gateway.config.virtual_host import VirtualHost
from gateway.patterns import Pattern
from gateway.session import ops
from gateway.session.queues import Argument, QueueSpec
from tests.support.playbook import Playbook

QUORUM: dict[str, str | int] = {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-max-length": 100}
BOUNDED: dict[str, str | int] = {"x-max-length": 100, "x-expires": 60_000, "x-max-priority": 3}


def playing(pattern: str, arguments: dict[str, str | int], *more: QueueArguments) -> Playbook:
    play = Playbook(
        VirtualHost(
            name="/",
            queue_arguments=(QueueArguments(destination=Pattern(pattern.encode()), arguments=arguments), *more),
        )
    )
    play.connect()
    return play


def sent(play: Playbook, destination: str, *lines: str) -> QueueSpec:
    play.client("SEND", f"destination:{destination}", *lines)
    play.prepare()
    assert len(play.published()) == 1
    return play.declared[-1]


def subscribed(play: Playbook, destination: str, *lines: str) -> QueueSpec:
    play.client("SUBSCRIBE", "id:1", f"destination:{destination}", *lines)
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue is not None
    return operation.queue


def test_send_and_subscribe_declare_the_same() -> None:
    assert sent(playing("/queue/*", QUORUM), "/queue/q") == QueueSpec("q", durable=True, arguments=QUORUM)
    assert subscribed(playing("/queue/*", QUORUM), "/queue/q") == QueueSpec("q", durable=True, arguments=QUORUM)


def test_a_topic_behind_its_exchange_is_a_topic() -> None:
    settings = VirtualHost(
        name="/",
        default_topic_exchange=b"events",
        queue_arguments=(QueueArguments(destination=Pattern(b"/topic/*"), arguments=BOUNDED),),
    )
    play = Playbook(settings)
    play.connect()
    assert subscribed(play, "/exchange/events/a").arguments == BOUNDED


def test_a_destination_that_does_not_fit_has_none() -> None:
    assert sent(playing("/queue/orders.*", QUORUM), "/queue/q").arguments == {}


def test_the_first_entry_that_fits_counts() -> None:
    any_queue = QueueArguments(destination=Pattern(b"/queue/*"), arguments={"x-expires": 1})
    assert sent(playing("/queue/a*", {"x-max-length": 9}, any_queue), "/queue/ab").arguments == {"x-max-length": 9}
    assert sent(playing("/queue/a*", {"x-max-length": 9}, any_queue), "/queue/b").arguments == {"x-expires": 1}


def test_a_client_has_the_last_word() -> None:
    found = sent(playing("/queue/*", BOUNDED), "/queue/q", "x-max-length:7", "x-message-ttl:5").arguments
    assert found == {**BOUNDED, "x-max-length": 7, "x-message-ttl": 5}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["x-queue-type:classic"], {"x-queue-type": "classic", "x-max-length": 100}),
        (["x-queue-type:stream"], {"x-queue-type": "stream"}),
        (["x-queue-type:quorum"], QUORUM),
        (["durable:false"], {"x-max-length": 100}),
        (["auto-delete:true"], {"x-max-length": 100}),
        (["exclusive:true"], {"x-max-length": 100}),
    ],
)
def test_a_queue_of_another_type_takes_what_all_types_know(lines: list[str], expected: dict[str, Argument]) -> None:
    assert subscribed(playing("/queue/*", QUORUM), "/queue/q", *lines).arguments == expected


def test_what_is_for_classic_queues_does_not_reach_a_quorum_queue() -> None:
    found = sent(playing("/queue/*", BOUNDED), "/queue/q", "x-queue-type:quorum").arguments
    assert found == {"x-queue-type": "quorum", "x-max-length": 100, "x-expires": 60_000}


@pytest.mark.parametrize(
    ("destination", "lines", "expected"),
    [
        ("/topic/t", [], {"x-max-length": 100}),
        ("/topic/t", ["durable:true"], {"x-max-length": 100}),
        ("/topic/t", ["durable:true", "auto-delete:false"], QUORUM),
        ("/exchange/amq.topic/t", ["durable:true", "auto-delete:false"], QUORUM),
        ("/exchange/other/t", [], {}),
    ],
)
def test_queues_of_subscriptions(destination: str, lines: list[str], expected: dict[str, Argument]) -> None:
    assert subscribed(playing("/topic/*", QUORUM), destination, *lines).arguments == expected


@pytest.mark.parametrize("topic", ["a", "b"])
def test_a_queue_that_clients_name_is_looked_up_by_its_name(topic: str) -> None:
    play = playing(
        "/topic/a",
        {"x-max-length": 1},
        QueueArguments(destination=Pattern(b"/queue/workers"), arguments={"x-max-length": 2}),
    )
    found = subscribed(play, f"/topic/{topic}", "x-queue-name:workers")
    assert found.arguments == {"x-max-length": 2}


def test_temporary_queues() -> None:
    play = playing("/temp-queue/*", QUORUM)
    play.client("SEND", "destination:/topic/t", "reply-to:/temp-queue/a")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    wanted = {"x-max-length": 100}
    assert operation.queue == QueueSpec(operation.queue_name, exclusive=True, auto_delete=True, arguments=wanted)


def test_a_stream_is_known_as_one_also_where_a_send_declared_it() -> None:
    play = playing("/queue/*", {"x-queue-type": "stream"})
    sent(play, "/queue/q")
    play.session.publisher.declarations_answered(play.session.context.declared_queues.last_sent)
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "ack:client", "prefetch-count:10")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue is None
    assert operation.needs_pausable_link


def test_a_client_that_names_the_type_that_is_meant_anyway_gets_all_arguments() -> None:
    found = sent(playing("/queue/*", BOUNDED), "/queue/q", "x-queue-type:classic").arguments
    assert found == {"x-queue-type": "classic", **BOUNDED}
