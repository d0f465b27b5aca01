"""TLS toward a broker."""

from __future__ import annotations

import ssl

from gateway.config import Tls


def broker_tls_context(tls: Tls) -> ssl.SSLContext:
    """The context for `amqps` URLs.

    Args:
        tls: which files to use, and whether the broker's certificate is checked.

    Raises:
        ssl.SSLError: a file does not hold what it should.
        OSError: a file cannot be read.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca_file)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        # An encrypted key must fail, not ask on the terminal for a passphrase.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    return context


def _no_passphrase() -> str:
    raise ssl.SSLError("the private key is encrypted")
