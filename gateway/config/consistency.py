"""Checks across keys, for mistakes that no single value shows.

`contradictions` checks the file's tree and not the validated model, so it works even if some other value is wrong, and
users see all mistakes at once. It ignores what has the wrong shape, since validation reports that. What depends on
values that several places give is in `merged_consistency`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.addresses import BrokerUrl, ListenAddress, SocketAddress, UnixAddress, socket_path
from gateway.config.listener_settings import SOCKET_KEYS, WEBSOCKET_KEYS, Listener
from gateway.config.mistakes import Finding, Trail, closest, mapping, path_text
from gateway.config.model import PASS_THROUGH
from gateway.config.rules import argument_mistake, rule_mistakes

_KINDS: Final = ("tcp", "websocket", "unix")
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
_WILDCARDS: Final = {"0.0.0.0": 4, "::": 6}  # noqa: S104 - compared with, not listened on
_VERIFY_ADVICE: Final = "Set verify to optional or required."


def contradictions(tree: object) -> Iterator[Finding]:
    """Contradictions within a file's tree."""
    top = mapping(tree)
    virtual_hosts = mapping(top.get("virtual_hosts"))
    yield from _listeners(top)
    yield from _addresses(top)
    yield from _server_tls(top)
    yield from _destinations(top)
    yield from _aliases(virtual_hosts)
    yield from _default_virtual_host(top)
    yield from _upstream_tls(mapping(top.get("upstream")), virtual_hosts)


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _listeners(top: dict[str, Any]) -> Iterator[Finding]:
    for position, value in enumerate(_entries(top.get("listeners"))):
        if not isinstance(value, dict):
            continue
        trail: Trail = ("listeners", position)
        kinds = [kind for kind in _KINDS if value.get(kind) is not None]
        is_websocket = "websocket" in kinds
        # An unknown key may be the one that is missing.
        is_known = value.keys() <= Listener.model_fields.keys()
        if len(kinds) > 1 or (not kinds and is_known):
            yield Finding(trail, "A listener has one address: either tcp, websocket or unix.")
        if kinds and not is_websocket:
            for key in sorted(value.keys() & WEBSOCKET_KEYS):
                yield Finding((*trail, key), f"{key} is for websocket listeners only.")
        if kinds and not any(_is_socket(kind, value[kind]) for kind in kinds):
            for key in sorted(value.keys() & SOCKET_KEYS):
                yield Finding((*trail, key), f"{key} is for Unix-domain sockets only.")
        if value.get("trusted_proxies") and value.get("proxy_protocol") not in (True, "true"):
            sentence = "Without proxy_protocol there are no proxies here, only clients."
            advice = "Set proxy_protocol to true, or name the networks of clients under allowed_networks."
            yield Finding((*trail, "trusted_proxies"), sentence, advice)
        if is_websocket:
            yield from _websocket(trail, value)


def _websocket(trail: Trail, listener: dict[str, Any]) -> Iterator[Finding]:
    origins = _entries(listener.get("allowed_origins"))
    if listener.get("token_cookie") is not None and (not origins or "null" in origins):
        sentence = "Any web page could log in as its visitor: browsers send cookies with requests of all pages."
        yield Finding((*trail, "token_cookie"), sentence, "Name your pages under allowed_origins, and not null.")
    if listener.get("implicit_connect") in (True, "true"):
        yield Finding((*trail, "implicit_connect"), "implicit_connect is for tcp listeners only.")


def _is_socket(kind: str, value: object) -> bool:
    """Whether a listener of a kind has a Unix-domain socket."""
    return kind == "unix" or socket_path(value) is not None


def _addresses(top: dict[str, Any]) -> Iterator[Finding]:
    """Addresses to listen on that collide with an earlier one in the file."""
    taken: list[tuple[Trail, ListenAddress]] = []
    for position, listener in enumerate(map(mapping, _entries(top.get("listeners")))):
        key = next((kind for kind in ("websocket", "unix") if listener.get(kind) is not None), "tcp")
        trail: Trail = ("listeners", position, key)
        address = _listen_address(listener.get(key), is_path=key == "unix")
        if address is None:
            continue
        for sentence in _collisions(address, taken)[:1]:
            yield Finding(trail, sentence, f"Give it another {_choice(address)}, or delete one of the two.")
        taken.append((trail, address))
    admin = top.get("admin")
    trail = ("admin",) if isinstance(admin, str) else ("admin", "address")
    settings = mapping(admin)
    address = _listen_address(settings.get("address", admin), is_path=False)
    for sentence in _collisions(address, taken) if address is not None else ():
        yield Finding(trail, sentence, f"Give it another {_choice(address)}.")
    if not isinstance(address, UnixAddress):
        for key in sorted(settings.keys() & SOCKET_KEYS):
            yield Finding(("admin", key), f"{key} is for Unix-domain sockets only.")


def _choice(address: ListenAddress | None) -> str:
    return "path" if isinstance(address, UnixAddress) else "port"


def _listen_address(value: object, *, is_path: bool) -> ListenAddress | None:
    path = value if is_path else socket_path(value)
    if isinstance(path, str):
        return UnixAddress(os.path.normpath(path))
    try:
        return SocketAddress.read(value)
    except PydanticCustomError:
        return None


def _collisions(address: ListenAddress, taken: list[tuple[Trail, ListenAddress]]) -> list[str]:
    return [
        f"This address is already taken by {path_text(trail)}." for trail, other in taken if _collide(address, other)
    ]


def _collide(one: ListenAddress, other: ListenAddress) -> bool:
    if isinstance(one, UnixAddress) or isinstance(other, UnixAddress):
        return one == other
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or any(
        _WILDCARDS.get(wide.host) == (6 if ":" in narrow.host else 4) for wide, narrow in ((one, other), (other, one))
    )


def _server_tls(top: dict[str, Any]) -> Iterator[Finding]:
    places: list[tuple[Trail, object]] = [
        (("listeners", position, "tls"), mapping(listener).get("tls"))
        for position, listener in enumerate(_entries(top.get("listeners")))
    ]
    places.append((("admin", "tls"), mapping(top.get("admin")).get("tls")))
    for trail, value in places:
        tls = mapping(value)
        if tls.get("verify") in ("optional", "required") and not tls.get("ca_file"):
            sentence = "To check clients' certificates, ca_file is needed."
            advice = "Name the file of the certificate authority that issued them."
            yield Finding((*trail, "verify"), sentence, advice)
        if tls.get("verify", "none") == "none" and tls.get("certificate_login") is not None and trail[0] != "admin":
            sentence = "No client is asked for a certificate here."
            yield Finding((*trail, "certificate_login"), sentence, _VERIFY_ADVICE)
        if tls.get("verify", "none") == "none" and tls.get("crl_file") is not None:
            sentence = "crl_file is about clients' certificates, and no client is asked for one."
            yield Finding(trail, sentence, _VERIFY_ADVICE)
        if str(tls.get("min_version", "1.2")) == "1.3" and str(tls.get("max_version", "1.3")) == "1.2":
            yield Finding(trail, "max_version is below min_version, so no version is left.")


def _destinations(top: dict[str, Any]) -> Iterator[Finding]:
    """Rules and queues' arguments that contradict themselves, or that no broker takes."""
    places: list[tuple[Trail, object]] = [(("defaults",), top.get("defaults"))]
    places += [(("virtual_hosts", name), entry) for name, entry in mapping(top.get("virtual_hosts")).items()]
    for trail, place in places:
        settings = mapping(place)
        for position, rule in enumerate(_entries(settings.get("destination_rules"))):
            for place_in_rule, sentence, advice in rule_mistakes(mapping(rule)):
                yield Finding((*trail, "destination_rules", position, *place_in_rule), sentence, advice)
        for position, entry in enumerate(_entries(settings.get("queue_arguments"))):
            for name, value in mapping(mapping(entry).get("arguments")).items():
                if isinstance(value, (bool, int, str)) and (wrong := argument_mistake(name, value)) is not None:
                    yield Finding((*trail, "queue_arguments", position, "arguments", name), *wrong)


def _aliases(virtual_hosts: dict[str, Any]) -> Iterator[Finding]:
    owners: dict[str, Trail] = {}
    for name, entry in virtual_hosts.items():
        aliases = _entries(mapping(entry).get("aliases"))
        if name == PASS_THROUGH and aliases:
            sentence = f'"{PASS_THROUGH}" already means every host that is not configured.'
            yield Finding(("virtual_hosts", name, "aliases"), sentence, "Delete this.")
            continue
        for position, alias in enumerate(aliases):
            if not isinstance(alias, str) or alias == name:
                continue
            trail: Trail = ("virtual_hosts", name, "aliases", position)
            yield from _alias(trail, alias, virtual_hosts, owners)
            owners.setdefault(alias, trail)


def _alias(trail: Trail, alias: str, virtual_hosts: dict[str, Any], owners: dict[str, Trail]) -> Iterator[Finding]:
    if alias == PASS_THROUGH:
        sentence = f'"{PASS_THROUGH}" is a key of virtual_hosts, not an alias.'
        yield Finding(trail, sentence, "Name the hosts one by one here.")
    elif alias in owners:
        yield Finding(trail, f"This alias is already one at {path_text(owners[alias])}.", "Keep one of the two.")
    elif alias in virtual_hosts:
        sentence = "This alias is the name of another virtual host."
        yield Finding(trail, sentence, "A host can mean only one: delete the alias.")


def _default_virtual_host(top: dict[str, Any]) -> Iterator[Finding]:
    wanted, virtual_hosts = top.get("default_vhost", "/"), top.get("virtual_hosts")
    if virtual_hosts is None:
        virtual_hosts = {"/": None}
    if not isinstance(wanted, str) or not wanted or not isinstance(virtual_hosts, dict):
        return
    aliases = [alias for entry in virtual_hosts.values() for alias in _entries(mapping(entry).get("aliases"))]
    if wanted == PASS_THROUGH:
        yield Finding(("default_vhost",), "This must be the name of one virtual host.")
    elif wanted not in virtual_hosts and PASS_THROUGH not in virtual_hosts and wanted not in aliases:
        near = closest(wanted, virtual_hosts)
        advice = f"Did you mean {near}?" if near else "Add it there, or set default_vhost to one that is there."
        if "default_vhost" in top:
            yield Finding(("default_vhost",), "This is not among the virtual_hosts.", advice)
        else:
            yield Finding(("virtual_hosts",), f"The default_vhost, which is {wanted} unless set, is missing.", advice)


def _upstream_tls(upstream: dict[str, Any], virtual_hosts: dict[str, Any]) -> Iterator[Finding]:
    own = {name: mapping(mapping(entry).get("upstream")) for name, entry in virtual_hosts.items()}
    shared = mapping(upstream.get("tls"))
    anywhere = any(_speaks_tls(place, {}) for place in (upstream, *own.values()))
    yield from _tls_keys(("upstream", "tls"), shared, shared, anywhere)
    for name, place in own.items():
        tls = mapping(place.get("tls"))
        trail: Trail = ("virtual_hosts", name, "upstream", "tls")
        yield from _tls_keys(trail, tls, shared | tls, _speaks_tls(place, upstream))


def _tls_keys(trail: Trail, given: dict[str, Any], merged: dict[str, Any], in_use: bool) -> Iterator[Finding]:
    if ("cert_file" in given or "key_file" in given) and bool(merged.get("cert_file")) != bool(merged.get("key_file")):
        present, absent = ("cert_file", "key_file") if merged.get("cert_file") else ("key_file", "cert_file")
        yield Finding(trail, f"{present} needs {absent} beside it.")
    if not in_use and (given.get("verify") in (False, "false") or any(map(given.get, _TLS_FILES))):
        yield Finding(trail, "This has no effect: no upstream URL begins with amqps://.", "Change the URLs to amqps.")


def _speaks_tls(upstream: dict[str, Any], below: dict[str, Any]) -> bool:
    """Whether any URL is encrypted. One that cannot be read counts: its mistake is reported elsewhere."""
    for url in _entries(upstream.get("urls", below.get("urls"))):
        try:
            if BrokerUrl.read(url).tls:
                return True
        except PydanticCustomError:
            return True
    return False
