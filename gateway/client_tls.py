"""TLS contexts for connections to servers: brokers, and gateways."""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(ca_file: Path | str | None, *, verify: bool) -> ssl.SSLContext:
    """A context for connections to servers.

    Args:
        ca_file: certificates of the authorities to trust, PEM; None: those that the system trusts.
        verify: whether the server's certificate and name are checked.

    Raises:
        OSError: the file cannot be read, or its content cannot be used (ssl.SSLError).
    """
    context = ssl.create_default_context(cafile=ca_file)
    # From Python 3.13 on the default refuses what many private authorities sign: certificates without an identifier of
    # the authority's key. A newer Python must not lock the gateway out of a broker that it reached before.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
