"""TLS: the certificate and the ciphers of a listener, what is asked of clients, and the context toward brokers."""

from __future__ import annotations

import re
import ssl
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from gateway.client_tls import client_context
from gateway.config.base_models import CertificateFile, ConfigModel, KeyFile, RevocationFile, Text
from gateway.config.scalars import Count, mistake
from gateway.config.virtual_host import UpstreamTls

_BETWEEN: Final = re.compile(r"[:,; ]+")
# They take ciphers away or put them in another order, so one that names nothing does no harm.
_COMMANDS: Final = ("!", "-", "+", "@")
_NEWEST: Final = "TLSv1.3"


# Lists of ciphers, as OpenSSL writes them. Python's ssl lets nobody choose those of TLS 1.3.


def checked_ciphers(text: str) -> str:
    """The text itself; raises `mistake` if OpenSSL finds no cipher in it, or one that protects nobody."""
    if not (found := _found(text)):
        if newest_ciphers(text):
            advice = "Name those of TLS 1.2 here; for TLS 1.3 alone set min_version, and leave ciphers out."
            raise mistake("Ciphers of TLS 1.3 cannot be chosen: all of them are always on.", advice)
        raise mistake("OpenSSL knows none of these ciphers.", "For example ECDHE+AESGCM:ECDHE+CHACHA20.")
    chosen = " ".join(cipher["description"] for cipher in found)
    if "Au=None" in chosen or "Enc=None" in chosen:
        raise mistake("Among these are ciphers that do not encrypt, or do not say who the gateway is.")
    return text


def unknown_ciphers(text: str) -> list[int]:
    """Which names of a list, counted from 1, OpenSSL leaves out because it knows no such ciphers of TLS 1.2."""
    newest = newest_ciphers(text)
    return [
        at
        for at, name in enumerate(_names(text), 1)
        if not name.startswith(_COMMANDS) and at not in newest and not _found(name)
    ]


def newest_ciphers(text: str) -> list[int]:
    """Which names of a list, counted from 1, are those of TLS 1.3."""
    newest = {each["name"] for each in ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).get_ciphers() if _is_newest(each)}
    return [at for at, name in enumerate(_names(text), 1) if name in newest]


def fits_key(text: str, kind: str) -> bool:
    """Whether any cipher of a list goes with a certificate whose key is RSA, ECDSA or DSS."""
    return any(f"Au={kind} " in f"{cipher['description']} " for cipher in _found(text))


def _names(text: str) -> list[str]:
    return [name for name in _BETWEEN.split(text) if name]


def _found(text: str) -> list[dict[str, Any]]:
    """The ciphers of TLS 1.2 that OpenSSL finds by a text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.set_ciphers(text)
    except (ssl.SSLError, ValueError):
        return []
    return [dict(cipher) for cipher in context.get_ciphers() if not _is_newest(cipher)]


def _is_newest(cipher: Any) -> bool:  # noqa: ANN401 - Python's type of it differs from version to version
    return bool(cipher["protocol"] == _NEWEST)


# What a file says about TLS toward clients.


def _version_as_text(value: object) -> object:
    """YAML reads an unquoted 1.2 as a number."""
    return str(value) if isinstance(value, float) else value


TlsVersion = Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_as_text)]


class CertificateLogin(ConfigModel):
    """Which name of a client's certificate stands in for a login; `certificate_users` says whose name it is."""

    name: Literal["distinguished_name", "common_name", "subject_alternative_name"] = "distinguished_name"
    """The whole subject (RFC 4514), its common names joined by commas, or an alternative name."""
    san_type: Literal["dns", "ip", "email", "uri", "other_name"] = "dns"
    """For subject_alternative_name: which kind of alternative name."""
    san_index: Annotated[int, Count(least=0)] = 0
    """For subject_alternative_name: which one of that kind, counted from 0."""


class ServerTls(ConfigModel):
    """TLS toward clients: a certificate, and what is asked of theirs."""

    cert_file: CertificateFile
    """The gateway's certificate and its chain (PEM). Relative to this file's directory."""
    key_file: KeyFile
    """The private key (PEM, not encrypted) of cert_file."""
    ca_file: CertificateFile | None = None
    """Certificates (PEM) that clients' certificates are checked against. verify needs it."""
    verify: Literal["none", "optional", "required"] = "none"
    """none asks for no client certificate. optional checks one if there is one. required refuses clients without a
    valid one."""
    crl_file: RevocationFile | None = None
    """Lists of revoked certificates (PEM, CRLs) of the authorities that issue clients' certificates. Needs verify. A
    client is refused if its certificate is in its issuer's list, and if the list is missing or out of date."""
    min_version: TlsVersion = "1.2"
    """The oldest version of TLS that is accepted."""
    max_version: TlsVersion = "1.3"
    """The newest version of TLS that is accepted."""
    ciphers: Annotated[Text, AfterValidator(checked_ciphers)] = "ECDHE+AESGCM:ECDHE+CHACHA20"
    """The ciphers of TLS 1.2, as OpenSSL writes them, the best first. TLS 1.3 always has all of its own."""


class ListenerTls(ServerTls):
    """TLS of a listener: its own certificate, and what is asked of the clients."""

    certificate_login: CertificateLogin | None = None
    """Let a client without a login header log in by its certificate. Needs verify. null: certificates say nothing about
    who a client is."""


def broker_tls_context(tls: UpstreamTls) -> ssl.SSLContext:
    """The context for `amqps` URLs.

    Raises:
        OSError: a file cannot be read, or its content cannot be used (ssl.SSLError).
    """
    context = client_context(tls.ca_file, verify=tls.verify)
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=no_passphrase)
    return context


def no_passphrase() -> str:
    """OpenSSL calls this for an encrypted key; by default it would ask on the terminal."""
    raise ssl.SSLError("the private key is encrypted")
