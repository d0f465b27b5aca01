"""Warnings about lists of networks: entries that let nobody in, and lists that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Any, Final, cast

from gateway.config.listener_settings import AdminSettings, Listener
from gateway.config.mistakes import Finding, Trail
from gateway.config.unix_address import ListenAddress, UnixAddress

_AnyNetwork = IPv4Network | IPv6Network

_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1"))
_ALL: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))


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
    if networks and everybody and not any(_overlap(network, each) for network in networks for each in everybody):
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
    return any(_overlap(network, own) for own in _LOOPBACK)


def _overlap(network: _AnyNetwork, other: _AnyNetwork) -> bool:
    return _is_within(network, other) or _is_within(other, network)


def _is_within_any(network: _AnyNetwork, others: tuple[_AnyNetwork, ...]) -> bool:
    return any(_is_within(network, other) for other in others)


def _is_within(network: _AnyNetwork, other: _AnyNetwork) -> bool:
    """Whether all addresses of a network are in another one."""
    return network.version == other.version and network.subnet_of(cast(Any, other))
