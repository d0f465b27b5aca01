"""Checks across keys, for mistakes that no single value shows.

`contradictions` checks the file's tree and not the validated model, so it works even if some other value is wrong, and
users see all mistakes at once. It ignores what has the wrong shape, since validation reports that.
`model_contradictions` checks a model that has no other mistake.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.config_files import ConfigFiles, default_journal_directory
from gateway.config.listener_settings import ServerTls
from gateway.config.mistakes import Finding, Trail, closest, mapping, path_text
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.rules import DestinationRule, QueueArguments
from gateway.config.scalars import BrokerUrl, SocketAddress
from gateway.config.ship_settings import AMQP, LARGEST_STREAM_SEGMENT
from gateway.config.virtual_host import VirtualHost, VirtualHostSettings
from gateway.patterns import Pattern

_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
_OF_SEGMENTS: Final = ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship")
_WILDCARDS: Final = {"0.0.0.0": 4, "::": 6}  # noqa: S104 - compared with, not listened on
# Rules are also tried with these other names of a destination.
_OTHER_NAMES: Final = {b"/amq/queue/": b"/queue/", b"/reply-queue/": b"/queue/", b"/exchange/amq.topic/": b"/topic/"}
_FRAMES: Final = {"send": {"send"}, "subscribe": {"subscribe"}, "both": {"send", "subscribe"}}


def contradictions(tree: object) -> Iterator[Finding]:
    """Contradictions within a file's tree."""
    top = mapping(tree)
    virtual_hosts = mapping(top.get("virtual_hosts"))
    yield from _addresses(top)
    yield from _client_certificates(top)
    yield from _aliases(virtual_hosts)
    yield from _default_virtual_host(top)
    yield from _upstream_tls(mapping(top.get("upstream")), virtual_hosts)


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _addresses(top: dict[str, Any]) -> Iterator[Finding]:
    """Addresses to listen on that collide with an earlier one in the file."""
    taken: list[tuple[Trail, SocketAddress]] = []
    for position, listener in enumerate(map(mapping, _entries(top.get("listeners")))):
        key = "websocket" if listener.get("websocket") is not None else "tcp"
        trail: Trail = ("listeners", position, key)
        address = _socket_address(listener.get(key))
        if address is None:
            continue
        for sentence in _collisions(address, taken)[:1]:
            yield Finding(trail, sentence, "Give it another port, or delete one of the two.")
        taken.append((trail, address))
    admin = top.get("admin")
    trail = ("admin",) if isinstance(admin, str) else ("admin", "address")
    address = _socket_address(mapping(admin).get("address", admin))
    for sentence in _collisions(address, taken) if address is not None else ():
        yield Finding(trail, sentence, "Give it another port.")


def _socket_address(value: object) -> SocketAddress | None:
    try:
        return SocketAddress.read(value)
    except PydanticCustomError:
        return None


def _collisions(address: SocketAddress, taken: list[tuple[Trail, SocketAddress]]) -> list[str]:
    return [
        f"This address is already taken by {path_text(trail)}." for trail, other in taken if _collide(address, other)
    ]


def _collide(one: SocketAddress, other: SocketAddress) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or any(
        _WILDCARDS.get(wide.host) == (6 if ":" in narrow.host else 4) for wide, narrow in ((one, other), (other, one))
    )


def _client_certificates(top: dict[str, Any]) -> Iterator[Finding]:
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
            yield Finding((*trail, "certificate_login"), sentence, "Set verify to optional or required.")


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


def model_contradictions(config: GatewayConfig, files: ConfigFiles) -> Iterator[Finding]:
    """Contradictions within a model that has no other mistake."""
    virtual_hosts = {virtual_host.name: virtual_host for virtual_host in config.resolved_virtual_hosts()}
    places: dict[Trail, VirtualHostSettings] = {("defaults",): config.defaults}
    places |= {("virtual_hosts", name): entry for name, entry in config.virtual_hosts.items()}
    yield from _certificates_and_ciphers(config)
    for virtual_host in virtual_hosts.values():
        yield from _certificate_and_key(config, virtual_host, files)
    yield from _shared_journals(virtual_hosts.values())
    for virtual_host in virtual_hosts.values():
        yield from _shipping(virtual_host)
    for trail, place in places.items():
        yield from _useless_rules(trail, place)
    for trail, place in places.items():
        yield from _low_maximum(trail, place, virtual_hosts)
    yield from _shared_renewals(config, virtual_hosts)
    if config.workers > 1 and sys.platform != "linux":
        yield Finding(("workers",), "Only Linux spreads connections over several processes.", "Set workers to 1.")


def _certificates_and_ciphers(config: GatewayConfig) -> Iterator[Finding]:
    """Certificates that are too weak for the security level of their ciphers, for example."""
    places: list[tuple[Trail, ServerTls | None]] = [
        (("listeners", position, "tls"), listener.tls) for position, listener in enumerate(config.listeners)
    ]
    for trail, tls in (*places, (("admin", "tls"), config.admin.tls)):
        if tls is None:
            continue
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(tls.ciphers)
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as error:
            reason = error.strerror or error
            yield Finding((*trail, "ciphers"), f"OpenSSL refuses the certificate with these ciphers: {reason}.")


def _certificate_and_key(config: GatewayConfig, virtual_host: VirtualHost, files: ConfigFiles) -> Iterator[Finding]:
    """A certificate and a key that are configured in different places and do not belong together."""
    own, tls = config.virtual_hosts[virtual_host.name].upstream, virtual_host.upstream.tls
    given = own.tls.model_fields_set & {"cert_file", "key_file"} if own is not None else set()
    if len(given) == 1 and tls.cert_file is not None and tls.key_file is not None:
        try:
            files.key(tls.key_file, tls.cert_file)
        except PydanticCustomError as error:
            trail: Trail = ("virtual_hosts", virtual_host.name, "upstream", "tls", *given)
            yield Finding(trail, error.message(), (error.context or {}).get("suggestion"))


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
                yield Finding(("virtual_hosts", virtual_host.name, "journal"), sentence, advice)


def _shipping(virtual_host: VirtualHost) -> Iterator[Finding]:
    """Shipping that could fill the disk, or that nobody could log in for."""
    journal, trail = virtual_host.journal, ("virtual_hosts", virtual_host.name, "journal")
    if journal.level == "off" or journal.ship.to is None:
        return
    if journal.retain_bytes is None:
        sentence = "ship keeps segments until they are shipped, so retain_bytes has to bound them."
        yield Finding(trail, sentence, "For example retain_bytes: 2GiB.")
    elif journal.retain_bytes <= journal.rotate_bytes:
        yield Finding(trail, "retain_bytes leaves no room for one segment of rotate_bytes.", "Give it more.")
    if journal.ship.to != AMQP:
        return
    if (journal.ship.user or virtual_host.default_user) is None:
        yield Finding((*trail, "ship"), "Shipping to amqp needs a user, and there is no default_user.", "Give it user.")
    # The last lines of a segment may go beyond rotate_bytes.
    if journal.rotate_bytes > LARGEST_STREAM_SEGMENT // 2:
        yield Finding(trail, "rotate_bytes is too much for shipping to amqp.", "Give it 512MiB at most.")


def _useless_rules(trail: Trail, place: VirtualHostSettings) -> Iterator[Finding]:
    """Rules and queue arguments that never count, because an earlier one fits whatever they fit."""
    for key in sorted(place.model_fields_set & {"destination_rules", "queue_arguments"}):
        rules: Sequence[DestinationRule | QueueArguments] = getattr(place, key)
        for position, rule in enumerate(rules):
            earlier = next((at for at in range(position) if _covers(rules[at], rule)), None)
            if earlier is not None:
                first = path_text((*trail, key, earlier))
                sentence = f"This never counts: {first} comes first and fits everything it fits."
                yield Finding((*trail, key, position), sentence, "Move it before that one, or delete it.")


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
        yield Finding((*trail, "prefetch", key), "default is more than max here.", "Make max at least as large.")


def _shared_renewals(config: GatewayConfig, virtual_hosts: Mapping[str, VirtualHost]) -> Iterator[Finding]:
    """Token renewal on links that clients share: one client's token would be used for others."""
    reported: set[Trail] = set()
    for virtual_host in virtual_hosts.values():
        if not virtual_host.token_renewal or virtual_host.links == "dedicated":
            continue
        given = config.virtual_hosts[virtual_host.name].model_fields_set
        key = "links" if "links" in given and "token_renewal" not in given else "token_renewal"
        trail: Trail = ("virtual_hosts", virtual_host.name, key) if key in given else ("defaults", key)
        if trail not in reported:
            reported.add(trail)
            yield Finding(trail, "Tokens can be renewed only on links of a client's own.", "Set links to dedicated.")
