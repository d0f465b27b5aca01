"""Bytes to frames, for any split of the byte stream (STOMP 1.2, "Augmented BNF"; one grammar for all versions).

How it works. ``feed`` takes what the socket gave, ``next_frame`` hands out one frame after the other until it needs
more. Whole frames are read straight from the chunk they came in. The rest of a chunk is kept in a growing buffer,
together with what is known about it, so that no byte is searched twice however small the pieces are:

* the header lines so far were read one by one (a bad line is an error at once, not at the end of the frame);
* without a content-length, only the new bytes are searched for the NUL;
* with one, nothing is searched at all: the rest of the body is kept as it comes, in pieces if it is large.

Speed. A producer repeats its header block, so SEND blocks are looked up by their own bytes in two bounded tables: the
block without the value of ``receipt`` (messages of one size), and, failing that, without the value of
``content-length`` either. Further SENDs with the same block are not even looked up: ``take_sends``. A consumer
repeats its ACKs, and their blocks are looked up without the values of ``receipt`` and ``id``. Everything else takes the
slow path, which alone defines the meaning; ``tests/property/test_decoder.py`` holds the two equal.

Limits are checked while a frame is still arriving, so memory stays bounded by the limit and one read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.errors import FrameError, HttpRequestError, TlsHandshakeError
from gateway.pieces import Piece, body_of, part_of
from gateway.stomp.block_cache import BlockCache
from gateway.stomp.frame import (
    ACK_ID,
    CONTENT_LENGTH,
    RECEIPT,
    AckFrame,
    Frame,
    HeaderBlock,
    OversizedFrame,
    ReceiptAndBody,
)
from gateway.stomp.headers import printable, read_integer, split_line

# Between frames any number of NUL, LF and CR LF may stand: heart-beats, and the line's end that may follow a frame.
# Possessive, since a flood of them would otherwise cost a hundred bytes of matcher state for each.
_BETWEEN_FRAMES: Final = re.compile(rb"(?:[\n\0]++|\r\n)*+")
_END_OF_BLOCK: Final = re.compile(rb"\n\r?\n")
_CARRIAGE_RETURN: Final = 0x0D
_LINE_FEED: Final = 0x0A
_FIRST_OF_SEND: Final = ord("S")
_FIRST_OF_ACK: Final = ord("A")
# The first byte of a TLS handshake (RFC 8446, 5.1). No command begins with it.
_FIRST_OF_TLS: Final = 0x16
# The first line of an HTTP request (RFC 9112, 3). No command has a space.
_HTTP_REQUEST: Final = re.compile(rb"[!-~]+ [!-~]+ HTTP/\d\.\d")

# Each connection caches header blocks up to this size, enough of them for a producer that sends to a thousand
# destinations in turn. A block also keeps the lines that were cut out of its first frame, up to _LONGEST_CUT bytes.
_LARGEST_CACHED_BLOCK: Final = 2048
_LONGEST_CUT: Final = 256
_MOST_BYTES: Final = 4 << 20
_MOST_BYTES_OF_ACKS: Final = 384 << 10
_MOST_BYTES_SIZED: Final = 512 << 10
_OF_SIZED_BLOCK: Final = 350

# Shared by all tables that are still empty. Nothing is ever entered here.
_NO_BLOCKS: Final[BlockCache[Any]] = BlockCache(0, len)

# Smaller pieces of a body are joined when they arrive: each object would take more memory than its bytes.
_LEAST_PIECE: Final = 4096

# Digits of a length that the fast path reads; more are longer than any frame, or zeros that the slow path may judge.
_LONGEST_LENGTH: Final = 9

_RECEIPT_LINE: Final = b"\nreceipt:"
_LENGTH_LINE: Final = b"\ncontent-length:"
_ID_LINE: Final = b"\nid:"

# Digits of a delivery's number: it has 64 bits.
_LONGEST_NUMBER: Final = 20


@dataclass(slots=True)
class FrameLimits:
    """What a client may send, in bytes and in numbers.

    ``frame`` bounds a whole frame, ``headers`` the distinct headers in it, ``header`` each name and each value, and
    ``lines`` its header lines, those that repeat a name included: each costs as much time as a distinct one. They may
    be raised between frames: a client that has logged in is trusted with more.

    With ``skips_bodies`` a SEND whose body is too large is no error: it is read to its end and handed out as an
    `OversizedFrame`, without the body. With ``ignores_bad_lengths`` a content-length that is no number does not count.
    """

    frame: int = 4 * 1024 * 1024
    headers: int = 100
    header: int = 100 * 1024
    lines: int = 1000
    skips_bodies: bool = False
    ignores_bad_lengths: bool = False


class _Head(NamedTuple):
    """The header block of a frame that is arriving, where it ends, and where the body begins, counted from the frame.

    It is read once: in a frame of megabytes that may take all the time that a turn has.
    """

    header_block: HeaderBlock
    end: int
    body: int


@dataclass(slots=True, repr=False)
class _PartialFrame:
    """The state of a frame whose first part is in ``buffer``. No repr, because it may contain a passcode."""

    buffer: bytearray = field(default_factory=bytearray)
    line: int = 0  # where the header line starts that is not complete yet
    searched: int = 0  # bytes before this hold no end of that line, or no NUL once the header block is complete
    head: _Head | None = None  # once the blank line has arrived
    command: bytes = b""
    lines: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.buffer)


class _PartialBody:
    """A frame whose header block is read and whose body, of a known length, is arriving.

    Args:
        frame: gets the body.
        size: bytes of the frame that have arrived.
        piece: bytes of its body that have arrived.
        missing: bytes of the body, and the NUL after it, that have not arrived.
    """

    __slots__ = ("_pieces", "frame", "missing", "position", "rest", "size")

    def __init__(self, frame: Frame, size: int, piece: Piece, missing: int) -> None:
        self.size = size
        self.frame = frame
        self.missing = missing
        self._pieces: list[Piece] = [piece]
        # What was fed with the end of the frame, and what came after it; and where in these bytes the NUL should be.
        self.rest = b""
        self.position = 0

    def feed(self, data: bytes) -> None:
        """Take what one read gave. HOT: once per read of a large body."""
        self.size += len(data)
        missing, pieces = self.missing, self._pieces
        if missing == 0:
            self.rest += data
        elif len(data) < missing:
            self.missing = missing - len(data)
            last = pieces[-1]
            if isinstance(last, bytes) and len(last) < _LEAST_PIECE:
                pieces[-1] = last + data
            else:
                pieces.append(data)
        else:
            self.missing = 0
            pieces.append(part_of(data, 0, missing - 1))
            self.frame.body = body_of(pieces)
            self.rest, self.position = data, missing - 1


class _SkippedBody(_PartialBody):
    """The rest of a SEND that is too large, of which nothing is kept.

    Args:
        missing: None if a NUL ends the body. Then ``missing`` is 1 until it comes.
    """

    __slots__ = ("ends_with_nul",)

    def __init__(self, frame: Frame, missing: int | None) -> None:
        super().__init__(frame, 1, b"", missing or 1)
        self.ends_with_nul = missing is None

    def feed(self, data: bytes) -> None:
        """Take what one read gave."""
        end = data.find(b"\0") if self.ends_with_nul else self.missing - 1
        if not self.missing:
            self.rest += data
        elif 0 <= end < len(data):
            self.missing, self.rest, self.position = 0, data, end
        elif not self.ends_with_nul:
            self.missing -= len(data)
        self.size = 1 + len(self.rest)


class Decoder:
    """Reads the frames of one client. Its ``limits`` may be raised between frames."""

    __slots__ = (
        "_ack_blocks", "_chunk", "_fast_start", "_head", "_header_blocks", "_longest_receipt", "_partial",
        "_position", "_sized_blocks", "limits",
    )  # fmt: skip

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self.limits = limits or FrameLimits()
        self._chunk = b""
        self._position = 0
        self._partial: _PartialFrame | _PartialBody | None = None
        # Of the frame at the beginning of the chunk, if it came in pieces.
        self._head: _Head | None = None
        # Header blocks by their bytes without the values of receipt and content-length; and once more by the bytes with
        # content-length, next to the length's text and number. And header blocks of ACKs by their bytes without the
        # values of receipt and id. Made for the first of them, since many clients do nothing for long.
        self._header_blocks: BlockCache[HeaderBlock] = _NO_BLOCKS
        self._sized_blocks: BlockCache[tuple[HeaderBlock, bytes | None, int]] = _NO_BLOCKS
        self._ack_blocks: BlockCache[HeaderBlock] = _NO_BLOCKS
        # Of a SEND whose block is looked up: what is encoded for the last one with a block is kept.
        self._longest_receipt = 0
        # Where the frame that was handed out last began; -1 if it took the slow path.
        self._fast_start = -1

    @property
    def buffered(self) -> int:
        """Bytes received that belong to no frame handed out yet."""
        waiting = len(self._chunk) - self._position
        return waiting + (self._partial.size if self._partial else 0)

    @property
    def unread(self) -> tuple[int | None, bytes]:
        """The number of bytes missing from an arriving body, and the bytes after the last frame handed out.

        The number is None while a body is skipped that ends with the next NUL.
        """
        partial = self._partial
        if isinstance(partial, _PartialBody):
            is_endless = isinstance(partial, _SkippedBody) and partial.ends_with_nul and partial.missing
            return None if is_endless else partial.missing, partial.rest[partial.position + 1 :]
        return 0, self._chunk[self._position :] if partial is None else bytes(partial.buffer)

    def take_over(self, other: Decoder) -> None:
        """Continue where another decoder stopped; that one must not be used any more."""
        for name in Decoder.__slots__:
            setattr(self, name, getattr(other, name))

    def feed(self, data: bytes) -> None:
        """Take what one read of the socket gave.

        Raises:
            FrameError: when the frame that is arriving is malformed already, or exceeds a limit.
        """
        partial = self._partial
        if partial is None:
            self._head = None
            # Frames wait here while a held session does not ask for them. Normally nothing is left.
            left = len(self._chunk) - self._position
            self._chunk = self._chunk[self._position :] + data if left else data
            self._position = 0
            return
        if isinstance(partial, _PartialBody):
            partial.feed(data)
            return
        self._grow(partial, data)

    def next_frame(self) -> Frame | None:  # noqa: PLR0911 - hot: in one piece, since every call costs
        """Hand out the next complete frame; None when more bytes are needed.

        HOT: one call per frame. A whole SEND whose header block is known costs two searches, a table look-up and a
        slice. ``_slow_frame`` is the slow twin; anything unusual is left to it.

        Raises:
            FrameError: on any violation of the grammar or a limit. The stream cannot be read any further.
        """
        chunk = self._chunk
        start = self._position
        size = len(chunk)
        if start < size and chunk[start] == _LINE_FEED:  # most clients send one after each frame
            start += 1
        if start < size and chunk[start] <= _FIRST_OF_TLS:
            start = self._between_frames(start)
        if start >= size:
            self._chunk, self._position = b"", 0
            return None if self._partial is None else self._take_whole(self._partial)
        if chunk[start] != _FIRST_OF_SEND:
            return self._next_ack(start) if chunk[start] == _FIRST_OF_ACK else self._slow_frame(start)
        # The search is bounded, or lines that end in CR LF would cost a search of the whole chunk for each frame.
        end = chunk.find(b"\n\n", start, start + _LARGEST_CACHED_BLOCK)
        if end < 0:
            return self._slow_frame(start)
        block = chunk[start:end]
        receipt = None
        at = block.find(_RECEIPT_LINE)
        if at >= 0:
            block, receipt = _cut(block, at + len(_RECEIPT_LINE))
            if b"\\" in receipt or b"\r" in receipt or len(receipt) > self._longest_receipt:
                return self._slow_frame(start)
        known = self._sized_blocks.get(block) or self._look_up(block)
        if known is None:
            return self._slow_frame(start, end)
        header_block, length, body_size = known
        body = end + 2
        stop = chunk.find(b"\0", body) if length is None else body + body_size
        if not 0 < stop < size or chunk[stop] or stop - start >= self.limits.frame:
            return self._unfinished(Frame(header_block, b"", receipt, length), start, body, stop)
        self._position = stop + 1
        self._fast_start = start
        return Frame(header_block, chunk[body:stop], receipt, length)

    def take_sends(self, frame: Frame, most: int, most_bytes: int) -> list[ReceiptAndBody]:
        """Take the SENDs that differ from the one handed out just now in nothing but body and receipt.

        Their receipts have the same size, so their headers have the same size in AMQP, too.

        HOT: once per SEND, or once for many; each that is taken costs a comparison and a slice or two.

        Args:
            frame: the one just handed out.
            most: how many to take at the most.
            most_bytes: stop after this many bytes of bodies.
        """
        chunk, at = self._chunk, self._position
        if self._fast_start < 0 or at >= len(chunk):
            return []
        receipt, body_size = frame.receipt, len(frame.body)
        before, behind, receipt_size = chunk[self._fast_start : at - 1 - body_size], b"", 0
        if receipt is not None:
            receipt_size = len(receipt)
            before, line, behind = before.partition(_RECEIPT_LINE)
            before, behind = before + line, behind[receipt_size:]
        if chunk[at] == _LINE_FEED:
            before = b"\n" + before
        size, largest = len(chunk), self.limits.frame
        taken: list[ReceiptAndBody] = []
        while len(taken) < most and most_bytes > 0 and chunk.startswith(before, at):
            body = at + len(before)
            if receipt is not None:
                receipt = chunk[body : body + receipt_size]
                body += receipt_size
                if not chunk.startswith(behind, body) or b"\n" in receipt or b"\r" in receipt or b"\\" in receipt:
                    break
                body += len(behind)
            stop = chunk.find(b"\0", body) if frame.length is None else body + body_size
            if not 0 < stop < size or chunk[stop] or stop - at >= largest:
                break
            taken.append((receipt, chunk[body:stop]))
            most_bytes -= stop - body
            at = stop + 1
        self._position = at
        return taken

    def _next_ack(self, start: int) -> Frame | None:
        """Hand out an ACK whose header block is known but for its id, and its receipt if it has one.

        HOT: once per ACK. ``_slow_frame`` is the slow twin.
        """
        chunk = self._chunk
        end = chunk.find(b"\n\n", start, start + _LARGEST_CACHED_BLOCK)
        stop = end + 2
        if end < 0 or stop >= len(chunk) or chunk[stop] or stop - start >= self.limits.frame:
            return self._slow_frame(start)
        block = chunk[start:end]
        receipt = None
        at = block.find(_RECEIPT_LINE)
        if at >= 0:
            block, receipt = _cut(block, at + len(_RECEIPT_LINE))
            if b"\\" in receipt or b"\r" in receipt or len(receipt) > self.limits.header:
                return self._slow_frame(start)
        at = block.find(_ID_LINE)
        if at < 0:
            return self._slow_frame(start)
        block, ack_id = _cut(block, at + len(_ID_LINE))
        header_block = self._ack_blocks.get(block)
        if header_block is None or b"\\" in ack_id or b"\r" in ack_id or len(ack_id) > self.limits.header:
            return self._slow_frame(start)
        self._position = stop + 1
        self._fast_start = start
        return AckFrame(header_block, ack_id, receipt)

    def skip_acks(self, frame: AckFrame, number: int, most: int) -> int:
        """Skip ACKs that say the same as the one handed out just now, with the next number in each.

        HOT: once per ACK that is followed by others; each that is skipped costs a comparison.

        Args:
            frame: the one just handed out.
            number: of the delivery: the digits at the end of its id, without a zero in front.
            most: how many to skip at the most.

        Returns:
            How many were skipped.
        """
        chunk, at, ack_id = self._chunk, self._position, frame.ack_id
        size, limits = at - self._fast_start, self.limits
        is_last = at + size > len(chunk)
        if is_last or size + _LONGEST_NUMBER > limits.frame or len(ack_id) + _LONGEST_NUMBER > limits.header:
            return 0
        before, id_line, behind = chunk[self._fast_start : at].partition(_ID_LINE)
        before += id_line + ack_id[: -len(b"%d" % number)]
        behind = behind[len(ack_id) :]
        if chunk[at] == _LINE_FEED:
            before = b"\n" + before
        skipped = 0
        while skipped < most:
            text = b"%b%d%b" % (before, number + skipped + 1, behind)
            if not chunk.startswith(text, at):
                break
            at += len(text)
            skipped += 1
        self._position = at
        return skipped

    def _between_frames(self, start: int) -> int:
        """Where the next frame begins, or the end of the chunk."""
        found = _BETWEEN_FRAMES.match(self._chunk, start)
        start = found.end() if found else start
        if start < len(self._chunk) and self._chunk[start] == _FIRST_OF_TLS:
            raise TlsHandshakeError("TLS is not spoken on this port")
        return start

    def _look_up(self, block: bytes) -> tuple[HeaderBlock, bytes | None, int] | None:
        """Look up a block without its receipt: the header block, the length's text, and the size of the body."""
        at = block.find(_LENGTH_LINE)
        if at < 0:
            header_block, length = self._header_blocks.get(block), None
        else:
            key, length = _cut(block, at + len(_LENGTH_LINE))
            header_block = self._header_blocks.get(key) if length.isdigit() and len(length) <= _LONGEST_LENGTH else None
        if header_block is None:
            return None
        known = (header_block, length, int(length or 0))
        self._sized_blocks.enter(block, known)
        return known

    def _cache(self, block: bytes, header_block: HeaderBlock) -> None:
        is_ack, size = header_block.command == b"ACK", len(block)
        for line in (_RECEIPT_LINE, _ID_LINE if is_ack else _LENGTH_LINE):
            at = block.find(line)
            if at >= 0:
                block, _ = _cut(block, at + len(line))
        if len(block) > _LARGEST_CACHED_BLOCK or size - len(block) > _LONGEST_CUT:
            return
        if self._header_blocks is _NO_BLOCKS:
            self._header_blocks = BlockCache(_MOST_BYTES, _size_of_block)
            self._sized_blocks = BlockCache(_MOST_BYTES_SIZED, _size_of_sized_block)
            self._ack_blocks = BlockCache(_MOST_BYTES_OF_ACKS, _size_of_block)
            # The limits may only be raised.
            self._longest_receipt = min(_LONGEST_CUT, self.limits.header)
        blocks = self._ack_blocks if is_ack else self._header_blocks
        if block not in blocks and blocks.enter(block, header_block) and not is_ack:
            # They would keep the header blocks that had to go.
            self._sized_blocks.clear()

    # The slow path: it defines the grammar.

    def _slow_frame(self, start: int, end: int = -1) -> Frame | None:
        """``end``: where the two line feeds are that may be the end of the header block, if they were looked for."""
        chunk = self._chunk
        self._fast_start = -1
        head = self._head if start == 0 else None
        if head is None:
            body = end + 2
            if end < 0 or chunk.find(b"\r", start, end) >= 0:
                # Perhaps one of the two has a carriage return before it.
                found = _END_OF_BLOCK.search(chunk, start)
                if found is None:
                    self._keep_partial(start)
                    return None
                end, body = found.span()
            block = chunk[start:end]
            head = _Head(self._read_block(block), len(block), body - start)
        header_block, body = head.header_block, start + head.body
        length = self._content_length(header_block)
        stop = chunk.find(b"\0", body) if length is None else body + length
        if stop - start >= self.limits.frame:
            return self._skip_body(self._oversized(head), stop)
        if length is None and not 0 <= stop < len(chunk):
            self._keep_partial(start, head)
            return None
        headers, receipt = header_block.headers, header_block.headers.get(RECEIPT)
        if header_block.command == b"SEND":
            self._cache(chunk[start : start + head.end], header_block)
            frame = Frame(header_block, b"", receipt, headers.get(CONTENT_LENGTH))
            if stop >= len(chunk):
                self._await_body(frame, start, body, stop)
                return None
            if chunk[stop]:
                raise _no_nul()
            self._position = stop + 1
            frame.body = chunk[body:stop]
            return frame
        self._position = stop + 1
        if header_block.command == b"ACK" and ACK_ID in headers:
            self._cache(chunk[start : start + head.end], header_block)
        return Frame(header_block, b"", receipt)

    def _read_block(self, block: bytes) -> HeaderBlock:
        # Lines beyond the limit are not even split: there may be a million.
        limits = self.limits
        lines = block.split(b"\n", limits.lines + 1)
        if len(lines) > limits.lines + 1:
            raise self._too_many_lines()
        command = _command(lines[0])
        headers: dict[bytes, bytes] = {}
        is_bounded = len(block) <= limits.header and len(lines) <= limits.headers + 1
        # As most are: nothing in it is escaped, and no limit is reached. Of a repeated name the first value counts.
        is_plain = is_bounded and b"\\" not in block and b"\r" not in block
        put = headers.setdefault
        for line in lines[1:]:
            if is_plain:
                name, colon, value = line.partition(b":")
                if colon:
                    put(name, value)
                    continue
            self._read_header(line, headers)
        return _header_block(command, headers)

    def _read_header(self, line: bytes, headers: dict[bytes, bytes]) -> None:
        """Add the header of a line, unless it repeats a name."""
        name, value = split_line(line)
        limits = self.limits
        if len(name) > limits.header or len(value) > limits.header:
            raise FrameError(f"header {printable(name)} is longer than {limits.header} octets")
        if name not in headers:
            if len(headers) >= limits.headers:
                raise FrameError(f"more than {limits.headers} headers")
            headers[name] = value

    # Frames that arrive in pieces.

    def _keep_partial(self, start: int, head: _Head | None = None) -> None:
        """Keep the first part of a frame until more of it arrives; ``head`` if it is whole."""
        rest = self._chunk[start:]
        if rest == b"\r":
            # Perhaps half of a line's end between frames; the next byte tells.
            self._chunk, self._position = rest, 0
            return
        self._chunk, self._position = b"", 0
        partial = self._partial = _PartialFrame(head=head, searched=0 if head is None else head.body)
        self._grow(partial, rest)

    def _grow(self, partial: _PartialFrame, data: bytes) -> None:
        """Add bytes to a frame that is arriving."""
        partial.buffer += data
        if self._is_complete(partial):
            self._chunk, self._position, self._head, self._partial = bytes(partial.buffer), 0, partial.head, None
        elif len(partial.buffer) > self.limits.frame:
            self._partial = _SkippedBody(self._oversized(partial.head), None)

    def _skip_body(self, frame: OversizedFrame, stop: int) -> Frame | None:
        """Read on after the body, which is to end at ``stop``; the frame if it has arrived."""
        chunk = self._chunk
        if stop >= len(chunk):
            self._partial = _SkippedBody(frame, stop + 1 - len(chunk))
            self._chunk, self._position, self._head = b"", 0, None
            return None
        if chunk[stop]:
            raise _no_nul()
        self._position = stop + 1
        return frame

    def _oversized(self, head: _Head | None) -> OversizedFrame:
        """Decide about a frame that exceeds the limit: the frame that is handed out for a SEND that is too large.

        The fast paths leave every such frame to ``_slow_frame``.

        Raises:
            FrameError: such a SEND is an error, or the frame is not a SEND, or its headers are too large.
        """
        if head is None or not self.limits.skips_bodies or head.header_block.command != b"SEND":
            raise self._too_large()
        headers = head.header_block.headers
        # Another header block: what is cached on the one that is repeated would publish the frame.
        return OversizedFrame(HeaderBlock(b"SEND", headers), b"", headers.get(RECEIPT))

    def _unfinished(self, frame: Frame, start: int, body: int, stop: int) -> Frame | None:
        """Keep a frame whose header block is known and whose body has not arrived; any other takes the slow path."""
        if frame.length is None or stop < len(self._chunk) or stop - start >= self.limits.frame:
            return self._slow_frame(start)
        self._await_body(frame, start, body, stop)
        return None

    def _await_body(self, frame: Frame, start: int, body: int, stop: int) -> None:
        """Keep a frame that begins at ``start`` until its body has arrived, which is to end at ``stop``."""
        chunk = self._chunk
        piece = part_of(chunk, body, len(chunk))
        self._partial = _PartialBody(frame, len(chunk) - start, piece, stop + 1 - len(chunk))
        self._chunk, self._position, self._head = b"", 0, None

    def _take_whole(self, partial: _PartialFrame | _PartialBody) -> Frame | None:
        """Hand out the frame that came in pieces, if it is complete."""
        if isinstance(partial, _PartialFrame) or partial.missing:
            return None
        if partial.rest[partial.position]:
            raise _no_nul()
        self._partial, self._chunk, self._position, self._fast_start = None, partial.rest, partial.position + 1, -1
        return partial.frame

    def _is_complete(self, partial: _PartialFrame) -> bool:
        """Whether the whole frame is there, or if its length is known, its header block."""
        if partial.head is None:
            head = partial.head = self._arrived_head(partial)
            if head is None:
                return False
            length = self._content_length(head.header_block)
            if length is not None:
                if head.body + length >= self.limits.frame:
                    self._oversized(head)  # an error, or else it is skipped once the frame is looked at
                return True
            partial.searched = head.body
        if partial.buffer.find(b"\0", partial.searched) >= 0:
            return True
        partial.searched = len(partial.buffer)
        return False

    def _arrived_head(self, partial: _PartialFrame) -> _Head | None:
        """Read the header lines that are complete by now; all of them once the blank line is there."""
        buffer = partial.buffer
        while (end := buffer.find(b"\n", partial.searched)) >= 0:
            line = bytes(buffer[partial.line : end])
            if not partial.line:
                partial.command = _command(line)
            elif line in (b"", b"\r"):
                return _Head(_header_block(partial.command, partial.headers), partial.line - 1, end + 1)
            else:
                partial.lines += 1
                if partial.lines > self.limits.lines:
                    raise self._too_many_lines()
                self._read_header(line, partial.headers)
            partial.line = partial.searched = end + 1
        if not partial.line and len(buffer) > 1 and buffer[0] == _CARRIAGE_RETURN:
            # Between frames a line feed may still follow, but an endless wait for it must not hide the mistake.
            raise FrameError("a carriage return that is not followed by a line feed in a command")
        partial.searched = len(buffer)
        return None

    def _content_length(self, block: HeaderBlock) -> int | None:
        """The body's length as the headers state it. Like RabbitMQ's adapter, the gateway reads it on SEND only."""
        text = block.headers.get(CONTENT_LENGTH) if block.command == b"SEND" else None
        if text is None:
            return None
        length = read_integer(text)
        if length is None and self.limits.ignores_bad_lengths:
            return None
        if length is None or length < 0:
            raise FrameError(f"content-length {printable(text)} is not a number of octets")
        return length

    def _too_many_lines(self) -> FrameError:
        return FrameError(f"more than {self.limits.lines} header lines")

    def _too_large(self) -> FrameError:
        return FrameError(f"the frame is larger than {self.limits.frame} octets")


def _no_nul() -> FrameError:
    return FrameError("content-length is shorter than the body: no NUL where the body should end")


def _header_block(command: bytes, headers: dict[bytes, bytes]) -> HeaderBlock:
    volatile = [name for name in (RECEIPT, CONTENT_LENGTH) if name in headers] if command == b"SEND" else ()
    return HeaderBlock(command, headers, tuple(volatile))


def _size_of_block(block: bytes) -> int:
    """The bytes that a cached header block takes with what the session keeps on it, as measured."""
    return 1700 + 100 * block.count(b"\n") + 6 * len(block)


def _size_of_sized_block(block: bytes) -> int:
    return _OF_SIZED_BLOCK + len(block)


def _cut(block: bytes, at: int) -> tuple[bytes, bytes]:
    """Cut the rest of the line that begins at ``at`` out of the block; the block without it, and what was cut."""
    end = block.find(b"\n", at)
    if end < 0:
        return block[:at], block[at:]
    return block[:at] + block[end:], block[at:end]


def _command(line: bytes) -> bytes:
    if line.endswith(b"\r"):
        line = line[:-1]
    if b"\r" in line:
        raise FrameError("a carriage return that is not followed by a line feed in a command")
    if b" HTTP/" in line and _HTTP_REQUEST.fullmatch(line):
        raise HttpRequestError("HTTP is not spoken on this port")
    return line
