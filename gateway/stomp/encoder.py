"""Frames to bytes, in the layout of RabbitMQ's adapter.

Command, headers, a content-length only for a body, a blank line, the body, NUL and one more LF. Names and values are
escaped in every version of STOMP. MESSAGE frames, the hot path, are built by their subscription from prepared parts;
``encode`` is their slow twin.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from gateway.stomp.headers import escape, needs_escape


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header lines, each with its LF, from pairs of unescaped name and value."""
    pairs = tuple(headers)
    if needs_escape(b"".join(chain.from_iterable(pairs))):
        return b"".join([b"%b:%b\n" % (escape(name), escape(value)) for name, value in pairs])
    return b"".join([b"%b:%b\n" % pair for pair in pairs])


def encode(command: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Encode one frame (STOMP 1.2, "STOMP Frames"), with an LF behind its NUL.

    ``headers`` are pairs of unescaped name and value, without content-length.
    """
    length = b"content-length:%d\n" % len(body) if body else b""
    return b"".join((command, b"\n", encode_headers(headers), length, b"\n", body, b"\0\n"))


def encode_receipt(receipt: bytes) -> bytes:
    """Encode the RECEIPT for a frame's receipt header, unescaped. HOT: once per confirmed SEND."""
    return b"RECEIPT\nreceipt-id:%b\n\n\0\n" % escape(receipt)
