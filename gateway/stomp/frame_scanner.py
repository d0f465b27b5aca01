"""Reads command, headers and body size of passing frames, for the passive proxy and for traces.

It reads the frames of clients and of servers, of any size, in bounded memory: it keeps a header block up to a limit,
and only counts the bytes of a body. ``tests/property/test_frame_scanner.py`` keeps it equal to `Decoder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.errors import FrameError, GatewayError
from gateway.stomp.headers import read_integer, split_line

_BETWEEN_FRAMES: Final = re.compile(rb"[\n\0\r]*+")
_END_OF_BLOCK: Final = re.compile(rb"\n\r?\n")
_NOT_IN_COMMANDS: Final = re.compile(rb"[^A-Za-z]")

_MAX_BLOCK: Final = 256 * 1024
"""The largest header block in bytes. With a larger one the stream is not readable."""

# As in `Decoder`: producers repeat their header blocks.
_CACHED_BLOCKS: Final = 64
_LARGEST_CACHED_BLOCK: Final = 2048

Block = tuple[bytes, dict[bytes, bytes], int | None]
"""The command, the unescaped headers with the first value of each name, and the content-length or None."""


class UnreadableStreamError(GatewayError):
    """The stream is not STOMP, or exceeds a bound. The text never shows a header's value."""


class ScannedFrame(NamedTuple):
    """A frame that has passed. Headers are unescaped; ``size`` is the size of the body in bytes."""

    command: bytes
    headers: dict[bytes, bytes]
    size: int


class FrameScanner:
    """Reads one direction of one connection.

    Args:
        from_client: true for frames of a client. Their content-length matters on SEND only, as in RabbitMQ; in frames
            of a server it always does.
    """

    def __init__(self, *, from_client: bool) -> None:
        self._from_client = from_client
        self._cache: dict[bytes, Block] = {}
        # An incomplete header block.
        self._arriving = bytearray()
        # After that, the frame whose body is arriving: the bytes that have arrived, and the bytes still to come; None
        # if the body ends at the next NUL.
        self._block: Block | None = None
        self._size = 0
        self._left: int | None = None

    @property
    def unfinished(self) -> ScannedFrame | None:
        """The incomplete frame, with the number of bytes that have arrived.

        Until its header block is complete, the command is empty and the bytes are those of the block.
        """
        if self._block is not None:
            return ScannedFrame(self._block[0], self._block[1], self._size)
        return ScannedFrame(b"", {}, len(self._arriving)) if self._arriving else None

    def scan(self, data: bytes) -> Iterator[ScannedFrame]:
        """Yield the frames that end within ``data``, the bytes of one read. HOT: one step per frame.

        Raises:
            UnreadableStreamError: the stream is not STOMP. The scanner cannot be used any further.
        """
        at, end = 0, len(data)
        while at < end:
            if self._block is None:
                at = self._read_block(data, at)
                continue
            at = self._pass_body(data, at)
            if at <= end and self._left == -1:
                command, headers, _ = self._block
                self._block = None
                yield ScannedFrame(command, headers, self._size)

    def _read_block(self, data: bytes, at: int) -> int:
        """Read a header block, as far as it has arrived. Returns the position after it."""
        arriving = self._arriving
        if not arriving:
            found = _BETWEEN_FRAMES.match(data, at)
            at = found.end() if found else at
            stop = _END_OF_BLOCK.search(data, at)
            if stop is not None:
                self._begin_body(data[at : stop.start()])
                return stop.end()
            arriving += data[at:]
        else:
            searched = max(0, len(arriving) - 2)
            before = len(arriving)
            arriving += data[at:]
            stop = _END_OF_BLOCK.search(arriving, searched)
            if stop is not None:
                block, at = bytes(arriving[: stop.start()]), at + stop.end() - before
                arriving.clear()
                self._begin_body(block)
                return at
        if len(arriving) > _MAX_BLOCK:
            raise UnreadableStreamError(f"a header block of more than {_MAX_BLOCK} bytes")
        return len(data)

    def _begin_body(self, block: bytes) -> None:
        found = self._cache.get(block)
        if found is None:
            if len(block) > _MAX_BLOCK:
                raise UnreadableStreamError(f"a header block of more than {_MAX_BLOCK} bytes")
            found = self._parsed(block)
            if len(block) <= _LARGEST_CACHED_BLOCK:
                if len(self._cache) >= _CACHED_BLOCKS:
                    self._cache.clear()
                self._cache[block] = found
        self._block, self._size, self._left = found, 0, found[2]

    def _parsed(self, block: bytes) -> Block:
        first, *lines = block.split(b"\n")
        command = first.removesuffix(b"\r")
        if not command or _NOT_IN_COMMANDS.search(command):
            raise UnreadableStreamError("this is not a STOMP command")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, value = _split(line)
            headers.setdefault(name, value)
        has_length = command == b"SEND" or not self._from_client
        text = headers.get(b"content-length") if has_length else None
        if text is None:
            return command, headers, None
        length = read_integer(text)
        if length is None or length < 0:
            raise UnreadableStreamError("the content-length is not a number")
        return command, headers, length

    def _pass_body(self, data: bytes, at: int) -> int:
        """Skip a body and its NUL, as far as they have arrived. After the NUL, ``_left`` is -1."""
        if self._left is None:
            stop = data.find(b"\0", at)
            self._size += (len(data) if stop < 0 else stop) - at
            if stop < 0:
                return len(data)
        else:
            passed = min(self._left, len(data) - at)
            self._size += passed
            self._left -= passed
            stop = at + passed
            if stop == len(data):
                return stop
            if data[stop]:
                raise UnreadableStreamError("the content-length is shorter than the body")
        self._left = -1
        return stop + 1


def _split(line: bytes) -> tuple[bytes, bytes]:
    """Name and value of a header line. Undefined escapes are kept, because servers write them in message ids."""
    try:
        return split_line(line)
    except FrameError as error:
        text = line.removesuffix(b"\r")
        name, colon, value = text.partition(b":")
        if not colon or b"\r" in text:
            raise UnreadableStreamError(str(error)) from None
        return name, value
