"""Fills in placeholders, matches a server's bytes against text with placeholders, and makes bytes readable."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from gateway.parity.steps import ANY_OTHER_HEADERS, FrameTemplate
from gateway.parity.stomp_peer import Closed, Received, ServerFrame

Scope = dict[str, bytes]
"""The values of named placeholders."""

# What {name:shape} matches.
_SHAPES: Mapping[str, bytes] = {
    "text": rb"[^\n]+",
    "digits": rb"[0-9]+",
    "id": rb"[A-Za-z0-9_-]{22}",  # 16 bytes in URL-safe base64 without padding
    "lines": rb"(?s:.*)",
    "words": rb"(?:[a-z]+ )*",
}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z][\w.-]*$")
_RAW_ESCAPE = re.compile(rb"\\(0|r|n|\\|x[0-9A-Fa-f]{2})")
_RAW_ESCAPES = {b"0": b"\0", b"r": b"\r", b"n": b"\n", b"\\": b"\\"}
_MAX_LINE = 200  # characters shown of a line


class PlaceholderError(Exception):
    """A placeholder that has no value, or that the format does not know."""


def render(text: str, scope: Mapping[str, bytes]) -> bytes:
    """Fill in the placeholders, and encode the rest as UTF-8. Raises PlaceholderError."""
    return b"".join(_rendered(piece, scope) for piece in _pieces(text))


def render_raw(text: str, scope: Mapping[str, bytes]) -> bytes:
    r"""Like `render`; also replace \0 \r \n \\ \xNN in the text, but not in values. Raises PlaceholderError."""
    return b"".join(
        _RAW_ESCAPE.sub(_raw_byte, piece.encode()) if isinstance(piece, str) else _rendered(piece, scope)
        for piece in _pieces(text)
    )


def _raw_byte(match: re.Match[bytes]) -> bytes:
    return _RAW_ESCAPES.get(match[1]) or bytes([int(match[1][1:], 16)])


def match_text(text: str, data: bytes, scope: Mapping[str, bytes]) -> Scope | None:
    """Return the values that placeholders get if `data` matches `text`; None if it does not.

    A name that is not in `scope` matches anything of its shape. Raises PlaceholderError.
    """
    with suppress(PlaceholderError):  # it may have one without a value
        return {} if render(text, scope) == data else None
    groups: dict[str, str] = {}
    pattern = b"".join(_pattern(piece, scope, groups) for piece in _pieces(text))
    match = re.fullmatch(pattern, data)
    return {name: match[group] for name, group in groups.items()} if match else None


def fill_known(text: str, scope: Mapping[str, bytes]) -> str:
    """Return the text with its placeholders filled in, readable; those without a value stay."""

    def filled(match: re.Match[str]) -> str:
        try:
            return readable(_rendered(match, scope))
        except PlaceholderError:
            return match[0]

    return _PLACEHOLDER.sub(filled, text)


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        yield text[end : match.start()]
        yield match
        end = match.end()
    yield text[end:]


def _rendered(piece: str | re.Match[str], scope: Mapping[str, bytes]) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    name, _, argument = piece[1].partition(":")
    if name in _FIXED:
        return _FIXED[name](argument)
    if name in scope:
        return scope[name]
    raise PlaceholderError(f"nothing is known yet as {piece[0]}")


def _repeated(argument: str) -> bytes:
    count, _, text = argument.partition(":")
    return text.encode() * int(count)


_FIXED: Mapping[str, Callable[[str], bytes]] = {
    "lf": lambda _: b"\n",
    "cr": lambda _: b"\r",
    "nul": lambda _: b"\0",
    "hex": bytes.fromhex,
    "repeat": _repeated,
}


def _pattern(piece: str | re.Match[str], scope: Mapping[str, bytes], groups: dict[str, str]) -> bytes:
    if isinstance(piece, str):
        return re.escape(piece.encode())
    name, _, shape = piece[1].partition(":")
    if name == "lf?":
        return b"\n?"
    if name in _FIXED or name in scope:
        return re.escape(_rendered(piece, scope))
    if name in groups:
        return f"(?P={groups[name]})".encode()
    if shape and shape not in _SHAPES:
        raise PlaceholderError(f"{piece[0]}: shapes are {', '.join(_SHAPES)}")
    pattern = _SHAPES[shape or "text"]
    if name == "*":
        return pattern
    if not _NAME.match(name):
        raise PlaceholderError(f"{piece[0]} is not a placeholder")
    groups[name] = f"g{len(groups)}"  # a placeholder's name may have dots, a group's may not
    return b"(?P<" + groups[name].encode() + b">" + pattern + b")"


def readable(data: bytes) -> str:
    r"""Return bytes as text: \xNN for each byte that is not UTF-8 or not printable, except line feeds."""
    text = data.decode("utf-8", "surrogateescape")
    if text.replace("\n", "").isprintable():  # nearly always, and some are megabytes
        return text
    return "".join(sign if sign == "\n" or sign.isprintable() else _hex(sign) for sign in text)


def unambiguous(data: bytes) -> str:
    r"""Like `readable`, with each backslash doubled: different bytes never become the same text."""
    return readable(data.replace(b"\\", b"\\\\"))


def _hex(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))


def shortened(line: str, *, around: int = 0) -> str:
    """Cut a line of more than 200 characters, not counting its indentation, to 200, and say how long it was.

    The character at the index `around` is kept.
    """
    text = line.lstrip(" ")
    if len(text) <= _MAX_LINE:
        return line
    indent = len(line) - len(text)
    start = around - indent - _MAX_LINE // 2 if around >= _MAX_LINE else 0
    kept = f"{'...' if start else ''}{text[start : start + _MAX_LINE]}"
    return f"{' ' * indent}{kept}... ({len(text)} characters)"


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
