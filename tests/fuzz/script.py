"""How the bytes of an input are read: a client's bytes, with what else happens written between them.

An input is one byte of setting and then whatever the client says. ``0xFF`` marks the exception: it and the two bytes
behind it are an event, a letter and an argument. So a recorded conversation is an input as it stands, an input can be
read by eye, and a mutation here changes nothing there. Twice ``0xFF`` is the byte itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MARK: Final = 0xFF

EVENTS: Final = {
    "|": "the read of the socket ends here",
    "c": "another client speaks",
    "d": "the client hangs up",
    "z": "the broker answers at once (even) or only when it is told to (odd)",
    "b": "the broker takes some steps",
    "f": "the next operation fails, in one of several ways",
    "n": "the broker rejects what is published (odd), or no longer (even)",
    "m": "somebody else publishes a message",
    "x": "somebody else deletes a queue",
    "k": "the broker closes a channel of the client",
    "l": "the client's link is lost",
    "w": "the client takes no bytes (odd; above 127, so few that messages are shed), or takes them again (even)",
    "s": "what ack:auto delivered is settled",
    "o": "the link takes no bytes (odd), or takes them again (even)",
    "a": "the broker's alarm begins (odd) or ends (even)",
    "t": "time passes",
    "q": "the gateway stops",
}
"""The letters of events, with what they mean."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens between two reads of a client's socket."""

    letter: str
    argument: int


@dataclass(frozen=True, slots=True)
class Script:
    """An input, read: which limits hold, and what happens."""

    setting: int
    steps: tuple[bytes | Event, ...]


def read_script(data: bytes) -> Script:
    """Read an input; any bytes are one. A letter that means nothing is left out."""
    return Script(data[0] if data else 0, tuple(_steps(data[1:])))


def write_script(setting: int, steps: tuple[bytes | Event, ...]) -> bytes:
    """The input that reads so."""
    return bytes((setting,)) + b"".join(_written(step) for step in steps)


def _written(step: bytes | Event) -> bytes:
    if isinstance(step, bytes):
        return step.replace(b"\xff", b"\xff\xff")
    return bytes((MARK, ord(step.letter), step.argument))


def _steps(data: bytes) -> Iterator[bytes | Event]:
    said = bytearray()
    at = 0
    while at < len(data):
        if data[at] != MARK:
            end = data.find(b"\xff", at)
            end = len(data) if end < 0 else end
            said += data[at:end]
            at = end
        elif data[at + 1 : at + 2] == b"\xff":
            said.append(MARK)
            at += 2
        else:
            letter = chr(data[at + 1]) if at + 1 < len(data) else ""
            if letter in EVENTS:
                if said:
                    yield bytes(said)
                    said.clear()
                yield Event(letter, data[at + 2] if at + 2 < len(data) else 0)
            at += 3
    if said:
        yield bytes(said)
