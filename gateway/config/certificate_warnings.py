"""Warnings about certificates and lists of revoked ones that are out of date: then nobody can connect."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from gateway.config.listener_settings import ServerTls
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import GatewayConfig
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
    try:
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except (OSError, ValueError):
        return  # OpenSSL could read it
    if certificate.not_valid_after_utc <= now:
        yield Finding(trail, f"This certificate has expired: on {certificate.not_valid_after_utc:%Y-%m-%d}.", _RENEW)
    elif certificate.not_valid_before_utc > now:
        sentence = f"This certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC."
        yield Finding(trail, sentence, "Wait, or look at this machine's clock.")


def _revocations(trail: Trail, file: Path, now: datetime) -> Iterator[Finding]:
    try:
        lists = [x509.load_pem_x509_crl(_CRL + part) for part in file.read_bytes().split(_CRL)[1:]]
    except (OSError, ValueError):
        return
    if any(each.next_update_utc is not None and each.next_update_utc <= now for each in lists):
        sentence = "A list in this file is past its next update, so every client with a certificate of its is refused."
        yield Finding(trail, sentence, "Get the newest list from the authority.")
