"""The files of TLS, toward clients and toward brokers, tried out before anything depends on them.

They are loaded once here and thrown away again, so that a wrong one is a mistake with a place in the file, like any
other, and not a failure later on.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.config.quantities import mistake

_NO_CERTIFICATE = "This file holds no certificate (PEM)."


def check_certificates(file: Path) -> Path:
    """The file itself, which holds at least one certificate; raises `mistake` otherwise."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except (OSError, ValueError):
        raise mistake(_NO_CERTIFICATE, "It begins with the line -----BEGIN CERTIFICATE-----.") from None
    return file


def check_key(file: Path, certificate: Path) -> Path:
    """The file itself, which holds the private key of a certificate; raises `mistake` otherwise."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, file, password=_refuse_passphrase)
    except _EncryptedKeyError:
        advice = "The gateway cannot ask for a passphrase: decrypt it, for example with openssl pkey."
        raise mistake("This private key is encrypted.", advice) from None
    except ssl.SSLError as error:
        raise mistake(_sentence(error)) from None
    except (OSError, ValueError):
        raise mistake("This file holds no private key (PEM).") from None
    return file


class _EncryptedKeyError(Exception):
    """Raised where OpenSSL would ask on the terminal."""


def _refuse_passphrase() -> str:
    raise _EncryptedKeyError


def _sentence(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "This private key does not belong to the certificate in cert_file."
    if error.library == "SSL" and error.reason and error.reason != "PEM_LIB":
        # OpenSSL finds the certificate or the key too weak, for example.
        return (
            f"TLS does not take this key with the certificate in cert_file: {error.reason.replace('_', ' ').lower()}."
        )
    return "This file holds no private key (PEM)."
