"""A link: one AMQP connection, opened as a client and used by one session or by many.

Control goes through aio-pika: dialling, login, channels, declarations, consumers, heart-beats. Data goes through the
tap: ``LinkChannel.write`` puts encoded frames on the wire, and deliveries and confirms arrive at the channel's sink.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

import aio_pika
import pamqp.frame
from aiormq.channel import Channel as UnderlayChannel
from aiormq.connection import Connection as AmqpConnection
from aiormq.exceptions import AMQPError
from pamqp import commands
from yarl import URL

from gateway.amqp.codec import CANCEL, CHANNEL_CLOSE, CONNECTION_BLOCKED, CONNECTION_CLOSE, CONNECTION_UNBLOCKED
from gateway.amqp.splitter import Sink, Splitter
from gateway.config import BrokerUrl, Upstream, VirtualHost
from gateway.server.broker.broker_errors import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    LinkDownError,
    UpstreamError,
    interrupted,
)
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.tap import Tap, TapFactory
from gateway.server.listen.tls import broker_tls_context

if TYPE_CHECKING:
    from gateway.server.broker.exclusive_queues import ExclusiveQueues

# Bytes waiting for the broker above which the clients of a link are held. The kernel's own buffers come on top.
_HIGH_WATER: Final = 1 << 20

# How long a broker may take to answer connection.close, in seconds.
_CLOSE_WITHIN: Final = 3.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client logs in with. The passcode never shows."""

    login: str
    passcode: str

    @property
    def octets(self) -> int:
        """What both take on the wire."""
        return len(self.login.encode()) + len(self.passcode.encode())

    def __repr__(self) -> str:
        return f"Credentials({self.login!r})"


# RabbitMQ takes AMQP frames of 4096 bytes before the login, or of 8192, unless configured otherwise, and hangs up on
# longer ones. Some of it goes to what the gateway says of itself.
_SHORT_LOGIN: Final = 3000


# The AMQP library drops its answer to the broker's channel.close when ten frames wait to be written, and then uses the
# number of a channel that is still closing for the broker: that costs the whole link. What it writes is bounded by the
# operations under way, of which each session has one.
AmqpConnection.FRAME_BUFFER_SIZE = 0


class LinkUser(Protocol):
    """Who uses a link: the bridge of a session."""

    def flush_batch(self) -> None:
        """Data for the session arrived; the batch is over."""

    def link_paused(self, link: Link) -> None:
        """The link takes no more bytes for now."""

    def link_resumed(self, link: Link) -> None:
        """The link takes bytes again."""

    def link_blocked(self, link: Link) -> None:
        """The broker's alarm began or ended; see ``Link.blocked``."""

    def link_lost(self, link: Link) -> None:
        """The link is gone; see ``Link.end``."""


class OnEnd(Protocol):
    """Who counts the links."""

    def __call__(self, link: Link, *, lost: bool) -> None:
        """A link has ended, by itself or because it was closed."""


NOWHERE: Final = BrokerUrl("amqp", "", 0)
"""Where a link leads before it is opened."""


def _nothing() -> None:
    pass


class Link:
    """One AMQP connection.

    Args:
        nameplate: what the broker shows of the connection.
        batch_begins: called before anything that the broker sent reaches a session.
    """

    def __init__(self, client_properties: ClientProperties, batch_begins: Callable[[], None] = _nothing) -> None:
        self.client_properties = client_properties
        # What it is used for now, and where it leads.
        self.purpose = client_properties.purpose
        self.broker = NOWHERE
        self.opened_at = 0
        # Told once when it ends, and whether that was unasked for.
        self.on_end: OnEnd | None = None
        self._is_closing = False
        self.batch_begins = batch_begins
        self.splitter = Splitter(self._watched)
        self.end: LinkDownError | None = None
        self.broker_version: tuple[int, ...] = ()
        self.blocked = False
        self.paused = False
        self.users: dict[LinkUser, int] = {}
        # Queues that belong to one session, though to AMQP they belong to the connection.
        self.exclusive_queues: dict[str, ExclusiveQueues] = {}
        self._channels: dict[int, LinkChannel] = {}
        self._opening = 0
        self._updating: set[asyncio.Task[object]] = set()
        self._connection: aio_pika.Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._tap: Tap | None = None
        self._frame_max = 0
        self._channel_max = 0

    @classmethod
    async def open(
        cls,
        virtual_host: VirtualHost,
        credentials: Credentials,
        client_properties: ClientProperties,
        batch_begins: Callable[[], None] = _nothing,
    ) -> Link:
        """Open a connection to the first broker of the virtual host that answers.

        Args:
            virtual_host: says where the brokers are.
            credentials: the client's.
            client_properties: what the broker shows of the connection.
            batch_begins: called before anything that the broker sent reaches a session.

        Raises:
            UpstreamError: when a broker refused the login or the virtual host.
            LinkDownError: when no broker answered.
        """
        upstream = virtual_host.upstream
        failures = []
        for broker in upstream.urls:
            link = cls(client_properties, batch_begins)
            link.broker = broker
            url = _url(broker, credentials, virtual_host)
            try:
                await asyncio.wait_for(link._dial(url, upstream), upstream.connect_timeout)
            except (TimeoutError, OSError, AMQPError, RuntimeError, LinkDownError) as error:
                if isinstance(link.end, UpstreamError) and link.end.code != CONNECTION_FORCED:
                    raise UpstreamError(link.end.code, link.end.text) from None
                if _hung_up(error) and credentials.octets > _SHORT_LOGIN:
                    text = f"the broker hung up on a login of {credentials.octets} octets; see its initial_frame_max"
                    raise UpstreamError(ACCESS_REFUSED, f"ACCESS_REFUSED - {text}") from None
                failures.append(f"{broker}: {_cause(error, upstream.connect_timeout)}")
                continue
            return link
        raise LinkDownError(CONNECTION_FORCED, "no broker answers", "; ".join(failures))

    async def _dial(self, url: URL, upstream: Upstream) -> None:
        context = broker_tls_context(upstream.tls) if url.scheme == "amqps" else None
        connection = aio_pika.Connection(
            url, ssl_context=context, client_properties={**self.client_properties.client_properties}
        )
        factory = TapFactory(self, _HIGH_WATER)
        connection.kwargs["transport_factory"] = factory
        try:
            await connection.connect()
        except BaseException:
            if factory.transport is not None:
                factory.transport.abort()
            raise
        self._connection = connection
        self._transport = factory.transport
        self._tap = factory.tap
        underlay = connection.transport.connection if connection.transport else None
        if underlay is None:
            raise LinkDownError(CONNECTION_FORCED, "the connection was closed at once")
        tune = underlay.connection_tune
        self._frame_max = tune.frame_max
        self.broker_version = _version(underlay.server_properties.get("version"))
        self._channel_max = tune.channel_max or 0xFFFF

    @property
    def frame_max(self) -> int:
        """The largest AMQP frame in bytes that broker and gateway agreed upon; 0 for no limit."""
        return self._frame_max

    @property
    def virtual_host(self) -> str:
        """The virtual host that it was opened for, by its STOMP name."""
        return self.client_properties.virtual_host

    @property
    def channels(self) -> int:
        """How many are open."""
        return len(self._channels)

    @property
    def write_buffer(self) -> int:
        """Bytes that wait to be written to the broker."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        """Whether another channel can be opened."""
        return self.end is None and len(self._channels) + self._opening < self._channel_max

    def reserve(self) -> None:
        """Count a channel that is about to be opened, so that nobody takes its place."""
        self._opening += 1

    async def channel(self) -> LinkChannel:
        """Open a channel; ``reserve`` was called for it.

        Raises:
            LinkDownError: when the connection is gone.
            UpstreamError: when the broker allows no further channel.
        """
        try:
            if self._connection is None or self.end is not None:
                raise self.end or LinkDownError(CONNECTION_FORCED, "the connection is closed")
            channel = self._connection.channel(publisher_confirms=False)
            await channel.initialize()
            underlay = await channel.get_underlay_channel()
            if not isinstance(underlay, UnderlayChannel):
                raise TypeError(f"the AMQP library gave a {type(underlay).__name__}")
            opened = LinkChannel(self, channel, underlay)
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            if self.end is not None:
                raise self.end from error
            raise interrupted(error) from error
        finally:
            self._opening -= 1
        self._channels[opened.number] = opened
        self.splitter.unregister(opened.number)
        return opened

    def listen(self, channel: LinkChannel, sink: Sink) -> None:
        """Send a channel's deliveries and confirms to a sink, unless its number is another's by now.

        The broker may close a channel at any time, and its number is used again before all who held it know.
        """
        if self._channels.get(channel.number) is channel:
            self.splitter.register(channel.number, sink)

    def channel_gone(self, channel: LinkChannel) -> None:
        """A channel is closed; its number may be used again, and may be in use again already."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
            self.splitter.unregister(channel.number)

    def write(self, octets: bytes) -> None:
        """Put whole AMQP frames on the wire."""
        if self._transport is not None and self.end is None:
            self._transport.write(octets)

    def pause_reading(self) -> None:
        """Stop reading from the broker, for a link that serves one slow session alone."""
        if self._transport is not None and self.end is None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the broker again."""
        if self._transport is not None and self.end is None and not self._transport.is_reading():
            self._transport.resume_reading()

    def show_life(self) -> None:
        """While reading is paused the AMQP library hears nothing; let it not take the connection for dead."""
        if self._tap is not None and self.end is None:
            self._tap.show_life()

    async def update_secret(self, passcode: str) -> None:
        """Let the broker know of another passcode (connection.update-secret), and wait until it has taken it.

        Raises:
            LinkDownError: the connection is gone; RabbitMQ closes it over a passcode that it does not take.
        """
        transport = None if self._connection is None else self._connection.transport
        if transport is None or self.end is not None:
            raise self.end or LinkDownError(CONNECTION_FORCED, "the connection is closed")
        updating = asyncio.ensure_future(transport.connection.update_secret(passcode, reason="renewed by the client"))
        # The library would wait for ever for the answer of a connection that is gone.
        self._updating.add(updating)
        try:
            await updating
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            if self.end is not None:
                raise self.end from error
            raise interrupted(error) from error
        finally:
            self._updating.discard(updating)

    async def close(self) -> None:
        """Close the connection in an orderly way."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._is_closing = True
        self.resume_reading()
        try:
            await asyncio.wait_for(connection.close(), _CLOSE_WITHIN)
        except (TimeoutError, AMQPError, OSError, RuntimeError):
            # A broker that does not read or answer: the socket's end says the same.
            pass
        finally:
            if self._transport is not None:
                self._transport.abort()

    # What the tap tells.

    def batch_done(self) -> None:
        """Let the sessions that got data write it out, once per read."""
        touched = self.splitter.touched
        self.splitter.touched = set()
        for tenant in touched:
            tenant.flush_batch()  # type: ignore[attr-defined]  # owners of sinks are tenants

    def writing_paused(self) -> None:
        """Hold the clients that publish here."""
        self.paused = True
        for tenant in tuple(self.users):
            tenant.link_paused(self)

    def writing_resumed(self) -> None:
        """Release them."""
        self.paused = False
        for tenant in tuple(self.users):
            tenant.link_resumed(self)

    def connection_lost(self) -> None:
        """The socket is closed: tell everybody once."""
        if self.end is None:
            self.end = LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection to the broker was lost")
        for updating in self._updating:
            updating.cancel()
        for tenant in tuple(self.users):
            tenant.link_lost(self)
        self.users.clear()
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self, lost=not self._is_closing)

    def _watched(self, channel: int, method: int, octets: bytes) -> None:
        if method in (CONNECTION_BLOCKED, CONNECTION_UNBLOCKED):
            self.blocked = method == CONNECTION_BLOCKED
            for tenant in tuple(self.users):
                tenant.link_blocked(self)
        elif method == CONNECTION_CLOSE:
            self.end = LinkDownError(*_reply(octets))
        elif method == CHANNEL_CLOSE and channel in self._channels:
            self._channels[channel].broker_closed(UpstreamError(*_reply(octets)))
        elif method == CANCEL and channel in self._channels:
            cancelled = self._channels[channel].on_cancelled
            if cancelled is not None:
                cancelled()


def _url(broker: BrokerUrl, credentials: Credentials, virtual_host: VirtualHost) -> URL:
    """The URL that the AMQP library wants; it never leaves this module, because it holds the passcode."""
    parts = {
        "user": quote(credentials.login, safe=""),
        "password": quote(credentials.passcode, safe=""),
        "path": "/" + quote(virtual_host.amqp_vhost, safe=""),
        "query_string": f"heartbeat={int(virtual_host.upstream.heartbeat)}",
    }
    return URL.build(scheme=broker.scheme, host=broker.host, port=broker.port, encoded=True, **parts)


def _version(text: object) -> tuple[int, ...]:
    """RabbitMQ's version as numbers, as far as it is made of them."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", text.decode() if isinstance(text, bytes) else str(text))
    return tuple(map(int, found[0].split("."))) if found else ()


def _hung_up(error: BaseException) -> bool:
    return any(isinstance(each, OSError) and each.errno == errno.ECONNRESET for each in (error, error.__cause__))


def _cause(error: BaseException, timeout: float) -> str:
    """Why a broker could not be reached, in the words of whoever noticed."""
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer within {timeout:g} seconds"
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return str(cause) or type(cause).__name__


def _reply(octets: bytes) -> tuple[int, str]:
    """Reply code and text of connection.close or channel.close."""
    _, _, frame = pamqp.frame.unmarshal(octets)
    if isinstance(frame, commands.Connection.Close | commands.Channel.Close):
        return int(frame.reply_code or 0), str(frame.reply_text or "")
    return 0, ""
