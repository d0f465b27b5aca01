"""Warnings about certificates and lists of revoked ones that are out of date, and about ciphers that do nothing.

The certificate library takes 11 MB, so it is imported when there is a certificate to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.config.listener_settings import ServerTls
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import GatewayConfig
from gateway.config.tls_ciphers import fits_key, newest_ciphers, unknown_ciphers
from gateway.config.virtual_host import Upstream

_RENEW: Final = "Renew it; the gateway reads it again when its file changes."
_CRL: Final = b"-----BEGIN X509 CRL-----"


def certificate_warnings(config: GatewayConfig, now: datetime) -> Iterator[Finding]:
    """Warnings about every certificate of the gateway's own, and every list of revoked certificates."""
    servers: list[tuple[Trail, ServerTls | None]] = [
        (("listeners", position, "tls"), listener.tls) for position, listener in enumerate(config.listeners)
    ]
    for trail, tls in (*servers, (("admin", "tls"), config.admin.tls)):
        if tls is not None:
            yield from _certificate((*trail, "cert_file"), tls.cert_file, now)
            if tls.crl_file is not None:
                yield from _revocations((*trail, "crl_file"), tls.crl_file, now)
            yield from _ciphers((*trail, "ciphers"), tls)
    uses: list[tuple[Trail, Upstream]] = [(("upstream",), config.upstream)]
    uses += [
        (("virtual_hosts", name, "upstream"), own.upstream)
        for name, own in config.virtual_hosts.items()
        if own.upstream
    ]
    for place, upstream in uses:
        if upstream.tls.cert_file is not None:
            yield from _certificate((*place, "tls", "cert_file"), upstream.tls.cert_file, now)


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
