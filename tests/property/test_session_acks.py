"""Acknowledgements: a session that reads many ACKs at once says and settles what one does that reads them one by one.

One session takes all ACKs of a round in a few reads, and carries out together what it can. The other one takes each
frame in a read of its own, by the slow path of the decoder, and so by the slow path of the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from gateway.session.subscription import Subscription
from tests.property.cuts import cut, points
from tests.property.stomp_streams import ForgetfulDecoder
from tests.support.playbook import IDENTITY, Playbook, deliver, stomp

MODES = ("client-individual", "client", "auto")
SUBSCRIBERS = ("1", "a@@b@")


@dataclass
class _Counter:
    """Notes what an observer of the messages is told."""

    calls: list[tuple[object, ...]] = field(default_factory=list)

    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        """A message goes to the client."""

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        self.calls.append((tag, count, requeue))

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        self.calls.append((last_tag, outstanding))


class _Consumer(Playbook):
    """A session with two subscriptions. They come back under the same numbers if their link is lost."""

    def __init__(self, modes: Sequence[str], version: str, *, is_slow: bool, is_observed: bool) -> None:
        super().__init__()
        if is_slow:
            self._decoder = ForgetfulDecoder(self._decoder.limits)
        self.connect(version)
        self.counter = _Counter()
        self.subscriptions = [self._new(*each, is_observed) for each in zip(SUBSCRIBERS, modes, strict=True)]
        self.client("BEGIN", "transaction:t")

    def _new(self, identifier: str, mode: str, is_observed: bool) -> Subscription:
        subscription = self.subscribe(identifier, "/queue/q", f"ack:{mode}")
        if is_observed:
            subscription.set_counter(self.counter)
        return subscription

    def read(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.data(piece)
                while self.session.reached_turn_limit:
                    self.go_on()

    def outcome(self) -> object:
        session, traffic = self.session, self.session.traffic
        counts = traffic.frames_received, dict(traffic.commands), traffic.receipts_sent, traffic.errors_sent
        stats = [subscription.stats for subscription in self.subscriptions]
        return (
            self.said(),
            self.settled(),
            counts,
            stats,
            self.counter.calls,
            len(session.context.transactions),
            self.state(),
        )


@dataclass(frozen=True)
class _Round:
    """What happens between two looks: deliveries, then the client's frames, in reads that are cut at the points."""

    deliveries: list[int]
    frames: list[bytes]
    cuts: list[int]
    event: str = ""


def _ack(
    number: int, subscriber: int = 0, *more: str, id_line: str = "id", command: str = "ACK", zeros: int = 0
) -> bytes:
    identifier = f"T_{SUBSCRIBERS[subscriber]}@@{IDENTITY.decode()}@@{'0' * zeros}{number}"
    return stomp(command, f"{id_line}:{identifier}", *more)


@st.composite
def _rounds(draw: st.DrawFn) -> list[_Round]:
    delivered, next_number = [0, 0], [1, 1]
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        what = draw(st.sampled_from([""] * 6 + ["lose", "drop", "settle"]))
        if what == "lose":
            next_number = [number + 1 for number in delivered]
        deliveries = draw(st.lists(st.integers(0, 1), max_size=8)) + [0] * draw(st.integers(1, 8))
        for subscriber in deliveries:
            delivered[subscriber] += 1
        frames: list[bytes] = []
        for _ in range(draw(st.integers(1, 4))):
            subscriber = draw(st.integers(0, 1))
            first = max(0, next_number[subscriber] + draw(st.sampled_from([0] * 8 + [-1, 1, 2])))
            left = delivered[subscriber] - first + 1
            count = draw(st.sampled_from([left] * 4 + [1, 2, 3, 3, left + 1]))
            frames += draw(_run(subscriber, first, count))
            next_number[subscriber] = max(next_number[subscriber], first + count)
        if not draw(st.integers(0, 5)):
            frames.insert(draw(st.integers(0, len(frames))), b"COMMIT\ntransaction:t\n\n\0")
        rounds.append(_Round(deliveries, frames, draw(st.just([]) | points), what))
    return rounds


@st.composite
def _run(draw: st.DrawFn, subscriber: int, first: int, count: int) -> list[bytes]:
    """ACKs in the order of delivery, plain ones mostly."""
    end = draw(st.sampled_from([b"", b"", b"\n"]))
    headers = draw(st.sampled_from([[]] * 6 + [["x:%d"], ["x:1@@2"], ["receipt:r"], ["transaction:t"]]))
    rare = draw(st.integers(0, 25))
    frames = []
    for number in range(first, first + count):
        frame = _ack(number, subscriber, *headers)
        if rare == 1:
            frame = _ack(number, subscriber, *headers, command="NACK")
        elif rare == 2:
            frame = frame.replace(b"\n", b"\r\n")
        elif rare == 3:
            frame = _ack(number, subscriber, *headers, zeros=1)
        elif rare == 4:
            frame = frame.replace(b"\n\n", b"\nid:T_1@@x@@1\n\n")
        elif rare == 5:
            frame = _ack(number, subscriber, f"subscription:{SUBSCRIBERS[subscriber]}", id_line="message-id")
        elif rare == 6:
            frame = frame.replace(b"session", b"another")
        elif rare == 7:
            frame = frame[:-1] + b"body\0"
        frames.append(frame + end)
    return frames


@given(
    st.tuples(st.sampled_from(MODES[:2]), st.sampled_from(MODES)),
    st.sampled_from(["1.2"] * 6 + ["1.1", "1.0"]),
    st.sampled_from([1000, 1000, 3]),
    st.booleans(),
    _rounds(),
)
@example(("client-individual", "client"), "1.2", 1000, False, [_Round([0] * 12, [*map(_ack, range(1, 13))], [])])
@example(("client-individual", "client"), "1.2", 1000, False, [_Round([0] * 5, [*map(_ack, range(1, 9))], [])])
@example(("client-individual", "client"), "1.2", 1000, False, [_Round([0] * 5, [_ack(3), *map(_ack, range(1, 6))], [])])
@example(("client", "auto"), "1.2", 1000, False, [_Round([0] * 9, [_ack(4), *map(_ack, range(5, 9))], [])])
@example(("client", "auto"), "1.2", 3, True, [_Round([0] * 9, [*map(_ack, range(1, 9))], [])])
@example(
    ("client-individual", "client"),
    "1.2",
    1000,
    False,
    [_Round([0] * 11, [*map(_ack, range(1, 9)), *(_ack(each, zeros=19) for each in (9, 10))], [])],
)
@example(("client-individual", "client"), "1.2", 1000, False, [_Round([0] * 4, [_ack(1), _ack(2), _ack(4)], [])])
@example(("auto", "client"), "1.2", 1000, False, [_Round([0, 1], [_ack(1, 1), _ack(1)], [])])
@example(
    ("client", "auto"),
    "1.2",
    1000,
    False,
    [_Round([0] * 4, [_ack(1), _ack(2)], []), _Round([0] * 4, [_ack(4), _ack(5)], [], "lose")],
)
@example(("auto", "client"), "1.2", 1000, False, [_Round([0] * 3, [*map(_ack, range(1, 4))], [], "settle")])
@example(
    ("client-individual", "client"),
    "1.2",
    1000,
    False,
    [_Round([0] * 4, [_ack(1)], []), _Round([0] * 4, [*map(_ack, range(2, 9))], [], "lose")],
)
def test_many_acks_at_once_mean_what_each_of_them_means(
    modes: tuple[str, str], version: str, max_frames: int, is_observed: bool, rounds: list[_Round]
) -> None:
    fast, slow = (_Consumer(modes, version, is_slow=each, is_observed=is_observed) for each in (False, True))
    fast.session.max_frames_per_turn = max_frames
    for each in rounds:
        _begin(fast, each)
        _begin(slow, each)
        stream = b"".join(each.frames)
        fast.read(cut(stream, each.cuts))
        slow.read(each.frames)
        assert fast.outcome() == slow.outcome()
    event(f"acknowledged: {min(10, sum(each.stats.acknowledged for each in fast.subscriptions))}")


def _begin(consumer: _Consumer, of_round: _Round) -> None:
    """Let happen what precedes the client's frames."""
    if of_round.event == "lose" and consumer.session.close_reason is None:
        consumer.recover(consumer.lose(*consumer.subscriptions))
    for place, subscriber in enumerate(of_round.deliveries):
        subscription = consumer.subscriptions[subscriber]
        tag = subscription.ledger.last_tag + 1
        if of_round.event == "drop" and place % 3 == 2:
            subscription.drop_for_requeue(tag, False, b"\0\1q", b"\0\0", b"")
        else:
            deliver(subscription, tag)
    if of_round.event == "drop":
        for subscription in consumer.subscriptions:
            subscription.ledger.requeue_dropped()
    if of_round.event == "settle":
        consumer.session.subscriptions.settle_auto_acks()


@pytest.mark.parametrize("max_frames", [1, 4])
def test_a_turn_ends_within_a_run_of_acks(max_frames: int) -> None:
    consumer = _Consumer(["client-individual", "auto"], "1.2", is_slow=False, is_observed=False)
    consumer.session.max_frames_per_turn = max_frames
    for tag in range(1, 11):
        deliver(consumer.subscriptions[0], tag)
    before = consumer.session.traffic.frames_received
    consumer.data(b"".join(map(_ack, range(1, 11))))
    assert consumer.session.reached_turn_limit
    assert consumer.session.traffic.frames_received - before == max_frames
    assert consumer.settled() == [f"ack {max_frames} multiple"]


def test_acks_behind_a_message_that_the_client_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.session.delivery_ledger._MOST_OUT_OF_ORDER", 1)
    monkeypatch.setattr("gateway.session.delivery_ledger._RATIO", 0)
    modes = ("client-individual", "auto")
    fast, slow = (_Consumer(modes, "1.2", is_slow=each, is_observed=False) for each in (False, True))
    kept = _Round([0] * 9, [*map(_ack, range(2, 9))], [])
    _begin(fast, kept)
    _begin(slow, kept)
    fast.read([b"".join(kept.frames)])
    slow.read(kept.frames)
    assert fast.outcome() == slow.outcome()
    assert fast.subscriptions[0].stats.outstanding == 2
