"""Logging: structlog for the gateway, and the standard library's records through the same processors.

Log lines go to standard error, apart from a command's output. Two things keep passcodes out: tracebacks show no local
variables, and credentials in URLs are blanked in every text, because libraries put a connection's URL into their
messages. Texts of clients can neither begin a line nor move a terminal: what is not printable is escaped.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gateway.config.model import Logging

_URL_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]*@", re.IGNORECASE)


def configure_logs(settings: Logging, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to one stream, by default standard error. May be called again."""
    out = sys.stderr if stream is None else stream
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_url_credentials,
        _printable,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(settings, out)],
        )
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Below warning asyncio writes about its own workings.
    logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
    for library in ("aio_pika", "aiormq"):
        # A line per AMQP operation, and a traceback for each lost connection; the gateway reports these itself.
        logging.getLogger(library).setLevel(logging.CRITICAL)


def _renderer(settings: Logging, out: TextIO) -> Processor:
    if settings.format == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)


def _without_url_credentials(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and "://" in value:
            event[key] = _URL_CREDENTIALS.sub(r"\1:***@", value)
    return event


def _printable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        # A traceback has several lines.
        lines = value.split("\n") if key == "exception" and isinstance(value, str) else [value]
        if not all(line.isprintable() for line in lines if isinstance(line, str)):
            event[key] = "\n".join(_escaped(line) for line in lines)
    return event


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
