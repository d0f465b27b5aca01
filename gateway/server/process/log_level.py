"""The level of log lines, which an operator may change for a while, without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, get_args

import structlog

from gateway.config.model import Logging
from gateway.server.process.logs import configure_logs

log = structlog.get_logger("gateway")

LEVELS: Final[tuple[str, ...]] = get_args(Logging.model_fields["level"].annotation)

CONFIGURED: Final = "configured"
"""In place of a level: that of the configuration."""


class LogLevel:
    """The level of one process: that of the configuration, or another one until a moment.

    ``tell`` learns each change by an operator, and its end: the level, or None for the configured one.
    """

    def __init__(
        self, settings: Logging, worker: int | None = None, tell: Callable[[str | None], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._tell = tell
        # In place of the configured one; and until when, in seconds since the epoch.
        self.changed: str | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def shown(self) -> dict[str, Any]:
        """The level, as the API shows it."""
        until = datetime.fromtimestamp(self._until, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "level": self.changed or self._settings.level,
            "configured": self._settings.level,
            "until": None if self.changed is None else until,
        }

    def configure(self, settings: Logging) -> None:
        """The configuration was read again. Another level in it counts at once, and ends that of the operator."""
        if settings.level != self._settings.level:
            self._forget()
        if settings != self._settings:
            self._settings = settings
            self.use(self.changed)

    def use(self, level: str | None) -> None:
        """Write lines from this level on; None: as configured."""
        self.changed = level
        configure_logs(self._settings.model_copy(update={"level": level or self._settings.level}), worker=self._worker)

    def change(self, level: str, seconds: float, asked_by: str) -> None:
        """Use a level for so many seconds, or `CONFIGURED` at once."""
        self._forget()
        if level == CONFIGURED:
            self._restore(asked_by)
            return
        loop = asyncio.get_running_loop()
        self._until = time.time() + seconds
        self._timer = loop.call_later(seconds, self._restore, "its time was over")
        self._set(level, asked_by, seconds=seconds)

    def _restore(self, asked_by: str) -> None:
        self._set(None, asked_by)

    def _set(self, level: str | None, asked_by: str, **details: object) -> None:
        # Whoever reads the log shall find the change, whatever is written before and after it.
        self.use("info")
        log.info("log level changed", new_level=level or self._settings.level, asked_by=asked_by, **details)
        self.use(level)
        self._tell(level)

    def _forget(self) -> None:
        """Let nothing end later."""
        self.changed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
