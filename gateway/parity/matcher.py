"""Compares a server's frame with the frame that a transcript expects."""

from collections.abc import Iterable, Sequence

from gateway.parity.rendering import Scope, fill_known, match_text, readable
from gateway.parity.steps import ANY_OTHER_HEADERS, FrameTemplate
from gateway.parity.stomp_peer import Closed, Received, ServerFrame


class FrameMatch:
    """The result of comparing a frame with the expected one.

    Headers may come in any order, except those of the same name. If `expected` has no content-length, the frame must
    have that of its body, or none if the body is empty. `differences` are sentences without a subject, `values` are
    those of the placeholders in `expected`.

    Raises PlaceholderError if `expected` has a placeholder that the format does not know.
    """

    def __init__(self, expected: FrameTemplate, frame: ServerFrame, scope: Scope) -> None:
        self._expected = expected
        self._scope = scope
        self.values: Scope = {}
        self.differences = tuple(self._compare(frame))

    def _compare(self, frame: ServerFrame) -> Iterable[str]:
        if not self._matches(self._expected.command, frame.command):
            yield f"is not {self._expected.command}"
        received = frame.headers
        if not any(line.startswith("content-length:") for line in self._expected.headers):
            if problem := content_length_problem(frame):
                yield problem
            received = tuple(line for line in received if not is_content_length(line))
        yield from self._compare_headers(received)
        if not self._matches(self._expected.body, frame.body):
            yield "has another body"

    def _compare_headers(self, received: Sequence[bytes]) -> Iterable[str]:
        matched: list[int] = []
        for text in self._expected.headers:
            if text == ANY_OTHER_HEADERS:
                continue
            unmatched = (index for index in range(len(received)) if index not in matched)
            index = next((each for each in unmatched if self._matches(text, received[each])), None)
            if index is None:
                yield f"lacks the header {fill_known(text, self._scope | self.values)}"
            else:
                matched.append(index)
        if ANY_OTHER_HEADERS not in self._expected.headers:
            rest = (line for index, line in enumerate(received) if index not in matched)
            yield from (f"has the unexpected header {readable(line)}" for line in rest)
        yield from _out_of_order(received, matched)

    def _matches(self, text: str, data: bytes) -> bool:
        values = match_text(text, data, self._scope | self.values)
        self.values |= values or {}
        return values is not None


def _out_of_order(received: Sequence[bytes], matched: Sequence[int]) -> Iterable[str]:
    last: dict[bytes, int] = {}
    for index in matched:
        name = received[index].partition(b":")[0]
        if index < last.get(name, -1):
            yield f"has its headers {readable(name)} in another order"
        last[name] = index


def is_content_length(line: bytes) -> bool:
    """Tell whether a header line is a content-length."""
    return line.partition(b":")[0] == b"content-length"


def content_length_problem(frame: ServerFrame) -> str | None:
    """Say what is wrong with a frame's content-length. A frame with a body has one, a frame without has none."""
    lengths = [line for line in frame.headers if is_content_length(line)]
    right = [b"content-length:%d" % len(frame.body)] if frame.body else []
    return None if lengths == right else f"says {lengths} about a body of {len(frame.body)} bytes"


def format_received(received: Received) -> str:
    """Return what a server sent in the notation of transcripts."""
    if not isinstance(received, ServerFrame):
        return "(closed)" if isinstance(received, Closed) else "(heart-beat)"
    lines = [readable(received.command), *map(readable, received.headers)]
    return "\n".join([*lines, "", readable(received.body)] if received.body else lines)


def format_expected(expected: FrameTemplate, scope: Scope) -> str:
    """Return an expected frame with the values known so far."""
    lines = [expected.command, *expected.headers]
    return fill_known("\n".join([*lines, "", expected.body] if expected.body else lines), scope)
