"""TLS toward a broker."""

from __future__ import annotations

import ssl

from gateway.client_tls import client_context
from gateway.config.virtual_host import UpstreamTls


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
