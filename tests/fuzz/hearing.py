"""What a client hears, read without the gateway's own decoder and held against what may be said at all."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from gateway.parity.stomp_peer import FrameReader, HeartBeat, ServerFrame
from tests.fuzz.violation import demand

_COMMANDS: Final = frozenset((b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR"))
_LINE: Final = re.compile(rb"(?:[^\\:\n\r]|\\[nrc\\])*:(?:[^\\:\n\r]|\\[nrc\\])*")
_LONGEST_SHOWN: Final = 200


class Hearing:
    """Reads what a session sends to its client.

    Args:
        needs_connect: whether nothing but ERROR may come before CONNECTED.
    """

    def __init__(self, *, needs_connect: bool) -> None:
        self._reader = FrameReader()
        self._needs_connect = needs_connect
        self._connected = False
        # By receipt: how often the client asked, less how often it was answered.
        self._asked: Counter[bytes] = Counter()
        self.last = b""
        """Command of the last frame."""

    def asked(self, receipt: bytes) -> None:
        """A frame of the client wants this receipt."""
        self._asked[receipt.strip(b" ")] += 1

    def hear(self, data: bytes) -> None:
        """Take what one batch sent: whole frames."""
        self._reader.feed(data)
        demand(not self._reader.rest, f"what is sent is whole frames: {self._reader.rest[:_LONGEST_SHOWN]!r}")
        while (said := self._reader.take()) is not None:
            demand(not isinstance(said, HeartBeat), "a session sends no line feeds of its own")
            if isinstance(said, ServerFrame):
                self._check(said)

    def _check(self, said: ServerFrame) -> None:
        command = said.command
        demand(command in _COMMANDS, f"a server sends {command[:_LONGEST_SHOWN]!r}")
        for line in said.headers:
            demand(_LINE.fullmatch(line) is not None, f"a header is escaped: {line[:_LONGEST_SHOWN]!r}")
        headers = dict(line.split(b":", 1) for line in reversed(said.headers))
        if command == b"CONNECTED":
            demand(not self._connected, "a client is connected once")
            self._connected = True
        elif command != b"ERROR":
            demand(self._connected or not self._needs_connect, f"nothing but ERROR comes before CONNECTED: {command!r}")
        if command == b"MESSAGE":
            demand({b"destination", b"message-id"} <= headers.keys(), "a MESSAGE can be told from others")
        receipt = headers.get(b"receipt-id")
        demand(receipt is not None or command != b"RECEIPT", "a RECEIPT names what it is for")
        if receipt is not None and command != b"MESSAGE":  # there it is the publisher's own
            self._answered(receipt)
        self.last = command

    def _answered(self, receipt: bytes) -> None:
        plain = re.sub(rb"\\(.)", lambda found: _UNESCAPED[found[1]], receipt).strip(b" ")
        self._asked[plain] -= 1
        demand(self._asked[plain] >= 0, f"a receipt comes once, for a frame that asked: {plain[:_LONGEST_SHOWN]!r}")


_UNESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"c": b":", b"\\": b"\\"}
