"""How the sessions of one virtual host are journalled."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.journal.privacy import Destinations, Users
from gateway.journal.writer import Writer


@dataclass(frozen=True, slots=True)
class Book:
    """The journal of one virtual host.

    ``detailed`` is level message, else it is level session. ``share`` of the messages is written; ``header_values``
    names headers whose values are; ``peers`` says what of an address.
    """

    writer: Writer
    users: Users
    destinations: Destinations
    detailed: bool
    share: float
    peers: str
    header_values: tuple[str, ...]
