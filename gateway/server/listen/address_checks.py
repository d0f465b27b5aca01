"""Which IP addresses may connect: a listener's lists of networks, and who is locked out of all.

An address may not connect for a while when too many logins from it have failed.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.listener_settings import Listener
from gateway.config.model import FailedLoginLimits
from gateway.server.client_address import Networks, address_of, network_of
from gateway.server.counts import Counts, Recently
from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.connection_limits import LOCKED_OUT, OF_NETWORK
from gateway.server.log_limits import LogRateLimiter


class AddressRefusedError(Exception):
    """Nobody may connect from an address; the text says why, and ``limit`` in a word."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class AddressChecks:
    """Those of one listener.

    An address that is unknown, as over a Unix-domain socket, is in no list, and not refused. But where not everybody is
    allowed, a proxy has to name its client.
    """

    def __init__(self, settings: Listener, lock_outs: LockOuts) -> None:
        self._denied = Networks(settings.denied_networks)
        self._allowed = Networks(settings.allowed_networks)
        self._proxies = Networks(settings.trusted_proxies)
        self._are_proxies = settings.proxy_protocol
        self._lock_outs = lock_outs

    def check_accepted(self, peer: Peer) -> None:
        """Check where a connection comes from, before anything is read: with PROXY protocol from a proxy.

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
        # A proxy that does not name its clients stands for all of them.
        if not peer.is_proxy and self._lock_outs.is_locked_out(peer.host):
            raise AddressRefusedError(LOCKED_OUT, "too many logins from this address have failed")

    def _check_lists(self, peer: Peer, allowed: Networks, name: str) -> None:
        if address_of(peer.host) is None:
            if allowed and peer.is_proxy:
                raise AddressRefusedError(OF_NETWORK, f"the proxy names no client, and there are {name}")
            return
        if self._denied.has(peer.host):
            raise AddressRefusedError(OF_NETWORK, "the address is in denied_networks")
        if allowed and not allowed.has(peer.host):
            raise AddressRefusedError(OF_NETWORK, f"the address is not in {name}")


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
        counts = Counts() if counts is None else counts
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
