"""A link: one AMQP connection, opened as a client and used by one session or by many.

aio-pika does what concerns the connection: login, heart-beats, the end. Channels are the gateway's own: ``Link.write``
puts frames on the wire, deliveries and confirms arrive at the sink of their channel, other methods at the channel.
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
"""How many channels of subscriptions are closed at a time, for one session or for all whose clients are gone."""

CLOSE_TIMEOUT: Final = 3.0
"""How long a broker may take to answer connection.close, in seconds."""

SLOW_CLIENT: Final = "slow client"
"""Why a link that serves only one session is not read."""


class WindowUser(FaultOwner, Protocol):
    """The bridge of a session that publishes on a link."""

    def window_full(self) -> None:
        """Publish no more for now."""

    def window_open(self) -> None:
        """It is this session's turn again."""


class LinkUser(WindowUser, Protocol):
    """The bridge of a session that uses a link."""

    def flush_batch(self) -> None:
        """Write the data of one read."""

    def link_changed(self, link: Link) -> None:
        """The broker's alarm or the write buffer has changed."""

    def link_lost(self, link: Link) -> None:
        """The link is closed."""

    async def leave(self, link: Link) -> None:
        """The link drains: use it no longer, if nothing can be lost by that. Asked again and again."""


class _Window(Protocol):
    """Bounds what is on its way to the broker."""

    @property
    def channels(self) -> int: ...

    def enter(self, user: WindowUser) -> None: ...

    def published(self, user: WindowUser, size: int) -> None: ...

    def leave(self, user: WindowUser) -> None: ...


class _ChannelCallbacks(FaultOwner, Protocol):
    """A channel that was opened on a link; a fault in it is its session's."""

    number: int

    def receive(self, method: int, content: Close | str | None) -> None: ...

    def link_lost(self, error: LinkDownError) -> None: ...


class _QueueOwner(Protocol):
    """The exclusive queues of one session."""

    user: LinkUser

    async def settled(self, queue: str) -> bool: ...

    def forget(self, queue: str) -> None: ...


class Tuning(NamedTuple):
    """The limits that broker and gateway agreed on, and the broker's version.

    ``frame_max`` is in bytes, 0 for no limit. ``broker_version`` is empty if it does not begin with a number.
    ``wants_cancel_ok``: the broker waits for an answer when it cancels a consumer; older ones take it for an error.
    """

    frame_max: int = 0
    channel_max: int = 0xFFFF
    broker_version: tuple[int, ...] = ()
    wants_cancel_ok: bool = False


class Link:
    """One AMQP connection; ``open_link`` opens it. ``on_read`` is called before anything from the broker is handled."""

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
        # The present purpose: a link that was opened to check a login may serve publishers later.
        self.purpose = client_properties.purpose
        # Microseconds since the epoch.
        self.opened_at = 0
        self.on_read = on_read
        self._log_limits = log_limits
        self._paced = paced
        # Called once, when the link has closed.
        self.on_closed: Callable[[Link], None] | None = None
        # Called when the broker tells of an alarm, with its text, or with None of the end.
        self.on_alarm: Callable[[Link, str | None], None] | None = None
        # False for a link that was lost.
        self.is_closing = False
        # Whether new channels go to other links, and this one closes when it has none any more.
        self.is_draining = False
        # The reason, once it is closed, and whether it ended without the broker's connection.close.
        self.closed: LinkDownError | None = None
        self.was_cut = False
        self.tuning = Tuning()
        self.splitter = Splitter(self._control_frame)
        # Whether the broker has an alarm, and whether the link's write buffer is full.
        self.blocked = False
        self.paused = False
        # Sessions whose clients are gone close their channels one after the other, behind those that live.
        self.closing = asyncio.Semaphore(CLOSING_AT_ONCE)
        # Only on a link that several sessions publish on.
        self.window: _Window | None = None
        # How many channels each session has here.
        self.users: Counter[LinkUser] = Counter()
        # In AMQP an exclusive queue belongs to the connection; here each belongs to one session.
        self.exclusive_queues: dict[str, _QueueOwner] = {}
        self._channels: dict[int, _ChannelCallbacks] = {}
        self._free_numbers: list[int] = []
        # Methods that wait for the end of this round of callbacks.
        self._methods: list[bytes] = []
        self._deliveries = PacedDeliveries(self, paced)
        self._secret_updates: set[asyncio.Task[object]] = set()
        self._connection: AbstractConnection | None = None
        self._tap: Tap | None = None

    def opened(self, connection: AbstractConnection, tap: Tap, tuning: Tuning) -> None:
        """The broker accepted the login and the virtual host."""
        self._connection = connection
        self._tap = tap
        self.tuning = tuning
        self.splitter.frame_max = tuning.frame_max
        self._tell(log.info, "link opened")

    def _tell(self, log_line: Callable[..., None], event: str, **details: object) -> None:
        """Log unless there were too many lines: with links of its own, a client causes them as it comes and goes."""
        whose = self.client_properties
        left_out = self._log_limits.for_link(whose.client, whose.virtual_host, whose.login)
        if left_out is not None:
            log_line(event, **self._facts, **details, **({"left_out": left_out} if left_out else {}))

    @property
    def _facts(self) -> dict[str, object]:
        """What the log says of a link. A shared link has no client and no session."""
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
        """STOMP name of the virtual host."""
        return self.client_properties.virtual_host

    @property
    def write_buffer(self) -> int:
        """Bytes that wait to be written to the broker."""
        return 0 if self._tap is None else self._tap.transport.get_write_buffer_size()

    # Users and channels.

    def drain(self) -> bool:
        """Take no new channel, and let sessions leave; False if it drains already."""
        is_new = not self.is_draining
        self.is_draining = True
        return is_new

    def add_user(self, user: LinkUser) -> None:
        """A session has opened a channel."""
        self.users[user] += 1

    def remove_user(self, user: LinkUser) -> None:
        """A session closes a channel."""
        self.users[user] -= 1
        if self.users[user] <= 0:
            del self.users[user]
            if self.window is not None:
                self.window.leave(user)

    @property
    def channels(self) -> int:
        """Number of open channels, without the one of the publish window."""
        return len(self._channels) - (0 if self.window is None else self.window.channels)

    @property
    def has_room(self) -> bool:
        """Whether another session may have a channel here."""
        return self.closed is None and not self.is_draining and not self._is_full

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs the link any more: an exclusive queue lives as long as its connection."""
        return not self.channels and not self.exclusive_queues

    @property
    def _is_full(self) -> bool:
        return len(self._channels) >= self.tuning.channel_max

    def add_channel(self, channel: _ChannelCallbacks) -> int:
        """Take a number for a channel that is to be opened.

        Raises:
            LinkDownError: when the connection is gone.
            UpstreamError: when the broker allows no further channel.
        """
        self._open_connection()
        if self._is_full:
            most = self.tuning.channel_max
            text = f"NOT_ALLOWED - number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise UpstreamError(NOT_ALLOWED, text)
        # The broker keeps a little for every number that was ever used, so the lowest free one is taken.
        number = heappop(self._free_numbers) if self._free_numbers else len(self._channels) + 1
        self._channels[number] = channel
        return number

    def register_sink(self, channel: _ChannelCallbacks, sink: Sink, *, is_paced: bool = False) -> None:
        """Send a channel's deliveries and confirms to a sink, unless its number belongs to another channel by now.

        The broker may close a channel at any time, and the AMQP library may reuse the number at once.

        ``is_paced``: a delivery may cost much.
        """
        if self._channels.get(channel.number) is channel:
            self._deliveries.forget(channel)
            before = self._deliveries.sink_before(channel, sink) if is_paced else sink
            self.splitter.register(channel.number, before)

    def drop_data(self, channel: _ChannelCallbacks) -> None:
        """Throw a channel's deliveries and confirms away from now on."""
        if self._channels.get(channel.number) is channel:
            self.splitter.drop(channel.number)
            self._deliveries.forget(channel)

    def remove_channel(self, channel: _ChannelCallbacks) -> None:
        """A channel is closed; its number may be used again."""
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
        """Put whole AMQP frames on the wire, after earlier methods."""
        if self._tap is not None and self.closed is None:
            if self._methods:
                pieces = (b"".join(self._methods), *pieces)
                self._methods.clear()
            if len(pieces) == 1:
                self._tap.transport.write(pieces[0])
            elif pieces:
                self._tap.transport.writelines(pieces)

    def write_method(self, data: bytes) -> None:
        """The same for a method, in one write with those that follow at once: each write costs a system call."""
        if not self._methods:
            asyncio.get_running_loop().call_soon(self.write)
        self._methods.append(data)

    def pause_reading(self, reason: str = SLOW_CLIENT) -> None:
        """Stop reading from the broker, by default because the link serves only one slow session."""
        if self._tap is not None and self.closed is None:
            self._tap.pause_reading(reason)

    def resume_reading(self, reason: str = SLOW_CLIENT) -> None:
        """Read from the broker again, unless there is another reason not to."""
        if self._tap is not None and self.closed is None:
            self._tap.resume_reading(reason)

    def feed_heartbeat(self) -> None:
        """Show the AMQP library a heart-beat while reading is paused, or it would take the connection for dead."""
        if self._tap is not None and self.closed is None:
            self._tap.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode (connection.update-secret), and wait until the broker has accepted it.

        Raises:
            LinkDownError: the connection is gone; RabbitMQ closes it if it refuses the passcode.
        """
        update = asyncio.ensure_future(self._open_connection().update_secret(passcode, reason="renewed by the client"))
        # If the connection is lost, the library would wait for the answer for ever.
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
        # aio-pika's own `close` waits for ever if it is cancelled, with all tasks, just when the connection has ended.
        transport, connection.transport = connection.transport, None
        await connection.close()
        if transport is None:
            return
        closing = asyncio.ensure_future(transport.connection.close())
        # Nobody wants to know how it failed.
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT)
        finally:
            # First the socket: the library waits until the broker has read everything, also when it is cancelled.
            self._tap.transport.abort()
            closing.cancel()

    # Called by the tap. Each session is called through the fault boundary, so that a fault in one ends that one only.

    def batch_done(self) -> None:
        """Let the sessions that got data write it. HOT: once per read."""
        splitter = self.splitter
        touched, splitter.touched = splitter.touched, set()
        if splitter.failures:
            failures, splitter.failures = splitter.failures, []
            for user, error in failures:
                report(user, error)  # type: ignore[arg-type]  # owners of sinks are link users
        for user in touched:
            guarded(user, user.flush_batch)  # type: ignore[attr-defined, arg-type]

    def set_paused(self, paused: bool) -> None:
        """Hold or release the clients that publish here."""
        self.paused = paused
        self._tell_changed()

    def _tell_changed(self) -> None:
        for user in tuple(self.users):
            guarded(user, user.link_changed, self)

    def bad_amqp(self, error: CodecError) -> None:
        """The broker sent bytes that are not AMQP; the tap cuts the connection."""
        self._lost(f"the broker sent bad AMQP: {error}")

    def connection_lost(self, exc: Exception | None, *, by_broker: bool) -> None:
        """The socket is closed, by the broker or for another reason.

        Sessions learn it one after the other, because there may be thousands. What one writes before is thrown away.
        """
        if exc is not None:
            cause = str(exc) or type(exc).__name__
        else:
            # The library does so when the broker's heart-beats do not come.
            cause = "the broker closed the connection" if by_broker else "the AMQP library gave the connection up"
        self._deliveries.clear()
        for update in self._secret_updates:
            update.cancel()
        closed = self._lost(cause)
        users = dict.fromkeys((*self.users, *(owner.user for owner in self.exclusive_queues.values())))
        if self._tap is not None and self.closed is not None:
            # Or it was never open, and the dialer logs why.
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
        """The reason of the link's end; ``cause``, for the log, is that if the broker has said nothing."""
        if self.closed is None:
            self.was_cut = not self.is_closing
            text = "CONNECTION_FORCED - the connection to the broker was lost"
            self.closed = LinkDownError(CONNECTION_FORCED, text, "closed by the gateway" if self.is_closing else cause)
        return self.closed

    def _control_frame(self, channel: int, method: int, data: bytes) -> None:
        """The broker sent a control frame; the AMQP library sees those of channel 0 afterwards."""
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
