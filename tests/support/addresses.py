"""Addresses of configurations, for tests that know which kind they have."""

from __future__ import annotations

from gateway.config.scalars import SocketAddress
from gateway.config.unix_address import ListenAddress


def tcp(address: ListenAddress | None) -> SocketAddress:
    """The same, which is a host and a port."""
    assert isinstance(address, SocketAddress)
    return address
