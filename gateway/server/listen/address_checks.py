"""Which addresses may connect: a listener's lists of networks, and addresses that are locked out of all listeners."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.listener_settings import Listener
from gateway.config.model import FailedLoginLimits
from gateway.server.client_address import Networks, address_of, network_of
from gateway.server.counts import Counts, Recently
from gateway.server.listen.accepted_connection import Peer
from gateway.server.log_limits import LogRateLimiter
from gateway.server.stats import Refusal


class AddressRefusedError(Exception):
    """An address may not connect. The text says why. ``limit``: the metric's label."""

    def __init__(self, limit: Refusal, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class AddressChecks:
    """The checks of one listener.

    An unknown address, such as that of a Unix-domain socket, is in no list, and not refused. But with a list of allowed
    networks, a proxy must name its client.
    """

    def __init__(self, settings: Listener, lock_outs: LockOuts) -> None:
        self._denied = Networks(settings.denied_networks)
        self._allowed = Networks(settings.allowed_networks)
        self._proxies = Networks(settings.trusted_proxies)
        self._are_proxies = settings.proxy_protocol
        self._lock_outs = lock_outs

    def check_accepted(self, peer: Peer) -> None:
        """Check a connection before anything is read. With the PROXY protocol it must come from a trusted proxy.

        Raises:
            AddressRefusedError: it may not connect.
        """
        if self._are_proxies:
            self._check_lists(peer, self._proxies, "trusted_proxies")
        else:
            self.check_client(peer)

    def check_client(self, peer: Peer) -> None:
        """Check a client's own address.

        Raises:
            AddressRefusedError: it may not connect.
        """
        self._check_lists(peer, self._allowed, "allowed_networks")
        # The address of a proxy that does not name its clients is that of all of them.
        if not peer.is_proxy and self._lock_outs.is_locked_out(peer.host):
            raise AddressRefusedError(Refusal.LOCKED_OUT, "too many logins from this address have failed")

    def _check_lists(self, peer: Peer, allowed: Networks, name: str) -> None:
        if address_of(peer.host) is None:
            if allowed and peer.is_proxy:
                raise AddressRefusedError(Refusal.NETWORK, f"the proxy names no client, and there are {name}")
            return
        if self._denied.has(peer.host):
            raise AddressRefusedError(Refusal.NETWORK, "the address is in denied_networks")
        if allowed and not allowed.has(peer.host):
            raise AddressRefusedError(Refusal.NETWORK, f"the address is not in {name}")


class LockOuts:
    """Addresses that may not connect for a while, to any listener, because too many logins from them have failed.

    ``clock``: monotonic, in seconds. An unknown address, such as that of a Unix-domain socket, is never locked out.
    """

    def __init__(
        self,
        limits: FailedLoginLimits,
        clock: Callable[[], float],
        counts: Counts | None = None,
        log_limiter: LogRateLimiter | None = None,
    ) -> None:
        # The number of lock-outs so far.
        self.total = 0
        self._limits = limits
        self._exempt = Networks(limits.lock_out_except)
        counts = Counts() if counts is None else counts
        self._log_limiter = log_limiter or LogRateLimiter(clock)
        self._failures = counts.recent(Recently.FAILED_OF_ADDRESS, clock, limits.window)
        self._lock_outs = counts.recent(Recently.LOCKED_OUT, clock, limits.lock_out_for)

    def configure(self, limits: FailedLoginLimits) -> None:
        """Use other limits from now on, also for addresses that are locked out."""
        self._limits = limits
        self._exempt = Networks(limits.lock_out_except)
        self._failures.seconds = limits.window
        self._lock_outs.seconds = limits.lock_out_for

    def login_failed(self, host: str) -> None:
        """Count a login from an IP address that was refused for its passcode, by the broker or without asking it.

        While the address is locked out, nothing is counted. Afterwards its count starts again at 0.
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
        """Whether an IP address is locked out."""
        if self._limits.lock_out_after is None or self._is_exempt(host):
            return False
        return self._lock_outs.count(network_of(host)) > 0

    def _is_exempt(self, host: str) -> bool:
        return address_of(host) is None or self._exempt.has(host)
