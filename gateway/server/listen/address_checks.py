"""Which IP addresses may connect to a listener: its lists of networks, and who is locked out."""

from __future__ import annotations

from gateway.config.listener_settings import Listener
from gateway.server.client_address import address_of
from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.connection_limits import LOCKED_OUT, OF_NETWORK
from gateway.server.lock_outs import LockOuts
from gateway.server.networks import Networks


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
