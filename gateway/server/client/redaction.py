"""What a trace shows of a frame's headers: no passcode, no token, and nothing that looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.journal.privacy import shown

HIDDEN: Final = "***"

# Characters of one frame's headers that are shown.
_MOST_TEXT: Final = 4096

# These frames may have a header of any name, which may be anything but a secret in its place.
_OPEN: Final = frozenset((
    b"SEND", b"SUBSCRIBE", b"UNSUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"ABORT", b"DISCONNECT",
    b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR",
))  # fmt: skip

# Of all others, CONNECT and TOKEN among them, only these are shown.
_HARMLESS: Final = frozenset((
    b"accept-version", b"host", b"login", b"heart-beat", b"client-id", b"receipt", b"content-length", b"content-type",
    b"version", b"session", b"server", b"message", b"destination", b"id", b"transaction",
))  # fmt: skip

_SECRET_NAME: Final = re.compile(
    rb"pass|pwd|^pw$|secret|token|credential|authori[sz]|(?:api|auth|access|private|secret)[-_ ]?key|cookie|signature"
    rb"|jwt|bearer",
    re.IGNORECASE,
)

# The beginning of a JSON Web Token, the value of an Authorization header, or a passcode in a URL.
_SECRET_VALUE: Final = re.compile(rb"\beyJ[\w-]{8}|^(?:basic|bearer|digest) \S|://[^\s:/@]*:[^\s/@]+@", re.IGNORECASE)

# Bytes of a name or value that are looked at: no more than these are ever shown.
_LONGEST: Final = 1200


def shown_headers(command: bytes, headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Names and values as they may be shown, in the order of the frame; the last ones are missing if there are many."""
    is_open = command in _OPEN
    found: dict[str, str] = {}
    room = _MOST_TEXT
    for name, value in headers.items():
        text = HIDDEN if _is_secret(name, value, is_open=is_open) else shown(value)
        room -= len(name) + len(text)
        if room < 0:
            break
        found[shown(name)] = text
    return found


def _is_secret(name: bytes, value: bytes, *, is_open: bool) -> bool:
    if not is_open and name not in _HARMLESS:
        return True
    return _SECRET_NAME.search(name[:_LONGEST]) is not None or _SECRET_VALUE.search(value[:_LONGEST]) is not None
