"""STOMP frames: as the decoder returns them, and the encoders of the gateway's own.

A producer sends the same header block over and over with another receipt and length, and a consumer's ACKs differ in
their ids. So the decoder parses such a block once, and frames share its `HeaderBlock`. The session keeps the
translation into AMQP in ``HeaderBlock.cached_publish``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from gateway.pieces import Body
from gateway.stomp.headers import escape, needs_escape, quoted

CLIENT_COMMANDS: Final = (
    b"CONNECT",
    b"STOMP",
    b"SEND",
    b"SUBSCRIBE",
    b"UNSUBSCRIBE",
    b"ACK",
    b"NACK",
    b"BEGIN",
    b"COMMIT",
    b"ABORT",
    b"DISCONNECT",
    b"TOKEN",  # an extension of the gateway
)

RECEIPT: Final = b"receipt"
CONTENT_LENGTH: Final = b"content-length"
ACK_ID: Final = b"id"


ReceiptAndBody = tuple[bytes | None, Body]
"""The parts in which similar SENDs differ: the value of the receipt header (None without one) and the body."""


class HeaderBlock:
    """Command and headers of a frame, shared by all frames with the same header block.

    Args:
        command: the bytes as received.
        headers: unescaped names to unescaped values, in the order of arrival. A repeated name has its first value
            (STOMP 1.2, "Repeated Header Entries").
        volatile: names of headers whose value differs from frame to frame. ``headers`` has the value of some frame.

    ``cached_publish`` is for the session; it is None at first.
    """

    __slots__ = ("cached_publish", "command", "headers", "volatile")

    def __init__(self, command: bytes, headers: dict[bytes, bytes], volatile: tuple[bytes, ...] = ()) -> None:
        self.command = command
        self.headers = headers
        self.volatile = volatile
        self.cached_publish: object = None


class Frame:
    """One STOMP frame from a client.

    Args:
        body: empty for every command but SEND.
        receipt: the unescaped value of the receipt header; None without one.
        length: the unescaped value of the content-length header; None without one.
    """

    __slots__ = ("body", "header_block", "length", "receipt")

    def __init__(
        self, header_block: HeaderBlock, body: Body = b"", receipt: bytes | None = None, length: bytes | None = None
    ) -> None:
        self.header_block = header_block
        self.body = body
        self.receipt = receipt
        self.length = length

    @property
    def command(self) -> bytes:
        """The command's bytes as received, for example ``b"SEND"``."""
        return self.header_block.command

    @property
    def headers(self) -> dict[bytes, bytes]:
        """All headers with the values of this frame."""
        if not self.header_block.volatile:
            return self.header_block.headers
        headers = dict(self.header_block.headers)
        if self.receipt is not None:
            headers[RECEIPT] = self.receipt
        if self.length is not None:
            headers[CONTENT_LENGTH] = self.length
        return headers

    def __repr__(self) -> str:
        # Header values stay out: they may hold a passcode.
        headers = len(self.header_block.headers)
        return f"<Frame {quoted(self.command)} with {headers} headers, {len(self.body)} bytes>"


class AckFrame(Frame):
    """An ACK that shares its header block with earlier ones. An unusual ACK, or the first of its kind, is a `Frame`.

    The id and receipt in ``header_block`` are those of another ACK. ``ack_id`` is the unescaped value of the id header.
    """

    __slots__ = ("ack_id",)

    def __init__(self, header_block: HeaderBlock, ack_id: bytes, receipt: bytes | None) -> None:
        super().__init__(header_block, b"", receipt)
        self.ack_id = ack_id

    @property
    def headers(self) -> dict[bytes, bytes]:
        """All headers with the values of this frame."""
        headers = {**self.header_block.headers, ACK_ID: self.ack_id}
        if self.receipt is not None:
            headers[RECEIPT] = self.receipt
        return headers


class OversizedFrame(Frame):
    """A SEND that exceeded the frame limit. Its body was dropped."""

    __slots__ = ()


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header lines, each with its LF, from pairs of unescaped name and value."""
    pairs = tuple(headers)
    if needs_escape(b"".join(chain.from_iterable(pairs))):
        return b"".join([b"%b:%b\n" % (escape(name), escape(value)) for name, value in pairs])
    return b"".join([b"%b:%b\n" % pair for pair in pairs])


def encode(command: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Encode one frame (STOMP 1.2, "STOMP Frames"), with an LF after its NUL.

    ``headers`` are pairs of unescaped name and value, without content-length.
    """
    length = b"content-length:%d\n" % len(body) if body else b""
    return b"".join((command, b"\n", encode_headers(headers), length, b"\n", body, b"\0\n"))


def encode_receipt(receipt: bytes) -> bytes:
    """Encode the RECEIPT for a frame's receipt header, unescaped. HOT: once per confirmed SEND."""
    return b"RECEIPT\nreceipt-id:%b\n\n\0\n" % escape(receipt)
