"""Checks across keys, for mistakes that no single value shows.

They look at the tree as the file has it, whatever its shape, and not at the validated model: so they are reported
together with all other mistakes, even where some other value is wrong. What is of the wrong shape is passed over here,
since validation speaks of it. `strange_keys` and `shared_journals` look at the model, once there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

from pydantic_core import PydanticCustomError

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.findings import Finding, Trail, closest, path_text
from gateway.config.journal import default_directory
from gateway.config.model import PASS_THROUGH, GatewayConfig, VirtualHost
from gateway.config.tls_files import check_key

_TLS_FILES = ("ca_file", "cert_file", "key_file")
_OF_SEGMENTS = ("node", "rotate_bytes", "rotate_after", "retain")
_WILDCARDS = {"0.0.0.0": 4, "::": 6}  # noqa: S104 - compared with, not listened on


def contradictions(tree: object) -> list[Finding]:
    """Everything in a tree that contradicts something else in it."""
    top = _mapping(tree)
    virtual_hosts = _mapping(top.get("virtual_hosts"))
    checks = chain(
        _listeners(top.get("listeners")),
        _listener_tls(top.get("listeners")),
        _admin(top),
        _aliases(virtual_hosts),
        _default_virtual_host(top),
        _tls(_mapping(top.get("upstream")), virtual_hosts),
    )
    return list(checks)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _listeners(listeners: object) -> Iterator[Finding]:
    taken: list[tuple[Trail, SocketAddress]] = []
    for position, listener in enumerate(_entries(listeners)):
        key = "websocket" if _mapping(listener).get("websocket") is not None else "tcp"
        trail: Trail = ("listeners", position, key)
        try:
            address = SocketAddress.read(_mapping(listener).get(key))
        except PydanticCustomError:
            continue
        for other_trail, other in taken:
            if _collide(address, other):
                sentence = f"This address is already taken by {path_text(other_trail)}."
                yield Finding(trail, sentence, "Give it another port, or delete one of the two.")
                break
        taken.append((trail, address))


def _collide(one: SocketAddress, other: SocketAddress) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or any(
        _WILDCARDS.get(wide.host) == (6 if ":" in narrow.host else 4) for wide, narrow in ((one, other), (other, one))
    )


def _listener_tls(listeners: object) -> Iterator[Finding]:
    for position, listener in enumerate(_entries(listeners)):
        tls = _mapping(_mapping(listener).get("tls"))
        trail: Trail = ("listeners", position, "tls")
        yield from _verify(trail, tls)
        if tls.get("verify", "none") == "none" and tls.get("certificate_login") is not None:
            yield Finding(
                (*trail, "certificate_login"),
                "No client is asked for a certificate here.",
                "Set verify to optional or required.",
            )


def _verify(trail: Trail, tls: dict[str, Any]) -> Iterator[Finding]:
    if tls.get("verify") in ("optional", "required") and not tls.get("ca_file"):
        yield Finding(
            (*trail, "verify"),
            "To check clients' certificates, ca_file is needed.",
            "Name the file of the certificate authority that issued them.",
        )


def _admin(top: dict[str, Any]) -> Iterator[Finding]:
    admin = _mapping(top.get("admin"))
    yield from _verify(("admin", "tls"), _mapping(admin.get("tls")))
    trail: Trail = ("admin",) if isinstance(top.get("admin"), str) else ("admin", "address")
    try:
        address = SocketAddress.read(admin.get("address", top.get("admin")))
    except PydanticCustomError:
        return
    for position, listener in enumerate(_entries(top.get("listeners"))):
        for key in ("tcp", "websocket"):
            try:
                other = SocketAddress.read(_mapping(listener).get(key))
            except PydanticCustomError:
                continue
            if _collide(address, other):
                sentence = f"This address is already taken by {path_text(('listeners', position, key))}."
                yield Finding(trail, sentence, "Give it another port.")


def _aliases(virtual_hosts: dict[str, Any]) -> Iterator[Finding]:
    owners: dict[str, Trail] = {}
    for name, entry in virtual_hosts.items():
        aliases = _entries(_mapping(entry).get("aliases"))
        if name == PASS_THROUGH and aliases:
            trail: Trail = ("virtual_hosts", name, "aliases")
            yield Finding(trail, f'"{PASS_THROUGH}" already means every host that is not configured.', "Delete this.")
            continue
        for position, alias in enumerate(aliases):
            if not isinstance(alias, str) or alias == name:
                continue
            trail = ("virtual_hosts", name, "aliases", position)
            yield from _alias(trail, alias, virtual_hosts, owners)
            owners.setdefault(alias, trail)


def _alias(trail: Trail, alias: str, virtual_hosts: dict[str, Any], owners: dict[str, Trail]) -> Iterator[Finding]:
    if alias == PASS_THROUGH:
        yield Finding(
            trail, f'"{PASS_THROUGH}" is a key of virtual_hosts, not an alias.', "Name the hosts one by one here."
        )
    elif alias in owners:
        yield Finding(trail, f"This alias is already one at {path_text(owners[alias])}.", "Keep one of the two.")
    elif alias in virtual_hosts:
        yield Finding(
            trail, "This alias is the name of another virtual host.", "A host can mean only one: delete the alias."
        )


def _default_virtual_host(top: dict[str, Any]) -> Iterator[Finding]:
    wanted, virtual_hosts = top.get("default_vhost", "/"), top.get("virtual_hosts")
    if virtual_hosts is None:
        virtual_hosts = {"/": None}
    if not isinstance(wanted, str) or not wanted or not isinstance(virtual_hosts, dict):
        return
    aliases = [alias for entry in virtual_hosts.values() for alias in _entries(_mapping(entry).get("aliases"))]
    if wanted == PASS_THROUGH:
        yield Finding(("default_vhost",), "This must be the name of one virtual host.")
    elif wanted not in virtual_hosts and PASS_THROUGH not in virtual_hosts and wanted not in aliases:
        near = closest(wanted, virtual_hosts)
        advice = f"Did you mean {near}?" if near else "Add it there, or set default_vhost to one that is there."
        if "default_vhost" in top:
            yield Finding(("default_vhost",), "This is not among the virtual_hosts.", advice)
        else:
            yield Finding(("virtual_hosts",), f"The default_vhost, which is {wanted} unless set, is missing.", advice)


def _tls(upstream: dict[str, Any], virtual_hosts: dict[str, Any]) -> Iterator[Finding]:
    own = {name: _mapping(_mapping(entry).get("upstream")) for name, entry in virtual_hosts.items()}
    shared = _mapping(upstream.get("tls"))
    anywhere = any(_speaks_tls(place, {}) for place in (upstream, *own.values()))
    yield from _tls_group(("upstream", "tls"), shared, shared, anywhere)
    for name, place in own.items():
        tls = _mapping(place.get("tls"))
        trail: Trail = ("virtual_hosts", name, "upstream", "tls")
        yield from _tls_group(trail, tls, shared | tls, _speaks_tls(place, upstream))


def _tls_group(trail: Trail, said: dict[str, Any], merged: dict[str, Any], in_use: bool) -> Iterator[Finding]:
    if ("cert_file" in said or "key_file" in said) and bool(merged.get("cert_file")) != bool(merged.get("key_file")):
        present, absent = ("cert_file", "key_file") if merged.get("cert_file") else ("key_file", "cert_file")
        yield Finding(trail, f"{present} needs {absent} beside it.")
    if not in_use and (said.get("verify") in (False, "false") or any(map(said.get, _TLS_FILES))):
        yield Finding(trail, "This has no effect: no upstream URL begins with amqps://.", "Change the URLs to amqps.")


def strange_keys(config: GatewayConfig) -> Iterator[Finding]:
    """Where a certificate and the key that goes with it stand in different places, and do not belong together.

    Args:
        config: otherwise without a mistake.
    """
    for virtual_host in config.resolved_virtual_hosts():
        own, tls = config.virtual_hosts[virtual_host.name].upstream, virtual_host.upstream.tls
        said = own.tls.model_fields_set & {"cert_file", "key_file"} if own is not None else set()
        if len(said) == 1 and tls.cert_file is not None and tls.key_file is not None:
            try:
                check_key(tls.key_file, tls.cert_file)
            except PydanticCustomError as error:
                suggestion = (error.context or {}).get("suggestion")
                yield Finding(
                    ("virtual_hosts", virtual_host.name, "upstream", "tls", *said), error.message(), suggestion
                )


def shared_journals(config: GatewayConfig) -> Iterator[Finding]:
    """Virtual hosts whose journals have the same directory share its segments, so they cannot treat them differently.

    Args:
        config: otherwise without a mistake.
    """
    owners: dict[str, VirtualHost] = {}
    for virtual_host in config.resolved_virtual_hosts():
        journal = virtual_host.journal
        if journal.level == "off":
            continue
        there = owners.setdefault(os.path.normpath(journal.directory or default_directory()), virtual_host)
        for key in _OF_SEGMENTS:
            if getattr(journal, key) != getattr(there.journal, key):
                sentence = (
                    f"{key} differs from that of {path_text(('virtual_hosts', there.name))}, in the same directory."
                )
                advice = "Give both the same value, or one of them a directory of its own."
                yield Finding(("virtual_hosts", virtual_host.name, "journal"), sentence, advice)


def _speaks_tls(upstream: dict[str, Any], below: dict[str, Any]) -> bool:
    """Whether any URL is encrypted. A URL that cannot be read might be: its own mistake is reported elsewhere."""
    for url in _entries(upstream.get("urls", below.get("urls"))):
        try:
            if BrokerUrl.read(url).tls:
                return True
        except PydanticCustomError:
            return True
    return False
