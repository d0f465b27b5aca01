"""Logging: structlog for the gateway, and the standard library's records through the same processors.

Lines go to standard error. Passcodes stay out of them: tracebacks show no local variables, and credentials in URLs are
blanked, because libraries put a connection's URL into their messages. Characters that are not printable are escaped, so
a client's text can neither begin a line nor control a terminal.

Many sessions may begin at once, with two lines each. So the gateway's own lines go straight to the stream, without a
record of the standard library, and lines without colours are formatted here.

An operator may change the level for a while, without a restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO, get_args

import structlog
from structlog.typing import EventDict, Processor, ProcessorReturnValue, WrappedLogger

from gateway.config.addresses import without_passcodes
from gateway.config.model import GatewayConfig, Logging
from gateway.texts import printable
from gateway.times import iso

log = structlog.get_logger("gateway")

# Values with one of these in them are quoted.
_MUST_BE_QUOTED: Final = re.compile("[ \t=\r\n\"']")

# Keys with a place of their own in a line, or with several lines.
_UNUSUAL: Final = frozenset(("exception", "stack", "exc_info", "logger", "logger_name", ""))


LEVELS: Final[tuple[str, ...]] = get_args(Logging.model_fields["level"].annotation)

CONFIGURED: Final = "configured"
"""Instead of a level: that of the configuration."""


def configure_logs(settings: Logging, stream: TextIO | None = None, worker: int | None = None) -> None:
    """Send all log lines of this process to one stream, by default standard error. May be called again.

    ``worker``: its number, in each line, if there are several.
    """
    out = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    handler = logging.StreamHandler(out)
    renderer = _renderer(settings, out)
    common: list[Processor] = [_complete, _safe] if worker is None else [partial(_by_worker, worker), _complete, _safe]
    lines = _Lines(handler, out)
    structlog.configure(
        processors=[*common, renderer],
        logger_factory=lambda *_: lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # A reload may change all of this.
        cache_logger_on_first_use=False,
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Below warning asyncio writes about its own workings.
    logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
    for library in ("aio_pika", "aiormq"):
        # A line per AMQP operation, and a traceback for each lost connection; the gateway reports these itself.
        logging.getLogger(library).setLevel(logging.CRITICAL)


def log_warnings(config: GatewayConfig) -> None:
    """Log the warnings of `check`."""
    for warning in config.warnings:
        structlog.get_logger("gateway").warning("configuration warning", warning=str(warning))


class _Lines:
    """Writes finished lines to the stream of a handler, which may write at the same time in another thread."""

    def __init__(self, handler: logging.Handler, stream: TextIO) -> None:
        self._handler = handler
        self._stream = stream

    def info(self, line: str) -> None:
        """Write a line. An error is ignored."""
        self._handler.acquire()
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The disk is full, or nobody reads the pipe.
            pass
        finally:
            self._handler.release()

    # structlog calls the method that has the level's name.
    debug = warning = error = critical = info


def _by_worker(worker: int, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["worker"] = worker
    return event


def _renderer(settings: Logging, out: TextIO) -> Processor:
    if settings.format == "json":
        encode = json.JSONEncoder(ensure_ascii=False, default=repr).encode
        return lambda logger, method, event: encode(event)
    console = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    return console if out.isatty() else partial(_plain_line, console)


def _plain_line(console: Processor, logger: WrappedLogger, method: str, event: EventDict) -> ProcessorReturnValue:
    """The same line as ``console`` makes, in a quarter of the time. Unusual events are left to it."""
    if not _UNUSUAL.isdisjoint(event):
        return console(logger, method, event)
    time, level, text = event.pop("timestamp"), event.pop("level"), event.pop("event")
    quoted = _MUST_BE_QUOTED.search
    facts = [
        f"{key}={value if isinstance(value, str) and not quoted(value) else repr(value)}"
        for key, value in sorted(event.items())
    ]
    return " ".join((f"{time} [{level:<9}] {text!s:<30}", *facts)).rstrip(" ")


def _complete(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the level, the time, and the traceback if there is one."""
    event["level"] = method
    event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return structlog.processors.format_exc_info(logger, method, event) if "exc_info" in event else event


def _safe(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Blank credentials in URLs, and escape what is not printable. Most lines have neither."""
    texts = "".join(map(str, event.values()))
    if "://" in texts or not texts.isprintable():
        for key, value in event.items():
            # A traceback has several lines. A library may call something else by this name.
            is_traceback = key == "exception" and isinstance(value, str)
            event[key] = "\n".join(map(_safe_text, value.split("\n"))) if is_traceback else _safe_value(value)
    return event


def _safe_value(value: object) -> object:
    if isinstance(value, list | tuple):  # such as the mistakes of a refused reload
        return [_safe_value(each) for each in value]
    return _safe_text(value) if isinstance(value, str) else value


def _safe_text(text: str) -> str:
    return printable(without_passcodes(text))


class LogLevel:
    """The level of one process: that of the configuration, or for a while that of an operator.

    ``tell``: called with each change by an operator, and at its end: the level, or None for the configured one.
    """

    def __init__(
        self, settings: Logging, worker: int | None = None, tell: Callable[[str | None], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._tell = tell
        # The level of an operator, and until when, in seconds since the epoch.
        self.changed: str | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def shown(self) -> dict[str, Any]:
        """The level, as the API shows it."""
        return {
            "level": self.changed or self._settings.level,
            "configured": self._settings.level,
            "until": None if self.changed is None else iso(self._until * 1e6, "seconds"),
        }

    def configure(self, settings: Logging) -> None:
        """Use another configuration. A new level in it counts at once, and replaces an operator's."""
        if settings.level != self._settings.level:
            self._forget()
        if settings != self._settings:
            self._settings = settings
            self.use(self.changed)

    def use(self, level: str | None) -> None:
        """Use a level; None for the configured one."""
        self.changed = level
        configure_logs(self._settings.model_copy(update={"level": level or self._settings.level}), worker=self._worker)

    def change(self, level: str, seconds: float, asked_by: str) -> None:
        """Use a level for ``seconds``, or end that with `CONFIGURED`."""
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
        # At level info, so that the change is always in the log.
        self.use("info")
        log.info("log level changed", new_level=level or self._settings.level, asked_by=asked_by, **details)
        self.use(level)
        self._tell(level)

    def _forget(self) -> None:
        """Forget an operator's level, and its timer."""
        self.changed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
