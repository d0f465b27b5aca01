"""Bounds for the log lines that clients can cause: a flood must fill neither the disk nor the gateway's time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.config.model import Logging
from gateway.server.client_address import network_of

log: structlog.stdlib.BoundLogger = structlog.get_logger("gateway.listening")

_LINES: Final = 10
_SECONDS: Final = 10.0

# Causes that a limiter remembers. The one whose window began first is forgotten for another.
_MAX_CAUSES: Final = 10_000


@dataclass(slots=True)
class _Window:
    """The lines of one cause since a moment: written, and left out."""

    since: float
    written: int = 0
    left_out: int = 0


class LogRateLimiter:
    """Lets each cause write ``lines`` in ``seconds``; None: any number. ``note`` is called for each line left out.

    The first line is written at once, and the first one after the window tells how many were left out.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        lines: int | None = _LINES,
        seconds: float = _SECONDS,
        note: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._lines = lines
        self._seconds = seconds
        self._note = note
        self._windows: dict[Hashable, _Window] = {}

    @property
    def causes(self) -> int:
        """How many causes are remembered."""
        return len(self._windows)

    def left_out(self, cause: Hashable = None) -> int | None:
        """The number of lines left out before this one; None if this one must be left out too."""
        if self._lines is None:
            return 0
        now = self._clock()
        window = self._windows.get(cause)
        if window is None or now - window.since > self._seconds:
            # At the end: so the windows are in the order of their beginnings.
            before = self._windows.pop(cause, None)
            window = self._windows[cause] = _Window(now, left_out=0 if before is None else before.left_out)
            if len(self._windows) > _MAX_CAUSES:
                del self._windows[next(iter(self._windows))]
        if window.written >= self._lines:
            window.left_out += 1
            self._note()
            return None
        window.written += 1
        left_out, window.left_out = window.left_out, 0
        return left_out

    def unsaid(self) -> int:
        """Lines left out that no later line has told of."""
        return sum(window.left_out for window in self._windows.values())

    def info(self, event: str, **details: object) -> bool:
        """Log at level info, unless there were too many lines; whether the line was written."""
        left_out = self.left_out()
        if left_out is not None:
            log.info(event, **details, left_out=left_out)
        return left_out is not None

    def warning(self, event: str, **details: object) -> None:
        """The same at level warning."""
        left_out = self.left_out()
        if left_out is not None:
            log.warning(event, **details, left_out=left_out)


class LogLimits:
    """The limits of one gateway, and how many lines they have left out."""

    def __init__(self, settings: Logging, clock: Callable[[], float]) -> None:
        self.left_out = 0
        self._clock = clock
        self._settings = settings
        self._addresses = LogRateLimiter(clock, settings.lines_per_address, note=self._note)
        self._brokers = self.of_listener()

    def _note(self) -> None:
        self.left_out += 1

    def of_listener(self) -> LogRateLimiter:
        """A limiter for what comes before a session: 10 lines in 10 seconds."""
        return LogRateLimiter(self._clock, note=self._note)

    def of_session(self) -> LogRateLimiter:
        """A limiter for the ERRORs of one session: each kind once in a while."""
        interval = self._settings.repeat_interval
        return LogRateLimiter(self._clock, 1 if interval else None, interval, self._note)

    def for_address(self, host: str) -> int | None:
        """As `LogRateLimiter.left_out`, for a line about a client at this IP address."""
        return self._addresses.left_out(network_of(host))

    def for_virtual_host(self, name: str) -> int | None:
        """As `LogRateLimiter.left_out`, for a line about a virtual host that each login would repeat."""
        return self._brokers.left_out(name)
