"""Compares what came with what a transcript expects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.parity.script import ANY_OTHER_HEADERS, FrameText
from gateway.parity.text import Scope, fits, readable, shown
from gateway.parity.wire import ServerFrame

_LENGTH = b"content-length"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`differences` is empty where the frame fits; `found` holds the values that placeholders got."""

    differences: tuple[str, ...]
    found: Scope


def compare(expected: FrameText, frame: ServerFrame, scope: Scope) -> Comparison:
    """Compare a frame with its expectation.

    The order of headers does not count, that of headers of the same name does. An expectation without a
    content-length means the right one: that of the body, and none where there is no body.

    Args:
        expected: the frame as the file writes it.
        frame: what came.
        scope: the values of named placeholders.

    Raises:
        PlaceholderError: the expectation has a placeholder that is none.
    """
    comparing = _Comparing(expected, frame, scope)
    return Comparison(tuple(comparing.differences()), comparing.found)


class _Comparing:
    def __init__(self, expected: FrameText, frame: ServerFrame, scope: Scope) -> None:
        self._expected = expected
        self._frame = frame
        self._scope = scope
        self.found: Scope = {}

    def differences(self) -> Iterable[str]:
        if not self._fits(self._expected.command, self._frame.command):
            yield f"is not {self._expected.command}"
        received = list(self._frame.headers)
        if not any(line.startswith("content-length:") for line in self._expected.headers):
            yield from length_problems(self._frame)
            received = [line for line in received if not is_length(line)]
        yield from self._headers(received)
        if not self._fits(self._expected.body, self._frame.body):
            yield "has another body"

    def _headers(self, received: Sequence[bytes]) -> Iterable[str]:
        taken: list[int] = []
        for text in (line for line in self._expected.headers if line != ANY_OTHER_HEADERS):
            place = self._place(text, received, taken)
            if place is None:
                yield f"lacks the header {shown(text, self._scope | self.found)}"
            else:
                taken.append(place)
        if not self._expected.tolerates_others:
            rest = (line for place, line in enumerate(received) if place not in taken)
            yield from (f"has the unexpected header {readable(line)}" for line in rest)
        yield from _out_of_order(received, taken)

    def _place(self, text: str, received: Sequence[bytes], taken: Sequence[int]) -> int | None:
        free = (place for place in range(len(received)) if place not in taken)
        return next((place for place in free if self._fits(text, received[place])), None)

    def _fits(self, text: str, octets: bytes) -> bool:
        new = fits(text, octets, self._scope | self.found)
        self.found |= new or {}
        return new is not None


def is_length(line: bytes) -> bool:
    """Tell whether a header line is a content-length."""
    return _name(line) == _LENGTH


def length_problems(frame: ServerFrame) -> Iterable[str]:
    """Yield a sentence where a frame with a body has not exactly the right content-length, or one without has any."""
    lengths = [line for line in frame.headers if is_length(line)]
    right = [_LENGTH + b":%d" % len(frame.body)] if frame.body else []
    if lengths != right:
        yield f"says {lengths} about a body of {len(frame.body)} octets"


def _out_of_order(received: Sequence[bytes], taken: Sequence[int]) -> Iterable[str]:
    last: dict[bytes, int] = {}
    for place in taken:
        name = _name(received[place])
        if place < last.get(name, -1):
            yield f"has its headers {readable(name)} in another order"
        last[name] = place


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0]


def pictured(frame: ServerFrame) -> str:
    """Return a frame as a transcript would write it."""
    lines = [readable(frame.command), *(readable(line) for line in frame.headers)]
    return "\n".join([*lines, "", readable(frame.body)] if frame.body else lines)


def pictured_expectation(expected: FrameText, scope: Scope) -> str:
    """Return an expectation with the values known so far filled in."""
    lines = [expected.command, *expected.headers]
    return shown("\n".join([*lines, "", expected.body] if expected.body else lines), scope)
