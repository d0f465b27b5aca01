"""Frames to bytes, in the layout of RabbitMQ's adapter.

Command, headers, a content-length only for a body, a blank line, the body, NUL and one more LF. Names and values are
escaped in every version of STOMP. MESSAGE frames are not built here but by the subscription that sends them, from parts
it prepared (the hot path); their twin for tests is ``encode``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.stomp.headers import escape


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header lines, each with its LF.

    Args:
        headers: pairs of name and value, unescaped bytes, in the order wanted on the wire.

    Returns:
        The lines, escaped.
    """
    return b"".join([b"%b:%b\n" % (escape(name), escape(value)) for name, value in headers])


def encode(command: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Encode one frame (STOMP 1.2, "STOMP Frames").

    Args:
        command: for example ``b"CONNECTED"``.
        headers: pairs of name and value, unescaped; without content-length.
        body: the bytes of the body.

    Returns:
        The frame's bytes, with the LF that follows the NUL.
    """
    length = b"content-length:%d\n" % len(body) if body else b""
    return b"".join((command, b"\n", encode_headers(headers), length, b"\n", body, b"\0\n"))


def encode_receipt(receipt: bytes) -> bytes:
    """Encode the RECEIPT for a frame's receipt header.

    Args:
        receipt: the header's value, unescaped.

    Returns:
        The frame's bytes.
    """
    return b"RECEIPT\nreceipt-id:%b\n\n\0\n" % escape(receipt)
