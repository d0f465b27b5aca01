"""The memory and disk alarms of brokers, as their links tell of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from gateway.config.addresses import BrokerUrl
from gateway.server.log_limits import LogLimits

if TYPE_CHECKING:
    from gateway.server.broker.link import Link

log = structlog.get_logger("gateway.broker")

_HINT: Final = "free memory or disk at the broker, see rabbitmqctl status; what clients send waits until then"


class BrokerAlarms:
    """Which brokers have an alarm. RabbitMQ tells each link that publishes, and only when it publishes."""

    def __init__(self, log_limits: LogLimits) -> None:
        self._log_limits = log_limits
        # The blocked links of each broker that has an alarm, with its text.
        self._blocked: dict[BrokerUrl, dict[Link, str]] = {}

    def of(self, broker: BrokerUrl) -> str:
        """The broker's text while it has an alarm, such as ``low on memory``; else empty."""
        return next(iter(self._blocked.get(broker, {}).values()), "")

    def changed(self, link: Link, reason: str | None) -> None:
        """A broker has told a link of its alarm, or with None of the end."""
        if reason is None:
            self._end(link)
            return
        if link.broker not in self._blocked:
            self._log(log.warning, link.broker, "broker alarm", reason=reason, hint=_HINT)
        self._blocked.setdefault(link.broker, {})[link] = reason or "no reason given"

    def link_closed(self, link: Link) -> None:
        """A link is gone, and with the last blocked one the knowledge of the alarm."""
        self._end(link, cause="the last connection that waited has closed")

    def _end(self, link: Link, **details: str) -> None:
        links = self._blocked.get(link.broker, {})
        if links.pop(link, None) is not None and not links:
            del self._blocked[link.broker]
            self._log(log.info, link.broker, "broker alarm over", **details)

    def _log(self, line: Callable[..., None], broker: BrokerUrl, event: str, **details: str) -> None:
        left_out = self._log_limits.for_broker(str(broker))
        if left_out is not None:
            line(event, broker=str(broker), **details, **({"left_out": left_out} if left_out else {}))
