"""Addresses that may not connect for a while, because too many logins from them have failed."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.model import FailedLoginLimits
from gateway.server.client_address import address_of, network_of
from gateway.server.counts import Counts, LocalCounts, Recently
from gateway.server.log_limits import LogRateLimiter
from gateway.server.networks import Networks


class LockOuts:
    """Those of a gateway, over all listeners; ``clock`` is monotonic, in seconds.

    An address that is not known, such as that of a Unix socket, is never locked out.
    """

    def __init__(
        self,
        limits: FailedLoginLimits,
        clock: Callable[[], float],
        counts: Counts | None = None,
        log_limiter: LogRateLimiter | None = None,
    ) -> None:
        # How many have begun.
        self.total = 0
        self._limits = limits
        self._exempt = Networks(limits.lock_out_except)
        counts = LocalCounts() if counts is None else counts
        self._log_limiter = log_limiter or LogRateLimiter(clock)
        self._failures = counts.recent(Recently.FAILED_OF_ADDRESS, clock, limits.window)
        self._lock_outs = counts.recent(Recently.LOCKED_OUT, clock, limits.lock_out_for)

    def configure(self, limits: FailedLoginLimits) -> None:
        """Other limits hold from now on, for addresses that are locked out, too."""
        self._limits = limits
        self._exempt = Networks(limits.lock_out_except)
        self._failures.seconds = limits.window
        self._lock_outs.seconds = limits.lock_out_for

    def login_failed(self, host: str) -> None:
        """A login from an IP address was refused for its passcode, by the broker or without asking it.

        While the address is locked out this counts nothing, and afterwards its number begins anew.
        """
        limits = self._limits
        if limits.lock_out_after is None or self._is_exempt(host):
            return
        address = network_of(host)
        if self._lock_outs.count(address):
            return
        failed = self._failures.add(address)
        if failed >= limits.lock_out_after:
            self._lock_outs.renew(address)
            self._failures.forget(address)
            self.total += 1
            self._log_limiter.warning("address locked out", client=address, failed=failed, seconds=limits.lock_out_for)

    def is_locked_out(self, host: str) -> bool:
        """Whether an IP address may not connect."""
        if self._limits.lock_out_after is None or self._is_exempt(host):
            return False
        return self._lock_outs.count(network_of(host)) > 0

    def _is_exempt(self, host: str) -> bool:
        return address_of(host) is None or self._exempt.has(host)
