"""A STOMP frame as the decoder hands it on.

A frame is split into what repeats and what does not. A producer sends the same header block over and over, with only
the receipt and the length changing, so the decoder parses such a block once and shares its
``HeaderBlock`` between frames.
Whoever translates a head may leave the result in ``HeaderBlock.plan`` and find it there when the block comes again.
"""

from __future__ import annotations

from typing import Final

from gateway.stomp.headers import printable

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
    b"TOKEN",  # no command of STOMP's: an extension of the gateway's
)

RECEIPT: Final = b"receipt"
CONTENT_LENGTH: Final = b"content-length"


class HeaderBlock:
    """Command and headers of a frame, shared by all frames whose header block is the same.

    ``headers`` maps unescaped names to unescaped values, bytes as received, in the order of arrival; of a repeated
    name only the first counts (STOMP 1.2, "Repeated Header Entries"). Headers named in ``volatile`` keep their place
    but not their value, which belongs to the single frame.

    ``plan`` belongs to the session: its translation of this head, or None as long as there is none.
    """

    __slots__ = ("command", "headers", "plan", "volatile")

    def __init__(self, command: bytes, headers: dict[bytes, bytes], volatile: tuple[bytes, ...] = ()) -> None:
        self.command = command
        self.headers = headers
        self.volatile = volatile
        self.plan: object = None


class Frame:
    """One STOMP frame from a client.

    ``receipt`` is the value of the receipt header, ``length`` the text of the content-length header, each None when the
    frame has none. ``body`` is empty on every command but SEND.
    """

    __slots__ = ("body", "head", "length", "receipt")

    def __init__(
        self, head: HeaderBlock, body: bytes = b"", receipt: bytes | None = None, length: bytes | None = None
    ) -> None:
        self.head = head
        self.body = body
        self.receipt = receipt
        self.length = length

    @property
    def command(self) -> bytes:
        """The command's bytes as received, for example ``b"SEND"``."""
        return self.head.command

    @property
    def headers(self) -> dict[bytes, bytes]:
        """All headers with the values of this very frame."""
        if not self.head.volatile:
            return self.head.headers
        headers = dict(self.head.headers)
        if self.receipt is not None:
            headers[RECEIPT] = self.receipt
        if self.length is not None:
            headers[CONTENT_LENGTH] = self.length
        return headers

    def __repr__(self) -> str:
        # Header values stay out: they may hold a passcode.
        return f"<Frame {printable(self.command)} with {len(self.head.headers)} headers, {len(self.body)} octets>"
