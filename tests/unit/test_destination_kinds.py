"""Every place that lists kinds of destinations knows all of them: a new kind that is missing in one fails here."""

import re
from pathlib import Path

import pytest

from gateway.config import consistency, journal_settings, rules
from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.journal.privacy import KIND_CODES
from gateway.journal.schema import FEATURES
from gateway.session.cached_publish import read_send
from gateway.session.destination_rules import NO_DESTINATION_RULES
from gateway.session.destinations import (
    KIND_NAMES,
    Destination,
    DestinationKind,
    canonical_texts,
    message_reply_to,
    parse,
)
from gateway.session.queues import QueueRules, QueueSpec
from gateway.session.subscribe import SubscribeRequest, read_subscribe

DOCS = Path(__file__).parents[2] / "docs"
KINDS = list(DestinationKind)
EXCHANGES = (DestinationKind.TOPIC, DestinationKind.EXCHANGE)


def _prefix(kind: DestinationKind) -> str:
    prefix = f"/{KIND_NAMES[kind].replace('amq-', 'amq/')}/"
    assert parse(prefix.encode() + b"a").kind is kind
    return prefix


def test_the_journal_has_a_code_and_a_feature_for_each() -> None:
    assert set(KIND_CODES) == set(KINDS)
    assert len(set(KIND_CODES.values())) == len(KINDS)
    assert set(KIND_NAMES.values()) <= set(FEATURES)


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_of_a_queue_evades_a_rule_for_queues(kind: DestinationKind) -> None:
    """A temporary queue's name is the session's own."""
    destination = Destination(kind, b"secret")
    by_name = not destination.route(b"amq.topic")[0] and kind is not DestinationKind.TEMP_QUEUE
    assert (b"/queue/secret" in canonical_texts(destination, b"amq.topic")) == by_name


def _subscribe(kind: DestinationKind) -> SubscribeRequest | None:
    """A SUBSCRIBE without further headers, or None if it is refused."""
    headers = {b"id": b"1", b"destination": f"{_prefix(kind)}a".encode()}
    try:
        return read_subscribe(headers, b"fresh", VirtualHost(name="/"), QueueRules())
    except StompError:
        return None


def _sent_queue(kind: DestinationKind) -> QueueSpec | None:
    return read_send(
        {b"destination": f"{_prefix(kind)}a".encode()}, b"amq.topic", QueueRules(), NO_DESTINATION_RULES
    ).queue


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_consumes_the_queue_that_it_declares(kind: DestinationKind) -> None:
    subscribe = _subscribe(kind)
    assert (subscribe is None) == (kind is DestinationKind.TEMP_QUEUE)
    if subscribe is not None:
        assert subscribe.queue is None or subscribe.queue.name == subscribe.queue_name
        assert (subscribe.binding is not None) == (kind in EXCHANGES)
        assert _sent_queue(kind) == (None if kind in EXCHANGES else subscribe.queue)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not DestinationKind.TEMP_QUEUE])
def test_a_receiver_can_reply_to_each(kind: DestinationKind) -> None:
    """A temporary queue is replaced by its real name."""
    reply_to = f"{_prefix(kind)}a".encode()
    assert message_reply_to(reply_to) == reply_to


def test_the_configuration_knows_each() -> None:
    prefixes = {kind: _prefix(kind) for kind in KINDS}
    declared = {prefixes[kind] for kind in KINDS if (subscribe := _subscribe(kind)) is None or subscribe.queue}
    assert set(rules._DECLARED) == declared
    ruled = {prefix for kind, prefix in prefixes.items() if kind is not DestinationKind.TEMP_QUEUE}
    assert set(rules._RULED) == ruled
    assert set(journal_settings._BY_DEFAULT_EXCHANGE) == {prefixes[kind] for kind in KINDS if kind not in EXCHANGES}
    others = {start.decode() for start in consistency._OTHER_NAMES} - {"/exchange/amq.topic/"}
    assert others == ruled - {"/queue/", *(prefixes[kind] for kind in EXCHANGES)}


def test_the_pages_name_each() -> None:
    pages = "monitoring.md", "journal.md", "stomp-behaviour.md"
    monitoring, journal, behaviour = ((DOCS / page).read_text("utf-8") for page in pages)
    assert not [prefix for prefix in map(_prefix, KINDS) if f"\n| `{prefix}<" not in behaviour]
    [codes] = re.findall(r"^\| `dk` \|.*$", journal, re.MULTILINE)
    assert not [name for name in KIND_NAMES.values() if f"`{name}`" not in monitoring]
    assert not [code for code in KIND_CODES.values() if f"`{code}`" not in codes]
