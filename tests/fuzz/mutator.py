"""Makes new inputs of known ones: by bytes, and by what bytes mean, which are lines, frames and events.

``Mutator`` knows bytes, lines and words; ``ScriptMutator`` also the frames and events of the scripts for decoder and
session. ``mutator_of`` chooses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from gateway.amqp.codec import FRAME_HEADER, FRAME_OVERHEAD
from gateway.stomp.frame import CLIENT_COMMANDS
from tests.fuzz.script import EVENTS, MARK
from tests.fuzz.seeds import WORDS

LONGEST: Final = 8192
"""Bytes of an input at the most: long ones find little and take long."""

_LINES: Final = tuple(word for word in WORDS if b":" in word and word.endswith(b"\n"))
_LETTERS: Final = "".join(EVENTS).encode()
_BYTES: Final = b"\0\n\r:\\\xff sS1"

STOMP_TARGETS: Final = frozenset(("decoder", "session"))
"""The targets whose inputs are scripts (``tests.fuzz.script``)."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+|[^A-Za-z0-9_-]{1,4}")
_AMQP_TARGETS: Final = frozenset(("splitter", "broker"))

# For the lengths and numbers of binary formats.
_NUMBERS: Final = (0, 1, 2, 7, 8, 255, 256, 4096, 65535, 1 << 31, (1 << 32) - 1)


def mutator_of(target: str, chance: random.Random, pool: Sequence[bytes]) -> Mutator:
    """The mutator that knows what the inputs of a target mean."""
    if target in STOMP_TARGETS:
        return ScriptMutator(chance, pool)
    words_in = _amqp_frames if target in _AMQP_TARGETS else _TOKEN.findall
    words = dict.fromkeys(word for data in pool for word in words_in(data))
    return Mutator(chance, pool, tuple(words))


def _amqp_frames(data: bytes) -> list[bytes]:
    """The frames in an input of the corpus, which stand behind one byte of setting."""
    frames: list[bytes] = []
    at = 1
    while len(data) >= at + FRAME_OVERHEAD:
        _, _, size = FRAME_HEADER.unpack_from(data, at)
        frames.append(data[at : at + FRAME_OVERHEAD + size])
        at += FRAME_OVERHEAD + size
    return frames


class Mutator:
    """Changes inputs by their bytes, numbers, lines and words.

    Args:
        chance: the source of chance; its seed decides everything.
        pool: inputs to take parts from.
        words: what means something to the target.
    """

    def __init__(self, chance: random.Random, pool: Sequence[bytes], words: Sequence[bytes]) -> None:
        self._chance = chance
        self._pool = pool
        self._words = words
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._insert_word, self._insert_word, self._change_bytes, self._drop_bytes, self._change_number,
            self._change_length, self._splice, self._insert_part, self._drop_line, self._repeat_line,
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
        return self._insert(data, self._place(data), self._chance.choice(self._words))

    def _insert_part(self, data: bytes) -> bytes:
        other = self._chance.choice(self._pool)
        start, end = sorted((self._place(other), self._place(other)))
        return self._insert(data, self._place(data), other[start:end])

    def _splice(self, data: bytes) -> bytes:
        other = self._chance.choice(self._pool)
        return data[: self._place(data)] + other[self._place(other) :]

    def _change_number(self, data: bytes) -> bytes:
        digits = [at for at in range(1, len(data)) if 0x30 <= data[at] <= 0x39]
        if not digits:
            return data
        at = self._chance.choice(digits)
        return data[:at] + self._chance.choice((b"0", b"1", b"2", b"9", b"10", b"-1", b"")) + data[at + 1 :]

    def _change_length(self, data: bytes) -> bytes:
        at, size = self._place(data), self._chance.choice((1, 2, 4, 8))
        number = self._chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)
        return data[:at] + number.to_bytes(size, "big") + data[at + size :]

    def _drop_line(self, data: bytes) -> bytes:
        start, end = self._line(data)
        return data[:start] + data[end:]

    def _repeat_line(self, data: bytes) -> bytes:
        start, end = self._line(data)
        return data[:end] + data[start:end] * self._chance.choice((1, 2, 10)) + data[end:]

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

    def _place(self, data: bytes, behind: bytes = b"") -> int:
        """A place behind one of these bytes, or any if there is none; never before the setting."""
        place = self._chance.randint(min(1, len(data)), len(data))
        found = data.find(behind, place) if behind else -1
        return found + 1 if found >= 0 else place

    def _line(self, data: bytes) -> tuple[int, int]:
        """Where a line starts and ends."""
        place = self._chance.randrange(len(data))
        return data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place) + 1 or len(data)


class ScriptMutator(Mutator):
    """Changes scripts also by their frames and events."""

    def __init__(self, chance: random.Random, pool: Sequence[bytes]) -> None:
        super().__init__(chance, pool, WORDS)
        self._ways = (
            self._insert_word, self._insert_frame, self._insert_frame, self._insert_event, self._insert_event,
            self._drop_frame, self._repeat_frame, self._move_frame, self._splice, self._change_bytes,
            self._drop_bytes, self._change_line, self._change_number, self._change_setting,
        )  # fmt: skip

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

    def _change_setting(self, data: bytes) -> bytes:
        return bytes((self._chance.randrange(8),)) + data[1:]

    def _frame(self, data: bytes) -> tuple[int, int]:
        """Where a frame starts and ends, about."""
        place = self._chance.randrange(len(data))
        end = data.find(b"\0", place) + 1 or len(data)
        return max(1, data.rfind(b"\0", 1, max(1, end - 1)) + 1), end
