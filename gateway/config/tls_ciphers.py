"""Lists of TLS ciphers, as OpenSSL writes them. Python's ssl lets nobody choose those of TLS 1.3."""

from __future__ import annotations

import re
import ssl
from typing import Any, Final

from gateway.config.scalars import mistake

_BETWEEN: Final = re.compile(r"[:,; ]+")
# They take ciphers away or put them in another order, so one that names nothing does no harm.
_COMMANDS: Final = ("!", "-", "+", "@")
_NEWEST: Final = "TLSv1.3"


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
