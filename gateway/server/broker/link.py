"""A link: one AMQP connection, used by one session or by many.

aio-pika handles the connection: login, heart-beats and closing. Channels are the gateway's own: ``Link.write`` writes
frames, deliveries and confirms go to the sink of their channel, and other methods to the channel.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from typing import Final, NamedTuple, Protocol

import structlog
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError

from gateway.amqp.codec import CONNECTION_BLOCKED, CONNECTION_CLOSE, CONNECTION_UNBLOCKED
from gateway.amqp.methods import Close, read_close, read_method
from gateway.amqp.splitter import Sink, Splitter
from gateway.config.addresses import BrokerUrl
from gateway.errors import CodecError
from gateway.pieces import Piece
from gateway.server.broker.broker_errors import (
    CONNECTION_FORCED,
    NOT_ALLOWED,
    LinkDownError,
    UpstreamError,
    cause_of,
)
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.paced_deliveries import PacedDeliveries
from gateway.server.broker.tap import Tap
from gateway.server.fault_boundary import FaultOwner, guarded, report
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork

log = structlog.get_logger("gateway.broker")

CLOSING_AT_ONCE: Final = 4
"""The most channels that are closed at the same time, for one session, and on a link for all ended sessions."""

CLOSE_TIMEOUT: Final = 3.0
"""The longest wait for the answer to connection.close, in seconds."""

SLOW_CLIENT: Final = "slow client"
"""A reason not to read: the link serves one session, and its client is slow."""


class WindowUser(FaultOwner, Protocol):
    """The bridge of a session that publishes on a link."""

    def window_full(self) -> None:
        """Stop publishing for now."""

    def window_open(self) -> None:
        """Continue to publish."""


class LinkUser(WindowUser, Protocol):
    """The bridge of a session that uses a link."""

    def flush_batch(self) -> None:
        """Write the output of one read."""

    def link_changed(self, link: Link) -> None:
        """Note that ``blocked`` or ``is_writing_paused`` of the link has changed."""

    def link_lost(self, link: Link) -> None:
        """Note that the link is closed."""

    async def leave_link(self, link: Link) -> None:
        """Leave the link, which drains, if nothing can be lost by that. The link asks repeatedly."""


class _Window(Protocol):
    """See `PublishWindow`."""

    @property
    def channels(self) -> int: ...

    def hold_if_full(self, user: WindowUser) -> None: ...

    def published(self, user: WindowUser, size: int) -> None: ...

    def forget(self, user: WindowUser) -> None: ...


class _ChannelCallbacks(FaultOwner, Protocol):
    """A channel of the link. A fault in it ends only its session."""

    number: int

    def receive(self, method: int, content: Close | str | None) -> None: ...

    def link_lost(self, error: LinkDownError) -> None: ...


class _QueueOwner(Protocol):
    """See `ExclusiveQueues`."""

    user: LinkUser

    async def settled(self, queue: str) -> bool: ...

    def forget(self, queue: str) -> None: ...


class Tuning(NamedTuple):
    """The negotiated limits, and the broker's version.

    Args:
        frame_max: the largest frame in bytes, 0 for no limit.
        broker_version: empty if it does not begin with a number.
        wants_cancel_ok: the broker expects an answer to basic.cancel; for older ones that is an error.
    """

    frame_max: int = 0
    channel_max: int = 0xFFFF
    broker_version: tuple[int, ...] = ()
    wants_cancel_ok: bool = False


class Link:
    """One AMQP connection. `Dialer.open_link` opens it.

    ``on_read``: called before anything from the broker is handled.
    """

    def __init__(
        self,
        client_properties: ClientProperties,
        broker: BrokerUrl,
        on_read: Callable[[], None],
        log_limits: LogLimits,
        paced: PacedWork,
    ) -> None:
        self.client_properties = client_properties
        self.broker = broker
        # It may change: a link that was opened to check a login may serve publishers later.
        self.purpose = client_properties.purpose
        # In microseconds since the epoch.
        self.opened_at = 0
        self.on_read = on_read
        self._log_limits = log_limits
        self._paced = paced
        # Called once, when the link has closed.
        self.on_closed: Callable[[Link], None] | None = None
        # Called when the broker raises an alarm, with its text, or ends it, with None.
        self.on_alarm: Callable[[Link, str | None], None] | None = None
        # Whether the gateway closes it. It stays false for a link that is lost.
        self.is_closing = False
        # Whether it takes no new channels, and closes when it has none left.
        self.is_draining = False
        # The reason, once it is closed, and whether it ended without connection.close.
        self.closed: LinkDownError | None = None
        self.was_cut = False
        self.tuning = Tuning()
        self.splitter = Splitter(self._control_frame)
        # Whether the broker has an alarm, and whether the link's write buffer is full. (``pause_reading`` is about the
        # other direction: it stops the gateway from reading the link.)
        self.blocked = False
        self.is_writing_paused = False
        # For sessions that have ended: bounds how many channels they close at the same time. It does not say that the
        # link closes; that is ``is_closing``.
        self.closing = asyncio.Semaphore(CLOSING_AT_ONCE)
        # Only on a link on which several sessions publish.
        self.window: _Window | None = None
        # The number of channels of each session on this link.
        self.users: Counter[LinkUser] = Counter()
        # The owner of each exclusive queue by name: for AMQP this connection, for the gateway one session.
        self.exclusive_queues: dict[str, _QueueOwner] = {}
        self._channels: dict[int, _ChannelCallbacks] = {}
        self._free_numbers: list[int] = []
        # Methods to write after the present callbacks of the event loop.
        self._methods: list[bytes] = []
        self._deliveries = PacedDeliveries(self, paced)
        self._secret_updates: set[asyncio.Task[object]] = set()
        self._connection: AbstractConnection | None = None
        self._tap: Tap | None = None

    def opened(self, connection: AbstractConnection, tap: Tap, tuning: Tuning) -> None:
        """Start using the connection: the broker has accepted the login and the virtual host."""
        self._connection = connection
        self._tap = tap
        self.tuning = tuning
        self.splitter.frame_max = tuning.frame_max
        self._tell(log.info, "link opened")

    def _tell(self, log_line: Callable[..., None], event: str, **details: object) -> None:
        """Log within limits, because a client with dedicated links causes lines whenever it comes and goes."""
        whose = self.client_properties
        left_out = self._log_limits.for_link(whose.client, whose.virtual_host, whose.login)
        if left_out is not None:
            log_line(event, **self._facts, **details, **({"left_out": left_out} if left_out else {}))

    @property
    def _facts(self) -> dict[str, object]:
        """The fields of log lines about this link. For a shared link, without client and session."""
        whose = self.client_properties
        details = {"client": whose.client, "session": whose.session}
        return {
            "broker": str(self.broker),
            "purpose": self.purpose,
            "login": whose.login,
            "virtual_host": whose.virtual_host,
            **{name: value for name, value in details.items() if value},
        }

    @property
    def virtual_host(self) -> str:
        """The name of the virtual host in the configuration."""
        return self.client_properties.virtual_host

    @property
    def write_buffer(self) -> int:
        """The number of bytes that wait to be written to the broker."""
        return 0 if self._tap is None else self._tap.transport.get_write_buffer_size()

    # Users and channels.

    def drain(self) -> bool:
        """Take no new channels, and let sessions leave. Returns False if it drains already."""
        is_new = not self.is_draining
        self.is_draining = True
        return is_new

    def add_user(self, user: LinkUser) -> None:
        """Note that a session has opened a channel."""
        self.users[user] += 1

    def remove_user(self, user: LinkUser) -> None:
        """Note that a session closes a channel."""
        self.users[user] -= 1
        if self.users[user] <= 0:
            del self.users[user]
            if self.window is not None:
                self.window.forget(user)

    @property
    def channels(self) -> int:
        """The number of open channels, without that of the publish window."""
        return len(self._channels) - (0 if self.window is None else self.window.channels)

    @property
    def has_room(self) -> bool:
        """Whether another session may open a channel on this link."""
        return self.closed is None and not self.is_draining and not self.is_full

    @property
    def is_idle(self) -> bool:
        """Whether the link has neither channels nor exclusive queues, which would end with it."""
        return not self.channels and not self.exclusive_queues

    @property
    def is_full(self) -> bool:
        """Whether the broker allows no further channel."""
        return len(self._channels) >= self.tuning.channel_max

    def add_channel(self, channel: _ChannelCallbacks) -> int:
        """Add a channel that is to be opened. Returns its number.

        Raises:
            LinkDownError: the connection is lost.
            UpstreamError: the broker allows no further channel.
        """
        self._open_connection()
        if self.is_full:
            most = self.tuning.channel_max
            text = f"NOT_ALLOWED - number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise UpstreamError(NOT_ALLOWED, text)
        # The lowest free number, because the broker keeps some state for every number that was ever used.
        number = heappop(self._free_numbers) if self._free_numbers else len(self._channels) + 1
        self._channels[number] = channel
        return number

    def register_sink(self, channel: _ChannelCallbacks, sink: Sink, *, is_paced: bool = False) -> None:
        """Send a channel's data to a sink, unless its number belongs to another channel by now.

        The broker may close a channel at any time, and another one may use its number at once. ``is_paced``: see
        `LinkChannel.set_sink`.
        """
        if self._channels.get(channel.number) is channel:
            self._deliveries.forget(channel)
            before = self._deliveries.sink_before(channel, sink) if is_paced else sink
            self.splitter.register(channel.number, before)

    def drop_data(self, channel: _ChannelCallbacks) -> None:
        """Drop a channel's deliveries and confirms from now on."""
        if self._channels.get(channel.number) is channel:
            self.splitter.drop(channel.number)
            self._deliveries.forget(channel)

    def remove_channel(self, channel: _ChannelCallbacks) -> None:
        """Remove a closed channel. Its number may be used again."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
            heappush(self._free_numbers, channel.number)
            self.splitter.unregister(channel.number)
            self._deliveries.forget(channel)

    def _open_connection(self) -> AbstractConnection:
        if self._connection is None or self.closed is not None:
            raise self.closed or LinkDownError(CONNECTION_FORCED, "the connection is closed")
        return self._connection

    # The socket.

    def write(self, *pieces: Piece) -> None:
        """Write whole AMQP frames, after earlier methods."""
        if self._tap is not None and self.closed is None:
            if self._methods:
                pieces = (b"".join(self._methods), *pieces)
                self._methods.clear()
            if len(pieces) == 1:
                self._tap.transport.write(pieces[0])
            elif pieces:
                self._tap.transport.writelines(pieces)

    def write_method(self, data: bytes) -> None:
        """Write a method, in one write with those of the same event loop iteration, since each is a system call."""
        if not self._methods:
            asyncio.get_running_loop().call_soon(self.write)
        self._methods.append(data)

    def pause_reading(self, reason: str = SLOW_CLIENT) -> None:
        """Stop reading from the broker, by default because the link serves only one slow session."""
        if self._tap is not None and self.closed is None:
            self._tap.pause_reading(reason)

    def resume_reading(self, reason: str = SLOW_CLIENT) -> None:
        """End a reason not to read. Reading resumes when none is left."""
        if self._tap is not None and self.closed is None:
            self._tap.resume_reading(reason)

    def feed_heartbeat(self) -> None:
        """Feed the AMQP library a heart-beat while reading is paused. Otherwise it would close the connection."""
        if self._tap is not None and self.closed is None:
            self._tap.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode (connection.update-secret), and wait until the broker has accepted it.

        Raises:
            LinkDownError: the connection is lost. RabbitMQ closes it if it refuses the passcode.
        """
        update = asyncio.ensure_future(self._open_connection().update_secret(passcode, reason="renewed by the client"))
        # If the connection is lost, the library would wait for the answer forever.
        self._secret_updates.add(update)
        try:
            await update
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            raise cause_of(error, self.closed) from error
        finally:
            self._secret_updates.discard(update)

    async def close(self) -> None:
        """Close the connection (connection.close), even if the broker does not answer."""
        connection, self._connection = self._connection, None
        if connection is None or self._tap is None:
            return
        self.is_closing = True
        self._deliveries.clear()
        self.resume_reading()
        # Not aio-pika's `close`: it waits forever if it is cancelled just when the connection has ended.
        transport, connection.transport = connection.transport, None
        await connection.close()
        if transport is None:
            return
        closing = asyncio.ensure_future(transport.connection.close())
        # Retrieve the exception, or asyncio logs it.
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT)
        finally:
            # First the socket, because the library, even if cancelled, waits until the broker has read everything.
            self._tap.transport.abort()
            closing.cancel()

    # Called by the tap. Sessions are called through the fault boundary, so that a fault in one ends only that one.

    def batch_done(self) -> None:
        """Let the sessions that got data write their output. HOT: once per read."""
        splitter = self.splitter
        touched, splitter.touched = splitter.touched, set()
        if splitter.failures:
            failures, splitter.failures = splitter.failures, []
            for user, error in failures:
                report(user, error)  # type: ignore[arg-type]  # owners of sinks are link users
        for user in touched:
            guarded(user, user.flush_batch)  # type: ignore[attr-defined, arg-type]

    def set_writing_paused(self, paused: bool) -> None:
        """Hold or release the clients that publish here."""
        self.is_writing_paused = paused
        self._tell_changed()

    def _tell_changed(self) -> None:
        for user in tuple(self.users):
            guarded(user, user.link_changed, self)

    def bad_amqp(self, error: CodecError) -> None:
        """Note that the broker sent bytes that are not AMQP. The tap aborts the connection."""
        self._lost(f"the broker sent bad AMQP: {error}")

    def connection_lost(self, exc: Exception | None, *, by_broker: bool) -> None:
        """Handle the end of the socket, closed by the broker or for another reason.

        There may be thousands of sessions, so they are told as paced work. Data that they write before is dropped.
        """
        if exc is not None:
            cause = str(exc) or type(exc).__name__
        else:
            # The library does this when it misses the broker's heart-beats.
            cause = "the broker closed the connection" if by_broker else "the AMQP library closed the connection"
        self._deliveries.clear()
        for update in self._secret_updates:
            update.cancel()
        closed = self._lost(cause)
        users = dict.fromkeys((*self.users, *(owner.user for owner in self.exclusive_queues.values())))
        if self._tap is not None and self.closed is not None:
            # Otherwise it was never open, and the dialer logs the reason.
            level = log.info if self.is_closing else log.warning
            self._tell(level, "link closed", cause=self.closed.detail, sessions=len(users))
        self.users.clear()
        of_users = ((user, partial(user.link_lost, self)) for user in users)
        of_channels = ((each, partial(each.link_lost, closed)) for each in tuple(self._channels.values()))
        self._paced.do_each(chain(of_users, of_channels))
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed(self)

    def _lost(self, cause: str) -> LinkDownError:
        """The reason of the link's end. ``cause`` is for the log, if the broker has not given a reason."""
        if self.closed is None:
            self.was_cut = not self.is_closing
            text = "CONNECTION_FORCED - the connection to the broker was lost"
            self.closed = LinkDownError(CONNECTION_FORCED, text, "closed by the gateway" if self.is_closing else cause)
        return self.closed

    def _control_frame(self, channel: int, method: int, data: bytes) -> None:
        """Handle a method that is not data. Those of channel 0 go to the AMQP library afterwards."""
        if channel:
            concerned = self._channels.get(channel)
            if concerned is not None:
                guarded(concerned, concerned.receive, method, read_method(method, data))
        elif method in (CONNECTION_BLOCKED, CONNECTION_UNBLOCKED):
            self.blocked = method == CONNECTION_BLOCKED
            if self.on_alarm is not None:
                reason = read_method(method, data)
                self.on_alarm(self, str(reason) if self.blocked else None)
            self._tell_changed()
        elif method == CONNECTION_CLOSE:
            code, text, _ = read_close(data)
            self.closed = LinkDownError(code, text)
