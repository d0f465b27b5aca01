"""What a trace shows of a frame's headers: no passcode, no token, and nothing that looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gateway.journal.privacy import shown

HIDDEN: Final = "***"

# Characters of one frame's headers that are shown, and that are looked at.
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

# Of anything else in the place of a command only the length is shown.
_COMMANDS: Final = _OPEN | {b"CONNECT", b"STOMP", b"TOKEN"}

# All of these are searched in lower case, and begin with few letters: both make them fast. Each is found or given up
# after a few characters, because a client chooses what is searched.

# A name that has one of these anywhere; or one of the short ones as a word, perhaps with a number behind it.
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

# Bytes of which `shown` needs no more to show its 300 characters, and that there are more.
_LONGEST: Final = 1204

# Names that are remembered: clients repeat theirs.
_MOST_NAMES: Final = 256


def shown_command(command: bytes) -> str:
    """A command of STOMP, in whatever case; of anything else the length, since it may be a passcode in its place."""
    if not command or command.upper() in _COMMANDS:
        return shown(command)
    return f"{HIDDEN} ({len(command)} bytes)"


def shown_headers(command: bytes, headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Names and values as they may be shown, in the order of the frame; the last ones are missing if there are many.

    No more is searched for secrets than could be shown, so that large frames cost little.
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
    """Whether the name of a header is a secret itself, and whether its value must be one."""
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
    """Whether a word is a URL with a login and a passcode, in which anything may stand; or may be, where it is cut."""
    url = word if word.endswith("…") else word.rpartition("@")[0]
    return ":" in url.partition("://")[2]
