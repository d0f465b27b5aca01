"""Warnings: valid settings without effect, or with another one than was meant. The configuration is used anyway."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config.addresses import BrokerUrl, SocketAddress, UnixAddress
from gateway.config.base_models import MergeableModel
from gateway.config.config_files import default_journal_directory
from gateway.config.journal_settings import AMQP
from gateway.config.listener_settings import AdminSettings
from gateway.config.listener_warnings import (
    is_local,
    listener_warnings,
    lock_out_warnings,
    network_warnings,
    only_local,
    useless_on_unix_socket,
)
from gateway.config.mistakes import Finding, Trail, path_text
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.rules import QueueArguments
from gateway.config.tls_settings import ServerTls, fits_key, newest_ciphers, unknown_ciphers
from gateway.config.virtual_host import Limit, Upstream, VirtualHost

_RENEW: Final = "Renew it; the gateway reads it again when its file changes."
_CRL: Final = b"-----BEGIN X509 CRL-----"
_PLAIN_PORT: Final = 5672
_TLS_PORT: Final = 5671
_PORTS: Final = "A broker listens on port 5672, with TLS on 5671."
_OTHER_PORTS: Final = {
    1883: "MQTT", 4369: "Erlang's port mapper", 5552: "RabbitMQ's streams", 8883: "MQTT with TLS",
    15671: "RabbitMQ's management pages", 15672: "RabbitMQ's management pages", 15674: "STOMP over WebSocket",
    15692: "RabbitMQ's metrics", 25672: "RabbitMQ's cluster", 61613: "STOMP", 61614: "STOMP with TLS",
}  # fmt: skip

_LOOPBACK_NAMES: Final = {"localhost": ("127.0.0.1", "::1")}


def warnings_of(config: GatewayConfig) -> Iterator[Finding]:
    """Every warning about a configuration without mistakes."""
    for position, listener in enumerate(config.listeners):
        yield from listener_warnings(config, position, listener)
    yield from lock_out_warnings(config)
    yield from _urls(config)
    yield from _virtual_hosts(config)
    yield from certificate_warnings(config, datetime.now(UTC))
    yield from _process(config)
    yield from _admin(config.admin)


def _process(config: GatewayConfig) -> Iterator[Finding]:
    if "drain_spread" in config.model_fields_set and config.drain_spread > config.drain_timeout / 2:
        sentence = "This is more than half of drain_timeout, and only that half counts."
        yield Finding(("drain_spread",), sentence, "Make drain_timeout at least twice as long.")
    # The shipped file with every default has this one too, and warns of nothing.
    if "worker_timeout" in config.changed_keys() and config.workers == 1:
        yield Finding(("worker_timeout",), "This has no effect with one worker.", "Delete it, or set workers.")


def _admin(admin: AdminSettings) -> Iterator[Finding]:
    if admin.address is None:
        for key in admin.changed_keys():
            if key != "address":
                yield Finding(("admin", key), "This has no effect: the admin listener is off.", "Give it an address.")
        return
    if isinstance(admin.address, UnixAddress):
        yield from useless_on_unix_socket(("admin",), admin, "allowed_networks", "denied_networks")
    yield from network_warnings(("admin",), admin, admin.address, "allowed_networks")


def certificate_warnings(config: GatewayConfig, now: datetime) -> Iterator[Finding]:
    """Warnings about every certificate of the gateway's own, and every list of revoked certificates."""
    for trail, tls in config.server_tls():
        yield from _certificate((*trail, "cert_file"), tls.cert_file, now)
        if tls.crl_file is not None:
            yield from _revocations((*trail, "crl_file"), tls.crl_file, now)
        yield from _ciphers((*trail, "ciphers"), tls)
    for trail, upstream in _upstreams(config):
        if upstream.tls.cert_file is not None:
            yield from _certificate((*trail, "tls", "cert_file"), upstream.tls.cert_file, now)


def _upstreams(config: GatewayConfig) -> Iterator[tuple[Trail, Upstream]]:
    yield ("upstream",), config.upstream
    for name, entry in config.virtual_hosts.items():
        if entry.upstream is not None:
            yield ("virtual_hosts", name, "upstream"), entry.upstream


def _certificate(trail: Trail, file: Path, now: datetime) -> Iterator[Finding]:
    from cryptography import x509  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except (OSError, ValueError):
        return  # OpenSSL could read it
    if certificate.not_valid_after_utc <= now:
        yield Finding(trail, f"This certificate has expired: on {certificate.not_valid_after_utc:%Y-%m-%d}.", _RENEW)
    elif certificate.not_valid_before_utc > now:
        sentence = f"This certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC."
        yield Finding(trail, sentence, "Wait, or look at this machine's clock.")


def _ciphers(trail: Trail, tls: ServerTls) -> Iterator[Finding]:
    if tls.min_version == "1.3":
        if "ciphers" in tls.changed_keys():
            sentence = "This has no effect: only TLS 1.3 is spoken here, whose ciphers cannot be chosen."
            yield Finding(trail, sentence, "Delete it, or set min_version to 1.2.")
        return
    if unknown := unknown_ciphers(tls.ciphers):
        yield Finding(
            trail, f"OpenSSL leaves out what it does not know: {_numbers(unknown)}.", "Correct or delete this."
        )
    if newest := newest_ciphers(tls.ciphers):
        sentence = f"Ciphers of TLS 1.3 have no effect here, since all of them are always on: {_numbers(newest)}."
        yield Finding(trail, sentence, "Delete this.")
    kind = _key_kind(tls.cert_file)
    if kind is not None and not fits_key(tls.ciphers, kind):
        whom = "nobody" if tls.max_version == "1.2" else "no client with TLS 1.2"
        sentence = f"None of these goes with the kind of key that the certificate has, so {whom} can connect."
        yield Finding(trail, sentence, "ECDHE+AESGCM, for example, goes with every kind.")


def _numbers(positions: list[int]) -> str:
    """Which names are meant: no value of the file is repeated."""
    return f"{'name' if len(positions) == 1 else 'names'} {', '.join(map(str, positions))} of the list"


def _key_kind(file: Path) -> str | None:
    """What OpenSSL calls the signatures that a certificate's key makes; None if that cannot be told."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import dsa, rsa  # noqa: PLC0415

    try:
        key = x509.load_pem_x509_certificate(file.read_bytes()).public_key()
    except (OSError, ValueError, UnsupportedAlgorithm):
        return None
    if isinstance(key, rsa.RSAPublicKey):
        return "RSA"
    return "DSS" if isinstance(key, dsa.DSAPublicKey) else "ECDSA"


def _revocations(trail: Trail, file: Path, now: datetime) -> Iterator[Finding]:
    from cryptography import x509  # noqa: PLC0415

    try:
        lists = [x509.load_pem_x509_crl(_CRL + part) for part in file.read_bytes().split(_CRL)[1:]]
    except (OSError, ValueError):
        return
    if any(each.next_update_utc is not None and each.next_update_utc <= now for each in lists):
        sentence = "A list in this file is past its next update, so every client with a certificate of its is refused."
        yield Finding(trail, sentence, "Get the newest list from the authority.")


def _urls(config: GatewayConfig) -> Iterator[Finding]:
    """Brokers' URLs that no broker will answer at."""
    own: list[tuple[Trail, SocketAddress]] = [
        (("listeners", position), listener.address)
        for position, listener in enumerate(config.listeners)
        if isinstance(listener.address, SocketAddress)
    ]
    for trail, upstream in _upstreams(config):
        if "urls" in upstream.model_fields_set:
            for position, url in enumerate(upstream.urls):
                yield from _url((*trail, "urls", position), url, own)
                if url in upstream.urls[:position]:
                    sentence = "This broker is in the list already, so this one never counts."
                    yield Finding((*trail, "urls", position), sentence, "Delete it.")


def _url(trail: Trail, url: BrokerUrl, own: list[tuple[Trail, SocketAddress]]) -> Iterator[Finding]:
    for place, address in own:
        if address.port == url.port and _is_same_host(url.host, address):
            yield Finding(trail, f"This is the gateway's own address {path_text(place)}, not a broker's.", _PORTS)
            return
    if url.port in _OTHER_PORTS:
        yield Finding(trail, f"This port is usually for {_OTHER_PORTS[url.port]}, not for AMQP.", _PORTS)
    elif url.port == (_PLAIN_PORT if url.tls else _TLS_PORT):
        wanted = "without TLS" if url.tls else "for TLS"
        advice = f"Write {'amqp' if url.tls else 'amqps'}://, or another port."
        yield Finding(trail, f"Port {url.port} is usually {wanted}, and {url.scheme} is not.", advice)


def _is_same_host(host: str, address: SocketAddress) -> bool:
    """Whether a broker's host is one that the gateway listens on, as far as that is known without a name server."""
    wanted = _LOOPBACK_NAMES.get(host, (host,))
    if address.host == "0.0.0.0":  # noqa: S104
        return any(each.startswith("127.") for each in wanted)
    if address.host == "::":
        return "::1" in wanted
    return not {*wanted}.isdisjoint(_LOOPBACK_NAMES.get(address.host, (address.host,)))


# Settings of virtual hosts that have no effect, or another one than their author thinks.


_OF_STREAMS = frozenset(("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"))
_NOT_OF_STREAMS = frozenset((
    "x-expires", "x-message-ttl", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-delivery-limit", "x-max-priority", "x-queue-mode",
))  # fmt: skip
_REFUSED: Final[Mapping[str, frozenset[str]]] = {
    "classic": _OF_STREAMS | {"x-delivery-limit"},
    "quorum": _OF_STREAMS | {"x-max-priority", "x-queue-mode"},
    "stream": _NOT_OF_STREAMS,
}
"""Arguments that RabbitMQ does not know for a type of queue."""

_RATES = ("messages_per_second", "bytes_per_second")


@dataclass(frozen=True)
class _Odd:
    """What is odd about a setting of a virtual host, wherever the file gives it."""

    keys: tuple[str, ...]
    sentence: str
    advice: str
    below: Trail = ()
    """The place within the setting."""
    is_useless: bool = False
    """Without effect here, which is no fault where another virtual host needs it."""


def _virtual_hosts(config: GatewayConfig) -> Iterator[Finding]:
    """Warnings about every virtual host, with the defaults merged in; several may warn of the same place."""
    odd = {each.name: list(_odd(config, each)) for each in config.resolved_virtual_hosts()}

    @functools.cache  # there may be thousands of virtual hosts
    def is_everywhere(each: _Odd) -> bool:
        return all(each in odd[heir] for heir in _heirs(config, each.keys))

    for virtual_host in config.resolved_virtual_hosts():
        yield from _names(config, virtual_host)
        for each in odd[virtual_host.name]:
            place = _place(config, virtual_host.name, each.keys)
            if place == ("defaults", *each.keys) and not is_everywhere(each):
                place = None if each.is_useless else ("virtual_hosts", virtual_host.name, *each.keys)
            if place:
                yield Finding((*place, *each.below), each.sentence, each.advice)


def _odd(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[_Odd]:
    yield from _users(config, virtual_host)
    yield from _destinations(virtual_host)
    yield from _send_errors(virtual_host)
    yield from _limits(virtual_host)
    yield from _journal(virtual_host)


def _place(config: GatewayConfig, name: str, keys: tuple[str, ...]) -> Trail | None:
    """The place that gives a virtual host's setting another value than the built-in one; None if none does."""
    places: list[tuple[Trail, MergeableModel]] = [
        (("virtual_hosts", name), config.virtual_hosts[name]),
        (("defaults",), config.defaults),
    ]
    for trail, settings in places:
        around: object = settings
        for key in keys[:-1]:
            around = getattr(around, key)
        # What a file does not set is set in no model inside it, either.
        if isinstance(around, MergeableModel) and keys[-1] in around.model_fields_set:
            return (*trail, *keys) if keys[-1] in around.changed_keys() else None
    return None


def _heirs(config: GatewayConfig, keys: tuple[str, ...]) -> Iterator[str]:
    """The virtual hosts that have a setting from `defaults`. A journal that is off has no use for any."""
    for virtual_host in config.resolved_virtual_hosts():
        is_unused = keys[0] == "journal" and virtual_host.journal.level == "off"
        if not is_unused and _place(config, virtual_host.name, keys) == ("defaults", *keys):
            yield virtual_host.name


def _names(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[Finding]:
    trail: Trail = ("virtual_hosts", virtual_host.name)
    places = [(trail, virtual_host.name)] if virtual_host.name != PASS_THROUGH else []
    aliases = config.virtual_hosts[virtual_host.name].aliases
    for place, name in (*places, *(((*trail, "aliases", at), alias) for at, alias in enumerate(aliases))):
        if "*" in name:
            sentence = "A star in a name stands for itself: a client's host header is compared exactly."
            yield Finding(place, sentence, 'Name the hosts one by one, or all others with the key "*".')
        elif "://" in name:
            sentence = "A client's host header is a name and no URL."
            yield Finding(place, sentence, "Write the name alone, as in stomp.example.org.")


def _users(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[_Odd]:
    logins = [listener.tls is not None and listener.tls.certificate_login is not None for listener in config.listeners]
    if not any(logins):
        sentence = "This has no effect: no listener has certificate_login."
        yield _Odd(("certificate_users",), sentence, "Set tls.certificate_login there.")
    if only_local(virtual_host) and not any(is_local(listener.address) for listener in config.listeners):
        sentence = "This user is among loopback_users, so clients of other machines that send no login are refused."
        yield _Odd(("default_user",), sentence, "Take another user, or leave this one out of loopback_users.")


def _destinations(virtual_host: VirtualHost) -> Iterator[_Odd]:
    rules = virtual_host.destination_rules
    if rules and all(rule.action == "allow" and not rule.mandatory for rule in rules):
        sentence = "These rules restrict nothing: what no rule fits is allowed."
        yield _Odd(("destination_rules",), sentence, "Let the last one be {action: deny, destination: /*}.")
    for position, entry in enumerate(virtual_host.queue_arguments):
        for name, sentence, advice in _arguments(entry):
            yield _Odd(("queue_arguments",), sentence, advice, (position, "arguments", name))


def _arguments(entry: QueueArguments) -> Iterator[tuple[str, str, str]]:
    """Odd arguments: name, sentence and advice."""
    kind = entry.arguments.get("x-queue-type")
    if kind in ("quorum", "stream") and entry.destination.text.startswith(b"/temp-queue/"):
        sentence = "This has no effect: a temporary queue is exclusive, and only classic queues can be."
        yield "x-queue-type", sentence, "Delete it."
        return
    for name in entry.arguments:
        if name in _REFUSED.get(str(kind), ()):
            sentence = f"RabbitMQ refuses to declare a {kind} queue with this argument."
            yield name, sentence, "Delete it, or take another x-queue-type."


def _send_errors(virtual_host: VirtualHost) -> Iterator[_Odd]:
    if virtual_host.on_send_error.action == "close":
        return
    keys = ("on_send_error", "action")
    if virtual_host.strict:
        yield _Odd(keys, "This has no effect: with conformance strict every ERROR closes.", "Delete one of the two.")
    elif virtual_host.confirms != "always" or not virtual_host.upstream.ride_through:
        sentence = "The session still ends when the broker refuses a message: for that it has to confirm all of them."
        yield _Odd(keys, sentence, "Set confirms to always, and upstream.ride_through above 0.")


def _limits(virtual_host: VirtualHost) -> Iterator[_Odd]:
    limits = virtual_host.limits
    for name in ("user", "address"):
        limit: Limit = getattr(limits, name)
        if all(getattr(limit, rate) is None for rate in _RATES):
            advice = f"Set {' or '.join(_RATES)}."
            yield _Odd(("limits", name, "burst"), "This has no effect without a rate.", advice, is_useless=True)
        if limit.sessions is not None and limits.sessions is not None and limit.sessions > limits.sessions:
            sentence = "This has no effect: limits.sessions of the whole virtual host is less."
            yield _Odd(("limits", name, "sessions"), sentence, "Make one of them fit.", is_useless=True)


def _journal(virtual_host: VirtualHost) -> Iterator[_Odd]:
    journal = virtual_host.journal
    if journal.level == "off":
        return
    if journal.level != "message":
        sentence = "This has no effect at level session."
        for key in ("sample", "header_values"):
            yield _Odd(("journal", key), sentence, "Set level to message, or delete this.", is_useless=True)
    if journal.users == "plain":
        advice = "Set users to hashed, or delete this."
        yield _Odd(("journal", "users_key_file"), "This has no effect: users is plain.", advice, is_useless=True)
    if journal.ship.to is None and journal.retain_bytes is not None and journal.retain_bytes <= journal.rotate_bytes:
        sentence = "Each segment is deleted as soon as it is finished, since rotate_bytes is as much."
        yield _Odd(("journal", "retain_bytes"), sentence, "Make it several times rotate_bytes.")
    yield from _shipping(virtual_host)


def _shipping(virtual_host: VirtualHost) -> Iterator[_Odd]:
    to = virtual_host.journal.ship.to
    if to == AMQP:
        return
    for key in ("user", "stream", "stream_max_bytes", "stream_max_age"):
        sentence, advice = "This has no effect: it is for ship.to amqp.", "Set to: amqp, or delete this."
        yield _Odd(("journal", "ship", key), sentence, advice, is_useless=True)
    if to is not None and "://" in to:
        if importlib.util.find_spec("obstore") is None:
            sentence = "Object stores need obstore, which is not installed here."
            yield _Odd(("journal", "ship", "to"), sentence, "Run pip install 'stomp-gateway[ship]'.")
    elif to is not None:
        directory = virtual_host.journal.directory or default_journal_directory()
        if os.path.normpath(to) == os.path.normpath(directory):
            yield _Odd(("journal", "ship", "to"), "This is the journal's own directory.", "Name another one.")
