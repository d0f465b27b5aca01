"""SEND on the hot path publishes what a session publishes that sees the frame for the first time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from pamqp import commands, header

from gateway.config.virtual_host import ConfirmWindow, Upstream, VirtualHost
from gateway.session import ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.connect import ClientFacts
from gateway.session.observer import SessionObserver
from gateway.stomp.headers import escape
from tests.property.cuts import cut, points
from tests.property.stomp_streams import ForgetfulDecoder
from tests.support.playbook import PUBLISHING, Playbook, amqp_frames

PLAIN = (b"color", b"a", b"b:c", b"x-custom", b"")

values = st.binary(max_size=10) | st.sampled_from([b" padded ", b"a:b\n", "é".encode()])
# pamqp reads no property that is not UTF-8.
readable = st.text(max_size=10).map(str.encode)
properties = st.tuples(st.sampled_from([b"content-type", b"correlation-id", b"type"]), readable) | st.tuples(
    st.sampled_from([b"priority", b"timestamp"]), st.integers(0, 255).map(lambda number: b"%d" % number)
)
destinations = st.sampled_from([b"/topic/a", b"/exchange/e/k", b"/amq/queue/q", b"/reply-queue/r"])


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[tuple[bytes, bytes]], bool, bool]:
    """Headers that repeat; whether there is a receipt, whether a length."""
    headers = [
        (b"destination", draw(destinations)),
        *draw(st.lists(st.tuples(st.sampled_from(PLAIN), values) | properties, max_size=4)),
    ]
    return draw(st.permutations(headers)), draw(st.booleans()), draw(st.booleans())


sends = st.tuples(st.integers(0, 2), st.integers(0, 5), st.binary(max_size=12))


def frame(block: tuple[list[tuple[bytes, bytes]], bool, bool], at: int, receipt: bytes, body: bytes) -> bytes:
    headers, wants_receipt, has_length = block
    lines = [b"%b:%b" % (escape(name), escape(value)) for name, value in headers]
    if wants_receipt:
        lines.insert(at % (len(lines) + 1), b"receipt:" + receipt)
    if has_length:
        lines.insert(at * 7 % (len(lines) + 1), b"content-length:%d" % len(body))
    else:
        body = body.replace(b"\0", b"")
    return b"\n".join([b"SEND", *lines, b"", b""]) + body + b"\0"


def session(version: str) -> Playbook:
    """Ready to publish, with confirms."""
    play = Playbook()
    play.connect(version)
    play.client("SEND", "destination:/topic/t", "receipt:first")
    assert play.asked() == ops.PreparePublisher(confirms=True, queue=None)
    play.broker(ops.PublisherPrepared(PUBLISHING, 4096, confirms=True))
    play.session.publisher.output.take()
    play.confirm(1)
    assert play.said() == ["RECEIPT first"]
    return play


@given(
    st.lists(blocks(), min_size=1, max_size=3),
    st.lists(sends, min_size=2, max_size=10),
    st.sampled_from(["1.0", "1.2"]),
)
def test_a_header_block_seen_before_is_published_as_if_it_were_new(
    repeated: Sequence[tuple[list[tuple[bytes, bytes]], bool, bool]],
    sent: Sequence[tuple[int, int, bytes]],
    version: str,
) -> None:
    warm = session(version)
    for number, (choice, at, body) in enumerate(sent):
        # In STOMP 1.0 the space in front goes.
        data = frame(repeated[choice % len(repeated)], at, b" r%d" % number, body)
        cold = session(version)
        for play in (warm, cold):
            play.data(data)
        published = b"".join(cold.session.publisher.output.take())
        assert b"".join(warm.session.publisher.output.take()) == published
        assert warm.said() == cold.said()
        event("published" if published else "refused")
        warm.confirm(2 + number)
        if published:
            cold.confirm(2)
        assert warm.said() == cold.said()


@given(blocks(), st.integers(0, 5), st.binary(max_size=12))
def test_every_header_of_a_send_arrives_at_the_broker(
    block: tuple[list[tuple[bytes, bytes]], bool, bool], at: int, body: bytes
) -> None:
    play = session("1.2")
    play.data(frame(block, at, b"r1", body))
    frames = [found for _, found in amqp_frames(b"".join(play.session.publisher.output.take()))]
    method, content, *pieces = frames
    assert isinstance(method, commands.Basic.Publish)
    assert isinstance(content, header.ContentHeader)
    arrived = b"".join(piece.value for piece in pieces)
    assert arrived == (body if block[2] else body.replace(b"\0", b""))
    assert content.body_size == len(arrived)
    table = {name.encode(): as_bytes(value) for name, value in (content.properties.headers or {}).items()}
    first = dict(reversed(block[0]))  # of repeated names the first counts
    sent = {name: value for name, value in first.items() if name in PLAIN}
    if block[1]:
        sent[b"receipt"] = b"r1"
    if block[2]:
        sent[b"content-length"] = b"%d" % len(body)
    assert table == sent


def as_bytes(value: object) -> bytes:
    """Bytes of a table's value, of which pamqp shows UTF-8 as text."""
    assert isinstance(value, str | bytes)
    return value.encode() if isinstance(value, str) else value


@dataclass
class _Observer:
    """Notes what it is told of the messages, for all header blocks together."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    header_values: Collection[bytes] = ()
    stamp: None = None

    def sends(self, _cached_publish: CachedPublish, _headers: Mapping[bytes, bytes]) -> "_Observer":
        return self

    def used(self, feature: str) -> None:
        """A feature is used."""

    def sent(self, size: int, receipt: bool, /) -> object:
        self.calls.append((size, receipt))
        return len(self.calls)

    def confirmed(self, sent_at: object, accepted: bool, /) -> None:
        self.calls.append((sent_at, accepted))


class _Producer(Playbook):
    """A session that sends. With ``is_slow`` it reads each frame by the slow path, and so carries it out alone."""

    def __init__(self, settings: VirtualHost, version: str, *, is_slow: bool) -> None:
        super().__init__(settings)
        if is_slow:
            self._decoder = ForgetfulDecoder(self._decoder.limits)
        self.observer = _Observer()
        self.session.set_client(ClientFacts(), observe=lambda: cast(SessionObserver, self.observer))
        self.connect(version)
        self._confirmed = 0

    def read(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.data(piece)
            self._go_on()

    def _go_on(self) -> None:
        """Answer all that the session asks for."""
        while True:
            operation = self.session.take_operation()
            if isinstance(operation, ops.PreparePublisher):
                # Small frames, so that a receipt may be too long for one.
                self.broker(ops.PublisherPrepared(PUBLISHING, 300, operation.confirms))
            elif self.session.reached_turn_limit:
                self.go_on()
            else:
                break

    def settle(self, count: int, *, accepted: bool) -> None:
        """The broker answers the first messages, and the client goes on."""
        for _ in range(count):
            if self.session.confirms.is_answered:
                break
            self._confirmed += 1
            self.confirm(self._confirmed, accepted=accepted)
            self._go_on()

    def outcome(self) -> object:
        session, traffic = self.session, self.session.traffic
        sums = [(key, counter.published, counter.published_bytes) for key, counter in traffic.sends.items()]
        counts = traffic.frames_received, dict(traffic.commands), traffic.receipts_sent, traffic.errors_sent, sums
        window = len(session.confirms), session.confirms.unconfirmed_bytes, session.confirms.last_sequence
        kept = [(receipt, size, body) for receipt, _, size, _, _, body, _ in session.confirms.messages]
        published = b"".join(session.publisher.output.take())
        return self.said(), published, counts, window, kept, set(session.holds), self.state()


@st.composite
def _run(draw: st.DrawFn) -> list[bytes]:
    """SENDs that differ in body and receipt, plain ones mostly."""
    headers = draw(
        st.sampled_from([["destination:/topic/a"], ["x:y", "destination:/queue/q"], ["destination:/topic/b"]])
    )
    receipts = draw(st.sampled_from(["", "", "r%02d", "r%d", "a\\c%d", "%d\r", " %d", "r" * 250 + "%d", "%d\nx:1"]))
    place, has_length, size = draw(st.integers(0, 2)), draw(st.booleans()), draw(st.sampled_from([0, 1, 12, 280]))
    end, transaction = draw(st.sampled_from(["", "", "\n", "\r\n", "\n\n"])), draw(st.integers(0, 12)) == 0
    frames = []
    for number in range(draw(st.integers(1, 12))):
        body = draw(
            st.binary(min_size=size, max_size=size) if has_length else st.text("xyz", max_size=size).map(str.encode)
        )
        lines = [*headers, *(["transaction:t"] if transaction else [])]
        if receipts:
            lines.insert(place, "receipt:" + (receipts % number))
        if has_length:
            lines.insert(1, f"content-length:{len(body)}")
        frames.append("\n".join(["SEND", *lines, "", ""]).encode() + body + b"\0" + end.encode())
    return frames


_other = st.sampled_from([b"BEGIN\ntransaction:t\n\n\0", b"ACK\nid:1\n\n\0", b"SEND\ndestination:/nowhere\n\n\0"])
_rounds = st.lists(
    st.tuples(
        st.lists(_run() | _other.map(lambda frame: [frame]), min_size=1, max_size=3).map(lambda runs: [*chain(*runs)]),
        st.just([]) | points,
        st.integers(0, 12),
        st.sampled_from([True] * 8 + [False]),
    ),
    min_size=1,
    max_size=3,
)


@given(
    st.sampled_from([ConfirmWindow(messages=3, bytes=1000), ConfirmWindow(messages=1000, bytes=30), ConfirmWindow()]),
    st.sampled_from([0.0, 60.0]),
    st.sampled_from(["1.2", "1.2", "1.0"]),
    st.sampled_from([1000, 1000, 3]),
    _rounds,
)
def test_many_sends_at_once_mean_what_each_of_them_means(
    window: ConfirmWindow,
    ride_through: float,
    version: str,
    max_frames: int,
    rounds: list[tuple[list[bytes], list[int], int, bool]],
) -> None:
    settings = VirtualHost(name="/", confirm_window=window, upstream=Upstream(ride_through=ride_through))
    fast, slow = (_Producer(settings, version, is_slow=each) for each in (False, True))
    fast.session.max_frames_per_turn = max_frames
    for frames, at, confirmed, accepted in rounds:
        fast.read([piece for piece in cut(b"".join(frames), at) if piece])
        slow.read(frames)
        for producer in (fast, slow):
            producer.settle(confirmed, accepted=accepted)
        outcome = fast.outcome()
        event(f"published: {bool(fast.session.traffic.sends)}")
        assert outcome == slow.outcome()
        assert fast.observer.calls == slow.observer.calls


@pytest.mark.parametrize("max_frames", [1, 4])
def test_a_turn_ends_within_a_run_of_sends(max_frames: int) -> None:
    play = session("1.2")
    play.data(b"SEND\ndestination:/topic/t\n\n1\0" * 2)
    play.published()
    before = play.session.traffic.frames_received
    play.session.max_frames_per_turn = max_frames
    play.data(b"SEND\ndestination:/topic/t\n\n1\0" * 10)
    assert play.session.reached_turn_limit
    assert play.session.traffic.frames_received - before == max_frames
    assert len(play.published()) == max_frames
