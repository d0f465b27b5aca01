"""The configuration: a YAML file becomes frozen, validated values, or a list of every mistake in it."""

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.loader import load, parse
from gateway.config.model import (
    ConfirmWindow,
    DefaultUser,
    GatewayConfig,
    Listener,
    Logging,
    Tls,
    Transactions,
    Upstream,
    VirtualHost,
    VirtualHostEntry,
    VirtualHostSettings,
)
from gateway.config.schema import json_schema

__all__ = [
    "BrokerUrl",
    "ConfirmWindow",
    "DefaultUser",
    "GatewayConfig",
    "Listener",
    "Logging",
    "SocketAddress",
    "Tls",
    "Transactions",
    "Upstream",
    "VirtualHost",
    "VirtualHostEntry",
    "VirtualHostSettings",
    "json_schema",
    "load",
    "parse",
]
