"""Texts of clients, and moments, as the API shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_MAX_LENGTH: Final = 300


def shown(text: bytes) -> str:
    """A client's text, cut at 300 characters, with U+FFFD for what is not UTF-8."""
    decoded = text.decode(errors="replace")
    return decoded if len(decoded) <= _MAX_LENGTH else decoded[: _MAX_LENGTH - 1] + "…"


def moment(microseconds: int) -> str:
    """A moment in ISO 8601 and UTC, from microseconds since the epoch."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
