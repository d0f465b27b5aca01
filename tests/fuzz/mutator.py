"""Makes new inputs of known ones: by bytes, and by what bytes mean, which are lines, frames and events."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from gateway.stomp.frame import CLIENT_COMMANDS
from tests.fuzz.script import EVENTS, MARK
from tests.fuzz.seeds import WORDS

LONGEST: Final = 8192
"""Bytes of an input at the most: long ones find little and take long."""

_LINES: Final = tuple(word for word in WORDS if b":" in word and word.endswith(b"\n"))
_LETTERS: Final = "".join(EVENTS).encode()
_BYTES: Final = b"\0\n\r:\\\xff sS1"


class Mutator:
    """Changes inputs.

    Args:
        chance: the source of chance; its seed decides everything.
        pool: inputs to take parts from.
    """

    def __init__(self, chance: random.Random, pool: Sequence[bytes]) -> None:
        self._chance = chance
        self._pool = pool
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._insert_word, self._insert_frame, self._insert_frame, self._insert_event, self._insert_event,
            self._drop_frame, self._repeat_frame, self._move_frame, self._splice, self._change_bytes,
            self._drop_bytes, self._change_line, self._change_number, self._change_setting,
        )  # fmt: skip

    def next_input(self) -> bytes:
        """A changed input of the pool."""
        return self.change(self._chance.choice(self._pool))

    def change(self, data: bytes) -> bytes:
        """An input that differs from another in some places."""
        for _ in range(self._chance.choice((1, 1, 2, 3, 5, 8))):
            data = self._chance.choice(self._ways)(data or b"\0")
        return data[:LONGEST]

    # By what bytes mean.

    def _insert_word(self, data: bytes) -> bytes:
        return self._insert(data, self._place(data, b"\n"), self._chance.choice(WORDS))

    def _insert_frame(self, data: bytes) -> bytes:
        lines = self._chance.choices(_LINES, k=self._chance.randrange(5))
        body = self._chance.choice((b"", b"", b"x", b"a\nb", b"y" * self._chance.randrange(300)))
        command = self._chance.choice(CLIENT_COMMANDS)
        frame = b"".join((command, b"\n", *lines, b"\n", body, b"\0"))
        return self._insert(data, self._place(data, b"\0"), frame)

    def _insert_event(self, data: bytes) -> bytes:
        between = b"\0" if self._chance.random() < 0.8 else b""
        event = bytes((MARK, self._chance.choice(_LETTERS), self._argument()))
        return self._insert(data, self._place(data, between), event)

    def _argument(self) -> int:
        return self._chance.randrange(8) if self._chance.random() < 0.7 else self._chance.randrange(256)

    def _drop_frame(self, data: bytes) -> bytes:
        start, end = self._frame(data)
        return data[:start] + data[end:]

    def _repeat_frame(self, data: bytes) -> bytes:
        start, end = self._frame(data)
        return data[:end] + data[start:end] * self._chance.choice((1, 1, 2, 10)) + data[end:]

    def _move_frame(self, data: bytes) -> bytes:
        start, end = self._frame(data)
        rest = data[:start] + data[end:]
        return self._insert(rest, self._place(rest, b"\0"), data[start:end])

    def _splice(self, data: bytes) -> bytes:
        other = self._chance.choice(self._pool)
        return data[: self._place(data, b"\0")] + other[self._place(other, b"\0") :]

    def _change_line(self, data: bytes) -> bytes:
        start = self._place(data, b"\n")
        end = data.find(b"\n", start) + 1
        return data[:start] + self._chance.choice(_LINES) + data[end or start :]

    def _change_number(self, data: bytes) -> bytes:
        digits = [at for at in range(1, len(data)) if 0x30 <= data[at] <= 0x39]
        if not digits:
            return data
        at = self._chance.choice(digits)
        return data[:at] + self._chance.choice((b"0", b"1", b"2", b"9", b"10", b"-1", b"")) + data[at + 1 :]

    def _change_setting(self, data: bytes) -> bytes:
        return bytes((self._chance.randrange(8),)) + data[1:]

    # By bytes.

    def _change_bytes(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._chance.choice((1, 1, 4))):
            at = self._chance.randrange(len(changed))
            changed[at] = self._chance.choice(_BYTES) if self._chance.random() < 0.5 else self._chance.randrange(256)
        return bytes(changed)

    def _drop_bytes(self, data: bytes) -> bytes:
        at = self._chance.randrange(len(data))
        return data[:at] + data[at + self._chance.choice((1, 1, 5, 50)) :]

    # Places.

    def _insert(self, data: bytes, at: int, what: bytes) -> bytes:
        return data[:at] + what + data[at:]

    def _place(self, data: bytes, behind: bytes) -> int:
        """A place behind one of these bytes, or any if there is none; never before the setting."""
        place = self._chance.randint(min(1, len(data)), len(data))
        found = data.find(behind, place) if behind else -1
        return found + 1 if found >= 0 else place

    def _frame(self, data: bytes) -> tuple[int, int]:
        """Where a frame starts and ends, about."""
        place = self._chance.randrange(len(data))
        end = data.find(b"\0", place) + 1 or len(data)
        return max(1, data.rfind(b"\0", 1, max(1, end - 1)) + 1), end
