"""Bounds for log lines that clients can cause: a flood must neither fill the disk nor take the gateway's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Final

import structlog

from gateway.config.model import Logging
from gateway.server.client_address import network_of
from gateway.server.counts import MOST_CAUSES, RecentCounts

log: structlog.stdlib.BoundLogger = structlog.get_logger("gateway.listening")

LONGEST_TEXT: Final = 300
"""The most characters of the broker's text in a log line. It may contain names that a client has chosen."""

_LINES: Final = 10
_SECONDS: Final = 10.0

# The most causes of one session: kinds of ERRORs, and refused logins.
_MOST_OF_SESSION: Final = 64


class LogRateLimiter:
    """Lets each cause write ``lines`` in ``seconds``; None for any number. ``note``: called for each line left out.

    The first line after a window says how many were left out.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        lines: int | None = _LINES,
        seconds: float = _SECONDS,
        note: Callable[[], None] = lambda: None,
        most: int = MOST_CAUSES,
    ) -> None:
        self.lines = lines
        self._note = note
        self._counts = RecentCounts(clock, seconds, most)
        # The lines left out that no later line has reported, by cause.
        self._left_out: dict[Hashable, int] = {}

    def left_out(self, cause: Hashable = None) -> int | None:
        """The number of lines left out before this one; None if this one must be left out, too."""
        if self.lines is None:
            return 0
        if self._counts.add(cause) <= self.lines:
            return self._left_out.pop(cause, 0)
        self._left_out[cause] = self._left_out.get(cause, 0) + 1
        self._note()
        if len(self._left_out) > len(self._counts):
            # It has causes that the counts have forgotten.
            del self._left_out[next(iter(self._left_out))]
        return None

    def unsaid(self) -> int:
        """The number of lines left out that no later line has reported."""
        return sum(self._left_out.values())

    def info(self, event: str, **details: object) -> bool:
        """Log at level info, unless there were too many lines. Returns whether it was logged."""
        left_out = self.left_out()
        if left_out is not None:
            log.info(event, **details, left_out=left_out)
        return left_out is not None

    def warning(self, event: str, **details: object) -> None:
        """Do the same at level warning."""
        left_out = self.left_out()
        if left_out is not None:
            log.warning(event, **details, left_out=left_out)


class LogLimits:
    """The limits of one gateway, and the number of lines that they left out."""

    def __init__(self, settings: Logging, clock: Callable[[], float]) -> None:
        self.left_out = 0
        self._clock = clock
        self._settings = settings
        self._addresses = LogRateLimiter(clock, settings.lines_per_address, note=self._note)
        self._brokers = self.of_listener()
        self._unhandled = self.of_listener()

    def configure(self, settings: Logging) -> None:
        """Use other settings. Sessions that had an ERROR keep theirs for ERRORs."""
        self._settings = settings
        self._addresses.lines = settings.lines_per_address

    def _note(self) -> None:
        self.left_out += 1

    def of_listener(self) -> LogRateLimiter:
        """A limiter for lines before a session: 10 in 10 seconds."""
        return LogRateLimiter(self._clock, note=self._note)

    def of_process(self) -> LogRateLimiter:
        """A limiter for lines about the whole process: one in 10 seconds."""
        return LogRateLimiter(self._clock, 1, note=self._note)

    def of_session(self) -> LogRateLimiter:
        """A limiter for the ERRORs of one session: each kind once in a while."""
        interval = self._settings.repeat_interval
        return LogRateLimiter(self._clock, 1 if interval else None, interval, self._note, _MOST_OF_SESSION)

    def for_address(self, host: str) -> int | None:
        """See `LogRateLimiter.left_out`: for a line about a client at this IP address."""
        return self._addresses.left_out(network_of(host))

    def for_link(self, client: str, virtual_host: str, login: str) -> int | None:
        """The same for a line about a link: a client's, given by IP address and port, or one shared by a login."""
        if not client:
            return self._addresses.left_out((virtual_host, login))
        return self.for_address(client.rpartition(":")[0].strip("[]"))

    def for_virtual_host(self, name: str) -> int | None:
        """The same for a line about a virtual host that each login would repeat."""
        return self._brokers.left_out(name)

    def warn_of_virtual_host(self, logger: Any, name: str, event: str, **details: object) -> bool:  # noqa: ANN401
        """Log such a warning, unless there were too many lines. Returns whether it was logged."""
        left_out = self.for_virtual_host(name)
        if left_out is not None:
            logger.warning(event, virtual_host=name, **details, left_out=left_out)
        return left_out is not None

    def for_broker(self, address: str) -> int | None:
        """The same for a line about a broker that each link would repeat."""
        return self._brokers.left_out((address,))

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's handler of unhandled errors. A client may cause one with each connection."""
        left_out = self._unhandled.left_out()
        if left_out is not None:
            loop.default_exception_handler(context | ({"left_out": left_out} if left_out else {}))
