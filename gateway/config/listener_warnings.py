"""Warnings about listeners: clients that could not log in, or that could without being asked who they are."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.listener_settings import Listener
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import GatewayConfig
from gateway.config.scalars import SocketAddress
from gateway.config.virtual_host import VirtualHost

_SAN = "subject_alternative_name"


def listener_warnings(config: GatewayConfig, position: int, listener: Listener) -> Iterator[Finding]:
    """Warnings about one listener."""
    trail: Trail = ("listeners", position)
    yield from _certificate_login(config, trail, listener)
    yield from _implicit_connect(config, trail, listener)
    yield from _timeouts(config, trail, listener)
    if listener.websocket is not None:
        yield from _websocket(config, trail, listener)


def is_local(address: SocketAddress) -> bool:
    """Whether only programs of this machine reach an address."""
    return address.host in ("localhost", "::1") or address.host.startswith("127.")


def only_local(virtual_host: VirtualHost) -> bool:
    """Whether the default user may log in from this machine only."""
    user = virtual_host.default_user
    return user is not None and user.login.encode() in virtual_host.loopback_users


def _certificate_login(config: GatewayConfig, trail: Trail, listener: Listener) -> Iterator[Finding]:
    login = listener.tls.certificate_login if listener.tls is not None else None
    if login is None:
        return
    trail = (*trail, "tls", "certificate_login")
    everybody = [virtual_host.certificate_users for virtual_host in config.resolved_virtual_hosts()]
    if not any(users.users or users.everyone for users in everybody):
        sentence = "No virtual host has certificate_users, so every client that logs in by a certificate is refused."
        yield Finding(trail, sentence, "Name users under certificate_users: by the names in certificates, or everyone.")
    for key in login.changed_keys():
        if login.name != _SAN and key != "name":
            yield Finding((*trail, key), f"This has no effect: name is {login.name}.", f"Set name to {_SAN}.")


def _implicit_connect(config: GatewayConfig, trail: Trail, listener: Listener) -> Iterator[Finding]:
    virtual_host = config.virtual_host(None)
    if not listener.implicit_connect or virtual_host is None:
        return
    trail = (*trail, "implicit_connect")
    if virtual_host.default_user is None:
        sentence = "The default virtual host has no default_user, so every client without CONNECT is refused."
        yield Finding(trail, sentence, "Give it a default_user.")
    elif only_local(virtual_host) and not is_local(listener.address):
        sentence = "The default user is among loopback_users, so clients of other machines without CONNECT are refused."
        yield Finding(trail, sentence, "Take another default_user, or leave it out of loopback_users.")


def _timeouts(config: GatewayConfig, trail: Trail, listener: Listener) -> Iterator[Finding]:
    key = "login_timeout"
    longest = max(virtual_host.upstream.connect_timeout for virtual_host in config.resolved_virtual_hosts())
    if listener.login_timeout <= longest:
        sentence = "A client is closed before a silent broker has had its connect_timeout."
        yield Finding((*trail, key), sentence, "Make login_timeout longer, or connect_timeout shorter.")
    if listener.login_timeout <= config.failed_logins.delay:
        sentence = "A client whose login is refused gets Login timeout instead, because of failed_logins.delay."
        yield Finding((*trail, key), sentence, "Make login_timeout longer, or the delay shorter.")


def _websocket(config: GatewayConfig, trail: Trail, listener: Listener) -> Iterator[Finding]:
    users = [virtual_host for virtual_host in config.resolved_virtual_hosts() if virtual_host.default_user is not None]
    anywhere = [virtual_host for virtual_host in users if not only_local(virtual_host)]
    if users and not listener.allowed_origins:
        whose = "a browser" if anywhere else "a browser on this machine"
        sentence = f"Any web page in {whose} can connect without a login, as the default user."
        advice = "Name the pages under allowed_origins, or set default_user to null."
        yield Finding((*trail, "websocket"), sentence, advice)
    sentence = "A client without heart-beats is closed when it has nothing to send, since no ping asks it before."
    if listener.idle_timeout and not listener.ping_interval:
        yield Finding((*trail, "ping_interval"), sentence, "Set it, or idle_timeout to 0.")
    elif 0 < listener.idle_timeout <= listener.ping_interval:
        yield Finding((*trail, "idle_timeout"), sentence, "Make it longer than ping_interval, or 0.")
