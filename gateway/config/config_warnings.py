"""Warnings: what passes every check, and cannot work or does nothing. A configuration with warnings is used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gateway.config.certificate_warnings import certificate_warnings
from gateway.config.listener_settings import AdminSettings
from gateway.config.listener_warnings import listener_warnings, lock_out_warnings
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import GatewayConfig
from gateway.config.network_warnings import network_warnings, useless_on_unix_socket
from gateway.config.unix_address import UnixAddress
from gateway.config.upstream_warnings import upstream_warnings
from gateway.config.virtual_host_warnings import virtual_host_warnings


def warnings_of(config: GatewayConfig) -> Iterator[Finding]:
    """Every warning about a configuration without mistakes."""
    for position, listener in enumerate(config.listeners):
        yield from listener_warnings(config, position, listener)
    yield from lock_out_warnings(config)
    yield from upstream_warnings(config)
    yield from virtual_host_warnings(config)
    yield from certificate_warnings(config, datetime.now(UTC))
    yield from _process(config)
    yield from _admin(config.admin)


def _process(config: GatewayConfig) -> Iterator[Finding]:
    if "drain_spread" in config.model_fields_set and config.drain_spread > config.drain_timeout / 2:
        sentence = "This is more than half of drain_timeout, and only that half counts."
        yield Finding(("drain_spread",), sentence, "Make drain_timeout at least twice as long.")
    # The shipped file with every default has this one too, and warns of nothing.
    if "worker_timeout" in config.changed_keys() and config.workers == 1:
        yield Finding(("worker_timeout",), "This has no effect with one worker.", "Delete it, or set workers.")


def _admin(admin: AdminSettings) -> Iterator[Finding]:
    trail: Trail = ("admin",)
    if admin.address is None:
        for key in admin.changed_keys():
            if key != "address":
                yield Finding((*trail, key), "This has no effect: the admin listener is off.", "Give it an address.")
        return
    if isinstance(admin.address, UnixAddress):
        yield from useless_on_unix_socket(trail, admin, "allowed_networks", "denied_networks")
    yield from network_warnings(trail, admin, admin.address, "allowed_networks")
