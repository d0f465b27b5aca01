"""The configuration: a YAML file becomes frozen, validated values, or a list of every mistake in it."""

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.listeners import CertificateLogin, Listener, ListenerTls
from gateway.config.loader import load, parse
from gateway.config.model import (
    CertificateUsers,
    ConfirmWindow,
    GatewayConfig,
    Logging,
    Tls,
    Transactions,
    Upstream,
    User,
    VirtualHost,
    VirtualHostEntry,
    VirtualHostSettings,
)
from gateway.config.schema import json_schema

__all__ = [
    "BrokerUrl",
    "CertificateLogin",
    "CertificateUsers",
    "ConfirmWindow",
    "GatewayConfig",
    "Listener",
    "ListenerTls",
    "Logging",
    "SocketAddress",
    "Tls",
    "Transactions",
    "Upstream",
    "User",
    "VirtualHost",
    "VirtualHostEntry",
    "VirtualHostSettings",
    "json_schema",
    "load",
    "parse",
]
