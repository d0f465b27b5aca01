"""TLS of a listener: from Erlang's options to the gateway's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.migrate.keys import RABBIT, STOMP, TLS_EXTRAS
from gateway.migrate.settings import Given
from gateway.migrate.sheet import Sheet
from gateway.migrate.terms import Atom
from gateway.migrate.values import DEFAULT, Reading, because

_INLINE: Final = "stands in the configuration itself. Write it into a file (PEM), name that as"
_PATIENTLY: Final = "Nothing to do: the gateway leaves this to OpenSSL."
_LOST: Final = {
    **dict.fromkeys((*TLS_EXTRAS, "ciphers", "dh", "dhfile", "psk_identity", "bypass_pem_cache"), _PATIENTLY),
    **dict.fromkeys(("log_level", "log_alert"), "Nothing to do: the gateway's log says why a handshake failed."),
    "crl_check": "The gateway does not look up revoked certificates. Where that matters, keep their life short.",
    "depth": "The gateway takes chains of certificates of any length.",
}
_READ: Final = frozenset(
    ("certfile", "keyfile", "cacertfile", "password", "verify", "fail_if_no_peer_cert", "versions", "cert", "key",
     "cacerts")
)  # fmt: skip
_SAN_TYPES: Final = ("dns", "ip", "email", "uri", "other_name")


def verifies(parts: Mapping[str, Given], reading: Reading) -> bool:
    """Whether clients are asked for a certificate."""
    return reading.word(parts.get("verify"), ("verify_none", "verify_peer"), "verify_none") == "verify_peer"


def usable(parts: Mapping[str, Given], about: Given, reading: Reading) -> bool:
    """Whether the gateway can listen with these options. If not, that listener is left out, and a remark says why."""
    if "certfile" not in parts:
        if "cert" in parts:
            text = f"This listener is left out: its certificate {_INLINE} tls.cert_file and its key as tls.key_file."
            reading.remarks.needed(about, text)
        else:
            reading.remarks.lost(about, "This listener is left out: it has no certfile, so nobody could use it.")
        return False
    if "keyfile" not in parts and "key" in parts:
        reading.remarks.needed(about, f"This listener is left out: its private key {_INLINE} tls.key_file.")
        return False
    if verifies(parts, reading) and "cacertfile" not in parts:
        why = f"what it {_INLINE} tls.ca_file" if "cacerts" in parts else "there is no cacertfile; add tls.ca_file"
        text = f"This listener is left out: it checks clients' certificates, and {why}."
        reading.remarks.needed(about, text)
        return False
    return True


def write_tls(sheet: Sheet, parts: Mapping[str, Given], reading: Reading) -> bool:
    """The group `tls` of a listener that is `usable`.

    Returns:
        Whether clients can log in by certificate there.
    """
    certificate, key, authority = parts["certfile"], parts.get("keyfile"), parts.get("cacertfile")
    sheet.add(2, "tls")
    sheet.add(3, "cert_file", reading.text(certificate, ""), because(certificate))
    sheet.add(3, "key_file", reading.text(key or certificate, ""), because(key) if key else f"{DEFAULT}: certfile")
    if authority is not None:
        sheet.add(3, "ca_file", reading.text(authority, ""), because(authority))
    checks = verifies(parts, reading)
    strict = reading.switch(parts.get("fail_if_no_peer_cert"), default=False)
    verify = ("required" if strict else "optional") if checks else "none"
    origin = parts.get("fail_if_no_peer_cert") if checks and strict else parts.get("verify")
    sheet.add(3, "verify", verify, because(origin))
    _write_version(sheet, parts.get("versions"), reading)
    _remark(parts, reading)
    return _write_certificate_login(sheet, certificate, reading, asked=checks)


def _write_version(sheet: Sheet, given: Given | None, reading: Reading) -> None:
    versions = {_version(entry.value) for entry in given.value} if given and isinstance(given.value, tuple) else set()
    newest_only = versions == {"tlsv1.3"}
    sheet.add(3, "min_version", "1.3" if newest_only else "1.2", because(given))
    if given is None:
        return
    if versions - {"tlsv1.2", "tlsv1.3"}:
        reading.remarks.lost(given, "The gateway speaks TLS 1.2 and 1.3. Clients that know older versions only fail.")
    elif "tlsv1.3" not in versions:
        reading.remarks.note(given, "The gateway speaks TLS 1.3 as well; it cannot be told not to.")


def _version(value: object) -> str:
    return value.name if isinstance(value, Atom) else str(value)


def _remark(parts: Mapping[str, Given], reading: Reading) -> None:
    for name, given in parts.items():
        if name == "password":
            text = "The gateway takes no encrypted private key. Decrypt it: openssl pkey -in OLD -out NEW, mode 0600, "
            reading.remarks.needed(given, text + "and name NEW as tls.key_file.")
        elif name not in _READ:
            reading.remarks.lost(given, _LOST.get(name, "The gateway has nothing like this."))
    if "cacertfile" in parts:
        text = "RabbitMQ sends intermediate certificates that it finds there. The gateway sends those in cert_file: "
        reading.remarks.note(parts["cacertfile"], text + "append them to it, if there are any.")


def _write_certificate_login(sheet: Sheet, about: Given, reading: Reading, *, asked: bool) -> bool:
    """The plugin asks the broker's own `ssl_options` whether a name in a certificate counts, Web-STOMP too."""
    login = reading.get(STOMP, "ssl_cert_login")
    if login is None or not reading.switch(login, default=False):
        return False
    if not verifies(reading.settings.parts(RABBIT, "ssl_options"), reading):
        text = "This had no effect: ssl_options.verify is not verify_peer. Clients with certificates are default users."
        reading.remarks.note(login, text)
        return False
    if not asked:
        reading.remarks.note(about, "Clients are not asked for certificates there, so nobody logs in by one.")
        return False
    source = reading.get(RABBIT, "ssl_cert_login_from")
    names = ("distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name")
    name = reading.word(source, names, names[0]).replace("subject_alt_name", "subject_alternative_name")
    sheet.add(3, "certificate_login", "", because(login))
    sheet.add(4, "name", name, because(source))
    if name == "subject_alternative_name":
        kind, index = reading.get(RABBIT, "ssl_cert_login_san_type"), reading.get(RABBIT, "ssl_cert_login_san_index")
        sheet.add(4, "san_type", reading.word(kind, _SAN_TYPES, "dns"), because(kind))
        sheet.add(4, "san_index", reading.number(index, 0), because(index))
    return True
