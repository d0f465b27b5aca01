"""TLS toward brokers and toward clients."""

from __future__ import annotations

import fcntl
import select
import ssl
import struct
import termios
from asyncio import BaseTransport
from typing import Final

from gateway.config import Listener, ServerTls, UpstreamTls

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def broker_tls_context(tls: UpstreamTls) -> ssl.SSLContext:
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


def listener_tls_context(tls: ServerTls) -> ssl.SSLContext:
    """The context of a listener.

    Args:
        tls: which files to use, and what is asked of clients.

    Raises:
        ssl.SSLError: a file does not hold what it should.
        OSError: a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    # A client could make the gateway work for nothing with it, and TLS 1.3 does without.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    if tls.ca_file is not None:
        context.load_verify_locations(tls.ca_file)
    context.verify_mode = _VERIFY[tls.verify]
    return context


def _no_passphrase() -> str:
    raise ssl.SSLError("the private key is encrypted")


def login_name(transport: BaseTransport, listener: Listener) -> str | None:
    """The name in a client's certificate that stands in for a login.

    Args:
        transport: the client's connection, its handshake done.
        listener: where it came in.

    Returns:
        The name; None when the listener has no certificate login, or the client showed none with such a name.
    """
    if listener.tls is None or listener.tls.certificate_login is None:
        return None
    connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        return None
    # Imported here: reading certificates takes a library that is large beside the rest, and few need it.
    from gateway.server.listen.certificates import certificate_name  # noqa: PLC0415

    return certificate_name(certificate, listener.tls.certificate_login)


def unsent_bytes(transport: BaseTransport) -> int:
    """Bytes that wait for a peer who takes none, where a transport over TLS says that nothing waits.

    The event loop has a transport beneath it, which keeps what the kernel has no room for and shows it to nobody. While
    it keeps anything, the socket is full.

    Args:
        transport: one over TLS.

    Returns:
        0 when the kernel has room; else how much it holds, which changes as the peer takes it.
    """
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return 1
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if [happening for _, happening in poll.poll(0)] == [select.POLLOUT]:
        return 0
    (held,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return max(1, int(held))


# What OpenSSL calls the mistakes that people make, in plainer words.
_NOT_TLS: Final = "the client does not speak TLS"
_FAILURES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "HTTPS_PROXY_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "UNSUPPORTED_PROTOCOL": "the client's version of TLS is too old",
    "NO_SHARED_CIPHER": "the client and the gateway have no cipher in common",
}


def handshake_failure(error: OSError) -> str:
    """Why a client's TLS handshake failed, in words.

    Args:
        error: what the handshake raised.
    """
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
