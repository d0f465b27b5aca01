"""TLS with clients: the login from a certificate, and why a handshake failed."""

from __future__ import annotations

import ssl
from asyncio import BaseTransport
from typing import Final

from gateway.config.listener_settings import Listener


def limit_read_ahead(transport: BaseTransport) -> None:
    """Make sure that input is not lost if a client closes while it is not being read.

    At the end of a connection, uvloop discards what it has read but not decrypted, and it reads ahead up to 256 KiB.
    With these limits it reads only what is wanted, so it sees the end after everything is decrypted.
    """
    if transport.get_extra_info("sslcontext") is not None:
        transport.set_read_buffer_limits(high=1, low=0)  # type: ignore[attr-defined]  # only TLS transports have it


def login_name(transport: BaseTransport, listener: Listener) -> str | None:
    """The name in a client's certificate that serves as login.

    None if the listener has no certificate login, or if the client showed no certificate with such a name.

    Raises:
        CertificateUnreadableError: the certificate cannot be read.
    """
    if listener.tls is None or listener.tls.certificate_login is None:
        return None
    connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        return None
    # Imported here because the certificate library is large, and few listeners need it.
    from gateway.server.listen.certificates import certificate_name  # noqa: PLC0415

    return certificate_name(certificate, listener.tls.certificate_login)


# OpenSSL's reasons for common mistakes, in plainer words.
_NOT_TLS: Final = "the client does not speak TLS"
_FAILURES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "HTTPS_PROXY_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "UNSUPPORTED_PROTOCOL": "the client and the gateway have no version of TLS in common",
    "NO_SHARED_CIPHER": "the client and the gateway have no cipher in common",
}


def handshake_failure(error: OSError | ValueError) -> str:
    """Why a client's TLS handshake failed, in words."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return "the client's certificate has a text that cannot be decoded"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ConnectionAbortedError):
        return "the handshake took longer than login_timeout"
    if isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the client closed the connection"
    reason = error.reason or str(error) if isinstance(error, ssl.SSLError) else error.strerror or str(error)
    if "_ALERT_" in reason:
        return f"the client gave up: {_words(reason.partition('_ALERT_')[2])}"
    return _FAILURES.get(reason, _words(reason))


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
