"""Placeholders: from the text of a transcript to the octets a client sends, and to patterns for the server's octets."""

import re
from collections.abc import Callable, Iterator, Mapping

# What a placeholder stands for when the file writes {name:shape}.
_SHAPES: Mapping[str, bytes] = {
    "text": rb"[^\n]+",
    "digits": rb"[0-9]+",
    "id": rb"[A-Za-z0-9_-]{22}",  # 16 octets in URL-safe base64 without padding
    "lines": rb"(?s:.*)",
}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z][\w.-]*$")
_RAW_ESCAPE = re.compile(rb"\\(0|r|n|\\|x[0-9A-Fa-f]{2})")

_READABLE = 200  # characters of a line

Scope = dict[str, bytes]


class PlaceholderError(Exception):
    """A placeholder that cannot be filled in."""


def render(text: str, scope: Mapping[str, bytes]) -> bytes:
    """Fill in the placeholders of what a client sends.

    Args:
        text: text with placeholders; all else is encoded as UTF-8.
        scope: the values of named placeholders.

    Raises:
        PlaceholderError: a name has no value yet.
    """
    return b"".join(_octets(piece, scope) for piece in _pieces(text))


def render_raw(text: str, scope: Mapping[str, bytes]) -> bytes:
    r"""Like render, and \0 \r \n \\ \xNN in the text, but not in values, stand for octets. Raises PlaceholderError."""
    pieces = ((piece, _octets(piece, scope)) for piece in _pieces(text))
    return b"".join(
        _RAW_ESCAPE.sub(_unescaped, octets) if isinstance(piece, str) else octets for piece, octets in pieces
    )


def _unescaped(match: re.Match[bytes]) -> bytes:
    known = {b"0": b"\0", b"r": b"\r", b"n": b"\n", b"\\": b"\\"}
    return known.get(match[1]) or bytes([int(match[1][1:], 16)])


def fits(text: str, octets: bytes, scope: Mapping[str, bytes]) -> Scope | None:
    """Tell whether the server's octets are what the text expects.

    Args:
        text: the expectation; a name without a value yet may be anything of its shape.
        octets: what the server sent.
        scope: the values of named placeholders.

    Returns:
        The values that the names got here (often none), or None where the octets do not fit.
    """
    found: Scope = {}
    pattern = b"".join(_pattern(piece, scope, found) for piece in _pieces(text))
    match = re.fullmatch(pattern, octets)
    if match is None:
        return None
    return {name: match[group.decode()] for name, group in found.items()}


def shown(text: str, scope: Mapping[str, bytes]) -> str:
    """Return an expectation for a human, with the values that are known filled in."""

    def filled(match: re.Match[str]) -> str:
        try:
            return readable(_octets(match, scope))
        except PlaceholderError:
            return match[0]

    return _PLACEHOLDER.sub(filled, text)


def readable(octets: bytes) -> str:
    r"""Return octets as text, but for line feeds all that is unprintable or not UTF-8 as \xNN for each octet."""
    text = octets.decode("utf-8", "surrogateescape")
    return "".join(sign if sign == "\n" or sign.isprintable() else _escape(sign) for sign in text)


def recorded(octets: bytes) -> str:
    r"""Return octets as `readable` does, with each backslash doubled: no two texts stand for different octets."""
    return readable(octets.replace(b"\\", b"\\\\"))


def _escape(sign: str) -> str:
    return "".join(f"\\x{octet:02x}" for octet in sign.encode("utf-8", "surrogateescape"))


def shortened(line: str, *, around: int = 0) -> str:
    """Return a line for people to read: of more than 200 characters only some, and how many there are.

    Args:
        line: without line feeds; spaces in front of it are kept and not counted.
        around: the place of a character that must be among those that are kept.
    """
    text = line.lstrip(" ")
    if len(text) <= _READABLE:
        return line
    indent = len(line) - len(text)
    start = around - indent - _READABLE // 2 if around >= _READABLE else 0
    kept = f"{'...' if start else ''}{text[start : start + _READABLE]}"
    return f"{' ' * indent}{kept}... ({len(text)} characters)"


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        yield text[end : match.start()]
        yield match
        end = match.end()
    yield text[end:]


def _octets(piece: str | re.Match[str], scope: Mapping[str, bytes]) -> bytes:
    if isinstance(piece, str):
        return piece.encode("utf-8")
    name, _, argument = piece[1].partition(":")
    if name in _FIXED:
        return _FIXED[name](argument)
    if name in scope:
        return scope[name]
    raise PlaceholderError(f"nothing is known yet as {piece[0]}")


def _repeated(argument: str) -> bytes:
    count, _, sign = argument.partition(":")
    return sign.encode("utf-8") * int(count)


_FIXED: Mapping[str, Callable[[str], bytes]] = {
    "lf": lambda _: b"\n",
    "cr": lambda _: b"\r",
    "nul": lambda _: b"\0",
    "hex": bytes.fromhex,
    "repeat": _repeated,
}


def _pattern(piece: str | re.Match[str], scope: Mapping[str, bytes], found: Scope) -> bytes:
    if isinstance(piece, str):
        return re.escape(piece.encode("utf-8"))
    name, _, shape = piece[1].partition(":")
    if name == "lf?":
        return b"\n?"
    if name in _FIXED or name in scope:
        return re.escape(_octets(piece, scope))
    if name in found:
        return b"(?P=" + found[name] + b")"
    octets = _SHAPES.get(shape or "text")
    if octets is None:
        raise PlaceholderError(f"{piece[0]}: shapes are {', '.join(_SHAPES)}")
    if name == "*":
        return octets
    if not _NAME.match(name):
        raise PlaceholderError(f"{piece[0]} is not a placeholder")
    found[name] = b"g%d" % len(found)
    return b"(?P<" + found[name] + b">" + octets + b")"
