"""Bytes to frames, for any split of the byte stream (STOMP 1.2, "Augmented BNF"; one grammar for all versions).

How it works. ``feed`` takes what the socket gave, ``next_frame`` hands out one frame after the other until it needs
more. Whole frames are read straight from the chunk they came in. The rest of a chunk is *parked* in a growing buffer
together with what is known about it, so that no byte is searched twice however small the pieces are:

* the header lines so far were read one by one (a bad line is an error at once, not at the end of the frame);
* with a content-length, the size at which the frame will be complete is known and nothing is searched at all;
* without one, only the new bytes are searched for the NUL.

Speed. A producer repeats its header block, so SEND blocks are looked up by their own bytes in two bounded tables: the
block without the value of ``receipt`` (messages of one size), and, failing that, without the value of
``content-length`` either. Everything else takes the slow path, which alone defines the meaning;
``tests/property/test_decoder.py`` holds the two equal.

Limits are checked while a frame is still arriving, so memory stays bounded by the limit and one read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import FrameError, TlsOctetsError
from gateway.stomp.frame import CONTENT_LENGTH, RECEIPT, Frame, HeaderBlock
from gateway.stomp.headers import printable, read_integer, split_line

# Between frames any number of NUL, LF and CR LF may stand: heart-beats, and the line's end that may follow a frame.
# Possessive, since a flood of them would otherwise cost a hundred bytes of matcher state for each.
_BETWEEN_FRAMES: Final = re.compile(rb"(?:[\n\0]++|\r\n)*+")
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_CARRIAGE_RETURN: Final = 0x0D
_LINE_FEED: Final = 0x0A
_FIRST_OF_SEND: Final = ord("S")
# What a TLS handshake begins with (RFC 8446, 5.1). No command does.
_FIRST_OF_TLS: Final = 0x16

# A connection remembers this many header blocks of this size at most: enough for a producer that serves some dozens of
# destinations, and small beside the connection itself.
_REMEMBERED: Final = 64
_REMEMBERED_OCTETS: Final = 2048

# Digits of a length that the fast path reads; more are longer than any frame, or zeros that the slow path may judge.
_LONGEST_LENGTH: Final = 9

_RECEIPT_LINE: Final = b"\nreceipt:"
_LENGTH_LINE: Final = b"\ncontent-length:"


@dataclass(slots=True)
class Limits:
    """What a client may send, in bytes and in numbers.

    ``frame`` bounds a whole frame, ``headers`` the distinct headers in it, ``header`` each name and each value. They
    may be raised between frames: a client that has logged in is trusted with more.
    """

    frame: int = 4 * 1024 * 1024
    headers: int = 100
    header: int = 100 * 1024


@dataclass(slots=True, repr=False)
class _Parked:
    """What is known about the frame whose first part lies in ``buffer``. No repr: it may hold a passcode."""

    buffer: bytearray
    line: int = 0  # where the line of the head starts that is not complete yet
    searched: int = 0  # bytes before this hold no end of that line, or no NUL once the head is complete
    needed: int = 0  # size at which the frame is complete; 0 while unknown
    in_body: bool = False
    command: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


class Decoder:
    """Reads the frames of one client.

    Args:
        limits: bounds, shared with the owner, who may raise them between frames.
    """

    __slots__ = ("_blocks", "_chunk", "_heads", "_parked", "_position", "limits")

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._chunk = b""
        self._position = 0
        self._parked: _Parked | None = None
        # Heads by their block without the values of receipt and content-length; and the same once more by the block
        # with its content-length, next to the length's text and number.
        self._heads: dict[bytes, HeaderBlock] = {}
        self._blocks: dict[bytes, tuple[HeaderBlock, bytes | None, int]] = {}

    @property
    def buffered(self) -> int:
        """Bytes received that belong to no frame handed out yet."""
        waiting = len(self._chunk) - self._position
        return waiting + (len(self._parked.buffer) if self._parked else 0)

    def feed(self, octets: bytes) -> None:
        """Take bytes from the client.

        Args:
            octets: what one read of the socket gave, any length.

        Raises:
            FrameError: when the frame that is arriving is malformed already, or exceeds a limit.
        """
        parked = self._parked
        if parked is None:
            # Frames may be waiting while the owner does not ask for them; normally nothing is left here.
            left = len(self._chunk) - self._position
            self._chunk = self._chunk[self._position :] + octets if left else octets
            self._position = 0
            return
        parked.buffer += octets
        if self._is_complete(parked):
            self._chunk, self._position, self._parked = bytes(parked.buffer), 0, None
        elif len(parked.buffer) > self.limits.frame:
            raise self._too_large()

    def next_frame(self) -> Frame | None:  # noqa: PLR0911 - hot: in one piece, since every call costs
        """Hand out the next complete frame.

        HOT: one call per frame. A whole SEND whose header block is known costs two searches, a table look-up and a
        slice. ``_slow_frame`` is the slow twin; anything unusual is left to it.

        Returns:
            The frame, or None when more bytes are needed.

        Raises:
            FrameError: on any violation of the grammar or a limit. The stream cannot be read any further.
        """
        chunk = self._chunk
        start = self._position
        size = len(chunk)
        if start < size and chunk[start] == _LINE_FEED:  # most clients send one behind each frame
            start += 1
        if start < size and chunk[start] <= _FIRST_OF_TLS:
            start = self._between_frames(start)
        if start >= size:
            self._chunk, self._position = b"", 0
            return None
        if chunk[start] != _FIRST_OF_SEND:
            return self._slow_frame(start)
        # The search is bounded, or lines that end in CR LF would cost a search of the whole chunk for each frame.
        end = chunk.find(b"\n\n", start, start + _REMEMBERED_OCTETS)
        if end < 0:
            return self._slow_frame(start)
        block = chunk[start:end]
        receipt = None
        at = block.find(_RECEIPT_LINE)
        if at >= 0:
            block, receipt = _cut(block, at + len(_RECEIPT_LINE))
            if b"\\" in receipt or b"\r" in receipt or len(receipt) > self.limits.header:
                return self._slow_frame(start)
        known = self._blocks.get(block) or self._recall(block)
        if known is None:
            return self._slow_frame(start)
        head, length, body_size = known
        body = end + 2
        stop = chunk.find(b"\0", body) if length is None else body + body_size
        if not 0 < stop < size or chunk[stop] or stop - start >= self.limits.frame:
            return self._slow_frame(start)
        self._position = stop + 1
        return Frame(head, chunk[body:stop], receipt, length)

    def _between_frames(self, start: int) -> int:
        """Where the next frame begins, or the end of the chunk."""
        found = _BETWEEN_FRAMES.match(self._chunk, start)
        start = found.end() if found else start
        if start < len(self._chunk) and self._chunk[start] == _FIRST_OF_TLS:
            raise TlsOctetsError("TLS is not spoken on this port")
        return start

    def _recall(self, block: bytes) -> tuple[HeaderBlock, bytes | None, int] | None:
        """Look up a block without its receipt: head, text of the length, size of the body; None when unknown."""
        at = block.find(_LENGTH_LINE)
        if at < 0:
            head, length = self._heads.get(block), None
        else:
            key, length = _cut(block, at + len(_LENGTH_LINE))
            head = self._heads.get(key) if length.isdigit() and len(length) <= _LONGEST_LENGTH else None
        if head is None:
            return None
        if len(self._blocks) >= _REMEMBERED:
            self._blocks.clear()
        known = self._blocks[block] = (head, length, int(length or 0))
        return known

    def _remember(self, block: bytes, head: HeaderBlock) -> None:
        """Keep the head of a SEND for the next one with the same block."""
        for line in (_RECEIPT_LINE, _LENGTH_LINE):
            at = block.find(line)
            if at >= 0:
                block, _ = _cut(block, at + len(line))
        if len(block) > _REMEMBERED_OCTETS:
            return
        if len(self._heads) >= _REMEMBERED:
            self._heads.clear()
        self._heads[block] = head

    # The slow path: it defines the grammar.

    def _slow_frame(self, start: int) -> Frame | None:
        chunk = self._chunk
        found = _END_OF_HEAD.search(chunk, start)
        if found is None:
            self._park(start)
            return None
        block = chunk[start : found.start()]
        head = self._read_head(block)
        body = found.end()
        length = _content_length(head.command, head.headers)
        stop = chunk.find(b"\0", body) if length is None else body + length
        if stop - start >= self.limits.frame:
            raise self._too_large()
        if stop < 0 or stop >= len(chunk):
            self._park(start)
            return None
        if chunk[stop]:
            raise FrameError("content-length is shorter than the body: no NUL where the body should end")
        self._position = stop + 1
        if head.command != b"SEND":
            return Frame(head, b"", head.headers.get(RECEIPT))
        self._remember(block, head)
        return Frame(head, chunk[body:stop], head.headers.get(RECEIPT), head.headers.get(CONTENT_LENGTH))

    def _read_head(self, block: bytes) -> HeaderBlock:
        lines = block.split(b"\n")
        command = _command(lines[0])
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            self._read_header(line, headers)
        volatile = [name for name in (RECEIPT, CONTENT_LENGTH) if name in headers] if command == b"SEND" else ()
        return HeaderBlock(command, headers, tuple(volatile))

    def _read_header(self, line: bytes, headers: dict[bytes, bytes]) -> None:
        """Add the header of a line, unless there is one of that name."""
        name, value = split_line(line)
        limits = self.limits
        if len(name) > limits.header or len(value) > limits.header:
            raise FrameError(f"header {printable(name)} is longer than {limits.header} octets")
        if name not in headers:
            if len(headers) >= limits.headers:
                raise FrameError(f"more than {limits.headers} headers")
            headers[name] = value

    # Frames that arrive in pieces.

    def _park(self, start: int) -> None:
        """Set aside an incomplete frame."""
        rest = self._chunk[start:]
        if rest == b"\r":
            # Perhaps half of a line's end between frames; the next byte tells.
            self._chunk, self._position = rest, 0
            return
        self._chunk, self._position = b"", 0
        self._parked = _Parked(bytearray(rest))
        self._is_complete(self._parked)  # it is not; this takes note of what has arrived
        if len(rest) > self.limits.frame:
            raise self._too_large()

    def _is_complete(self, parked: _Parked) -> bool:
        if not parked.in_body and not self._head_arrived(parked):
            return False
        if parked.needed:
            return len(parked.buffer) >= parked.needed
        if parked.buffer.find(b"\0", parked.searched) >= 0:
            return True
        parked.searched = len(parked.buffer)
        return False

    def _head_arrived(self, parked: _Parked) -> bool:
        """Read the lines of the head that are complete by now; True once the blank line was among them."""
        buffer = parked.buffer
        while (end := buffer.find(b"\n", parked.searched)) >= 0:
            line = bytes(buffer[parked.line : end])
            if not parked.line:
                parked.command = _command(line)
            elif line in (b"", b"\r"):
                length = _content_length(parked.command, parked.headers)
                parked.needed = 0 if length is None else end + 1 + length + 1
                if parked.needed > self.limits.frame:
                    raise self._too_large()
                parked.in_body = True
                parked.searched = end + 1
                parked.headers.clear()
                return True
            else:
                self._read_header(line, parked.headers)
            parked.line = parked.searched = end + 1
        if not parked.line and len(buffer) > 1 and buffer[0] == _CARRIAGE_RETURN:
            # Between frames, and nothing says that a line feed will ever come to tell so.
            raise FrameError("a carriage return that is not followed by a line feed in a command")
        parked.searched = len(buffer)
        return False

    def _too_large(self) -> FrameError:
        return FrameError(f"the frame is larger than {self.limits.frame} octets")


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
    return line


def _content_length(command: bytes, headers: dict[bytes, bytes]) -> int | None:
    """The body's length as the head states it. RabbitMQ's adapter looks at it on SEND only, and so do we."""
    text = headers.get(CONTENT_LENGTH) if command == b"SEND" else None
    if text is None:
        return None
    length = read_integer(text)
    if length is None or length < 0:
        raise FrameError(f"content-length {printable(text)} is not a number of octets")
    return length
