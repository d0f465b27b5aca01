"""Checks of the merged values: contradictions between what several places of a file say about a virtual host.

They are made even if other values of the file cannot be used: of these the model has the defaults, and a finding says
in `about` what it follows from.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pydantic_core import PydanticCustomError

from gateway.config.config_files import ConfigFiles, default_journal_directory
from gateway.config.journal_settings import AMQP, LARGEST_STREAM_SEGMENT
from gateway.config.mistakes import Finding, Trail, path_text
from gateway.config.model import GatewayConfig
from gateway.config.rules import DestinationRule, QueueArguments
from gateway.config.virtual_host import VirtualHost, VirtualHostSettings
from gateway.patterns import Pattern

_OF_SEGMENTS: Final = ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship")
# Rules are also tried with these other names of a destination.
_OTHER_NAMES: Final = {b"/amq/queue/": b"/queue/", b"/reply-queue/": b"/queue/", b"/exchange/amq.topic/": b"/topic/"}
_FRAMES: Final = {"send": {"send"}, "subscribe": {"subscribe"}, "both": {"send", "subscribe"}}

Place = Callable[[Trail], Trail]
"""Where something of the model stands in the file, which may have more entries in its lists."""


def merged_contradictions(config: GatewayConfig, files: ConfigFiles, in_file: Place) -> Iterator[Finding]:
    """Contradictions within a model."""
    virtual_hosts = {virtual_host.name: virtual_host for virtual_host in config.resolved_virtual_hosts()}
    places: dict[Trail, VirtualHostSettings] = {("defaults",): config.defaults}
    places |= {("virtual_hosts", name): entry for name, entry in config.virtual_hosts.items()}
    yield from _certificates_and_ciphers(config, in_file)
    for virtual_host in virtual_hosts.values():
        yield from _certificate_and_key(config, virtual_host, files)
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


def _certificate_and_key(config: GatewayConfig, virtual_host: VirtualHost, files: ConfigFiles) -> Iterator[Finding]:
    """A certificate and a key that are configured in different places and do not belong together."""
    own, tls = config.virtual_hosts[virtual_host.name].upstream, virtual_host.upstream.tls
    given = own.tls.model_fields_set & {"cert_file", "key_file"} if own is not None else set()
    if len(given) == 1 and tls.cert_file is not None and tls.key_file is not None:
        try:
            files.key(tls.key_file, tls.cert_file)
        except PydanticCustomError as error:
            trail: Trail = ("virtual_hosts", virtual_host.name, "upstream", "tls", *given)
            about = (("upstream", "tls"), ("virtual_hosts", virtual_host.name, "upstream", "tls"))
            yield Finding(trail, error.message(), (error.context or {}).get("suggestion"), about)


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
