"""Writes the group `tls` of a listener from the options of Erlang's TLS, the ciphers that the gateway has included."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.tls_settings import newest_ciphers, unknown_ciphers
from gateway.migrate.broker_settings import BrokerSettings, Setting, entries, shown
from gateway.migrate.conf_schema import RABBIT, STOMP
from gateway.migrate.erlang_terms import Atom, Map, Tuple
from gateway.migrate.output import PLUGIN_DEFAULT, YamlWriter

_INLINE: Final = "stands in the configuration itself. Write it into a file (PEM), name that as"
_OF_OPENSSL: Final = (
    "honor_cipher_order", "honor_ecc_order", "reuse_sessions", "reuse_session", "secure_renegotiate",
    "client_renegotiation", "psk_identity", "bypass_pem_cache",
)  # fmt: skip
_DROPPED: Final = {
    **dict.fromkeys(_OF_OPENSSL, "Nothing to do: the gateway leaves this to OpenSSL."),
    **dict.fromkeys(("log_level", "log_alert"), "Nothing to do: the gateway's log says why a handshake failed."),
    **dict.fromkeys(("dh", "dhfile"), "Nothing to do: the gateway offers no ciphers that need it (DHE)."),
    "depth": "The gateway takes chains of certificates of any length.",
}
_TRANSLATED: Final = frozenset(
    "certfile keyfile cacertfile verify fail_if_no_peer_cert versions ciphers cert key cacerts".split()
)
_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
_NAME_SOURCES: Final = ("distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name")
_SAN_TYPES: Final = ("dns", "ip", "email", "uri", "other_name")
NEWEST: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The ciphers of TLS 1.3 that the gateway offers, always all of them."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_WITHOUT_MAC: Final = ("aead", "null")


@dataclass(frozen=True)
class Ciphers:
    """A list of ciphers, in OpenSSL's words and in the order of the list."""

    usable: tuple[str, ...]
    """Those of TLS 1.2."""
    newest: tuple[str, ...]
    """Those of TLS 1.3."""
    useless: tuple[str, ...]
    """Those that the gateway cannot offer: OpenSSL does not know them, or it would need parameters for them."""


def read_ciphers(setting: Setting) -> Ciphers:
    """The ciphers of an option `ciphers`: a list, or one text with colons between them."""
    value = setting.value
    terms: Iterable[object] = [entry.value for entry in value] if isinstance(value, tuple) else _texts(value)
    usable, newest, useless = [], [], []
    for name in dict.fromkeys(_openssl_name(_name(term)) for term in terms):
        if not _NAME.fullmatch(name) or name.startswith(("DHE-", "EDH-")):
            useless.append(shown(name) or "something that is no name")
        elif newest_ciphers(name) or name.startswith(("TLS_AES_", "TLS_CHACHA20_")):
            newest.append(name)
        elif unknown_ciphers(name):
            useless.append(shown(name))
        else:
            usable.append(name)
    return Ciphers(tuple(usable), tuple(newest), tuple(useless))


def _texts(value: object) -> list[str]:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return [name for name in re.split("[:, ]+", text) if name]


def _name(term: object) -> str:
    """A cipher as text: OpenSSL's name, or the standard one (RFC 5246), also of the tuples and maps that Erlang has."""
    if isinstance(term, bytes):
        return term.decode("latin-1")
    if isinstance(term, Map):
        parts = {key.name: value for key, value in term.pairs if isinstance(key, Atom)}
        term = Tuple(tuple(parts.get(key, Atom("null")) for key in ("key_exchange", "cipher", "mac", "prf")))
    if isinstance(term, Tuple):
        words = [item.name for item in term.items if isinstance(item, Atom)]
        exchange, cipher, *macs = [*words, "", ""]
        mac = next((mac for mac in macs if mac and mac not in _WITHOUT_MAC), "")
        return f"TLS_{exchange}_WITH_{cipher}_{mac}".upper().rstrip("_")
    return term if isinstance(term, str) else ""


def _openssl_name(name: str) -> str:
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("CCM_8", "CCM8")
    cipher = cipher.replace("POLY1305_SHA256", "POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}-{cipher}").replace("_", "-")


# The group of a listener.


def verifies_peers(tls: Mapping[str, Setting], settings: BrokerSettings) -> bool:
    """Whether clients are asked for a certificate."""
    return settings.word(tls.get("verify"), ("verify_none", "verify_peer"), "verify_none") == "verify_peer"


def can_listen(tls: Mapping[str, Setting], listener: Setting, settings: BrokerSettings) -> bool:
    """Whether the gateway can listen with these options. If not, the report says why the listener is left out."""
    report = settings.report
    if "certfile" not in tls:
        if "cert" in tls:
            text = f"This listener is left out: its certificate {_INLINE} tls.cert_file and its key as tls.key_file."
            report.action(listener, text)
        else:
            report.dropped(listener, "This listener is left out: it has no certfile, so nobody could use it.")
        return False
    if "keyfile" not in tls and "key" in tls:
        report.action(listener, f"This listener is left out: its private key {_INLINE} tls.key_file.")
        return False
    if verifies_peers(tls, settings) and "cacertfile" not in tls:
        why = f"what it {_INLINE} tls.ca_file" if "cacerts" in tls else "there is no cacertfile; add tls.ca_file"
        report.action(listener, f"This listener is left out: it checks clients' certificates, and {why}.")
        return False
    return True


def write_tls(writer: YamlWriter, tls: Mapping[str, Setting], settings: BrokerSettings) -> bool:
    """Write the group of a listener that `can_listen`, and tell whether clients can log in by certificate there."""
    certificate, key, authority = tls["certfile"], tls.get("keyfile"), tls.get("cacertfile")
    writer.add(2, "tls")
    writer.add(3, "cert_file", settings.text(certificate, ""), certificate)
    writer.add(3, "key_file", settings.text(key or certificate, ""), key or f"{PLUGIN_DEFAULT}: certfile")
    if authority is not None:
        writer.add(3, "ca_file", settings.text(authority, ""), authority)
    strict, is_asked = tls.get("fail_if_no_peer_cert"), verifies_peers(tls, settings)
    is_required = settings.switch(strict, default=False) and is_asked
    verify = "required" if is_required else "optional" if is_asked else "none"
    writer.add(3, "verify", verify, strict if is_required else tls.get("verify"))
    _write_versions(writer, tls, settings)
    _report_options(tls, settings)
    return _write_certificate_login(writer, certificate, settings, is_asked=is_asked)


def _write_versions(writer: YamlWriter, tls: Mapping[str, Setting], settings: BrokerSettings) -> None:
    """Write versions and ciphers. If only ciphers of one version are listed, no other version can be spoken."""
    source, ciphers = tls.get("versions"), tls.get("ciphers")
    versions = _versions(source, settings)
    found = None if ciphers is None else read_ciphers(ciphers)
    of_ciphers = None
    if found is not None and len(versions) > 1 and bool(found.newest) != bool(found.usable or found.useless):
        versions, of_ciphers = _VERSIONS[1:] if found.newest else _VERSIONS[:1], ciphers
    oldest, newest = versions[0], versions[-1]
    writer.add(
        3, "min_version", oldest.removeprefix("tlsv"), (of_ciphers if oldest == _VERSIONS[1] else None) or source
    )
    if newest == _VERSIONS[0]:
        writer.add(3, "max_version", "1.2", of_ciphers or source)
    if found is not None and found.usable and oldest == _VERSIONS[0]:
        writer.add(3, "ciphers", ":".join(found.usable), ciphers)
    if found is not None:
        _report_ciphers(found, ciphers, versions, settings)


def _versions(setting: Setting | None, settings: BrokerSettings) -> tuple[str, ...]:
    """Those that the gateway speaks, too, the oldest first; both of its own if that leaves none."""
    if setting is None:
        return _VERSIONS
    values = [entry.value for entry in entries(setting)]
    names = {value.name if isinstance(value, Atom) else str(value) for value in values}
    if names - {*_VERSIONS}:
        text = (
            "The gateway speaks TLS 1.2 and 1.3 only. Clients that know older versions alone would fail, so find and "
        )
        text += "update them first: rabbitmqctl list_stomp_connections conn_name ssl_protocol"
        settings.report.action(setting, text)
    return tuple(version for version in _VERSIONS if version in names) or _VERSIONS


def _report_ciphers(
    found: Ciphers, setting: Setting | None, versions: tuple[str, ...], settings: BrokerSettings
) -> None:
    if found.useless and _VERSIONS[0] in versions:
        text = f"The gateway cannot offer {', '.join(found.useless)}. Clients that know no other cipher would fail. "
        own = (
            ""
            if found.usable
            else "None is left, so it offers its own, which are good: delete the setting, or set ciphers."
        )
        settings.report.action(setting, f"{text}{own}".rstrip())
    if _VERSIONS[1] in versions and {*NEWEST} - {*found.newest}:
        text = (
            f"The ciphers of TLS 1.3 cannot be chosen; the gateway offers {', '.join(NEWEST)}. Where that is against a "
        )
        settings.report.action(setting, f'{text}rule, set max_version: "1.2".')


def _report_options(tls: Mapping[str, Setting], settings: BrokerSettings) -> None:
    for name, setting in tls.items():
        if name == "password":
            text = "The gateway takes no encrypted private key. Decrypt it: openssl pkey -in OLD -out NEW, mode 0600, "
            settings.report.action(setting, text + "and name NEW as tls.key_file.")
        elif name == "crl_check":
            if setting.value != Atom("false") and verifies_peers(tls, settings):
                text = (
                    "The gateway fetches no lists of revoked certificates. Name a file with them (PEM) as tls.crl_file."
                )
                settings.report.action(setting, text)
        elif name not in _TRANSLATED:
            settings.report.dropped(setting, _DROPPED.get(name, "The gateway has nothing like this."))
    if "cacertfile" in tls:
        text = "RabbitMQ sends intermediate certificates that it finds there. The gateway sends those in cert_file: "
        settings.report.note(tls["cacertfile"], text + "append them to it, if there are any.")


def _write_certificate_login(
    writer: YamlWriter, certificate: Setting, settings: BrokerSettings, *, is_asked: bool
) -> bool:
    """Write the login by certificate. Both plugins allow it only if the broker's own `ssl_options` verify peers."""
    login = settings.get(STOMP, "ssl_cert_login")
    if login is None or not settings.switch(login, default=False):
        return False
    if not verifies_peers(settings.properties(RABBIT, "ssl_options"), settings):
        text = "This had no effect: ssl_options.verify is not verify_peer. Clients with certificates are default users."
        settings.report.note(login, text)
        return False
    if not is_asked:
        text = "Clients are not asked for certificates there, so nobody logs in by one."
        settings.report.note(certificate, text)
        return False
    source = settings.get(RABBIT, "ssl_cert_login_from")
    name = settings.word(source, _NAME_SOURCES, _NAME_SOURCES[0])
    name = name.replace("subject_alt_name", "subject_alternative_name")
    writer.add(3, "certificate_login", "", login)
    writer.add(4, "name", name, source)
    if name == "subject_alternative_name":
        kind, index = (settings.get(RABBIT, f"ssl_cert_login_san_{key}") for key in ("type", "index"))
        writer.add(4, "san_type", settings.word(kind, _SAN_TYPES, "dns"), kind)
        writer.add(4, "san_index", settings.number(index, 0), index)
    return True
