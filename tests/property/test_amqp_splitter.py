"""Whatever the broker sends, in whatever pieces: data goes to sinks, methods to the watch, the rest passes on."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import event, given
from hypothesis import strategies as st
from pamqp import base, commands, frame, heartbeat

from gateway.amqp.codec import CANCEL, CHANNEL_CLOSE, CONNECTION_BLOCKED, CONNECTION_CLOSE, CONNECTION_UNBLOCKED
from gateway.amqp.properties import short_string
from gateway.amqp.splitter import Return, Sink, Splitter
from gateway.pieces import Body
from tests.property.amqp_frames import content_frames, exchanges, properties, tables, tags, texts
from tests.property.cuts import cut, one_by_one, points

REGISTERED = (1, 2, 0xFFFF)
OTHERS = (0, 3)

Event = tuple[object, ...]


@dataclass
class Unit:
    """Frames of one channel that belong together, and what must come of them."""

    channel: int
    frames: list[bytes]
    event: Event | None = None
    passes: bool = False


@dataclass
class Listener:
    """Sinks and watch of a splitter that write down everything they are told."""

    events: list[Event] = field(default_factory=list)
    touched: list[Event] = field(default_factory=list)
    passed: list[bytes] = field(default_factory=list)

    def listen(self, pieces: Iterable[bytes]) -> "Listener":
        """Let a splitter receive all pieces."""
        splitter = Splitter(lambda channel, method, raw: self.events.append(("watch", channel, method, raw)))
        for channel in REGISTERED:
            deliver, confirm, returned = self._deliver(channel), self._confirm(channel), self._returned(channel)
            alike = None if channel == REGISTERED[-1] else self._deliver_alike(channel)
            sink = Sink(deliver, confirm, channel, returned, alike)
            splitter.register(channel, sink)
        for piece in pieces:
            known = len(self.events)
            self.passed.append(splitter.receive(piece))
            data = {told[1] for told in self.events[known:] if told[0] != "watch"}
            # A message in pieces touches its owner at its start as well, which costs nothing.
            assert splitter.touched >= data
            splitter.touched.clear()
        return self

    def _deliver(self, channel: int) -> Callable[[int, bool, bytes, bytes, Body], None]:
        return lambda *delivery: self.events.append(("deliver", channel, *delivery[:-1], bytes(delivery[-1])))

    def _deliver_alike(self, channel: int) -> Callable[[int, list[bytes]], None]:
        def deliver(tag: int, bodies: list[bytes]) -> None:
            *_, (_, _, _, *like, _) = (told for told in self.events if told[:2] == ("deliver", channel))
            self.events += [("deliver", channel, number, *like, body) for number, body in enumerate(bodies, tag)]

        return deliver

    def _returned(self, channel: int) -> Callable[[Return], None]:
        return lambda returned: self.events.append(("return", channel, returned))

    def _confirm(self, channel: int) -> Callable[[int, bool, bool], None]:
        return lambda *confirm: self.events.append(("confirm", channel, *confirm))


@st.composite
def deliveries(draw: st.DrawFn, channel: int) -> Unit:
    tag, redelivered = draw(tags), draw(st.booleans())
    exchange, key, consumer = draw(exchanges), draw(texts(255)), draw(texts(255))
    given_properties = draw(properties(tables))
    body = draw(
        st.binary(max_size=50) | st.sampled_from([b"\xce" * 20, b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\xce"])
    )
    frame_max = draw(st.sampled_from([0, 0, 0, 9, 15, 40]))
    method = frame.marshal(commands.Basic.Deliver(consumer, tag, redelivered, exchange, key), channel)
    frames = [method, *content_frames(channel, given_properties, body, frame_max)]
    route = short_string(exchange.encode()) + short_string(key.encode())
    return Unit(channel, frames, ("deliver", channel, tag, redelivered, route, given_properties.marshal(), body))


@st.composite
def confirms(draw: st.DrawFn, channel: int) -> Unit:
    tag, multiple, accepted = draw(tags), draw(st.booleans()), draw(st.booleans())
    ack, nack = commands.Basic.Ack(tag, multiple), commands.Basic.Nack(tag, multiple, draw(st.booleans()))
    frames = [frame.marshal(ack if accepted else nack, channel)]
    return Unit(channel, frames, ("confirm", channel, tag, multiple, accepted))


@st.composite
def returns(draw: st.DrawFn, channel: int) -> Unit:
    exchange, key, text, body = draw(exchanges), draw(texts(255)), draw(texts(255)), draw(st.binary(max_size=50))
    given_properties, frame_max = draw(properties(tables)), draw(st.sampled_from([0, 0, 9, 40]))
    method = frame.marshal(commands.Basic.Return(312, text, exchange, key), channel)
    content = content_frames(channel, given_properties, body, frame_max)
    told = (text.encode(), exchange.encode(), key.encode(), given_properties.marshal(), len(body))
    return Unit(channel, [method, *content], ("return", channel, Return(312, *told)))


_OTHER_METHODS: list[tuple[base.Frame, int]] = [
    (commands.Channel.OpenOk(), 20 << 16 | 11),
    (commands.Basic.ConsumeOk("tag"), 60 << 16 | 21),
    (commands.Queue.DeclareOk("queue", 3, 1), 50 << 16 | 11),
    (commands.Basic.Cancel("tag", True), CANCEL),
    (commands.Channel.Close(404, "NOT_FOUND - no queue 'é'", 60, 20), CHANNEL_CLOSE),
    (commands.Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0), CONNECTION_CLOSE),
    (commands.Connection.Blocked("low on memory"), CONNECTION_BLOCKED),
    (commands.Connection.Unblocked(), CONNECTION_UNBLOCKED),
]
_OF_THE_CONNECTION = (CONNECTION_CLOSE, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED)


@st.composite
def other_methods(draw: st.DrawFn, channel: int) -> Unit:
    """Methods that are no data: those of a channel do not pass, and of the others some are watched."""
    method, number = draw(st.sampled_from(_OTHER_METHODS))
    raw = frame.marshal(method, channel)
    watched = channel != 0 or number in _OF_THE_CONNECTION
    return Unit(channel, [raw], ("watch", channel, number, raw) if watched else None, passes=channel == 0)


def _units(channel: int) -> st.SearchStrategy[Unit]:
    kinds = [
        deliveries(channel), deliveries(channel), confirms(channel), returns(channel), other_methods(channel),
    ]  # fmt: skip
    if channel == 0:
        return st.just(Unit(0, [frame.marshal(heartbeat.Heartbeat(), 0)], passes=True)) | other_methods(0)
    if channel not in REGISTERED:
        return other_methods(channel)
    return st.one_of(kinds)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[bytes, Unit, bool]]:
    """Frames of several channels in the order of the wire, each with its unit and whether it is the unit's last.

    Frames of one channel keep their order; those of different channels may stand between each other.
    """
    interleaved = draw(st.booleans())
    if interleaved:
        units = draw(st.lists(st.sampled_from(REGISTERED).flatmap(deliveries), min_size=2, max_size=4))
        units += draw(st.lists(st.sampled_from(OTHERS).flatmap(_units), max_size=1))
    else:
        units = draw(st.lists(st.sampled_from(REGISTERED * 2 + OTHERS).flatmap(_units), min_size=1, max_size=8))
    queues: dict[int, list[tuple[bytes, Unit, bool]]] = {}
    order: list[int] = []
    for unit in units:
        for number, raw in enumerate(unit.frames, 1):
            queues.setdefault(unit.channel, []).append((raw, unit, number == len(unit.frames)))
            order.append(unit.channel)
    if interleaved:
        order = draw(st.permutations(order))
    return [queues[channel].pop(0) for channel in order]


@st.composite
def repeats(draw: st.DrawFn) -> list[tuple[bytes, Unit, bool]]:
    """Deliveries of two channels that mostly differ in tag and body only, with other things between them."""
    used = draw(st.sampled_from([REGISTERED[:1], REGISTERED[1:]]))
    kinds = {channel: draw(st.lists(_kinds, min_size=1, max_size=2)) for channel in used}
    wire = []
    tag = draw(st.sampled_from([0, 0xFE, (1 << 63) - 9]))
    for _ in range(draw(st.integers(4, 8))):
        tag = min((1 << 63) - 1, tag + draw(st.sampled_from([1] * 9 + [0, 2])))
        channel = draw(st.sampled_from(used))
        consumer, exchange, key, given_properties, size, redelivered = draw(st.sampled_from(kinds[channel]))
        body = draw(st.binary(min_size=size, max_size=size))
        method = frame.marshal(commands.Basic.Deliver(consumer, tag, redelivered, exchange, key), channel)
        frames = [method, *content_frames(channel, given_properties, body, draw(st.sampled_from([0] * 9 + [9])))]
        route = short_string(exchange.encode()) + short_string(key.encode())
        told = ("deliver", channel, tag, redelivered, route, given_properties.marshal(), body)
        units = [Unit(channel, frames, told)]
        if not draw(st.integers(0, 4)):
            units += draw(st.lists(_units(draw(st.sampled_from(REGISTERED + OTHERS))), max_size=1))
        wire += [(raw, unit, raw is unit.frames[-1]) for unit in units for raw in unit.frames]
    return wire


_kinds = st.tuples(
    st.sampled_from(["", "s1", "s22"]),
    exchanges,
    st.sampled_from(["", "a.b", "a.c", "k" * 255]),
    properties(tables),
    st.sampled_from([0, 1, 5, 50]),
    st.booleans(),
)


@given(traffic() | repeats(), points)
def test_data_reach_their_sinks_and_all_else_passes_in_order(
    wire: list[tuple[bytes, Unit, bool]], at: list[int]
) -> None:
    stream = b"".join(raw for raw, _, _ in wire)
    expected = [unit.event for _, unit, last in wire if last and unit.event is not None]
    passing = b"".join(raw for raw, unit, _ in wire if unit.passes)
    event(f"events: {len(expected)}")
    for pieces in ([stream], [raw for raw, _, _ in wire], one_by_one(stream), cut(stream, at)):
        listener = Listener().listen(pieces)
        assert listener.events == expected
        assert b"".join(listener.passed) == passing
        for raw in listener.passed:
            assert_whole_frames(raw)


@given(traffic() | repeats(), points, st.integers(1, 20), st.integers(8, 20))
def test_bodies_in_pieces_are_the_same(
    wire: list[tuple[bytes, Unit, bool]], at: list[int], large: int, much: int
) -> None:
    stream = b"".join(raw for raw, _, _ in wire)
    whole = Listener().listen([stream])
    with patch("gateway.amqp.splitter._MUCH", much), patch("gateway.pieces.LARGE", large):
        for pieces in ([stream], one_by_one(stream), cut(stream, at)):
            listener = Listener().listen(pieces)
            assert listener.events == whole.events
            assert b"".join(listener.passed) == b"".join(whole.passed)


def assert_whole_frames(raw: bytes) -> None:
    """The AMQP client library may rely on getting whole frames, though it need not."""
    at = 0
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at + 3)
        at += 8 + size
        assert raw[at - 1 : at] == b"\xce"
    assert at == len(raw)


@given(st.binary(max_size=255), st.sampled_from([(commands.Channel.Close, 1), (commands.Connection.Close, 0)]), points)
def test_a_close_frame_can_be_decoded_whatever_its_text(
    text: bytes, kind: tuple[type[commands.Channel.Close] | type[commands.Connection.Close], int], at: list[int]
) -> None:
    close, of = kind
    placeholder = "x" * len(text)
    original = frame.marshal(close(404, placeholder, 60, 40), of).replace(
        short_string(placeholder.encode()), short_string(text)
    )
    beat = frame.marshal(heartbeat.Heartbeat(), 0)
    listener = Listener().listen(cut(beat + original + beat, at))
    ((_, _, _, told),) = listener.events
    assert isinstance(told, bytes)
    assert len(told) == len(original)
    assert b"".join(listener.passed) == beat + (b"" if of else told) + beat
    _, channel, method = frame.unmarshal(told)
    assert channel == of
    assert isinstance(method, close)
    assert (method.reply_code, method.class_id, method.method_id) == (404, 60, 40)
    assert method.reply_text == text.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()


def test_deliveries_of_one_size_that_differ_in_route_or_flag_are_told_apart() -> None:
    kinds = [("a.b", False)] * 3 + [("a.c", False), ("a.b", True), ("a.b", False)] + [("a.b", True)] * 3
    stream, expected = b"", []
    for tag, (key, redelivered) in enumerate(kinds, 1):
        method = frame.marshal(commands.Basic.Deliver("s1", tag, redelivered, "e", key), 1)
        stream += b"".join([method, *content_frames(1, commands.Basic.Properties(), b"%05d" % tag, 0)])
        route = short_string(b"e") + short_string(key.encode())
        expected.append(("deliver", 1, tag, redelivered, route, b"\0\0", b"%05d" % tag))
    assert Listener().listen([stream]).events == expected
