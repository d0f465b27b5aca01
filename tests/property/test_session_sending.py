"""SEND on the hot path publishes what a session publishes that sees the frame for the first time."""

from collections.abc import Sequence

from hypothesis import event, given
from hypothesis import strategies as st
from pamqp import commands, header

from gateway.session import ops
from gateway.stomp.headers import escape
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
    play.session.take_publishes()
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
        published = cold.session.take_publishes()
        assert warm.session.take_publishes() == published
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
    frames = [found for _, found in amqp_frames(play.session.take_publishes())]
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
