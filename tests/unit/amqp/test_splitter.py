import tracemalloc
from collections.abc import Callable

import pytest
from pamqp import base, commands, frame, heartbeat

from gateway.amqp.codec import CANCEL, CHANNEL_CLOSE
from gateway.amqp.splitter import Return, Sink, Splitter
from gateway.errors import CodecError
from gateway.pieces import LargeBody

BEAT = frame.marshal(heartbeat.Heartbeat(), 0)


def method_frame(method: base.Frame, channel: int = 1) -> bytes:
    return frame.marshal(method, channel)


def deliver(tag: int = 1, *, redelivered: bool = False, consumer: str = "T_1", channel: int = 1) -> bytes:
    """A delivery's method frame, from amq.topic with the key a.b."""
    return method_frame(commands.Basic.Deliver(consumer, tag, redelivered, "amq.topic", "a.b"), channel)


ROUTE = b"\x09amq.topic\x03a.b"


def header(size: int, properties: bytes = b"\x00\x00", channel: int = 1) -> bytes:
    payload = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + properties
    return b"\x02" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def body(raw: bytes, channel: int = 1) -> bytes:
    return b"\x03" + channel.to_bytes(2, "big") + len(raw).to_bytes(4, "big") + raw + b"\xce"


class Stand:
    """A splitter that serves channels 1 and 2, and a list of what it told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.splitter = Splitter(lambda *watched: self.told.append(("watch", *watched)))
        for channel in (1, 2):
            self.splitter.register(channel, self.sink(channel))

    def sink(self, channel: int) -> Sink:
        def tell(kind: str) -> Callable[..., None]:
            return lambda *data: self.told.append((kind, channel, *map(_whole, data)))

        return Sink(tell("deliver"), tell("confirm"), f"owner of {channel}", tell("return"))


def _whole(value: object) -> object:
    return bytes(value) if isinstance(value, LargeBody) else value


@pytest.fixture
def stand() -> Stand:
    return Stand()


def ways(*frames: bytes) -> list[list[bytes]]:
    """Frames in one read, each in a read of its own, byte by byte, and cut in the middle of each."""
    stream = b"".join(frames)
    halves = [half for raw in frames for half in (raw[: len(raw) // 2], raw[len(raw) // 2 :])]
    shifted = [halves[0], *map(b"".join, zip(halves[1::2], [*halves[2::2], b""], strict=True))]
    return [[stream], list(frames), [stream[at : at + 1] for at in range(len(stream))], shifted]


@pytest.mark.parametrize("pieces", ways(deliver(7, redelivered=True), header(5, b"\x80\x00\x01x"), body(b"hello")))
def test_a_delivery_goes_to_the_sink_of_its_channel(stand: Stand, pieces: list[bytes]) -> None:
    for piece in pieces:
        stand.splitter.touched.clear()
        assert stand.splitter.receive(piece) == b""
    assert stand.told == [("deliver", 1, 7, True, ROUTE, b"\x80\x00\x01x", b"hello")]
    assert stand.splitter.touched == {"owner of 1"}


@pytest.mark.parametrize("pieces", ways(deliver(2), header(0)))
def test_a_message_may_have_no_body(stand: Stand, pieces: list[bytes]) -> None:
    for piece in pieces:
        assert stand.splitter.receive(piece) == b""
    assert stand.told == [("deliver", 1, 2, False, ROUTE, b"\x00\x00", b"")]


@pytest.mark.parametrize(
    "cut", [[b"he", b"", b"ll", b"o\xce"], [b"%d" % digit for digit in range(10)], [b"\xce"] * 9, [b"x" * 300, b"y"]]
)
def test_a_body_may_come_in_many_frames(cut: list[bytes]) -> None:
    whole = b"".join(cut)
    for pieces in ways(deliver(), header(len(whole)), *map(body, cut)):
        stand = Stand()
        for piece in pieces:
            assert stand.splitter.receive(piece) == b""
        assert stand.told == [("deliver", 1, 1, False, ROUTE, b"\x00\x00", whole)]


@pytest.mark.parametrize(
    "order",
    [
        [deliver(1), deliver(5, channel=2), BEAT, header(5), header(2, channel=2), body(b"he"), body(b"yo", 2),
         body(b"llo")],
        [deliver(1), header(5), deliver(5, channel=2), header(2, channel=2), body(b"he"), body(b"yo", 2), BEAT,
         body(b"llo")],
        [deliver(1), BEAT, deliver(5, channel=2), header(5), header(2, channel=2), body(b"yo", 2), body(b"hello")],
    ],
)  # fmt: skip
def test_messages_of_several_channels_may_come_between_each_other(order: list[bytes]) -> None:
    for pieces in ways(*order):
        stand = Stand()
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT
        assert stand.told == [
            ("deliver", 2, 5, False, ROUTE, b"\x00\x00", b"yo"),
            ("deliver", 1, 1, False, ROUTE, b"\x00\x00", b"hello"),
        ]


@pytest.mark.parametrize("step", [9_000, 17_000, 30_011, 40_000, 65_536])
def test_large_messages_in_many_reads_are_the_same_as_in_one(step: int) -> None:
    frames: list[bytes] = []
    for tag in range(1, 9):
        large, small = bytes([tag]) * 40_000, bytes([tag])
        frames += (deliver(tag), header(80_000), body(large), BEAT, body(large))
        frames += (deliver(tag, channel=2), header(1, channel=2), body(small, 2), BEAT)
    stream = b"".join(frames)
    whole, split = Stand(), Stand()
    passed = whole.splitter.receive(stream)
    assert passed == BEAT * 16
    assert b"".join([split.splitter.receive(stream[at : at + step]) for at in range(0, len(stream), step)]) == passed
    assert len(whole.told) == 16
    assert split.told == whole.told


def test_the_empty_message_of_another_channel_is_not_taken_for_the_own() -> None:
    for pieces in ways(deliver(1), deliver(5, channel=2), header(0), header(2, channel=2), body(b"yo", 2)):
        stand = Stand()
        assert b"".join(map(stand.splitter.receive, pieces)) == b""
        assert [told[1:3] + told[-1:] for told in stand.told] == [(1, 1, b""), (2, 5, b"yo")]


def test_neither_the_consumer_tag_nor_the_bytes_of_a_route_matter(stand: Stand) -> None:
    odd = (
        deliver(3, consumer="Q_" + "/" * 253)
        .replace(b"amq.topic", b"\xff\xce\x00\x01.....")
        .replace(b"a.b", b"\xce\xce\xce")
    )
    stand.splitter.receive(odd + header(1) + body(b"\xce") + deliver(4, consumer="") + header(0))
    assert [told[2:5] for told in stand.told] == [
        (3, False, b"\x09\xff\xce\x00\x01.....\x03\xce\xce\xce"),
        (4, False, ROUTE),
    ]


@pytest.mark.parametrize(
    ("method", "confirm"),
    [
        (commands.Basic.Ack(5, False), (5, False, True)),
        (commands.Basic.Ack(2**63 - 1, True), (2**63 - 1, True, True)),
        (commands.Basic.Nack(6, False, True), (6, False, False)),
        (commands.Basic.Nack(7, True, False), (7, True, False)),
        (commands.Basic.Nack(8, True, True), (8, True, False)),
    ],
)
def test_confirms_go_to_the_sink_of_their_channel(
    stand: Stand, method: base.Frame, confirm: tuple[int, bool, bool]
) -> None:
    for pieces in ways(method_frame(method, 2)):
        stand.told.clear()
        stand.splitter.touched.clear()
        assert b"".join(map(stand.splitter.receive, pieces)) == b""
        assert stand.told == [("confirm", 2, *confirm)]
        assert stand.splitter.touched == {"owner of 2"}


BACK = method_frame(commands.Basic.Return(312, "NO_ROUTE", "amq.topic", "nobody"))


@pytest.mark.parametrize("cut", [[], [b"hello"], [b"he", b"", b"llo"], [b"\xce" * 300, BACK]])
def test_a_returned_message_is_told_of_without_its_body_and_before_its_confirm(cut: list[bytes]) -> None:
    size = sum(map(len, cut))
    confirm = method_frame(commands.Basic.Ack(4, False))
    for pieces in ways(BACK, header(size, b"\x80\x00\x01x"), *map(body, cut), confirm, BEAT):
        stand = Stand()
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT
        returned = Return(312, b"NO_ROUTE", b"amq.topic", b"nobody", b"\x80\x00\x01x", size)
        assert stand.told == [("return", 1, returned), ("confirm", 1, 4, False, True)]
        assert stand.splitter.touched == {"owner of 1"}


def test_the_body_of_a_returned_message_is_not_kept(stand: Stand) -> None:
    stand.splitter.receive(BACK + header(1 << 30))
    frame = body(b"x" * 100_000)
    tracemalloc.start()
    for _ in range(100):
        stand.splitter.receive(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(frame)


@pytest.mark.parametrize(
    "stream", [BACK + body(b"early"), BACK + header(3) + header(3), BACK + header(3) + body(b"long")]
)
def test_a_returned_message_out_of_order_is_no_amqp(stand: Stand, stream: bytes) -> None:
    texts = (
        "the frames of a returned message came in the wrong order",
        "a returned message is longer than its content",
    )
    with pytest.raises(CodecError, match="|".join(texts)):
        stand.splitter.receive(stream)


OTHERS = [BEAT, method_frame(commands.Connection.Start(), 0), method_frame(commands.Connection.Tune(), 0)]
OF_CHANNELS = [
    method_frame(commands.Basic.ConsumeOk("T_1")),
    method_frame(commands.Queue.DeclareOk("q", 0, 0)),
    method_frame(commands.Channel.OpenOk(), 9),
]
OF_NO_CHANNEL = [
    deliver(1, channel=9) + header(3, channel=9) + body(b"abc", channel=9),
    method_frame(commands.Basic.Ack(1, False), 9),
    method_frame(commands.Basic.Return(312, "NO_ROUTE", "", "q"), 9) + header(0, channel=9),
]


@pytest.mark.parametrize("other", OTHERS)
def test_the_frames_of_the_connection_pass_whole_and_untouched(stand: Stand, other: bytes) -> None:
    data = deliver() + header(5) + body(b"hello")
    for pieces in ways(other, data, other, other, data):
        stand.splitter.touched.clear()
        passed = [stand.splitter.receive(piece) for piece in pieces]
        assert b"".join(passed) == other * 3
        assert all(not raw or raw.endswith(b"\xce") for raw in passed)
    assert [told[0] for told in stand.told] == ["deliver"] * 2 * 4


@pytest.mark.parametrize("other", OF_CHANNELS)
def test_the_methods_of_channels_go_to_the_watch_in_their_order(stand: Stand, other: bytes) -> None:
    data = deliver() + header(5) + body(b"hello")
    for pieces in ways(other, data, BEAT, other):
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT
    assert [told[0] for told in stand.told] == ["watch", "deliver", "watch"] * 4
    assert {told[-1] for told in stand.told if told[0] == "watch"} == {other}


@pytest.mark.parametrize("other", OF_NO_CHANNEL)
def test_data_that_no_sink_takes_does_not_pass(stand: Stand, other: bytes) -> None:
    for pieces in ways(BEAT, other, BEAT):
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT * 2
    assert stand.splitter.touched == set()


def test_only_owners_that_got_something_are_touched(stand: Stand) -> None:
    stand.splitter.receive(b"".join(OTHERS))
    assert stand.splitter.touched == set()
    stand.splitter.receive(deliver(channel=2) + header(0, channel=2) + BEAT)
    assert stand.splitter.touched == {"owner of 2"}


def test_the_watch_learns_of_an_end_in_its_order_among_the_data(stand: Stand) -> None:
    cancel = method_frame(commands.Basic.Cancel("T_1", True))
    close = method_frame(commands.Channel.Close(404, "NOT_FOUND - no queue 'é' in vhost '/'", 60, 20), 2)
    stream = deliver(1) + header(0) + cancel + method_frame(commands.Basic.Ack(1, False)) + close + BEAT
    for pieces in ways(stream):
        stand.told.clear()
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT
        assert stand.told == [
            ("deliver", 1, 1, False, ROUTE, b"\x00\x00", b""),
            ("watch", 1, CANCEL, cancel),
            ("confirm", 1, 1, False, True),
            ("watch", 2, CHANNEL_CLOSE, close),
        ]


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        (b"NOT_FOUND - no exchange '\xff' in vhost '/'", "NOT_FOUND - no exchange '?' in vhost '/'"),
        (b"NOT_FOUND - no exchange 'x" + "é".encode()[:1], "NOT_FOUND - no exchange 'x?"),
        ("für".encode(), "für"),
    ],
)
def test_a_reply_text_that_is_not_utf8_can_be_decoded_all_the_same(stand: Stand, text: bytes, readable: str) -> None:
    payload = b"\x00\x14\x00\x28\x01\x94" + bytes([len(text)]) + text + b"\x00\x3c\x00\x28"
    close = b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    assert stand.splitter.receive(BEAT + close + BEAT) == BEAT + BEAT
    ((_, _, _, told),) = stand.told
    assert isinstance(told, bytes)
    size, channel, method = frame.unmarshal(told)
    assert (size, channel) == (len(close), 1)
    assert isinstance(method, commands.Channel.Close)
    assert (method.reply_code, method.reply_text, method.class_id, method.method_id) == (404, readable, 60, 40)
    assert stand.told == [("watch", 1, CHANNEL_CLOSE, told)]


def test_channels_may_be_registered_and_unregistered_between_reads(stand: Stand) -> None:
    message = deliver() + header(5) + body(b"hello")
    stand.splitter.receive(deliver() + header(5) + body(b"he"))
    stand.splitter.unregister(1)
    assert stand.splitter.receive(message) == b""
    stand.told.clear()
    stand.splitter.register(1, stand.sink(1))
    assert stand.splitter.receive(body(b"llo")) == b""
    assert stand.splitter.receive(message) == b""
    assert stand.told == [("deliver", 1, 1, False, ROUTE, b"\x00\x00", b"hello")]
    stand.splitter.unregister(77)


WRONG_ORDER = "the frames of a message came in the wrong order"
NO_END = "an AMQP frame does not end with its end octet"


def without_end(raw: bytes) -> bytes:
    return raw[:-1] + b"\x00"


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([without_end(BEAT)], NO_END),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "72 is not a type of AMQP frame"),
        ([b"AMQP\x00\x00\x09\x01"], "65 is not a type of AMQP frame"),
        ([without_end(deliver()), header(1), body(b"x")], NO_END),
        ([deliver(), without_end(header(1)), body(b"x")], NO_END),
        ([deliver(), header(1), without_end(body(b"x"))], NO_END),
        ([deliver(), without_end(header(0))], NO_END),
        ([deliver(), body(b"x")], WRONG_ORDER),
        ([deliver(), header(1), header(1), body(b"x")], WRONG_ORDER),
        ([deliver(), BEAT, body(b"x"), header(1)], WRONG_ORDER),
        ([deliver(), header(3), deliver(2), header(1), body(b"x")], WRONG_ORDER),
        ([b"\0\0\1\0\0\0\0\xce", BEAT], "0 is not a type of AMQP frame"),
        ([b"\x01\0\1\0\0\0\0\xce", BEAT], "an AMQP frame ends within its fields"),
        ([deliver(), header(3), body(b"four")], "a message is longer than its content header says"),
    ],
)
def test_frames_that_cannot_be_are_an_error_however_they_come(frames: list[bytes], text: str) -> None:
    for pieces in ([b"".join(frames)], frames):
        splitter = Stand().splitter
        with pytest.raises(CodecError, match=f"^{text}$"):  # noqa: PT012
            for piece in pieces:
                splitter.receive(piece)


def cut_inside(method: bytes, keep: int) -> bytes:
    """A method frame that has lost fields at its end, with a size that fits."""
    return method[:3] + keep.to_bytes(4, "big") + method[7 : 7 + keep] + b"\xce"


@pytest.mark.parametrize(
    "whole",
    [
        deliver(),
        method_frame(commands.Basic.Ack(5, False)),
        method_frame(commands.Basic.Nack(5, False)),
        BACK,
        method_frame(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), 0),
        method_frame(commands.Channel.Close(404, "NOT_FOUND", 60, 40)),
    ],
    ids=["deliver", "ack", "nack", "return", "connection.close", "channel.close"],
)
def test_a_method_cut_inside_its_fields_is_no_amqp(whole: bytes) -> None:
    for keep in range(4, len(whole) - 8):
        for behind in (b"", BEAT * 50):
            stand = Stand()
            with pytest.raises(CodecError, match=r" fields$"):
                stand.splitter.receive(cut_inside(whole, keep) + behind)
            assert stand.told == []


@pytest.mark.parametrize("size", range(14))
def test_a_content_header_cut_inside_its_fields_is_no_amqp(size: int) -> None:
    short = b"\x02\0\1" + size.to_bytes(4, "big") + header(0)[7 : 7 + size] + b"\xce"
    for method in (deliver(), BACK):
        for pieces in ([method + short], [method, short]):
            stand = Stand()
            with pytest.raises(CodecError, match=r"^a content header ends within its fields$"):  # noqa: PT012
                for piece in pieces:
                    stand.splitter.receive(piece)
            assert stand.told == []


def test_before_the_agreement_a_frame_is_bounded_too(stand: Stand) -> None:
    assert stand.splitter.receive(b"\x01\0\0" + (500_000).to_bytes(4, "big")) == b""
    with pytest.raises(CodecError, match="bytes, more than the negotiated 1048576"):
        Stand().splitter.receive(b"\x01\0\0" + (2_000_000).to_bytes(4, "big") + b"\0")


def test_a_frame_longer_than_was_agreed_on_is_not_waited_for(stand: Stand) -> None:
    stand.splitter.frame_max = 4096
    stand.splitter.receive(deliver() + header(4088) + body(b"x" * 4088))
    with pytest.raises(CodecError, match="an AMQP frame has 4097 bytes, more than the negotiated 4096"):
        stand.splitter.receive(b"\x03\x00\x01" + (4089).to_bytes(4, "big") + b"x")


@pytest.mark.parametrize("error", [CodecError("fault"), IndexError("fault"), RuntimeError("fault")])
@pytest.mark.parametrize(
    "data", [deliver() + header(2) + body(b"hi"), method_frame(commands.Basic.Ack(5, False)), BACK + header(0)]
)
def test_a_sink_that_raises_gets_no_more_and_harms_no_other(data: bytes, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    behind = deliver(2, channel=2) + header(0, channel=2)
    for pieces in ways(data, BEAT, data, behind):
        stand = Stand()
        stand.splitter.register(1, Sink(fail, fail, "owner of 1", fail))
        assert b"".join(map(stand.splitter.receive, pieces)) == BEAT
        assert stand.splitter.failures == [("owner of 1", error)]
        assert stand.splitter.touched == {"owner of 1", "owner of 2"}
        assert [told[:3] for told in stand.told] == [("deliver", 2, 2)]
