"""Addresses of configurations, for tests that know which kind they have."""

from __future__ import annotations

from gateway.config.addresses import ListenAddress, SocketAddress


def tcp(address: ListenAddress | None) -> SocketAddress:
    """The same, which is a host and a port."""
    assert isinstance(address, SocketAddress)
    return address
