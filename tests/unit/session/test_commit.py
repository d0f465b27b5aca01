"""Transactions as the session carries them out: all publishes confirmed, then all settlements, then the receipt."""

import pytest

from gateway.config.virtual_host import TransactionLimits, VirtualHost
from gateway.session import ops
from gateway.session.context import Hold, State
from gateway.session.subscription import Subscription
from tests.support.playbook import Playbook, ack_id, deliver, stomp


def _with_two_deliveries(play: Playbook, mode: str = "client-individual") -> Subscription:
    subscription = play.subscribe("1", "/queue/q", f"ack:{mode}")
    deliver(subscription, 1)
    deliver(subscription, 2)
    assert play.said() == ["MESSAGE 1 #1 ", "MESSAGE 1 #2 "]
    return subscription


def _ready_to_publish(play: Playbook) -> None:
    """Confirms are on, and nothing is unconfirmed."""
    play.client("SEND", "destination:/topic/t", "receipt:r")
    play.prepare()
    assert play.published() == ["amq.topic t "]
    play.confirm(1)
    assert play.said() == ["RECEIPT r"]


def test_everything_waits_for_commit(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t", "receipt:b")
    play.client("SEND", "destination:/topic/a", "transaction:t", "receipt:s1", body="one")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t", "receipt:a1")
    play.client("SEND", "destination:/topic/b", "transaction:t", body="two")
    play.client("NACK", f"id:{ack_id(subscription, 2)}", "transaction:t")
    # The receipt of an ACK says that it was taken note of; that of a SEND is the broker's confirm.
    assert play.said() == ["RECEIPT b", "RECEIPT a1"]
    assert [play.published(), play.settled()] == [[], []]
    play.data(stomp("COMMIT", "transaction:t", "receipt:c") + stomp("SEND", "destination:/topic/z", body="behind"))
    assert play.published() == ["amq.topic a one", "amq.topic b two"]
    assert play.session.holds == {Hold.COMMIT}
    play.confirm(3)
    assert [play.said(), play.settled()] == [[], []]
    play.confirm(2)
    assert play.settled() == ["ack 1 multiple", "nack 2 requeue"]
    assert play.said() == ["RECEIPT s1", "RECEIPT c"]
    assert play.published() == ["amq.topic z behind"]


def test_a_commit_of_acknowledgements_alone_is_at_once(play: Playbook) -> None:
    subscription = _with_two_deliveries(play, "client")
    play.client("BEGIN", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 2)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.settled() == ["ack 2 multiple"]
    assert play.said() == ["RECEIPT c"]
    assert play.session.wants_read


def test_a_commit_of_nothing_is_at_once(play: Playbook) -> None:
    play.client("BEGIN", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["RECEIPT c"]


def test_a_commit_switches_confirms_on_even_if_no_receipt_asked_for_any(mortal: Playbook) -> None:
    mortal.client("BEGIN", "transaction:t")
    mortal.client("SEND", "destination:/topic/a", "transaction:t", body="one")
    assert mortal.prepare() == ops.PreparePublisher(confirms=False, queue=None)
    mortal.client("COMMIT", "transaction:t")
    assert mortal.published() == []
    assert mortal.prepare() == ops.PreparePublisher(confirms=True, queue=None)
    assert mortal.published() == ["amq.topic a one"]
    assert mortal.session.holds == {Hold.COMMIT}
    mortal.confirm(1)
    assert mortal.session.wants_read


def test_a_queue_is_declared_when_its_send_joins_the_transaction(play: Playbook) -> None:
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/queue/a", "transaction:t")
    operation = play.prepare()
    assert operation.queue is not None
    assert operation.queue.name == "a"
    play.client("ABORT", "transaction:t", "receipt:r")
    assert play.said() == ["RECEIPT r"]


def test_a_refused_message_settles_nothing_and_the_commit_has_an_error(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/a", "transaction:t", "receipt:s1")
    play.client("SEND", "destination:/topic/b", "transaction:t", "receipt:s2")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert len(play.published()) == 2
    play.confirm(2, accepted=False)
    play.confirm(3)
    assert play.said() == [
        "ERROR for s1 Message rejected: The broker did not accept the message for '/topic/a'.",
        "RECEIPT s2",
        "ERROR for c Message rejected: The broker did not accept every message of the transaction; "
        "nothing was acknowledged.",
    ]
    assert play.settled() == []
    # The delivery is still there to be acknowledged.
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "receipt:a")
    assert play.settled() == ["ack 1 multiple"]
    assert play.said() == ["RECEIPT a"]


def test_a_closed_channel_fails_the_commit_and_settles_nothing(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/exchange/e/k", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert len(play.published()) == 1
    play.broker(ops.ChannelClosed(404, "NOT_FOUND - no exchange 'e' in vhost '/'", publishing=True))
    assert play.said() == ["ERROR for c not_found: NOT_FOUND - no exchange 'e' in vhost '/'"]
    assert play.settled() == []
    assert play.state() is State.CLOSED


def test_an_acknowledgement_that_has_become_impossible_fails_the_commit_before_anything_is_published(
    play: Playbook,
) -> None:
    subscription = _with_two_deliveries(play)
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/a", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["ERROR for c precondition_failed: PRECONDITION_FAILED - unknown delivery tag 1"]
    assert [play.published(), play.settled()] == [[], []]


def test_an_acknowledgement_whose_subscription_is_gone_fails_the_commit(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    play.client("BEGIN", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("UNSUBSCRIBE", "id:1")
    assert play.asked() == ops.Unsubscribe(subscription, None)
    play.broker(ops.Unsubscribed())
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == [
        f'ERROR for c Subscription not found: Message with id "{ack_id(subscription, 1)}" has no subscription'
    ]
    assert play.state() is State.CONNECTED
    # The transaction is over.
    play.client("COMMIT", "transaction:t")
    assert play.said() == ['ERROR Bad transaction: Invalid transaction identifier: "t"']


def test_a_subscription_that_the_broker_cancels_during_commit_cannot_be_acknowledged(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/a", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert len(play.published()) == 1
    play.broker(ops.ConsumerCancelled(subscription))
    assert len(play.said()) == 1
    play.confirm(2)
    # The receipt would promise an acknowledgement that nobody can carry out any more.
    assert play.said() == [
        f'ERROR for c Subscription not found: Message with id "{ack_id(subscription, 1)}" has no subscription'
    ]
    play.settled()


def test_an_acknowledgement_made_redundant_by_one_before_it_is_accepted(play: Playbook) -> None:
    subscription = _with_two_deliveries(play, "client")
    play.client("BEGIN", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 2)}", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.settled() == ["ack 2 multiple"]
    assert play.said() == ["RECEIPT c"]


def test_abort_leaves_deliveries_to_be_acknowledged(play: Playbook) -> None:
    subscription = _with_two_deliveries(play)
    play.client("BEGIN", "transaction:t")
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.client("ABORT", "transaction:t")
    assert play.settled() == []
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]


@pytest.mark.parametrize(
    ("mode", "frames", "settled"),
    [
        ("client-individual", ["ACK 1", "NACK 1"], None),
        ("client-individual", ["NACK 1", "ACK 1"], None),
        ("client-individual", ["NACK 1", "NACK 1 requeue:false"], None),
        ("client-individual", ["ACK 2", "NACK 1"], ["ack 2", "nack 1 requeue"]),
        ("client-individual", ["ACK 1", "ACK 1"], ["ack 1 multiple"]),
        ("client", ["ACK 2", "NACK 1"], None),
        ("client", ["ACK 1", "NACK 2", "ACK 2"], None),
        ("client", ["ACK 1", "NACK 2"], ["ack 1 multiple", "nack 2 multiple requeue"]),
        ("client", ["ACK 2", "ACK 1"], ["ack 2 multiple"]),
    ],
)
def test_a_commit_that_settles_a_message_in_two_ways_is_refused(
    play: Playbook, mode: str, frames: list[str], settled: list[str] | None
) -> None:
    subscription = play.subscribe("1", "/queue/q", f"ack:{mode}")
    deliver(subscription, 1)
    deliver(subscription, 2)
    play.said()
    play.client("BEGIN", "transaction:t")
    for frame in frames:
        command, tag, *more = frame.split()
        play.client(command, f"id:{ack_id(subscription, int(tag))}", "transaction:t", *more)
    play.client("COMMIT", "transaction:t", "receipt:c")
    if settled is None:
        last = frames[-1].split()[1]
        assert play.said() == [f"ERROR for c precondition_failed: PRECONDITION_FAILED - unknown delivery tag {last}"]
        assert play.settled() == []
    else:
        assert play.said() == ["RECEIPT c"]
        assert play.settled() == settled


def test_two_transactions_do_not_mix(play: Playbook) -> None:
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:a")
    play.client("BEGIN", "transaction:b")
    play.client("SEND", "destination:/topic/t", "transaction:a", body="of a")
    play.client("SEND", "destination:/topic/t", "transaction:b", body="of b")
    play.client("COMMIT", "transaction:b")
    assert play.published() == ["amq.topic t of b"]
    play.confirm(2)
    play.client("ABORT", "transaction:a")
    assert play.published() == []


def test_a_transaction_left_open_is_gone_and_the_client_is_told() -> None:
    play = Playbook(VirtualHost(name="/", transactions=TransactionLimits(max_age=600.0)))
    play.connect()
    play.client("BEGIN", "transaction:at once")
    play.session.time_passed(50_000.0)
    play.client("BEGIN", "transaction:later")
    play.session.time_passed(50_001.0)
    play.session.time_passed(50_600.0)
    assert play.said() == []
    play.session.time_passed(50_600.5)
    assert play.said() == [
        'ERROR Transaction expired: Transaction "at once" was open for too long and has been aborted.'
    ]
    play.session.time_passed(50_700.0)
    play.client("COMMIT", "transaction:at once")
    assert play.said() == [
        'ERROR Transaction expired: Transaction "later" was open for too long and has been aborted.',
        'ERROR Bad transaction: Invalid transaction identifier: "at once"',
    ]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (TransactionLimits(max_actions=2), "Transaction too large: Too many actions in transaction (limit 2)"),
        (TransactionLimits(max_bytes=1200), "Transaction too large: Too many bytes in transaction (limit 1200)"),
    ],
    ids=["actions", "bytes"],
)
def test_a_send_that_is_too_much_for_its_transaction_is_left_out(limits: TransactionLimits, message: str) -> None:
    play = Playbook(VirtualHost(name="/", transactions=limits))
    play.connect()
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    for _ in range(2):
        play.client("SEND", "destination:/topic/t", "transaction:t", body="x" * 200)
    play.client("SEND", "destination:/topic/t", "transaction:t", "receipt:r3", body="y" * 200)
    assert play.said() == [f"ERROR for r3 {message}"]
    play.client("COMMIT", "transaction:t")
    assert play.published() == [f"amq.topic t {'x' * 200}"] * 2


def test_a_frame_costs_memory_though_it_is_empty() -> None:
    play = Playbook(VirtualHost(name="/", transactions=TransactionLimits(max_bytes=100_000)))
    play.connect()
    _ready_to_publish(play)
    for name in range(10):
        play.client("BEGIN", f"transaction:{name}")
        for _ in range(50):
            play.client("SEND", "destination:/topic/t", f"transaction:{name}")
    assert 100 < len(play.said()) < 300


def test_headers_count_as_bytes_of_a_transaction() -> None:
    play = Playbook(VirtualHost(name="/", transactions=TransactionLimits(max_bytes=10_000)))
    play.connect()
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/t", "transaction:t", f"color:{'x' * 9_000}")
    assert play.said() == []
    play.client("SEND", "destination:/topic/t", "transaction:t", f"color:{'y' * 9_000}")
    assert play.said() == ["ERROR Transaction too large: Too many bytes in transaction (limit 10000)"]


def test_headers_too_large_for_amqp_are_found_before_commit(play: Playbook) -> None:
    _ready_to_publish(play)
    play.client("BEGIN", "transaction:t")
    play.client(
        "SEND", "destination:/topic/t", "transaction:t", "receipt:r1", *(f"h{n}:{'x' * 50_000}" for n in range(4))
    )
    (error,) = play.said()
    assert error.startswith("ERROR for r1 Invalid header: AMQP cannot carry these headers")
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["RECEIPT c"]
