"""Warnings: what passes every check, and cannot work or does nothing. A configuration with warnings is used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config.addresses import BrokerUrl, SocketAddress, UnixAddress
from gateway.config.listener_settings import AdminSettings
from gateway.config.listener_warnings import (
    listener_warnings,
    lock_out_warnings,
    network_warnings,
    useless_on_unix_socket,
)
from gateway.config.mistakes import Finding, Trail, path_text
from gateway.config.model import GatewayConfig
from gateway.config.tls_settings import ServerTls, fits_key, newest_ciphers, unknown_ciphers
from gateway.config.virtual_host import Upstream
from gateway.config.virtual_host_warnings import virtual_host_warnings

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
    yield from virtual_host_warnings(config)
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
