"""Connects a link to one broker: TCP, TLS and the login, with the client's own credentials."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aio_pika import Connection
from aio_pika.exceptions import AMQPConnectionError, AMQPError
from aiormq.connection import TransportFactory
from yarl import URL

from gateway.config.addresses import BrokerUrl
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import (
    ACCESS_REFUSED,
    BROKER_FAULTS,
    CONNECTION_FORCED,
    LinkDownError,
    UpstreamError,
    is_cancelled,
    os_reason,
)
from gateway.server.broker.host_resolver import AddressInfo, HostResolver, first_connected
from gateway.server.broker.link import Link, Tuning
from gateway.server.broker.tap import LinkWriter, Tap
from gateway.server.tls_contexts import TlsContexts

# While more bytes than this wait in the gateway for the broker, the publishing clients of a link are held.
_HIGH_WATER: Final = 1 << 20

# The most bytes of credentials. Before the login, RabbitMQ by default closes the connection over frames of more than
# 4096 or 8192 bytes. The rest is for the connection's properties.
_SHORT_LOGIN: Final = 3000

_NO_CHANNEL_LIMIT: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's login and passcode. The passcode is not in ``repr``."""

    login: str
    passcode: str

    @property
    def size(self) -> int:
        """The bytes that both take in UTF-8."""
        return len(self.login.encode()) + len(self.passcode.encode())

    def __repr__(self) -> str:
        return f"Credentials({self.login!r})"


async def connect_link(
    link: Link, virtual_host: VirtualHost, credentials: Credentials, resolver: HostResolver, contexts: TlsContexts
) -> None:
    """Connect a new link to its broker, and log in.

    Raises:
        UpstreamError: the broker refused the login or the virtual host.
        LinkDownError: the broker did not answer.
    """
    upstream = virtual_host.upstream
    url = _url(link.broker, credentials, virtual_host)
    try:
        context = contexts.of(upstream.tls).context if url.scheme == "amqps" else None
        async with asyncio.timeout(upstream.connect_timeout):
            await _connect(link, url, context, resolver)
    except (TimeoutError, OSError, AMQPError, RuntimeError, LinkDownError, asyncio.CancelledError) as error:
        if is_cancelled():
            raise
        if link.closed is not None and link.closed.code not in BROKER_FAULTS:
            raise UpstreamError(link.closed.code, link.closed.text) from None
        if _is_reset(error) and credentials.size > _SHORT_LOGIN:
            text = f"the broker hung up on a login of {credentials.size} bytes; see its initial_frame_max"
            raise UpstreamError(ACCESS_REFUSED, f"ACCESS_REFUSED - {text}") from None
        reason = _reason(error, upstream.connect_timeout)
        raise LinkDownError(CONNECTION_FORCED, "the broker does not answer", reason) from None


async def _connect(link: Link, url: URL, context: ssl.SSLContext | None, resolver: HostResolver) -> None:
    factory = _TapFactory(link, resolver)
    connection = Connection(url, ssl_context=context, client_properties={**link.client_properties.as_table()})
    connection.kwargs["transport_factory"] = factory  # for aiormq; aio-pika's constructor does not pass it on
    try:
        await connection.connect()
    except BaseException as error:
        # Otherwise the library would close it later, in a task, when it is garbage-collected.
        await connection.close()
        if factory.tap is not None:
            factory.tap.transport.abort()
        if isinstance(error, StopAsyncIteration):
            # The library raises this if the broker ends the stream during the handshake.
            raise LinkDownError(CONNECTION_FORCED, "the connection was closed during the login") from None
        raise
    if factory.tap is None or connection.transport is None:
        raise LinkDownError(CONNECTION_FORCED, "the connection was closed at once")
    under = connection.transport.connection
    tune = under.connection_tune
    version = _version(under.server_properties.get("version"))
    channel_max = tune.channel_max or _NO_CHANNEL_LIMIT
    tuning = Tuning(tune.frame_max, channel_max, version, under.accept_consumer_cancel_ok)
    link.opened(connection, factory.tap, tuning)


class _TapFactory(TransportFactory):
    """Opens the socket of a link for the AMQP library, with a tap."""

    def __init__(self, link: Link, resolver: HostResolver) -> None:
        self._link = link
        self._resolver = resolver
        self.tap: Tap | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ANN401
        """Open the socket; called by the library. Of its options, only the TLS context is used."""
        loop = asyncio.get_running_loop()
        context = await kwargs["ssl_context_provider"].get_context() if url.scheme == "amqps" else None
        reader = asyncio.StreamReader(loop=loop)
        try:
            transport, tap = await self._open(url, context, lambda: Tap(reader, self._link, loop))
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.tap = tap
        return reader, LinkWriter(transport, tap, reader, loop)

    async def _open(
        self, url: URL, context: ssl.SSLContext | None, make_tap: Callable[[], Tap]
    ) -> tuple[asyncio.Transport, Tap]:
        """Connect to the first address of the host that accepts a connection, and do the TLS handshake."""
        loop, host = asyncio.get_running_loop(), url.host or ""
        server_hostname = None if context is None else host
        addresses = await self._resolver.addresses(host, url.port or 0)
        if len(addresses) == 1 and (name := _plain_name(addresses[0])) is not None:
            return await loop.create_connection(make_tap, *name, ssl=context, server_hostname=server_hostname)
        plain = await first_connected(addresses)
        try:
            return await loop.create_connection(make_tap, sock=plain, ssl=context, server_hostname=server_hostname)
        except BaseException:
            plain.close()
            raise


def _plain_name(address: AddressInfo) -> tuple[str, int] | None:
    """Address and port, for which the event loop needs no thread; None if an IPv6 address has a scope."""
    host, port, *more = address[-1]
    return None if any(more) else (host, port)


def _url(broker: BrokerUrl, credentials: Credentials, virtual_host: VirtualHost) -> URL:
    """The URL for the AMQP library. It contains the passcode, so it must not leave this module."""
    url = broker.with_login(credentials.login, credentials.passcode, virtual_host.amqp_vhost)
    return URL(f"{url}?heartbeat={int(virtual_host.upstream.heartbeat)}", encoded=True)


def _version(text: object) -> tuple[int, ...]:
    """RabbitMQ's version as numbers, up to the first part that is not a number."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", text.decode() if isinstance(text, bytes) else str(text))
    return tuple(map(int, found[0].split("."))) if found else ()


def _is_reset(error: BaseException) -> bool:
    return any(isinstance(each, OSError) and each.errno == errno.ECONNRESET for each in (error, error.__cause__))


def _reason(error: BaseException, timeout: float) -> str:
    """Why a broker could not be reached, if possible in the operating system's words."""
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer within {timeout:g} seconds"
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        return os_reason(cause)
    return str(cause) or type(cause).__name__
