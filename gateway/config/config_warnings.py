"""Warnings: what passes every check, and cannot work or does nothing. A configuration with warnings is used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gateway.config.certificate_warnings import certificate_warnings
from gateway.config.listener_warnings import listener_warnings
from gateway.config.mistakes import Finding
from gateway.config.model import GatewayConfig
from gateway.config.upstream_warnings import upstream_warnings
from gateway.config.virtual_host_warnings import virtual_host_warnings


def warnings_of(config: GatewayConfig) -> Iterator[Finding]:
    """Every warning about a configuration without mistakes."""
    for position, listener in enumerate(config.listeners):
        yield from listener_warnings(config, position, listener)
    yield from upstream_warnings(config)
    yield from virtual_host_warnings(config)
    yield from certificate_warnings(config, datetime.now(UTC))
    yield from _process(config)


def _process(config: GatewayConfig) -> Iterator[Finding]:
    if "drain_spread" in config.model_fields_set and config.drain_spread > config.drain_timeout / 2:
        sentence = "This is more than half of drain_timeout, and only that half counts."
        yield Finding(("drain_spread",), sentence, "Make drain_timeout at least twice as long.")
    # The shipped file with every default has this one too, and warns of nothing.
    if "worker_timeout" in config.changed_keys() and config.workers == 1:
        yield Finding(("worker_timeout",), "This has no effect with one worker.", "Delete it, or set workers.")
    for key in config.admin.changed_keys():
        if config.admin.address is None and key != "address":
            yield Finding(("admin", key), "This has no effect: the admin listener is off.", "Give it an address.")
