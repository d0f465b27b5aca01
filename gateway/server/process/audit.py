"""Who asked the gateway to do something: one line of the log for each action, and one of the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

import structlog

from gateway.server.listen.accepted_connection import Peer

Outcome = Literal["done", "refused", "failed"]

# Whatever level the log has now: this reads neither the configured level nor that of an operator.
log: Final = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))


class Audit:
    """Writes what operators ask of one gateway.

    ``journal`` takes the action (with its outcome, if it was not done), the user, and the address that it came from.
    """

    def __init__(self, journal: Callable[[str, str | None, str | None], None]) -> None:
        self._journal = journal

    def write(
        self, action: str, outcome: Outcome, user: str | None = None, peer: Peer | None = None, **details: object
    ) -> None:
        """Somebody asked for an action. ``user`` has shown its passcode; details that are None are left out."""
        facts = {"user": user, "peer": None if peer is None else str(peer), **details}
        log.info(
            action, logger="audit", outcome=outcome, **{key: value for key, value in facts.items() if value is not None}
        )
        code = action if outcome == "done" else f"{action}-{outcome}"
        self._journal(code, user, None if peer is None else peer.host)
