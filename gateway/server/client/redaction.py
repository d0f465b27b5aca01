"""Redacts the headers that a trace shows: no passcode, no token, and nothing that looks like a secret.

For the log see ``gateway.server.process.logs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gateway.journal.privacy import shown

HIDDEN: Final = "***"

# The most characters of one frame's headers that are searched and shown.
_MOST_TEXT: Final = 4096

# Headers of these frames are shown, unless they look like a secret.
_OPEN: Final = frozenset((
    b"SEND", b"SUBSCRIBE", b"UNSUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"ABORT", b"DISCONNECT",
    b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR",
))  # fmt: skip

# Of all other frames, such as CONNECT and TOKEN, only these headers are shown.
_HARMLESS: Final = frozenset((
    b"accept-version", b"host", b"login", b"heart-beat", b"client-id", b"receipt", b"content-length", b"content-type",
    b"version", b"session", b"server", b"message", b"destination", b"id", b"transaction",
))  # fmt: skip

# Any other command is shown only as a length.
_COMMANDS: Final = _OPEN | {b"CONNECT", b"STOMP", b"TOKEN"}

# The patterns must be fast, because clients choose the text. So the text is in lower case, the patterns begin with few
# letters, and each attempt ends after a few characters.

# A name with one of these anywhere, or with one of the short ones as a word, perhaps followed by a number.
_SECRET_NAME: Final = re.compile(
    r"pass|pwd|secret|token|credential|authori[sz]|(?:api|access|private)[-_ ]?key|cookie|signature|jwt|bearer"
    r"|(?:pw(?<![a-z0-9]pw)|auth(?<![a-z0-9]auth)|pin(?<![a-z0-9]pin)|otp(?<![a-z0-9]otp)|sig(?<![a-z0-9]sig)"
    r"|key(?<![a-z0-9]key)(?<!routing[-_.]key)(?<!binding[-_.]key))\d{0,9}+(?![a-z0-9])"
)

# A secret with its name, as in the query of a URL or in JSON.
_NAMED_SECRET: Final = re.compile(
    r"(?:pass\w{0,20}+|token|secret|sig\w{0,20}+|auth\w{0,20}+|key(?<!routing[-_.]key)(?<!binding[-_.]key))"
    r"(?:=|[\"']\s?:)"
)

# The value of an Authorization header, and the beginning of a JSON Web Token.
_SCHEMES: Final = ("basic ", "digest ")
_BEARER: Final = re.compile(r"bearer\s+\S")
_WEB_TOKEN: Final = re.compile(r"eyj[\w-]{8}")

# `shown` shows 300 characters, and whether there are more. It never needs more bytes than this.
_LONGEST: Final = 1204

# The number of cached names, since clients repeat theirs.
_MOST_NAMES: Final = 256


def shown_command(command: bytes) -> str:
    """A STOMP command, in any case. For anything else, which may be a misplaced passcode, only its length."""
    if not command or command.upper() in _COMMANDS:
        return shown(command)
    return f"{HIDDEN} ({len(command)} bytes)"


def shown_headers(command: bytes, headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The redacted headers of a frame, in its order. The last ones are missing if there are many.

    Only what could be shown is searched for secrets, so large frames cost little.
    """
    is_open = command in _OPEN
    found: dict[str, str] = {}
    room = _MOST_TEXT
    for number, (name, value) in enumerate(headers.items(), 1):
        title, text = shown(name[:_LONGEST]), shown(value[:_LONGEST])
        room -= len(title) + len(text)
        if room < 0:
            break
        is_secret_name, hides_value = _looked_at(title)
        if hides_value or not (is_open or name in _HARMLESS) or _is_secret(text):
            text = HIDDEN
        found[f"{HIDDEN} {number}" if is_secret_name else title] = text
    return found


@lru_cache(_MOST_NAMES)
def _looked_at(name: str) -> tuple[bool, bool]:
    """Whether the name of a header looks like a secret itself, and whether it announces one as its value."""
    return _is_secret(name), _SECRET_NAME.search(name.lower()) is not None


def _is_secret(text: str) -> bool:
    text = text.strip().lower()
    return (
        text.startswith(_SCHEMES)
        or ("eyj" in text and _WEB_TOKEN.search(text) is not None)
        or ("bearer" in text and _BEARER.search(text) is not None)
        or (("=" in text or ":" in text) and _NAMED_SECRET.search(text) is not None)
        or ("://" in text and any(map(_has_user, text.split())))
    )


def _has_user(word: str) -> bool:
    """Whether a word is, or could be where it is cut, a URL with login and passcode."""
    url = word if word.endswith("…") else word.rpartition("@")[0]
    return ":" in url.partition("://")[2]
