"""The gateway without its workshop: pure sessions on the model of a broker, for transcripts and for playbooks.

What sockets, clocks and AMQP links do in the real gateway is a plain call here. Everything that follows from a call has
happened when it returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.errors import FrameError
from gateway.parity.stomp_peer import Closed, FrameReader, Received, SilenceError
from gateway.pieces import joined
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import State
from gateway.session.queues import QueueSpec
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.support.model_broker import ModelBroker, RefusalError
from tests.support.model_channel import Channel

SERVER = b"stomp-gateway/0"
FRAME_MAX = 131_072
PASSCODES = {b"guest": b"guest"}

SETTINGS = VirtualHost(name="/")


def resolve(host: str | None) -> VirtualHost | None:
    """The one virtual host that there is, by its name and by one of the machine."""
    return SETTINGS if host in (None, "/", "localhost") else None


@dataclass(frozen=True, slots=True)
class Premises:
    """What the gateway around pure sessions is configured to.

    Args:
        resolve: finds the settings of a virtual host.
        passcodes: of the broker's users.
        implicit_connect: whether clients may leave out CONNECT.
        elsewhere: the models of further virtual hosts.
    """

    resolve: FindVirtualHost = resolve
    passcodes: Mapping[bytes, bytes] = field(default_factory=lambda: PASSCODES)
    implicit_connect: bool = False
    elsewhere: Mapping[str, ModelBroker] = field(default_factory=dict)


PLAIN: Final = Premises()


class ModelBridge:
    """Carries out what one session asks, on the model; the twin of ``gateway.server.client.bridge``.

    Args:
        session: whose operations are carried out.
        broker: where, unless it logs in elsewhere.
        premises: who may log in, and where else.
    """

    def __init__(self, session: Session, broker: ModelBroker, premises: Premises = PLAIN) -> None:
        self._session = session
        self._broker = broker
        self._premises = premises
        self._user = "guest"
        self._numbers = iter(range(1, 0x10000))
        self._publishing: Channel | None = None
        self._consuming: dict[Subscription, Channel] = {}
        # What the broker has said meanwhile. Deliveries do not wait here: they never touch the session itself.
        self._heard: deque[Callable[[], None]] = deque()

    def flush(self) -> bool:
        """Write what the session has for the broker, carry out its operations, and tell it what the broker answers.

        Returns:
            Whether there was anything.
        """
        session = self._session
        busy = False
        if self._publishing is not None:
            publishes = b"".join(session.publisher.output.take())
            busy = bool(publishes)
            self._publishing.write(publishes)
            if self._publishing.is_open:
                busy |= session.publisher.declarations_answered(session.context.declared_queues.last_sent)
        for subscription, settlements in session.subscriptions.take_settlements():
            busy = True
            channel = self._consuming.get(subscription)
            if channel is not None:
                channel.write(settlements)
        answers = []
        while (operation := session.take_operation()) is not None:
            answers.append((self._carried_out(operation), operation))
        for event, operation in reversed(answers):
            # The broker may answer several in any order: the client must not notice.
            busy = True
            session.handle(event, operation)
        while self._heard:
            busy = True
            self._heard.popleft()()
        return busy

    def lose_link(self, code: int = 320, text: str = "CONNECTION_FORCED - gone") -> None:
        """The connection is gone, with its channels and exclusive queues, and whatever the broker had yet to say."""
        lost, publishing = tuple(self._consuming), self._publishing is not None
        self._heard.clear()
        self._close_channels()
        self._heard.clear()
        self._broker.drop_owner(self)
        self._session.handle(ops.LinkLost(code, text, lost, publishing))

    def release(self) -> None:
        """The session is over."""
        self._close_channels()
        self._broker.drop_owner(self)

    # Operations.

    def _carried_out(self, operation: ops.Operation) -> ops.Event:
        try:
            return self._recover(operation) if isinstance(operation, ops.Recover) else self._perform(operation)
        except RefusalError as refusal:
            if isinstance(operation, ops.Recover):
                return ops.RecoveryFailed(refusal.code, refusal.text)
            return ops.OperationFailed(refusal.code, refusal.text)

    def _perform(self, operation: ops.Operation) -> ops.Event:
        if isinstance(operation, ops.Login):
            if self._premises.passcodes.get(operation.login) == operation.passcode:
                self._user = operation.login.decode()
                self._broker = self._premises.elsewhere.get(operation.settings.name, self._broker)
                return ops.LoggedIn((3, 10, 8))
            return ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused")
        if isinstance(operation, ops.PreparePublisher):
            return self._prepare_publisher(operation)
        if isinstance(operation, ops.Subscribe):
            return self._subscribe(operation)
        if isinstance(operation, ops.Unsubscribe):
            return self._unsubscribe(operation)
        # It has one node.
        found = ops.QueuesFound(is_any_missing=False) if isinstance(operation, ops.FindQueues) else None
        if found is None:
            self._close_channels()
        return found or ops.UpstreamClosed()

    def _unsubscribe(self, operation: ops.Unsubscribe) -> ops.Unsubscribed:
        channel = self._consuming.get(operation.subscription)
        if operation.keeps_up_to is not None and channel is not None:
            channel.cancel()
            return ops.Unsubscribed()
        if channel is not None:
            del self._consuming[operation.subscription]
            channel.close()
        if operation.delete_queue is not None:
            self._broker.delete(operation.delete_queue)
        return ops.Unsubscribed()

    def _recover(self, operation: ops.Recover) -> ops.Recovered:
        subscribed = tuple(self._subscribe(request) for request in operation.subscriptions)
        if not operation.publishing:
            return ops.Recovered(subscribed)
        replaced, self._publishing = self._publishing, None
        if replaced is not None:
            replaced.close()
        prepared = self._prepare_publisher(ops.PreparePublisher(confirms=True, queue=None))
        for queue in operation.queues:
            self._declare(queue)
        return ops.Recovered(subscribed, prepared)

    def _prepare_publisher(self, operation: ops.PreparePublisher) -> ops.PublisherPrepared:
        if self._publishing is None:
            self._publishing = Channel(
                self._broker,
                next(self._numbers),
                user=self._user,
                owner=self,
                confirm=self._confirmed,
                closed=partial(self._closed, publishing=True),
            )
            self._publishing.returned = self._returned
        if operation.queue is not None:
            self._declare(operation.queue)
        self._publishing.confirms |= operation.confirms
        return ops.PublisherPrepared(self._publishing.number, FRAME_MAX, operation.confirms)

    def _subscribe(self, operation: ops.Subscribe) -> ops.Subscribed:
        subscription, made = operation.subscription, operation.queue
        channel = Channel(
            self._broker,
            next(self._numbers),
            owner=self,
            deliver=subscription.deliver,
            closed=partial(self._closed, publishing=False),
            cancelled=lambda: self._heard.append(lambda: self._cancelled(subscription)),
        )
        subscription.set_channel(channel.number)
        existed = made is not None and made.name in self._broker.queues
        name = operation.queue_name if made is None else self._declare(made)
        try:
            channel.consume(name, operation.prefetch, operation.arguments)
            if operation.binding is not None:
                self._broker.bind(name, *operation.binding)
        except RefusalError:
            channel.close()
            if made is not None and not existed:
                self._broker.delete(name)
            raise
        self._consuming[subscription] = channel
        return ops.Subscribed(subscription, name)

    def _declare(self, queue: QueueSpec) -> str:
        return self._broker.declare(
            queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
            owner=self,
        )

    def _close_channels(self) -> None:
        channels = [*self._consuming.values(), *([self._publishing] if self._publishing else [])]
        self._consuming.clear()
        self._publishing = None
        for channel in channels:
            channel.close()

    # What the broker does.

    def _confirmed(self, sequence: int, multiple: bool, accepted: bool) -> None:
        self._heard.append(lambda: self._session.confirm(sequence, multiple, accepted))

    def _returned(self, returned: Return) -> None:
        self._heard.append(lambda: self._session.message_returned(returned))

    def _closed(self, refusal: RefusalError, *, publishing: bool) -> None:
        event = ops.ChannelClosed(refusal.code, refusal.text, publishing, refusal.of_declaration)
        self._heard.append(lambda: self._session.handle(event))

    def _cancelled(self, subscription: Subscription) -> None:
        channel = self._consuming.pop(subscription, None)
        self._session.handle(ops.ConsumerCancelled(subscription))
        if channel is not None:
            channel.close()


class _Client:
    """One client: its session, and what the session has said."""

    def __init__(self, broker: ModelBroker, premises: Premises, number: int) -> None:
        limits = FrameLimits(frame=64 * 1024)
        self.session = Session(b"session-%022d" % number, SERVER, premises.resolve, limits)
        self.session.set_client(ClientFacts(implicit_connect=premises.implicit_connect))
        self.decoder = Decoder(limits)
        self.bridge = ModelBridge(self.session, broker, premises)
        self.frames = FrameReader()
        self._over = False

    def feed(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self.decoder.feed(data)
        except FrameError as error:
            self.session.malformed(error)

    def advance(self) -> bool:
        """Go on as far as it goes; whether it went at all."""
        if self._over:
            return False
        session = self.session
        session.run(self.decoder)
        busy = bool(session.output)
        self.frames.feed(joined(session.output))
        session.output.clear()
        session.subscriptions.settle_auto_acks()
        busy |= self.bridge.flush()
        if session.state is State.CLOSED and not busy:
            self._over = True
            self.bridge.release()
            return True
        return busy

    def hang_up(self) -> None:
        if not self._over:
            self.session.client_gone()

    @property
    def is_over(self) -> bool:
        return self._over


class SessionPeer:
    """Pure sessions as the server of a conversation (``gateway.parity.stomp_peer.StompPeer``).

    ``say``, ``hear`` and ``leave`` are the same without coroutines, for those who have no use for them.

    Args:
        broker: what they are played on.
        premises: how the gateway is configured.
    """

    def __init__(self, broker: ModelBroker, premises: Premises = PLAIN) -> None:
        self._broker = broker
        self._premises = premises
        self._clients: dict[str, _Client] = {}
        self._numbers = iter(range(1, 0x10000))

    def say(self, client: str, data: bytes) -> None:
        """Send bytes on a client's connection, which is opened at the first use of its name."""
        self._client(client).feed(data)
        self._settle_down()

    def hear(self, client: str) -> Received | None:
        """What the server says next to a client; None where it has nothing to say."""
        known = self._client(client)
        self._settle_down()
        return known.frames.take() or (Closed() if known.is_over else None)

    def leave(self, client: str) -> None:
        """Close a client's connection without a word."""
        self._client(client).hang_up()
        self._settle_down()
        del self._clients[client]

    async def send(self, client: str, data: bytes) -> None:
        """See StompPeer."""
        self.say(client, data)

    async def receive(self, client: str) -> Received:
        """See StompPeer. Nobody waits: what has not come by now never comes."""
        received = self.hear(client)
        if received is None:
            raise SilenceError("nothing came")
        return received

    async def hang_up(self, client: str) -> None:
        """See StompPeer."""
        self.leave(client)

    async def close(self) -> None:
        """See StompPeer."""
        for client in list(self._clients):
            self.leave(client)

    def _client(self, name: str) -> _Client:
        if name not in self._clients:
            self._clients[name] = _Client(self._broker, self._premises, next(self._numbers))
        return self._clients[name]

    def _settle_down(self) -> None:
        """What one session does may concern others: go on until nothing happens any more."""
        while any([client.advance() for client in self._clients.values()]):
            pass
