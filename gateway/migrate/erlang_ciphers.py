"""Reads the names of ciphers in the options of Erlang's TLS, and tells which of them the gateway can offer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.config.tls_settings import newest_ciphers, unknown_ciphers
from gateway.migrate.broker_settings import Setting, shown
from gateway.migrate.erlang_terms import Atom, Map, Tuple

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
