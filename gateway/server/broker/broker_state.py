"""What the gateway knows of brokers: whether they answer, when to try them again, and whether they have an alarm."""

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

# Seconds until a broker that did not answer is tried again. They double with each failure. The jitter subtracts up to
# half, so that several gateways do not try at the same time.
_SHORTEST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0
_MOST_DOUBLINGS: Final = 5
# If several links end without connection.close within this many seconds, the broker is lost.
_TOGETHER: Final = 1.0
_ALARM_HINT: Final = "free memory or disk at the broker, see rabbitmqctl status; until then, messages from clients wait"
UNREACHABLE_HINT: Final = (
    "check that RabbitMQ runs there, and upstream in the configuration; stomp-gateway check tries each step"
)


class Circuit:
    """A circuit breaker that only orders brokers: one with an open circuit is tried after all others.

    Times are in seconds, on a monotonic clock.
    """

    def __init__(self, broker: BrokerUrl) -> None:
        self.broker = broker
        # The number of failures in a row, and the reason of the last one.
        self.failures = 0
        self.reason = ""
        # Whether a dial under way takes longer than it should.
        self.is_late = False
        # When the broker last answered or failed to; None before.
        self.known_at: float | None = None
        # When it last ceased to answer, answered again, or stopped.
        self.changed_at = float("-inf")
        # When a link last ended without connection.close.
        self._cut_at = float("-inf")
        self._retry_at = 0.0
        self._is_asked = False

    @property
    def is_unknown(self) -> bool:
        """Whether the broker is being dialled for the first time."""
        return self._is_asked and self.known_at is None

    @property
    def is_open(self) -> bool:
        """Whether the broker did not answer the last dial."""
        return self.failures > 0

    def rank(self, now: float) -> int:
        """Its place in the order of dials: 0 for a broker that answers or is due for a trial, 1 if late, 2 if open."""
        if self.is_open:
            return 0 if now >= self._retry_at else 2
        return int(self.is_late)

    def begin(self, now: float) -> bool:
        """Note that a dial begins. Returns whether it is the trial of an open circuit; there is one at a time."""
        self._is_asked = True
        is_trial = self.is_open and now >= self._retry_at
        if is_trial:
            self._wait(now)
        return is_trial

    def answered(self, now: float) -> None:
        """Note that the broker answered."""
        if self.is_open:
            log.info("broker answers again", broker=str(self.broker))
            self.changed_at = now
        self.failures, self.reason, self.is_late, self.known_at = 0, "", False, now

    def failed(self, reason: str, now: float, *, is_trial: bool) -> None:
        """Note that the broker did not answer. Of several dials at the same time, only one lengthens the wait."""
        if not self.is_open:
            log.warning("broker does not answer", broker=str(self.broker), reason=reason, hint=UNREACHABLE_HINT)
            self.changed_at = now
        self.reason, self.is_late, self.known_at = reason, False, now
        if is_trial or not self.is_open:
            self.failures += 1
            self._wait(now)

    def link_cut(self, now: float, *, is_last: bool) -> None:
        """Note that a link ended without connection.close. ``is_last``: no other link to the broker is open.

        One of several links proves nothing: a network or an operator may cut a single connection.
        """
        if is_last or now - self._cut_at < _TOGETHER:
            self.changed_at = now
        self._cut_at = now

    def _wait(self, now: float) -> None:
        longest = min(_SHORTEST_WAIT * 2 ** min(max(self.failures - 1, 0), _MOST_DOUBLINGS), _LONGEST_WAIT)
        self._retry_at = now + longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class BrokerAlarms:
    """The brokers that have an alarm. RabbitMQ tells a link only when that publishes."""

    def __init__(self, log_limits: LogLimits) -> None:
        self._log_limits = log_limits
        # The blocked links of each broker that has an alarm, with the broker's text.
        self._blocked: dict[BrokerUrl, dict[Link, str]] = {}

    def of(self, broker: BrokerUrl) -> str:
        """The broker's text while it has an alarm, such as ``low on memory``; otherwise empty."""
        return next(iter(self._blocked.get(broker, {}).values()), "")

    def changed(self, link: Link, reason: str | None) -> None:
        """Note that a broker told a link about an alarm, with its text, or with None about the end of the alarm."""
        if reason is None:
            self._end(link)
            return
        if link.broker not in self._blocked:
            self._log(log.warning, link.broker, "broker alarm", reason=reason, hint=_ALARM_HINT)
        self._blocked.setdefault(link.broker, {})[link] = reason or "no reason given"

    def link_closed(self, link: Link) -> None:
        """Note that a link is closed. With the last blocked one, the alarm is unknown and counts as ended."""
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
