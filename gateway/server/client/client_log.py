"""What the log says of one client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gateway.errors import CloseReason

if TYPE_CHECKING:
    from gateway.server.client.connection_stats import ConnectionStats
    from gateway.server.listen.peer import Arrival
    from gateway.session.session import Session

log = structlog.get_logger("gateway.session")

TLS_HINT: Final = "give this listener a tls section, or let the client connect without TLS"

# Characters of an ERROR's body.
_LOGGED: Final = 300


class ClientLog:
    """Log lines about one client.

    Args:
        session: its session.
        observation: knows its address, and counts its errors.
        arrival: knows where it came in, and what was complained of there.
        address: of the listener.
    """

    def __init__(self, session: Session, stats: ConnectionStats, arrival: Arrival, address: str) -> None:
        self._session = session
        self._observation = stats
        self._arrival = arrival
        self._address = address

    def started(self, **details: object) -> None:
        """The client has logged in."""
        self._log("session started", journal=self._observation.journal_name, **details)

    def ended(self, reason: CloseReason | None) -> None:
        """The session is over."""
        if reason is not CloseReason.TLS_ON_PLAIN_PORT or self._tls():
            self._log("session ended", reason=reason.value if reason else "unknown")

    def complaints(self) -> None:
        """The ERRORs that the client got since the last time."""
        for error in self._session.take_errors():
            self._observation.failed(error)
            text = error.body.decode(errors="replace").strip()
            self._log("error sent", message=error.message, text=text[:_LOGGED], closes=error.close is not None)

    def failed(self, error: BaseException) -> None:
        """A fault of the gateway."""
        session, peer = self._session.identity.decode(), self._observation.peer
        log.error("internal error", session=session, peer=peer, exc_info=error)

    def _tls(self) -> bool:
        """Complain that the client began with TLS, unless there were too many complaints; whether it was done."""
        left_out = self._arrival.complaints.left_out()
        if left_out is None:
            return False
        peer = self._observation.peer
        log.info("tls on a plain port", address=self._address, peer=peer, hint=TLS_HINT, left_out=left_out)
        return True

    def _log(self, event: str, **details: object) -> None:
        """One line at a session's start and end. Who never logged in, a health check for instance, is not worth one."""
        session = self._session
        quiet = session.login is None and session.close_reason is CloseReason.CLIENT_GONE
        (log.debug if quiet else log.info)(
            event,
            session=session.identity.decode(),
            peer=self._observation.peer,
            virtual_host=session.settings.virtual_host or None,
            login=session.login.decode(errors="replace") if session.login else None,
            version=session.version.decode() if session.login else None,
            **details,
        )
