"""The configuration: a YAML file becomes frozen, validated values, or a list of every mistake in it."""

from gateway.config.config_files import default_journal_directory
from gateway.config.listener_settings import AdminSettings, CertificateLogin, Listener, ListenerTls, ServerTls
from gateway.config.loader import load, parse
from gateway.config.model import PASS_THROUGH, GatewayConfig, Logging, json_schema
from gateway.config.scalars import BrokerUrl, SocketAddress
from gateway.config.virtual_host import Limit, Upstream, UpstreamTls, User, VirtualHost

__all__ = [
    "PASS_THROUGH",
    "AdminSettings",
    "BrokerUrl",
    "CertificateLogin",
    "GatewayConfig",
    "Limit",
    "Listener",
    "ListenerTls",
    "Logging",
    "ServerTls",
    "SocketAddress",
    "Upstream",
    "UpstreamTls",
    "User",
    "VirtualHost",
    "default_journal_directory",
    "json_schema",
    "load",
    "parse",
]
