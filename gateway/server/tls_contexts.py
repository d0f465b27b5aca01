"""TLS contexts for brokers and clients, which follow their files.

Certificates are renewed while a gateway runs. If a file has changed, `TlsContexts.look` makes a new context for new
connections. If the new files cannot be used, for example because only one of two is written yet, or if the new
certificate has expired or is not valid yet, the old context stays until they can. A mounted secret of Kubernetes is a
link whose target changes: `stat` follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import structlog

from gateway.config.tls_settings import ServerTls, broker_tls_context, no_passphrase
from gateway.config.virtual_host import Upstream, UpstreamTls
from gateway.errors import GatewayError
from gateway.server.fault_boundary import cancelled

if TYPE_CHECKING:
    from cryptography import x509

log = structlog.get_logger("gateway.tls")

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

# Seconds between two looks at the files.
_INTERVAL: Final = 1.0

# The time in seconds for a client to read why its handshake failed, and the size of reads from it meanwhile.
_ALERT_TIMEOUT: Final = 2.0
_READ: Final = 16 << 10

TlsSettings = ServerTls | UpstreamTls


class HandshakeAlert:
    """The TLS alert for a client whose handshake fails: OpenSSL's reason, in a form that the client understands.

    asyncio and uvloop close the socket of a failed handshake without sending the last bytes of OpenSSL. So the TLS
    object passes the alert on, with another descriptor of the socket. It finds this object in the context of its task.
    """

    of_task: Final[ContextVar[HandshakeAlert]] = ContextVar("alert")

    def __init__(self, connection: socket.socket) -> None:
        self._connection: socket.socket | None = connection
        self._is_own = False
        self._alert = b""
        self.of_task.set(self)

    def keep(self, alert: bytes) -> None:
        """Note that the handshake has failed. The event loop is about to close the socket."""
        if self._connection is not None and not self._is_own:
            with contextlib.suppress(OSError):  # no descriptor is left
                self._connection, self._is_own, self._alert = self._connection.dup(), True, alert

    async def send(self) -> None:
        """Send the alert, if there is one, and give the client a moment to read it and to close."""
        connection, loop = self._connection, asyncio.get_running_loop()
        if connection is None or not self._alert:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ALERT_TIMEOUT):
                await loop.sock_sendall(connection, self._alert)
                # In TLS 1.3, a client sends its first frame before the gateway has checked its certificate. If that was
                # left unread, the system would reset the connection, and the client might lose the alert.
                connection.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(connection, _READ):
                    pass

    def close(self) -> None:
        """Note that the handshake is over."""
        if self._connection is not None and self._is_own:
            self._connection.close()
        self._connection = None


class _ListenerTlsObject(ssl.SSLObject):
    """TLS with one client. `_ListenerTlsContext` makes it."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """See `ssl.SSLObject`."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = HandshakeAlert.of_task.get(None)
            if alert is not None:
                alert.keep(self.outgoing.read())
            raise


class _ListenerTlsContext(ssl.SSLContext):
    sslobject_class = _ListenerTlsObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:  # noqa: ANN401 - as the base class has them
        """See `ssl.SSLContext`."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        assert isinstance(wrapped, _ListenerTlsObject)  # noqa: S101 - of ``sslobject_class``
        wrapped.outgoing = outgoing
        return wrapped


def listener_tls_context(tls: ServerTls) -> ssl.SSLContext:
    """The context of a listener. Raises as `broker_tls_context` does."""
    context = _ListenerTlsContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.set_ciphers(tls.ciphers)
    # Renegotiation costs the gateway much work and a client little, and TLS 1.3 does not have it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(tls.cert_file, tls.key_file, password=no_passphrase)
    if tls.ca_file is not None:
        context.load_verify_locations(tls.ca_file)
    if tls.crl_file is not None:
        context.load_verify_locations(tls.crl_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = _VERIFY[tls.verify]
    return context


class TlsContext:
    """The present context for one group of TLS settings.

    ``expires_at``: when the first of the own certificates expires, in seconds since 1970; None if unknown. ``refused``:
    how often changed files could not be used.

    Raises:
        OSError: a file cannot be read, or its content cannot be used (ssl.SSLError).
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._files = [value for _, value in settings if isinstance(value, Path)]
        # First, so that a change during the following lines is found by the next look.
        self._seen = self._states()
        # The state of files that cannot be used; None if the last attempt succeeded.
        self._unusable: list[object] | None = None
        self.refused = 0
        self.context = _make(settings)
        self._chain = _chain(settings.cert_file)

    @property
    def file(self) -> Path | None:
        """The own certificate, or else the certificates to trust; None without files."""
        return self._settings.cert_file or self._settings.ca_file

    @property
    def expires_at(self) -> float | None:
        """See the class."""
        return min((each.not_valid_after_utc.timestamp() for each in self._chain), default=None)

    @property
    def is_stale(self) -> bool:
        """Whether the files have changed but cannot be used."""
        return self._unusable is not None

    def look(self) -> bool:
        """Make a new context if a file has changed. Returns whether there is one. Blocks for some milliseconds."""
        states = self._states()
        if states == self._seen and not self.is_stale:
            return False
        self._seen = states
        try:
            context, chain = _make(self._settings), _chain(self._settings.cert_file)
            # If only the authorities have changed, that must not wait for a valid certificate.
            if chain[:1] != self._chain[:1]:
                _refuse_invalid(chain, datetime.now(UTC))
        except OSError as error:
            # Unusable files are tried again, because two states may look the same. One log line is enough.
            before, self._unusable = self._unusable, states
            if states != before:
                self.refused += 1
                # Last: whoever reads it finds the metrics changed.
                log.error("certificate unusable", file=str(self.file), reason=error.strerror or str(error))
            return False
        self._unusable = None
        self.context, self._chain = context, chain
        log.info("certificate changed", file=str(self.file))
        return True

    def _states(self) -> list[object]:
        """Changes when a file changes."""
        return [_state(file) for file in self._files]


def _state(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _make(settings: TlsSettings) -> ssl.SSLContext:
    return listener_tls_context(settings) if isinstance(settings, ServerTls) else broker_tls_context(settings)


def _refuse_invalid(chain: list[x509.Certificate], now: datetime) -> None:
    """Raise OSError if the own certificate, the first one, has expired or is not valid yet."""
    for own in chain[:1]:
        if own.not_valid_after_utc <= now:
            raise OSError(f"the new certificate has expired, on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        if own.not_valid_before_utc > now:
            raise OSError(f"the new certificate is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")


def _chain(file: Path | None) -> list[x509.Certificate]:
    """The certificates of a file, the own one first; empty if they cannot be read."""
    if file is None:
        return []
    # Imported here because the library is large, and not every gateway has a certificate.
    from cryptography import x509  # noqa: PLC0415

    with contextlib.suppress(ValueError):  # OpenSSL takes some certificates that the library refuses
        return x509.load_pem_x509_certificates(file.read_bytes())
    return []


class TlsContexts:
    """The contexts in use, one for each group of TLS settings. Whoever uses one keeps it."""

    def __init__(self) -> None:
        self._contexts: WeakValueDictionary[TlsSettings, TlsContext] = WeakValueDictionary()
        # For brokers. Kept, so that their files are followed even without a link.
        self._upstreams: list[TlsContext] = []
        # A reload and the regular look may happen at the same time.
        self._lock = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[TlsContext]:
        return iter(list(self._contexts.values()))

    def of(self, settings: TlsSettings) -> TlsContext:
        """The context for these settings.

        Raises:
            OSError: a file cannot be read, or its content cannot be used (ssl.SSLError).
        """
        found = self._contexts.get(settings)
        if found is None:
            found = self._contexts[settings] = TlsContext(settings)
        return found

    def prepare(self, settings: Iterable[TlsSettings | None]) -> list[TlsContext]:
        """The contexts for all of these settings. While the caller keeps them, ``of`` reads no file.

        Raises:
            GatewayError: a file cannot be read, or its content cannot be used.
        """
        try:
            return [self.of(each) for each in settings if each is not None]
        except OSError as error:
            raise GatewayError(f"the TLS files cannot be used: {error.strerror or error}") from error

    async def look(self) -> list[Path]:
        """Make new contexts if files have changed. Returns these files, as `TlsContext.file`."""
        async with self._lock:
            contexts = list(self)
            # In a thread, because of the disk.
            changed = await asyncio.to_thread(lambda: [context.look() for context in contexts]) if contexts else []
        return [context.file for context, is_new in zip(contexts, changed, strict=True) if is_new and context.file]

    def keep_upstreams(self, upstreams: Iterable[Upstream]) -> None:
        """Keep the contexts for these brokers, and no others."""
        contexts = []
        for upstream in upstreams:
            if any(url.tls for url in upstream.urls):
                try:
                    contexts.append(self.of(upstream.tls))
                except OSError as error:
                    # It was valid when the configuration was read. Each link tries again.
                    file, reason = upstream.tls.cert_file or upstream.tls.ca_file, error.strerror or str(error)
                    log.error("certificate unusable", file=str(file), reason=reason)
        # Replaced at the end, so that a context that stays keeps its counts.
        self._upstreams = contexts

    def follow_files(self) -> None:
        """Look for changed files until ``close``."""
        self._following = asyncio.create_task(self._follow_files(), name="certificates")

    async def close(self) -> None:
        """Stop following the files."""
        await cancelled(self._following)

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self.look()
            except Exception as error:
                log.error("internal error", exc_info=error)
