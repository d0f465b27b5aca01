"""Log lines about one client."""

from __future__ import annotations

from typing import Final

import structlog

from gateway.config.listener_settings import Listener
from gateway.errors import CloseReason
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.listen.accepted_connection import TLS_HINT, AcceptedConnection
from gateway.server.log_limits import LogLimits, LogRateLimiter
from gateway.session.session import Session

log = structlog.get_logger("gateway.session")

# Logged bytes of an ERROR's body.
_LONGEST_TEXT: Final = 300


class ClientLog:
    """Logs the life of one client of a listener, within the limits."""

    __slots__ = ("_accepted", "_limits", "_listener", "_repeats", "_session", "_stats")

    def __init__(
        self,
        session: Session,
        stats: ConnectionStats,
        accepted: AcceptedConnection,
        listener: Listener,
        limits: LogLimits,
    ) -> None:
        self._session = session
        self._stats = stats
        self._accepted = accepted
        self._listener = listener
        self._limits = limits
        # Made for the first ERROR, since most sessions have none.
        self._repeats: LogRateLimiter | None = None

    def certificate_unreadable(self, reason: str) -> None:
        """Nobody can tell who the client is. The reason is cut: its text may come from the certificate."""
        left_out = self._limits.for_address(self._stats.host)
        if left_out is not None:
            peer, reason = self._stats.peer, reason[:_LONGEST_TEXT]
            log.warning("certificate unreadable", peer=peer, reason=reason, left_out=left_out)

    def started(self, **details: object) -> None:
        """The client has logged in."""
        self._log("session started", journal=self._stats.journal_name, **details)

    def ended(self, reason: CloseReason | None) -> None:
        """The session is over."""
        if reason is CloseReason.TLS_ON_PLAIN_PORT:
            limiter, address, peer = self._accepted.log_limiter, str(self._listener.address), self._stats.peer
            if not limiter.info("tls on a plain port", address=address, peer=peer, hint=TLS_HINT):
                return
        unsaid = self._repeats.unsaid() if self._repeats is not None else 0
        details = {"errors_left_out": unsaid} if unsaid else {}
        self._log("session ended", reason=reason.value if reason else "unknown", **details)

    def errors(self) -> None:
        """Log and count the ERRORs that the session has sent since the last call."""
        for error in self._session.take_errors():
            self._stats.failed(error)
            if self._repeats is None:
                self._repeats = self._limits.of_session()
            left_out = self._repeats.left_out(error.message)
            if left_out is not None:
                text = error.body[:_LONGEST_TEXT].decode(errors="replace").strip()
                details = {"repeated": left_out} if left_out else {}
                self._log("error sent", message=error.message, text=text, closes=error.close is not None, **details)

    def failed(self, error: BaseException) -> None:
        """A fault of the gateway."""
        log.error("internal error", session=self._session.identity.decode(), peer=self._stats.peer, exc_info=error)

    def _log(self, event: str, **details: object) -> None:
        session, login = self._session, self._session.login
        # A client that leaves without a login may be a health check, and needs no line.
        quiet = login is None and session.close_reason is CloseReason.CLIENT_GONE
        if not quiet:
            left_out = self._limits.for_address(self._stats.host)
            if left_out is None:
                return
            if left_out:
                details["left_out"] = left_out
        (log.debug if quiet else log.info)(
            event,
            session=session.identity.decode(),
            peer=self._stats.peer,
            virtual_host=session.settings.name or None,
            login=login.decode(errors="replace") if login else None,
            version=session.version.decode() if login else None,
            **details,
        )
