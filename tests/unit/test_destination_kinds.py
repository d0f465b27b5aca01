"""Every place that lists kinds of destinations knows all of them: a new kind that is missing in one fails here."""

import re
from pathlib import Path

import pytest

from gateway.config import consistency, journal_settings, rules
from gateway.journal.privacy import KIND_CODES
from gateway.journal.schema import FEATURES
from gateway.session.destinations import KIND_NAMES, Destination, DestinationKind, canonical_texts, parse

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


def test_the_configuration_knows_each() -> None:
    prefixes = {kind: _prefix(kind) for kind in KINDS}
    ruled = {prefix for kind, prefix in prefixes.items() if kind is not DestinationKind.TEMP_QUEUE}
    assert set(rules._RULED) == ruled
    assert set(journal_settings._BY_DEFAULT_EXCHANGE) == {prefixes[kind] for kind in KINDS if kind not in EXCHANGES}
    others = {start.decode() for start in consistency._OTHER_NAMES} - {"/exchange/amq.topic/"}
    assert others == ruled - {"/queue/", *(prefixes[kind] for kind in EXCHANGES)}


def test_the_pages_name_each() -> None:
    monitoring, journal = ((DOCS / page).read_text("utf-8") for page in ("monitoring.md", "journal.md"))
    [codes] = re.findall(r"^\| `dk` \|.*$", journal, re.MULTILINE)
    assert not [name for name in KIND_NAMES.values() if f"`{name}`" not in monitoring]
    assert not [code for code in KIND_CODES.values() if f"`{code}`" not in codes]
