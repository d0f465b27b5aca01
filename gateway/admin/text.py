"""Texts that clients choose, and moments, as the API shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# Characters of a text that a client chooses.
_LONGEST: Final = 300


def shown(octets: bytes) -> str:
    """A client's text: UTF-8 as far as it is, and of bounded length."""
    text = octets.decode(errors="replace")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def moment(microseconds: int) -> str:
    """A moment, ISO 8601 in UTC.

    Args:
        microseconds: since the epoch.
    """
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
