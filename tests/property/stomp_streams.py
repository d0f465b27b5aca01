"""What clients send: frames in every layout that the grammar allows, nonsense, and anything in between."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame
from gateway.stomp.headers import escape

# Bytes that mean something to the grammar come up as often as all others together.
data = st.lists(st.sampled_from(b'\\:\n\r\0 ncr"a\xff') | st.integers(0, 255), max_size=12).map(bytes)
names = data | st.sampled_from([b"", b"destination", b"receipt", b"content-length", b"a:b", b"\\", b"\r\n"])
header_lists = st.lists(st.tuples(names, data), max_size=6)

commands = st.sampled_from([b"SEND", b"SEND", b"SEND", b"ACK", b"CONNECT", b"SUBSCRIBE", b"S", b"\\n", b"a\0b"])
line_ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
between_frames = st.sampled_from([b"", b"\n", b"\n", b"\r\n", b"\0", b"\0\n", b"\r\n\0\n", b"\n\n\r\n"])


class ForgetfulDecoder(Decoder):
    """Forgets all header blocks before each frame, so that it takes the slow path only."""

    __slots__ = ()

    def next_frame(self) -> Frame | None:
        """The next frame."""
        self._header_blocks.clear()
        self._sized_blocks.clear()
        self._ack_blocks.clear()
        return super().next_frame()


@dataclass(frozen=True)
class Reading:
    """What a decoder made of a stream."""

    frames: list[tuple[bytes, dict[bytes, bytes], bytes, bytes | None]]
    error: str | None
    left: int
    """Bytes that belong to no frame yet; 0 after an error."""


@dataclass
class Reader:
    """Feeds a decoder and takes its frames out at once, as a connection does."""

    decoder: Decoder = field(default_factory=Decoder)

    def read(self, pieces: Iterable[bytes]) -> Reading:
        """Feed all pieces, or as many as it takes to an error."""
        frames: list[tuple[bytes, dict[bytes, bytes], bytes, bytes | None]] = []
        try:
            for piece in pieces:
                self.decoder.feed(piece)
                while (frame := self.decoder.next_frame()) is not None:
                    frames.append((frame.command, frame.headers, bytes(frame.body), frame.receipt))
        except FrameError as error:
            return Reading(frames, str(error), 0)
        return Reading(frames, None, self.decoder.buffered)


def read(pieces: Iterable[bytes], limits: FrameLimits | None = None) -> Reading:
    """What a new decoder makes of the pieces."""
    return Reader(Decoder(limits)).read(pieces)


def lay_out(command: bytes, lines: Iterable[bytes], end: bytes, body: bytes) -> bytes:
    """A frame of these lines with its NUL."""
    return b"".join([command, end, *(line + end for line in lines), end, body, b"\0"])


def _header_line(name: bytes, value: bytes) -> bytes:
    return escape(name) + b":" + escape(value)


@st.composite
def correct_frames(draw: st.DrawFn) -> bytes:
    """One frame that keeps to the grammar, with what may stand behind it."""
    command = draw(commands)
    headers = [pair for pair in draw(header_lists) if pair[0] != b"content-length"]
    body = draw(data)
    lines = [_header_line(name, value) for name, value in headers]
    if command != b"SEND" or not draw(st.booleans()):
        body = body.replace(b"\0", b"")
    else:
        length = draw(st.sampled_from([b"%d", b"0%d", b" %d ", b"+%d"])) % len(body)
        lines.insert(draw(st.integers(0, len(lines))), b"content-length:" + length)
    return lay_out(command, lines, draw(line_ends), body) + draw(between_frames)


@st.composite
def producers(draw: st.DrawFn, *, faultless: bool = False) -> bytes:
    """Many SENDs of few kinds: the same header blocks over and over, with receipts and lengths of their own."""
    kinds = draw(st.lists(header_lists, min_size=1, max_size=2))
    receipt_at = draw(st.integers(0, 3))
    frames: list[bytes] = []
    for _ in range(draw(st.integers(3, 8))):
        lines = [_header_line(*pair) for pair in draw(st.sampled_from(kinds)) if pair[0] != b"content-length"]
        body = draw(data)
        length = draw(_lengths if faultless else _lengths | _wrong_lengths)
        if length is None:
            body = body.replace(b"\0", b"")
        else:
            mistake = 0 if faultless else draw(_mistakes)
            lines.append(b"content-length:" + length % max(0, len(body) + mistake))
        receipt = draw(_receipts if faultless else _receipts | _wrong_receipts)
        if receipt is not None:
            lines.insert(receipt_at, b"receipt:" + receipt)
        frames.append(lay_out(b"SEND", lines, b"\n" if faultless else draw(line_ends), body) + draw(between_frames))
    return b"".join(frames)


@st.composite
def consumers(draw: st.DrawFn, *, faultless: bool = False) -> bytes:
    """Many ACKs of few kinds, each with an id of its own, and perhaps a receipt."""
    kinds = draw(st.lists(st.lists(st.tuples(names, data), max_size=2), min_size=1, max_size=2))
    places = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    frames: list[bytes] = []
    for number in range(draw(st.integers(3, 8))):
        lines = [_header_line(*pair) for pair in draw(st.sampled_from(kinds))]
        ack_id = draw(_ack_ids if faultless else _ack_ids | _wrong_ack_ids)
        receipt = draw(_receipts if faultless else _receipts | _wrong_receipts)
        for name, value, place in ((b"id:", ack_id, places[0]), (b"receipt:", receipt, places[1])):
            if value is not None:
                lines.insert(place, name + value.replace(b"#", b"%d" % (number + 8)))
        body = b"" if faultless else draw(st.sampled_from([b""] * 9 + [b"b"]))
        frames.append(lay_out(b"ACK", lines, b"\n" if faultless else draw(line_ends), body) + draw(between_frames))
    return b"".join(frames)


# Right ones mostly, or no stream would hold more than a frame or two.
_lengths = st.sampled_from([None] * 6 + [b"%d"] * 12 + [b"0%d", b" %d", b"%d\r", b"+%d"])
_mistakes = st.sampled_from([0] * 20 + [-1, 1])
_wrong_lengths = st.sampled_from([b"%d"] * 12 + [b"x%d", b"%d0", b"\\c%d", b"0" * 25 + b"%d"])
_receipts = st.sampled_from([None] * 2 + [b"r-1"] * 2 + [b"r-2", b"", b":", b"a\0"] + [b"a\\n", b"a\r", b"r" * 16] * 2)
_wrong_receipts = st.sampled_from([b"r-3"] * 12 + [b"\\"]) | data.map(escape)

_ack_id = b"T_0@@session@@#"
_ack_ids = st.sampled_from([_ack_id] * 12 + [b"T_a\\cb@@session@@#", b"", b"x", b"a@@#\r", b"a:b@@c@@#", b"y" * 16])
_wrong_ack_ids = st.sampled_from([_ack_id] * 12 + [None, b"\\", b"a\r\rb", b"a\0b"]) | data.map(escape)

nonsense = st.lists(
    st.sampled_from(
        [
            b"SEND", b"ACK", b"\n", b"\n\n", b"\r", b"\r\n", b"\0", b":", b"\\", b"\\n", b"\\t", b"a", b"a:b",
            b"SEND\n", b"\nreceipt:", b"\nreceipt:r", b"\ncontent-length:", b"\ncontent-length:3", b"-1", b"5", b"\xff",
        ]
    )
    | data,
    max_size=20,
).map(b"".join)  # fmt: skip

streams = st.lists(correct_frames() | producers() | consumers() | nonsense | between_frames, max_size=4).map(b"".join)
