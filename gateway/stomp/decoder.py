"""Bytes to frames, for any split of the byte stream (STOMP 1.2, "Augmented BNF"; one grammar for all versions).

How it works. ``feed`` takes the bytes of one read, and ``next_frame`` returns one frame after the other until it needs
more bytes. A frame that is whole in one read is parsed in place. An incomplete frame is kept in a growing buffer with
the state of the search, so no byte is searched twice, however small the pieces are:

* each complete header line is read at once, so a bad line is an error before the frame ends;
* without a content-length, only new bytes are searched for the NUL;
* with a content-length, nothing is searched: the rest of the body is collected as it arrives.

Speed. A producer repeats its header block, so SEND blocks are looked up by their bytes in two bounded caches: first
without the value of ``receipt``, which finds messages of the same size, and then without the value of
``content-length``, too. ``take_sends`` finds further SENDs with the same block by comparison alone. A consumer
repeats its ACKs, so their blocks are looked up without the values of ``receipt`` and ``id``. Everything else takes the
slow path, which alone defines the meaning. ``tests/property/test_decoder.py`` keeps fast and slow path equal.

Limits are checked while a frame arrives, so the memory of a decoder is bounded by the frame limit and one read.
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
from gateway.stomp.headers import quoted, read_integer, split_line

# Heart-beats, and the line ends that clients send after a frame. The quantifiers are possessive because the matcher
# would otherwise keep a hundred bytes of state for each.
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

# The size of the largest header block that a connection caches, and of the values that are cut out of a block's first
# frame and stay with it, all in bytes. The caches suffice for a producer that sends to a thousand destinations in turn.
_LARGEST_CACHED_BLOCK: Final = 2048
_LONGEST_CUT: Final = 256
_MOST_BYTES: Final = 4 << 20
_MOST_BYTES_OF_ACKS: Final = 384 << 10
_MOST_BYTES_SIZED: Final = 512 << 10
_OF_SIZED_BLOCK: Final = 350

# Stands for all caches that are still empty. Nothing is ever stored in it.
_NO_BLOCKS: Final[BlockCache[Any]] = BlockCache(0, len)

# Smaller pieces of a body are joined on arrival, because an object each would take more memory than the bytes.
_LEAST_PIECE: Final = 4096

# The most digits of a content-length that the fast path reads. The slow path handles longer ones.
_LONGEST_LENGTH: Final = 9

_RECEIPT_LINE: Final = b"\nreceipt:"
_LENGTH_LINE: Final = b"\ncontent-length:"
_ID_LINE: Final = b"\nid:"

# The most digits of a delivery tag, which has 64 bits.
_LONGEST_NUMBER: Final = 20


@dataclass(slots=True)
class FrameLimits:
    """The limits for the frames of one client.

    ``frame`` and the two switches may change between frames, as after a login. The others stay.

    Args:
        frame: bytes of a whole frame.
        headers: distinct headers of a frame.
        header: bytes of each name and of each value.
        lines: header lines of a frame, including those that repeat a name.
        skips_bodies: a SEND with a body that is too large is not an error. Its body is read and dropped, and the
            decoder returns an `OversizedFrame`.
        ignores_bad_lengths: a content-length that is not a number is treated as absent.
    """

    frame: int = 4 * 1024 * 1024
    headers: int = 100
    header: int = 100 * 1024
    lines: int = 1000
    skips_bodies: bool = False
    ignores_bad_lengths: bool = False


class _Head(NamedTuple):
    """The parsed header block of a frame that is arriving. ``end`` and ``body`` are offsets from the frame's start.

    It is parsed only once, because a block of megabytes may take the whole time of a turn.
    """

    header_block: HeaderBlock
    end: int
    body: int


@dataclass(slots=True, repr=False)
class _PartialFrame:
    """A frame whose first part is in ``buffer``. It has no repr, because the buffer may contain a passcode."""

    buffer: bytearray = field(default_factory=bytearray)
    line: int = 0  # the start of the incomplete header line
    searched: int = 0  # no LF between `line` and here; after the header block, no NUL between the body's start and here
    head: _Head | None = None  # set when the blank line has arrived
    command: bytes = b""
    lines: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.buffer)


class _PartialBody:
    """A frame with a content-length whose body is arriving.

    Args:
        frame: its ``body`` is set when the body is complete.
        size: the number of bytes of the frame that have arrived.
        piece: the bytes of its body that have arrived.
        missing: the number of bytes that have not arrived, including the NUL.
    """

    __slots__ = ("_pieces", "frame", "missing", "position", "rest", "size")

    def __init__(self, frame: Frame, size: int, piece: Piece, missing: int) -> None:
        self.size = size
        self.frame = frame
        self.missing = missing
        self._pieces: list[Piece] = [piece]
        # The read in which the frame ends, with all later bytes, and where in it the NUL should be.
        self.rest = b""
        self.position = 0

    def feed(self, data: bytes) -> None:
        """Take the bytes of one read. HOT: once per read of a large body."""
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
    """A SEND that is too large. Its body is read and dropped.

    Args:
        missing: None if the body ends at the next NUL. The attribute is then 1 until that NUL arrives.
    """

    __slots__ = ("ends_with_nul",)

    def __init__(self, frame: Frame, missing: int | None) -> None:
        # What is dropped does not count in ``size``. It is not 0, because a frame is arriving.
        super().__init__(frame, 1, b"", missing or 1)
        self.ends_with_nul = missing is None

    def feed(self, data: bytes) -> None:
        end = data.find(b"\0") if self.ends_with_nul else self.missing - 1
        if not self.missing:
            self.rest += data
        elif 0 <= end < len(data):
            self.missing, self.rest, self.position = 0, data, end
        elif not self.ends_with_nul:
            self.missing -= len(data)
        self.size = 1 + len(self.rest)


class Decoder:
    """Reads the frames of one client. See `FrameLimits` for which of its ``limits`` may change between frames."""

    __slots__ = (
        "_ack_blocks", "_chunk", "_fast_start", "_head", "_header_blocks", "_longest_receipt", "_partial",
        "_position", "_sized_blocks", "limits",
    )  # fmt: skip

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self.limits = limits or FrameLimits()
        self._chunk = b""
        self._position = 0
        self._partial: _PartialFrame | _PartialBody | None = None
        # The header block of the frame at the start of the chunk, if it is parsed already.
        self._head: _Head | None = None
        # _header_blocks: by the bytes of the block without the values of receipt and content-length. _sized_blocks:
        # without the value of receipt only, with the length's text and number. _ack_blocks: without the values of
        # receipt and id. Created for the first block, because many clients are idle for long.
        self._header_blocks: BlockCache[HeaderBlock] = _NO_BLOCKS
        self._sized_blocks: BlockCache[tuple[HeaderBlock, bytes | None, int]] = _NO_BLOCKS
        self._ack_blocks: BlockCache[HeaderBlock] = _NO_BLOCKS
        # The most bytes of a receipt on the fast path, which bounds what is kept of the last SEND of each block.
        self._longest_receipt = 0
        # Where the last frame on the fast path began; -1 if the last frame took the slow path.
        self._fast_start = -1

    @property
    def buffered(self) -> int:
        """The number of bytes received after the last frame that was returned."""
        waiting = len(self._chunk) - self._position
        return waiting + (self._partial.size if self._partial else 0)

    @property
    def unread(self) -> tuple[int | None, bytes]:
        """The number of bytes that an arriving body lacks, and the unparsed bytes.

        The number is None while the decoder skips a body that ends at the next NUL.
        """
        partial = self._partial
        if isinstance(partial, _PartialBody):
            is_endless = isinstance(partial, _SkippedBody) and partial.ends_with_nul and partial.missing
            return None if is_endless else partial.missing, partial.rest[partial.position + 1 :]
        return 0, self._chunk[self._position :] if partial is None else bytes(partial.buffer)

    def take_over(self, other: Decoder) -> None:
        """Continue where another decoder stopped. Do not use the other one afterwards."""
        for name in Decoder.__slots__:
            setattr(self, name, getattr(other, name))

    def feed(self, data: bytes) -> None:
        """Take the bytes of one read. Raises FrameError if the incomplete frame is malformed, or exceeds a limit."""
        partial = self._partial
        if partial is None:
            self._head = None
            # A held session leaves frames here. Normally nothing is left.
            left = len(self._chunk) - self._position
            self._chunk = self._chunk[self._position :] + data if left else data
            self._position = 0
            return
        if isinstance(partial, _PartialBody):
            partial.feed(data)
            return
        self._grow(partial, data)

    def next_frame(self) -> Frame | None:  # noqa: PLR0911 - hot: in one piece, since every call costs
        """Return the next complete frame, or None if more bytes are needed.

        HOT: one call per frame. A whole SEND whose header block is cached costs two searches, a look-up and a slice.
        ``_slow_frame`` is the slow twin, and handles everything unusual.

        Raises:
            FrameError: the bytes violate the grammar or a limit. The decoder cannot be used any further.
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
        # The search is bounded because of clients that end lines with CR LF: each frame would search the whole chunk.
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
        """Take up to ``most`` following SENDs that differ from ``frame``, the last one, only in body and receipt.

        HOT: once per SEND, or once for many. Each SEND that is taken costs a comparison and a slice or two.

        Returns:
            Receipt and body of each, until the bodies have ``most_bytes``. All receipts are as long as that of
            ``frame``, so the encoded headers are, too.
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
        """Return an ACK whose header block is cached. Its id and receipt may differ from the cached ones.

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
        """Skip up to ``most`` following ACKs that equal the last one, except that each acknowledges the next delivery.

        HOT: once per ACK that is followed by others. Each skipped ACK costs a comparison. ``number``: the delivery tag
        of ``frame``, the last ACK: the digits at the end of its id, without leading zeros. Returns the number of
        skipped ACKs.
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
        """Look up a block without its receipt. Returns the header block, the length's text, and the body's size."""
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
            # Computed once, since this limit does not change.
            self._longest_receipt = min(_LONGEST_CUT, self.limits.header)
        blocks = self._ack_blocks if is_ack else self._header_blocks
        if block not in blocks and blocks.enter(block, header_block) and not is_ack:
            # It would keep evicted header blocks in memory.
            self._sized_blocks.clear()

    # The slow path: it defines the grammar.

    def _slow_frame(self, start: int, end: int = -1) -> Frame | None:
        """Read the frame that begins at ``start``. ``end``: where its first two line feeds are, if already known."""
        chunk = self._chunk
        self._fast_start = -1
        head = self._head if start == 0 else None
        if head is None:
            body = end + 2
            if end < 0 or chunk.find(b"\r", start, end) >= 0:
                # The blank line may end with CR LF.
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
        # Do not split lines beyond the limit: there may be a million.
        limits = self.limits
        lines = block.split(b"\n", limits.lines + 1)
        if len(lines) > limits.lines + 1:
            raise self._too_many_lines()
        command = _command(lines[0])
        headers: dict[bytes, bytes] = {}
        is_bounded = len(block) <= limits.header and len(lines) <= limits.headers + 1
        # Most blocks have no escapes and are within all limits.
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
            raise FrameError(f"header {quoted(name)} is longer than {limits.header} octets")
        if name not in headers:
            if len(headers) >= limits.headers:
                raise FrameError(f"more than {limits.headers} headers")
            headers[name] = value

    # Frames that arrive in pieces.

    def _keep_partial(self, start: int, head: _Head | None = None) -> None:
        """Keep the first part of a frame until more arrives. ``head``: its header block, if that is complete."""
        rest = self._chunk[start:]
        if rest == b"\r":
            # It may be the first half of a CR LF between frames.
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
            # The limit includes the NUL. Elsewhere what is compared ends before the NUL, hence `>=`. Here the NUL has
            # not come. If the frame is too large only because of it, `_slow_frame` finds that out.
            self._partial = _SkippedBody(self._oversized(partial.head), None)

    def _skip_body(self, frame: OversizedFrame, stop: int) -> Frame | None:
        """Skip the body, which ends at ``stop``. Returns the frame if the whole body has arrived."""
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
        """Decide about a frame that exceeds the limit. The fast paths leave every such frame to ``_slow_frame``.

        Returns the frame to return for a SEND, if the limits let its body be skipped. Raises FrameError for any other
        command, for headers that are too large, or if bodies are not skipped.
        """
        if head is None or not self.limits.skips_bodies or head.header_block.command != b"SEND":
            raise self._too_large()
        headers = head.header_block.headers
        # A new header block: with the cached one, the session would find a cached publish and publish the frame.
        return OversizedFrame(HeaderBlock(b"SEND", headers), b"", headers.get(RECEIPT))

    def _unfinished(self, frame: Frame, start: int, body: int, stop: int) -> Frame | None:
        """Keep a frame with a cached header block until its body has arrived. Any other frame takes the slow path."""
        if frame.length is None or stop < len(self._chunk) or stop - start >= self.limits.frame:
            return self._slow_frame(start)
        self._await_body(frame, start, body, stop)
        return None

    def _await_body(self, frame: Frame, start: int, body: int, stop: int) -> None:
        """Keep the frame that begins at ``start`` until its body, which ends at ``stop``, has arrived."""
        chunk = self._chunk
        piece = part_of(chunk, body, len(chunk))
        self._partial = _PartialBody(frame, len(chunk) - start, piece, stop + 1 - len(chunk))
        self._chunk, self._position, self._head = b"", 0, None

    def _take_whole(self, partial: _PartialFrame | _PartialBody) -> Frame | None:
        """Return the frame that arrived in pieces, or None if it is incomplete."""
        if isinstance(partial, _PartialFrame) or partial.missing:
            return None
        if partial.rest[partial.position]:
            raise _no_nul()
        self._partial, self._chunk, self._position, self._fast_start = None, partial.rest, partial.position + 1, -1
        return partial.frame

    def _is_complete(self, partial: _PartialFrame) -> bool:
        """Whether the frame is complete; for a frame with a content-length, whether its header block is."""
        if partial.head is None:
            head = partial.head = self._arrived_head(partial)
            if head is None:
                return False
            length = self._content_length(head.header_block)
            if length is not None:
                if head.body + length >= self.limits.frame:
                    self._oversized(head)  # raises, unless next_frame may skip the body
                return True
            partial.searched = head.body
        if partial.buffer.find(b"\0", partial.searched) >= 0:
            return True
        partial.searched = len(partial.buffer)
        return False

    def _arrived_head(self, partial: _PartialFrame) -> _Head | None:
        """Read the complete header lines. Returns the header block once the blank line has arrived."""
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
            # Report it now: the LF at the end of this line may never arrive.
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
            raise FrameError(f"content-length {quoted(text)} is not a number of octets")
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
    """The memory in bytes, as measured, that a cached header block takes together with its cached publish."""
    return 1700 + 100 * block.count(b"\n") + 6 * len(block)


def _size_of_sized_block(block: bytes) -> int:
    return _OF_SIZED_BLOCK + len(block)


def _cut(block: bytes, at: int) -> tuple[bytes, bytes]:
    """Cut out the rest of a line, from ``at`` on. Returns the block without it, and the bytes that were cut."""
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
