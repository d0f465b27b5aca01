"""The open transactions of a session, and their bounds."""

import pytest

from gateway.config.virtual_host import TransactionLimits
from gateway.errors import StompError
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Settlement
from gateway.session.transactions import OpenTransactions
from gateway.stomp.frame import Frame, HeaderBlock
from tests.support.playbook import deliver, settlements_in_words

FRAME = Frame(HeaderBlock(b"SEND", {}))


def transactions(**limits: int) -> OpenTransactions:
    return OpenTransactions(TransactionLimits(max_age=60.0, **limits))


@pytest.mark.parametrize("name", [b"t", b"", b"a:\n\xff", b"x" * 1000])
def test_a_transaction_may_have_any_name(name: bytes) -> None:
    known = transactions()
    known.begin(name)
    known.enlist(name).sends.append(FRAME)
    assert known.end(name).sends == [FRAME]
    with pytest.raises(StompError, match="Bad transaction"):
        known.end(name)


@pytest.mark.parametrize("step", ["enlist", "get", "end"])
def test_what_is_not_open_cannot_be_used(step: str) -> None:
    known = transactions()
    with pytest.raises(StompError, match="Bad transaction") as found:
        getattr(known, step)(b"nope")
    assert found.value.body == b'Invalid transaction identifier: "nope"\n'
    assert found.value.close is None


def test_begin_again_empties() -> None:
    known = transactions(max_bytes=100)
    known.begin(b"t")
    known.enlist(b"t", 100).sends.append(FRAME)
    known.begin(b"t")
    assert known.get(b"t").actions == 0
    known.enlist(b"t", 100)


def test_so_many_may_be_open() -> None:
    known = transactions(max_open=2)
    known.begin(b"a")
    known.begin(b"b")
    known.begin(b"a")
    with pytest.raises(StompError, match="Transaction limit exceeded") as found:
        known.begin(b"c")
    assert found.value.body == b"Too many concurrent transactions (limit 2)"
    known.end(b"a")
    known.begin(b"c")


def test_so_much_may_be_in_one() -> None:
    known = transactions(max_actions=2)
    known.begin(b"t")
    subscription = Subscription(b"T_1", b"1", AckMode.CLIENT, b"s")
    known.enlist(b"t").sends.append(FRAME)
    known.enlist(b"t").settlements.append(Settlement(subscription, 1, b"id"))
    with pytest.raises(StompError, match="Transaction too large") as found:
        known.enlist(b"t")
    assert found.value.body == b"Too many actions in transaction (limit 2)"
    known.begin(b"u")
    known.enlist(b"u")


@pytest.mark.parametrize("second", [b"a", b"b"])
def test_so_many_bytes_may_be_in_all_of_them_together(second: bytes) -> None:
    known = transactions(max_bytes=100)
    known.begin(b"a")
    known.begin(b"b")
    known.enlist(b"a", 60)
    with pytest.raises(StompError, match="Transaction too large") as found:
        known.enlist(second, 41)
    assert found.value.body == b"Too many bytes in transaction (limit 100)"
    known.enlist(second, 40)
    known.end(b"a")
    known.enlist(b"b", 60)


def test_expired_transactions_are_named_and_give_back_their_bytes() -> None:
    known = transactions(max_bytes=100)
    known.begin(b"old")
    known.enlist(b"old", 100)
    assert known.expire(0.0) == []
    known.begin(b"new")
    assert known.expire(30.0) == []
    assert known.expire(60.0) == []
    assert known.expire(60.1) == [b"old"]
    assert known.expire(60.1) == []
    known.enlist(b"new", 100)
    with pytest.raises(StompError, match="Bad transaction"):
        known.get(b"old")


def test_begin_again_makes_a_transaction_young() -> None:
    known = transactions()
    known.begin(b"t")
    assert known.expire(0.0) == []
    known.begin(b"t")
    assert known.expire(50.0) == []
    assert known.expire(100.0) == []


def test_a_transaction_that_began_just_before_the_check_is_not_old() -> None:
    """Nobody tells when it began, only that it was after the time before."""
    known = transactions()
    assert known.expire(0.0) == []
    known.begin(b"t")
    assert known.expire(100.0) == []
    assert known.expire(160.0) == []
    assert known.expire(160.1) == [b"t"]


@pytest.mark.parametrize(
    ("mode", "requeue", "words"),
    [
        (AckMode.CLIENT_INDIVIDUAL, None, ["ack 1 multiple"]),
        (AckMode.CLIENT_INDIVIDUAL, True, ["nack 1 requeue"]),
        (AckMode.CLIENT_INDIVIDUAL, False, ["nack 1"]),
        (AckMode.AUTO, None, []),
        (AckMode.AUTO, False, []),
    ],
)
def test_a_settlement_is_carried_out_once(mode: AckMode, requeue: bool | None, words: list[str]) -> None:
    subscription = Subscription(b"T_1", b"1", mode, b"s")
    deliver(subscription, 1)
    settlement = Settlement(subscription, 1, b"id", requeue)
    assert settlement.is_acceptable is bool(words)
    settlement.carry_out()
    settlement.carry_out()
    assert settlements_in_words(subscription.ledger.take_frames()) == words
