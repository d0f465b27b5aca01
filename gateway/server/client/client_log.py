"""Log lines about one client."""

from __future__ import annotations

from typing import Final

import structlog

from gateway.errors import CloseReason, StompError
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.listen.accepted_connection import HTTP_HINT, TLS_HINT, AcceptedConnection
from gateway.server.log_limits import LONGEST_TEXT, LogLimits, LogRateLimiter

log = structlog.get_logger("gateway.session")

# The most characters of a refused login in the log.
_LONGEST_NAME: Final = 100

# For clients that speak another protocol: log event and hint.
_OTHER_PROTOCOLS: Final = {
    CloseReason.TLS_ON_PLAIN_PORT: ("tls on a plain port", TLS_HINT),
    CloseReason.HTTP_ON_STOMP_PORT: ("http on a stomp port", HTTP_HINT),
}


class ClientLog:
    """Logs the life of one client of a listener, within the limits."""

    __slots__ = ("_accepted", "_is_refused", "_limits", "_repeats", "_stats")

    def __init__(self, stats: ConnectionStats, accepted: AcceptedConnection, limits: LogLimits) -> None:
        self._stats = stats
        self._accepted = accepted
        self._limits = limits
        # Whether a line about a refused login was logged.
        self._is_refused = False
        # Created for the first ERROR, since most sessions have none.
        self._repeats: LogRateLimiter | None = None

    def certificate_unreadable(self, reason: str) -> None:
        """Log that no name can be read from the client's certificate. The reason is cut, as it may quote that."""
        left_out = self._limits.for_address(self._stats.host)
        if left_out is not None:
            peer, reason = self._stats.peer, reason[:LONGEST_TEXT]
            log.warning("certificate unreadable", peer=peer, reason=reason, left_out=left_out)

    def started(self, **details: object) -> None:
        """Log the login."""
        self._log("session started", journal=self._stats.journal_name, **details)

    def login_refused(self, virtual_host: str, login: str | None, reason: str, **details: object) -> None:
        """Log a refused login, in one line. With a ``hint`` for the operator it is a warning."""
        self._is_refused = True
        left_out = self._limits.for_address(self._stats.host)
        if left_out is not None:
            (log.warning if "hint" in details else log.info)(
                "login refused",
                session=self._stats.session.identity.decode(),
                peer=self._stats.peer,
                virtual_host=virtual_host[:_LONGEST_NAME],
                login=login and login[:_LONGEST_NAME],
                reason=reason,
                **details,
                left_out=left_out,
            )

    def ended(self, reason: CloseReason | None) -> None:
        """Log the end of the session."""
        if reason in _OTHER_PROTOCOLS:
            event, hint = _OTHER_PROTOCOLS[reason]
            limiter, address, peer = self._accepted.log_limiter, str(self._stats.listener.address), self._stats.peer
            if not limiter.info(event, address=address, peer=peer, hint=hint):
                return
        unsaid = self._repeats.unsaid() if self._repeats is not None else 0
        details = {"errors_left_out": unsaid} if unsaid else {}
        if unsaid or self._stats.session.login is not None or not self._is_refused:
            self._log("session ended", reason=reason.value if reason else "unknown", **details)

    def errors(self) -> None:
        """Log and count the ERRORs of the session since the last call."""
        for error in self._stats.session.take_errors():
            self._stats.failed(error)
            if not self._is_told(error):
                self._error(error)

    def _is_told(self, error: StompError) -> bool:
        """Whether the line about a refused login also covers this ERROR, such as the one that closes the client."""
        refused = error.refused_login
        if refused is not None:
            return refused.is_logged
        return self._is_refused and error.close is CloseReason.LOGIN_TIMEOUT

    def _error(self, error: StompError) -> None:
        if self._repeats is None:
            self._repeats = self._limits.of_session()
        refused = error.refused_login
        # Names may be long, so their hash is kept.
        asked = None if refused is None else hash((refused.virtual_host, refused.login))
        left_out = self._repeats.left_out((error.message, asked))
        if left_out is None:
            return
        text = ((refused and refused.reason) or error.body)[:LONGEST_TEXT].decode(errors="replace").strip()
        details: dict[str, object] = {"repeated": left_out} if left_out else {}
        if refused is not None:
            details |= {"hint": refused.hint} if refused.hint else {}
            login = None if refused.login is None else refused.login.decode(errors="replace")
            self.login_refused(refused.virtual_host, login, text, **details)
        else:
            event = "error sent" if error.is_sent else "send failed"
            self._log(event, message=error.message, text=text, closes=error.close is not None, **details)

    def failed(self, error: BaseException) -> None:
        """Log a fault of the gateway."""
        stats = self._stats
        log.error("internal error", session=stats.session.identity.decode(), peer=stats.peer, exc_info=error)

    def _log(self, event: str, **details: object) -> None:
        session, login = self._stats.session, self._stats.session.login
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
