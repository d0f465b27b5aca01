"""What the gateway remembers of brokers: whether they answer, and if not, when to try again; and their alarms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from gateway.config.addresses import BrokerUrl
from gateway.server.log_limits import LogLimits

if TYPE_CHECKING:
    from gateway.server.broker.link import Link

log = structlog.get_logger("gateway.broker")

# Seconds until a broker that did not answer is tried again: twice as long after each failure. The jitter takes up to
# half of it away, so that a fleet of gateways does not try in the same moment.
_SHORTEST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0
_MOST_DOUBLINGS: Final = 5
# Links that end without a word of the broker within so many seconds ended because the broker went.
_TOGETHER: Final = 1.0
_ALARM_HINT: Final = "free memory or disk at the broker, see rabbitmqctl status; until then, messages from clients wait"
UNREACHABLE_HINT: Final = (
    "see whether RabbitMQ runs there, and upstream in the configuration; stomp-gateway check tries each step"
)


class Circuit:
    """A circuit breaker. It only puts brokers in order: one whose circuit is open is tried after all others."""

    def __init__(self, broker: BrokerUrl) -> None:
        self.broker = broker
        # How often in a row the broker did not answer, and why not the last time.
        self.failures = 0
        self.reason = ""
        # A dial that is under way takes longer than it should.
        self.is_late = False
        # When the broker last answered or did not; None before.
        self.known_at: float | None = None
        # When it last ceased to answer, answered again, or stopped.
        self.changed_at = float("-inf")
        # When a link last ended without a word of the broker.
        self._cut_at = float("-inf")
        self._retry_at = 0.0
        self._is_asked = False

    @property
    def is_unknown(self) -> bool:
        """Whether the broker has been asked for the first time, and not answered yet."""
        return self._is_asked and self.known_at is None

    @property
    def is_open(self) -> bool:
        """Whether the broker did not answer the last time."""
        return self.failures > 0

    def rank(self, now: float) -> int:
        """Its place in the order, lowest first: a broker that answers, one that is late, one that does not."""
        if self.is_open:
            return 0 if now >= self._retry_at else 2
        return int(self.is_late)

    def begin(self, now: float) -> bool:
        """A dial begins; whether it is the one that tries an open circuit again. Others do not try it meanwhile."""
        self._is_asked = True
        is_trial = self.is_open and now >= self._retry_at
        if is_trial:
            self._wait(now)
        return is_trial

    def answered(self, now: float) -> None:
        """The broker answered."""
        if self.is_open:
            log.info("broker answers again", broker=str(self.broker))
            self.changed_at = now
        self.failures, self.reason, self.is_late, self.known_at = 0, "", False, now

    def failed(self, reason: str, now: float, *, is_trial: bool) -> None:
        """The broker did not answer. Of several dials at the same time only one lengthens the wait."""
        if not self.is_open:
            log.warning("broker does not answer", broker=str(self.broker), reason=reason, hint=UNREACHABLE_HINT)
            self.changed_at = now
        self.reason, self.is_late, self.known_at = reason, False, now
        if is_trial or not self.is_open:
            self.failures += 1
            self._wait(now)

    def link_cut(self, now: float, *, is_last: bool) -> None:
        """A link ended without a word of the broker; ``is_last``: no other link to it is open.

        One of several proves nothing: a network or an operator may cut a single connection.
        """
        if is_last or now - self._cut_at < _TOGETHER:
            self.changed_at = now
        self._cut_at = now

    def _wait(self, now: float) -> None:
        longest = min(_SHORTEST_WAIT * 2 ** min(max(self.failures - 1, 0), _MOST_DOUBLINGS), _LONGEST_WAIT)
        self._retry_at = now + longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


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
            self._log(log.warning, link.broker, "broker alarm", reason=reason, hint=_ALARM_HINT)
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
