"""One client of the pure session, with the owner's part played to the letter, and every promise looked after."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.errors import CloseReason, FrameError
from gateway.pieces import joined
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import READING, Hold, State
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.fuzz.bridge import SteppedBridge
from tests.fuzz.hearing import Hearing
from tests.fuzz.violation import demand
from tests.support.model_broker import ModelBroker

SERVER: Final = b"stomp-gateway/0"

# Header blocks that are cached, see gateway/stomp/block_cache.py and gateway/session/subscription.py.
_CACHED_BLOCKS: Final = 2000
_CACHED_HEADERS: Final = 1000

# Subscriptions that have ended and may keep their channels, see gateway/session/subscription.py.
_LEFT: Final = 16

# A session ends so without an ERROR.
_QUIET_ENDS: Final = (
    CloseReason.DISCONNECT,
    CloseReason.CLIENT_GONE,
    CloseReason.TLS_ON_PLAIN_PORT,
    CloseReason.HTTP_ON_STOMP_PORT,
)


class Client:
    """A client's connection, as ``gateway.server.client.connection`` handles it: reads, turns, a flush, and one end.

    Args:
        broker: the model that its session is played on.
        number: which client of the conversation it is, for the session header.
        resolve: finds the settings of a virtual host.
        limits: of its frames before the login.
        read: bytes that one read of the socket gives at the most.
        implicit_connect: whether it may leave out CONNECT.
    """

    def __init__(
        self,
        broker: ModelBroker,
        number: int,
        resolve: FindVirtualHost,
        limits: FrameLimits,
        read: int,
        *,
        implicit_connect: bool = False,
    ) -> None:
        self._limits = limits
        self._read_size = read
        self._hearing = Hearing(needs_connect=not implicit_connect)
        self._decoder = Decoder(limits)
        # Reads the same, to learn which receipts are asked for.
        self._listener, self._listened = Decoder(limits), 0
        self.session = Session(b"session-%022d" % number, SERVER, resolve, limits)
        self.session.set_client(ClientFacts(implicit_connect=implicit_connect))
        self.bridge = SteppedBridge(self.session, broker)
        # What the client has sent and nobody has read; it fills the socket's buffers and not the gateway.
        self._sent = bytearray()
        self.is_over = False

    def say(self, data: bytes) -> None:
        """The client sends bytes."""
        self._sent += data

    def turn(self, *, settles: bool) -> bool:
        """Go on as far as it goes without the broker.

        Args:
            settles: whether the round comes that settles what ack:auto delivered.

        Returns:
            Whether anything happened.
        """
        if self.is_over:
            return False
        # What lies in the decoder comes first: the owner reads again when the session has run and wants more.
        busy = self._advance(settles)
        while self._reads:
            busy = True
            data = bytes(self._sent[: self._read_size])
            del self._sent[: self._read_size]
            with suppress(FrameError):
                self._listener.feed(data)
            try:
                self._decoder.feed(data)
            except FrameError as error:
                self.session.malformed(error)
            self._advance(settles)
        return busy

    def end(self) -> None:
        """The input is over: let go of everything."""
        if not self.is_over:
            self.session.client_gone()
            self._advance(settles=False)

    @property
    def _reads(self) -> bool:
        return not self.is_over and self.session.wants_read and bool(self._sent)

    def _advance(self, settles: bool) -> bool:
        session = self.session
        session.run(self._decoder)
        self._listen()
        self.bridge.write()
        self._check_ledgers()
        busy = bool(session.output)
        self._hearing.hear(joined(session.output))
        session.output.clear()
        session.take_errors()
        if (
            session.subscriptions.auto_acks.subscriptions
            and session.context.client_writable
            and (settles or session.subscriptions.auto_acks.is_urgent)
        ):
            session.subscriptions.settle_auto_acks()
            self.bridge.write()
            self._check_ledgers()
        if session.state is State.CLOSED:
            self._close()
            return True
        self._check()
        return busy

    def _listen(self) -> None:
        while self._listened < self.session.traffic.frames_received:
            self._listened += 1
            frame = self._listener.next_frame()
            demand(frame is not None, "the session takes no frame that the client has not sent")
            if frame is not None and frame.receipt is not None:
                self._hearing.asked(frame.receipt)

    # The promises.

    def _check(self) -> None:
        session = self.session
        demand(session.wants_read == (not session.holds and session.state in READING), "a hold is a hold")
        # While the session is held, or its client's frames wait, a read may lie in front of what is unfinished.
        demand(self._decoder.buffered <= self._limits.frame + self._read_size, "undecoded bytes are bounded")
        blocks = max(len(self._decoder._header_blocks), len(self._decoder._sized_blocks))
        demand(blocks <= _CACHED_BLOCKS, "the decoder's memory is bounded")
        if session.state not in (State.CONNECTING, State.AUTHENTICATING):
            self._check_bounds(session.settings)
        self._check_subscriptions()

    def _check_bounds(self, settings: VirtualHost) -> None:
        session = self.session
        limits = settings.transactions
        transactions = session.context.transactions
        demand(len(transactions) <= limits.max_open, "open transactions are bounded")
        kept = list(transactions._by_name.values())
        demand(all(each.actions <= limits.max_actions for each in kept), "a transaction's actions are bounded")
        demand(
            transactions._kept_bytes == sum(each.kept_bytes for each in kept), "the bytes of transactions are counted"
        )
        demand(transactions._kept_bytes <= limits.max_bytes, "the bytes of transactions are bounded")
        # A COMMIT publishes past the window, and so does the frame that fills it.
        publisher, window = session.publisher, session.confirms
        demand(len(window) <= settings.confirm_window.messages + limits.max_actions, "unconfirmed is bounded")
        data = settings.confirm_window.bytes + settings.max_frame_size + limits.max_bytes
        demand(window.unconfirmed_bytes <= data, "unconfirmed bytes are bounded")
        account = sum(size for _, _, size, *_ in window.messages)
        demand(window.unconfirmed_bytes == account, "unconfirmed bytes are counted")
        demand(not window.is_full or Hold.CONFIRM_WINDOW in session.holds or session.state is not State.CONNECTED
               or Hold.COMMIT in session.holds or Hold.OPERATION in session.holds, "a full window holds")  # fmt: skip
        demand(not publisher.output, "nothing waits to be published")

    def _check_subscriptions(self) -> None:
        subscriptions = self.session.subscriptions
        known = set(subscriptions._by_tag.values())
        if self.bridge.is_idle:
            # One that has ended may have its channel until the client has settled what it delivered.
            channels = self.bridge.consuming.keys() - subscriptions._unsettled.keys()
            demand(known == channels, "each subscription has its channel, and each channel its own")
        demand(len(subscriptions._unsettled) <= _LEFT, "few subscriptions that have ended have a channel")
        waiting = subscriptions.auto_acks.subscriptions
        demand(len(waiting) == len(set(waiting)), "a subscription waits once to be settled")
        demand(known.issuperset(waiting), "nothing waits to be settled but what is there")
        demand(not subscriptions._to_settle, "no settlement is left behind")
        demand(len(subscriptions.temp_queues) <= len(known), "reply queues are subscriptions")
        for subscription in known:
            demand(len(subscription.headers._cache) <= _CACHED_HEADERS, "remembered heads are bounded")

    def _check_ledgers(self) -> None:
        """Delivered is settled and outstanding: what the session thinks is out is what the broker has out.

        Of what a selector filtered out the broker may hear later.
        """
        for subscription, channel in self.bridge.consuming.items():
            there, here = len(channel.unacked), subscription.ledger.outstanding
            late = subscription.ledger.filtered if subscription._is_pending else 0
            demand(
                here <= there <= here + late, f"delivered = settled + outstanding: {here}, and {there} at the broker"
            )

    # The end.

    def _close(self) -> None:
        self.is_over = True
        session = self.session
        reason = session.close_reason
        demand(reason is not None, "an end has its reason")
        if reason not in _QUIET_ENDS:
            demand(self._hearing.last == b"ERROR", f"the end by {reason} is told: {self._hearing.last!r}")
        self.bridge.write()
        self._check_silence()
        self.bridge.release()

    def _check_silence(self) -> None:
        """Whatever comes after the end, nothing comes of it."""
        session = self.session
        self.say(b"")
        session.publisher.set_blocked(False)
        session.confirm(1, True, True)
        session.handle(ops.LinkLost(320, "CONNECTION_FORCED"))
        session.handle(ops.ChannelClosed(404, "NOT_FOUND", publishing=True))
        session.time_passed(1e9)
        session.shut_down()
        while self.bridge.step():
            pass
        session.holds.clear()
        session.run(self._decoder)
        session.malformed(FrameError("anything"))
        session.client_gone()
        published = b"".join(session.publisher.output.take())
        came = (*session.output, published, *session.take_errors(), session.take_operation())
        demand(not any(came), f"after the end nothing comes: {came}")
        demand(session.state is State.CLOSED, "the end is the end")
