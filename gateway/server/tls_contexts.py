"""TLS contexts for brokers and for clients."""

from __future__ import annotations

import ssl
from typing import Final

from gateway.config.listener_settings import ServerTls
from gateway.config.virtual_host import UpstreamTls

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def broker_tls_context(tls: UpstreamTls) -> ssl.SSLContext:
    """The context for `amqps` URLs.

    Raises:
        OSError: a file cannot be read, or its content cannot be used (ssl.SSLError).
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca_file)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    return context


def listener_tls_context(tls: ServerTls) -> ssl.SSLContext:
    """The context of a listener, with the errors of ``broker_tls_context``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.set_ciphers(tls.ciphers)
    # Renegotiation costs the gateway much work and a client little, and TLS 1.3 does not have it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    if tls.ca_file is not None:
        context.load_verify_locations(tls.ca_file)
    if tls.crl_file is not None:
        context.load_verify_locations(tls.crl_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = _VERIFY[tls.verify]
    return context


def _no_passphrase() -> str:
    """OpenSSL calls this for an encrypted key; by default it would ask on the terminal."""
    raise ssl.SSLError("the private key is encrypted")
