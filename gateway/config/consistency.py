"""Checks across keys, for mistakes that no single value shows.

`contradictions` checks the file's tree and not the validated model, so it works even if some other value is wrong, and
users see all mistakes at once. It ignores what has the wrong shape, since validation reports that.

`merged_contradictions` checks what several places of a file together say about a virtual host. If other values of the
file cannot be used, the model has the defaults in their place, and a finding says in `about` what it follows from.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.addresses import BrokerUrl, ListenAddress, SocketAddress, UnixAddress, socket_path
from gateway.config.config_files import ConfigFiles, default_journal_directory
from gateway.config.journal_settings import AMQP, LARGEST_STREAM_SEGMENT
from gateway.config.listener_settings import SOCKET_KEYS, WEBSOCKET_KEYS, Listener
from gateway.config.mistakes import Finding, Trail, closest, mapping, path_text
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.rules import DestinationRule, QueueArguments, argument_mistake, rule_mistakes
from gateway.config.scalars import parts_of
from gateway.config.virtual_host import VirtualHost, VirtualHostSettings
from gateway.patterns import Pattern

_KINDS: Final = ("tcp", "websocket", "unix")
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
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
    for trail, value in _listened(top):
        address = _listen_address(value, is_path=trail[-1] == "unix")
        if address is None:
            continue
        other = next((place for place, each in taken if address.collides_with(each)), None)
        if other is not None:
            another = "path" if isinstance(address, UnixAddress) else "port"
            rest = "" if trail[0] == "admin" else ", or delete one of the two"
            sentence = f"This address is already taken by {path_text(other)}."
            yield Finding(trail, sentence, f"Give it another {another}{rest}.")
        taken.append((trail, address))
    admin = mapping(top.get("admin"))
    if socket_path(admin.get("address")) is None:
        for key in sorted(admin.keys() & SOCKET_KEYS):
            yield Finding(("admin", key), f"{key} is for Unix-domain sockets only.")


def _listened(top: dict[str, Any]) -> Iterator[tuple[Trail, object]]:
    """What the file says about addresses to listen on, each with its place."""
    for position, listener in enumerate(map(mapping, _entries(top.get("listeners")))):
        key = next((kind for kind in ("websocket", "unix") if listener.get(kind) is not None), "tcp")
        yield ("listeners", position, key), listener.get(key)
    admin = top.get("admin")
    yield (("admin", "address"), admin.get("address")) if isinstance(admin, dict) else (("admin",), admin)


def _listen_address(value: object, *, is_path: bool) -> ListenAddress | None:
    path = value if is_path else socket_path(value)
    if isinstance(path, str):
        return UnixAddress(os.path.normpath(path))
    try:
        return SocketAddress.read(value)
    except PydanticCustomError:
        return None


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


# Checks of the merged values.


_OF_SEGMENTS: Final = ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship")
# Rules are also tried with these other names of a destination.
_OTHER_NAMES: Final = {b"/amq/queue/": b"/queue/", b"/reply-queue/": b"/queue/", b"/exchange/amq.topic/": b"/topic/"}
_FRAMES: Final = {"send": {"send"}, "subscribe": {"subscribe"}, "both": {"send", "subscribe"}}

Place = Callable[[Trail], Trail]
"""Where something of the model stands in the file, which may have more entries in its lists."""


def merged_contradictions(config: GatewayConfig, in_file: Place) -> Iterator[Finding]:
    """Contradictions within a model."""
    virtual_hosts = {virtual_host.name: virtual_host for virtual_host in config.resolved_virtual_hosts()}
    places: dict[Trail, VirtualHostSettings] = {("defaults",): config.defaults}
    places |= {("virtual_hosts", name): entry for name, entry in config.virtual_hosts.items()}
    yield from _certificates_and_ciphers(config, in_file)
    for virtual_host in virtual_hosts.values():
        yield from _certificate_and_key(config, virtual_host)
    yield from _shared_journals(virtual_hosts.values())
    for virtual_host in virtual_hosts.values():
        yield from _shipping(virtual_host)
    for trail, place in places.items():
        yield from _useless_rules(trail, place, in_file)
    for trail, place in places.items():
        yield from _low_maximum(trail, place, virtual_hosts)
    if config.workers > 1 and sys.platform != "linux":
        yield Finding(("workers",), "Only Linux spreads connections over several processes.", "Set workers to 1.")


def _settings(name: str, *keys: str) -> tuple[Trail, ...]:
    """The places that give a setting of a virtual host."""
    return ("defaults", *keys), ("virtual_hosts", name, *keys)


def _certificates_and_ciphers(config: GatewayConfig, in_file: Place) -> Iterator[Finding]:
    """Certificates that are too weak for the security level of their ciphers, for example."""
    for place, tls in config.server_tls():
        trail = in_file(place)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(tls.ciphers)
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as error:
            reason = error.strerror or error
            sentence = f"OpenSSL refuses the certificate with these ciphers: {reason}."
            yield Finding((*trail, "ciphers"), sentence, about=(trail,))


def _certificate_and_key(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[Finding]:
    """A certificate and a key that are configured in different places and do not belong together."""
    own, tls = config.virtual_hosts[virtual_host.name].upstream, virtual_host.upstream.tls
    given = own.tls.model_fields_set & {"cert_file", "key_file"} if own is not None else set()
    if len(given) == 1 and tls.cert_file is not None and tls.key_file is not None:
        try:
            ConfigFiles.check_pair(tls.cert_file, tls.key_file)
        except PydanticCustomError as error:
            trail: Trail = ("virtual_hosts", virtual_host.name, "upstream", "tls", *given)
            about = (("upstream", "tls"), ("virtual_hosts", virtual_host.name, "upstream", "tls"))
            yield Finding(trail, *parts_of(error), about)


def _shared_journals(virtual_hosts: Iterable[VirtualHost]) -> Iterator[Finding]:
    """Different settings for one directory, whose segments all virtual hosts with a journal there share."""
    owners: dict[str, VirtualHost] = {}
    for virtual_host in virtual_hosts:
        journal = virtual_host.journal
        if journal.level == "off":
            continue
        directory = os.path.normpath(journal.directory or default_journal_directory())
        owner = owners.setdefault(directory, virtual_host)
        for key in _OF_SEGMENTS:
            if getattr(journal, key) != getattr(owner.journal, key):
                other = path_text(("virtual_hosts", owner.name))
                sentence = f"{key} differs from that of {other}, in the same directory."
                advice = "Give both the same value, or one of them a directory of its own."
                about = [
                    place
                    for name in (virtual_host.name, owner.name)
                    for each in ("level", "directory", key)
                    for place in _settings(name, "journal", each)
                ]
                yield Finding(("virtual_hosts", virtual_host.name, "journal"), sentence, advice, tuple(about))


def _shipping(virtual_host: VirtualHost) -> Iterator[Finding]:
    """Shipping that could fill the disk, or that nobody could log in for."""
    journal, trail = virtual_host.journal, ("virtual_hosts", virtual_host.name, "journal")
    if journal.level == "off" or journal.ship.to is None:
        return
    name = virtual_host.name
    about = tuple(
        place for key in ("level", "ship", "retain_bytes", "rotate_bytes") for place in _settings(name, "journal", key)
    )
    if journal.retain_bytes is None:
        sentence = "ship keeps segments until they are shipped, so retain_bytes has to bound them."
        yield Finding(trail, sentence, "For example retain_bytes: 2GiB.", about)
    elif journal.retain_bytes <= journal.rotate_bytes:
        yield Finding(trail, "retain_bytes leaves no room for one segment of rotate_bytes.", "Give it more.", about)
    if journal.ship.to != AMQP:
        return
    if (journal.ship.user or virtual_host.default_user) is None:
        sentence = "Shipping to amqp needs a user, and there is no default_user."
        yield Finding((*trail, "ship"), sentence, "Give it user.", (*about, *_settings(name, "default_user")))
    # The last lines of a segment may go beyond rotate_bytes.
    if journal.rotate_bytes > LARGEST_STREAM_SEGMENT // 2:
        yield Finding(trail, "rotate_bytes is too much for shipping to amqp.", "Give it 512MiB at most.", about)


def _useless_rules(trail: Trail, place: VirtualHostSettings, in_file: Place) -> Iterator[Finding]:
    """Rules and queue arguments that never count, because an earlier one fits whatever they fit."""
    for key in sorted(place.model_fields_set & {"destination_rules", "queue_arguments"}):
        rules: Sequence[DestinationRule | QueueArguments] = getattr(place, key)
        for position, rule in enumerate(rules):
            earlier = next((at for at in range(position) if _covers(rules[at], rule)), None)
            if earlier is not None:
                first, this = in_file((*trail, key, earlier)), in_file((*trail, key, position))
                sentence = f"This never counts: {path_text(first)} comes first and fits everything it fits."
                yield Finding(this, sentence, "Move it before that one, or delete it.", (first, this))


def _covers(earlier: DestinationRule | QueueArguments, later: DestinationRule | QueueArguments) -> bool:
    """Whether the earlier one fits whatever the later one fits; a star fits a star."""
    text = later.destination.text
    others = [also + text.removeprefix(own) for own, also in _OTHER_NAMES.items() if text.startswith(own)]
    if all(earlier.destination.match(name) is None for name in (text, *others)):
        return False
    if not isinstance(earlier, DestinationRule) or not isinstance(later, DestinationRule):
        return True
    return _FRAMES[earlier.on] >= _FRAMES[later.on] and _covers_logins(earlier.logins, later.logins)


def _covers_logins(earlier: Sequence[Pattern], later: Sequence[Pattern]) -> bool:
    if not earlier:
        return True
    return bool(later) and all(any(each.match(login.text) is not None for each in earlier) for login in later)


def _low_maximum(
    trail: Trail, place: VirtualHostSettings, virtual_hosts: Mapping[str, VirtualHost]
) -> Iterator[Finding]:
    """A default prefetch above the most that a client may ask for."""
    prefetch = virtual_hosts[str(trail[1])].prefetch if len(trail) > 1 else place.prefetch
    if "prefetch" not in place.model_fields_set or prefetch.default is None or prefetch.max is None:
        return
    if prefetch.default > prefetch.max:
        key = "default" if "default" in place.prefetch.model_fields_set else "max"
        about = (("defaults", "prefetch"), (*trail, "prefetch"))
        yield Finding((*trail, "prefetch", key), "default is more than max here.", "Make max at least as large.", about)
