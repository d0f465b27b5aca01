"""The configuration: a YAML file becomes frozen, validated values, or a list of every mistake in it."""

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.admin import Admin
from gateway.config.journal import Journal
from gateway.config.journal import default_directory as default_journal_directory
from gateway.config.listeners import CertificateLogin, Listener, ListenerTls, ServerTls
from gateway.config.loader import load, parse
from gateway.config.model import (
    PASS_THROUGH,
    CertificateUsers,
    ConfirmWindow,
    GatewayConfig,
    Logging,
    Tls,
    Transactions,
    Upstream,
    VirtualHost,
    VirtualHostEntry,
    VirtualHostSettings,
)
from gateway.config.policy import DestinationRule, Limit, Limits, Prefetch, QueueArguments
from gateway.config.schema import json_schema
from gateway.config.users import User

__all__ = [
    "PASS_THROUGH",
    "Admin",
    "BrokerUrl",
    "CertificateLogin",
    "CertificateUsers",
    "ConfirmWindow",
    "DestinationRule",
    "GatewayConfig",
    "Journal",
    "Limit",
    "Limits",
    "Listener",
    "ListenerTls",
    "Logging",
    "Prefetch",
    "QueueArguments",
    "ServerTls",
    "SocketAddress",
    "Tls",
    "Transactions",
    "Upstream",
    "User",
    "VirtualHost",
    "VirtualHostEntry",
    "VirtualHostSettings",
    "default_journal_directory",
    "json_schema",
    "load",
    "parse",
]
