"""Warnings about listeners: clients that could not log in, or that could without being asked who they are."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Any, Final, cast

from gateway.config.addresses import ListenAddress, UnixAddress
from gateway.config.listener_settings import AdminSettings, Listener
from gateway.config.mistakes import Finding, Trail, path_text
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost

_SAN = "subject_alternative_name"
_AnyNetwork = IPv4Network | IPv6Network

_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1"))
_ALL: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def listener_warnings(config: GatewayConfig, position: int, listener: Listener) -> Iterator[Finding]:
    """Warnings about one listener."""
    trail: Trail = ("listeners", position)
    yield from _certificate_login(config, trail, listener)
    yield from _implicit_connect(config, trail, listener)
    yield from _timeouts(config, trail, listener)
    if isinstance(listener.address, UnixAddress):
        yield from _unix_socket(trail, listener)
    elif is_local(listener.address):
        yield from _shared_address(trail, listener)
    yield from _claimed_addresses(trail, listener)
    comes_from = "trusted_proxies" if listener.proxy_protocol else "allowed_networks"
    yield from network_warnings(trail, listener, listener.address, comes_from)
    if listener.websocket is not None:
        yield from _websocket(config, trail, listener)


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


def lock_out_warnings(config: GatewayConfig) -> Iterator[Finding]:
    """Lock-outs that cannot be, or that all clients of a listener have in common."""
    limits = config.failed_logins
    if limits.lock_out_after is None:
        for key in limits.changed_keys():
            if key.startswith("lock_out_"):
                sentence = "This has no effect without lock_out_after."
                yield Finding(("failed_logins", key), sentence, "Set lock_out_after, or delete this.")
    elif not any(map(has_this_machine, limits.lock_out_except)):
        for position, listener in enumerate(config.listeners):
            if _share_address(listener):
                name = path_text(("listeners", position))
                sentence = f"A client of {name} that cannot log in locks all others of it out."
                advice = "They all have the address of this machine: add 127.0.0.0/8 and '::1'."
                yield Finding(("failed_logins", "lock_out_except"), sentence, advice)


def _timeouts(config: GatewayConfig, trail: Trail, listener: Listener) -> Iterator[Finding]:
    key = "login_timeout"
    longest = max(virtual_host.upstream.connect_timeout for virtual_host in config.resolved_virtual_hosts())
    if listener.login_timeout <= longest:
        sentence = "A client is closed before a silent broker has had its connect_timeout."
        yield Finding((*trail, key), sentence, "Make login_timeout longer, or connect_timeout shorter.")
    if listener.login_timeout <= config.failed_logins.delay:
        sentence = "A client whose login is refused gets Login timeout instead, because of failed_logins.delay."
        yield Finding((*trail, key), sentence, "Make login_timeout longer, or the delay shorter.")


def _shared_address(trail: Trail, listener: Listener) -> Iterator[Finding]:
    """Limits by address on a loopback address: all clients have it, such as those of a proxy on this machine."""
    keys = ("max_connections_per_address", "max_unauthenticated_per_address")
    for key in sorted(set(keys) & set(listener.changed_keys())):
        if _share_address(listener) and getattr(listener, key) is not None:
            sentence = "All clients of this listener have the address of this machine, so they share this number."
            yield Finding((*trail, key), sentence, "Set proxy_protocol if a proxy is in front of it, or delete this.")


def _unix_socket(trail: Trail, listener: Listener) -> Iterator[Finding]:
    """Keys about addresses, which no client has here unless a proxy names it."""
    about_clients = () if listener.proxy_protocol else ("allowed_networks", "denied_networks")
    yield from useless_on_unix_socket(trail, listener, "tcp_keepalive", "trusted_proxies", *about_clients)


def _claimed_addresses(trail: Trail, listener: Listener) -> Iterator[Finding]:
    """PROXY headers that are believed from anybody."""
    if not listener.proxy_protocol:
        return
    if isinstance(listener.address, UnixAddress):
        if listener.socket_mode & stat.S_IWOTH:
            sentence = "Every user of this machine can connect here and claim any address by a PROXY header."
            yield Finding((*trail, "socket_mode"), sentence, 'Take "0660", and the proxy\'s group as socket_group.')
    elif not is_local(listener.address) and not listener.trusted_proxies:
        sentence = "Whoever connects here can claim any address by a PROXY header, also that of this machine."
        advice = "Name the proxies under trusted_proxies; if a firewall lets in nobody else, every network will do."
        yield Finding((*trail, "proxy_protocol"), sentence, advice)


def _share_address(listener: Listener) -> bool:
    """Whether all clients of a listener have this machine's address; over a Unix-domain socket they have none."""
    is_tcp = not isinstance(listener.address, UnixAddress)
    return is_tcp and is_local(listener.address) and not listener.proxy_protocol


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


def is_local(address: ListenAddress) -> bool:
    """Whether only programs of this machine reach an address."""
    if isinstance(address, UnixAddress):
        return True
    return address.host in ("localhost", "::1") or address.host.startswith("127.")


def network_warnings(
    trail: Trail, settings: Listener | AdminSettings, address: ListenAddress, comes_from: str
) -> Iterator[Finding]:
    """Warnings about the lists of a listener, of which ``comes_from`` is about those who connect to it."""
    denied, everybody = _together(settings.denied_networks), _everybody(address)
    if everybody and all(_is_within_any(network, denied) for network in everybody):
        sentence = "Nobody can connect: everybody who reaches this address is in one of these networks."
        yield Finding((*trail, "denied_networks"), sentence, "Leave out the networks that clients are in.")
        return
    for key in sorted({"allowed_networks", comes_from}):
        for position, network in enumerate(getattr(settings, key)):
            if _is_within_any(network, denied):
                sentence = "This lets nobody in: it is in denied_networks, too."
                yield Finding((*trail, key, position), sentence, "Delete one of the two.")
    networks = getattr(settings, comes_from)
    if networks and everybody and not any(network.overlaps(each) for network in networks for each in everybody):
        yield _nobody((*trail, comes_from), everybody, networks)


def _nobody(trail: Trail, everybody: tuple[_AnyNetwork, ...], networks: tuple[_AnyNetwork, ...]) -> Finding:
    """None of these networks has anybody who reaches the address."""
    if set(everybody) <= set(_LOOPBACK) and not any(map(has_this_machine, networks)):
        sentence = "Nobody can connect: this address is only for this machine, which is in none of these networks."
        return Finding(trail, sentence, "Listen on another address, or add 127.0.0.0/8 and '::1'.")
    version = everybody[0].version
    sentence = f"Nobody can connect: this is an address of IPv{version}, and none of these networks is."
    return Finding(trail, sentence, f"Add networks of IPv{version}, or listen on another address.")


def _everybody(address: ListenAddress) -> tuple[_AnyNetwork, ...]:
    """Networks that have everybody who reaches an address; none for a Unix-domain socket."""
    if isinstance(address, UnixAddress):
        return ()
    networks = _LOOPBACK if is_local(address) else _ALL
    try:
        version = ip_address(address.host).version
    except ValueError:
        # A name may stand for addresses of both versions.
        return networks
    return tuple(network for network in networks if network.version == version)


def _together(networks: tuple[_AnyNetwork, ...]) -> tuple[_AnyNetwork, ...]:
    """The same networks, with two halves of one as that one."""
    old = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    new = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    return *old, *new


def useless_on_unix_socket(trail: Trail, settings: Listener | AdminSettings, *keys: str) -> Iterator[Finding]:
    """Warnings about keys that are about TCP, on a Unix-domain socket."""
    for key in keys:
        if key in settings.changed_keys():
            yield Finding((*trail, key), "This has no effect on a Unix-domain socket.", "Delete it.")


def has_this_machine(network: _AnyNetwork) -> bool:
    """Whether a loopback address is in a network."""
    return any(network.overlaps(own) for own in _LOOPBACK)


def _is_within_any(network: _AnyNetwork, others: tuple[_AnyNetwork, ...]) -> bool:
    """Whether all addresses of a network are in one of several others."""
    return any(network.version == other.version and network.subnet_of(cast(Any, other)) for other in others)
