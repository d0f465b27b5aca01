"""A playbook for one pure session: what goes in is said step by step, and all that comes out must have been expected.

What comes out is shown in short words, so that a test reads as a conversation and a difference as a diff: frames for
the client as ``RECEIPT r1`` or ``MESSAGE 1 #2 hello``, messages for the broker as ``amq.topic a.b hello``, settlements
as ``ack 3 multiple``. Bytes for the broker are read with pamqp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pamqp import body, commands, frame, header

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.errors import FrameError
from gateway.parity.stomp_peer import FrameReader, ServerFrame
from gateway.pieces import joined
from gateway.session import ops
from gateway.session.connect import renews_tokens
from gateway.session.context import State
from gateway.session.queues import QueueSpec
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.stomp.decoder import Decoder, FrameLimits

IDENTITY = b"session-of-the-playbook"
ENDS_WITH_ITS_LINK = VirtualHost(name="/", upstream=Upstream(ride_through=0))
"""Settings of a session that does not outlive its link, and so has confirms only where a client asks for them."""
PUBLISHING = 1
FRAME_MAX = 131_072


def stomp(command: str, *headers: str, body: bytes | str = b"") -> bytes:
    """One frame of a client; header lines as on the wire."""
    text = body.encode() if isinstance(body, str) else body
    return "\n".join([command, *headers, "", ""]).encode() + text + b"\0"


def amqp_frames(data: bytes) -> Iterator[tuple[int, Any]]:
    """Channel number and frame of each AMQP frame, read by pamqp."""
    while data:
        size, channel, found = frame.unmarshal(data)
        yield channel, found
        data = data[size:]


def in_words(said: ServerFrame) -> str:
    """A frame for the client in short words."""
    lines = dict(line.decode("utf-8", "backslashreplace").partition(":")[::2] for line in said.headers)
    text = said.body.decode("utf-8", "backslashreplace").rstrip("\n")
    if said.command == b"RECEIPT":
        return f"RECEIPT {lines['receipt-id']}"
    if said.command == b"CONNECTED":
        return f"CONNECTED {lines['version']}"
    if said.command == b"MESSAGE":
        number = lines["message-id"].rpartition("@@")[2]
        again = " again" if lines["redelivered"] == "true" else ""
        return f"MESSAGE {lines.get('subscription', '-')} #{number}{again} {text}"
    receipt = f" for {lines['receipt-id']}" if "receipt-id" in lines else ""
    return f"ERROR{receipt} {lines['message']}: {text}"


def settlements_in_words(data: bytes) -> list[str]:
    """Acknowledgements for the broker in short words."""
    words = []
    for _, found in amqp_frames(data):
        if isinstance(found, commands.Basic.Reject):
            words.append(f"reject {found.delivery_tag}{' requeue' if found.requeue else ''}")
            continue
        multiple = " multiple" if found.multiple else ""
        if isinstance(found, commands.Basic.Ack):
            words.append(f"ack {found.delivery_tag}{multiple}")
        else:
            assert isinstance(found, commands.Basic.Nack)
            words.append(f"nack {found.delivery_tag}{multiple}{' requeue' if found.requeue else ''}")
    return words


class Playbook:
    """One session from its beginning.

    Args:
        settings: of its virtual host.
        other: settings of another virtual host.
    """

    def __init__(self, settings: VirtualHost | None = None, other: VirtualHost | None = None) -> None:
        default = settings or VirtualHost(name="/")
        known = {"/": default}
        if other is not None:
            known[other.name] = other
        limits = FrameLimits()
        self.session = Session(
            IDENTITY, b"stomp-gateway/0", lambda host: known.get("/" if host is None else host), limits
        )
        self._decoder = Decoder(limits)
        self._reader = FrameReader()
        self._channels = iter(range(PUBLISHING + 1, 0x10000))
        # The number of the publishing channel.
        self.publishing = PUBLISHING
        # The queues that the session has declared in front of messages that were looked at.
        self.declared: list[QueueSpec] = []

    # What goes in.

    def client(self, command: str, *headers: str, body: bytes | str = b"") -> None:
        """The client sends a frame."""
        self.data(stomp(command, *headers, body=body))

    def data(self, data: bytes) -> None:
        """The client sends bytes."""
        try:
            self._decoder.feed(data)
        except FrameError as error:
            self.session.malformed(error)
        self.session.run(self._decoder)

    def broker(self, event: ops.Event, operation: ops.Operation | None = None) -> None:
        """The broker answers an operation, by default the oldest, or says something of its own."""
        self.session.handle(event, operation)
        self.session.run(self._decoder)

    def confirm(self, sequence: int, *, multiple: bool = False, accepted: bool = True) -> None:
        """The broker confirms what was published, or refuses it."""
        self.session.confirm(sequence, multiple, accepted)
        self.session.run(self._decoder)

    def return_message(self, exchange: str, routing_key: str, *, size: int = 0, receipt: str | None = None) -> None:
        """The broker returns a mandatory message, which bears this receipt."""
        headers = b"" if receipt is None else b"\x07receiptS" + len(receipt).to_bytes(4, "big") + receipt.encode()
        properties = b"\x20\0" + len(headers).to_bytes(4, "big") + headers
        self.session.message_returned(
            Return(312, b"NO_ROUTE", exchange.encode(), routing_key.encode(), properties, size)
        )
        self.session.run(self._decoder)

    def go_on(self) -> None:
        """Something outside the session has changed, a hold for instance."""
        self.session.run(self._decoder)

    # What comes out.

    def said(self) -> list[str]:
        """The frames for the client since the last look."""
        self._reader.feed(joined(self.session.output))
        self.session.output.clear()
        frames = []
        while (found := self._reader.take()) is not None:
            assert isinstance(found, ServerFrame)
            frames.append(in_words(found))
        assert not self._reader.rest
        return frames

    def asked(self) -> ops.Operation | None:
        """The operation asked of the broker since the last look."""
        return self.session.take_operation()

    def published(self) -> list[str]:
        """The messages for the broker since the last look."""
        words = []
        for channel, found in amqp_frames(b"".join(self.session.publisher.output.take())):
            assert channel == self.publishing
            if isinstance(found, commands.Basic.Publish):
                # What is sent to a queue that the session has declared is always mandatory.
                mandatory = "mandatory " if found.mandatory and found.exchange else ""
                words.append(f"{mandatory}{found.exchange or '-'} {found.routing_key} ")
            elif isinstance(found, commands.Queue.Declare):
                assert found.nowait
                flags = {"durable": found.durable, "exclusive": found.exclusive, "auto_delete": found.auto_delete}
                self.declared.append(QueueSpec(found.queue, **flags, arguments=cast("Any", found.arguments or {})))
            elif isinstance(found, body.ContentBody):
                words[-1] += found.value.decode("utf-8", "backslashreplace")
            else:
                assert isinstance(found, header.ContentHeader)
        return words

    def settled(self) -> list[str]:
        """The settlements for the broker since the last look, of all subscriptions."""
        return settlements_in_words(
            b"".join(settlements for _, settlements in self.session.subscriptions.take_settlements())
        )

    def finish(self) -> None:
        """Assert that the test has taken everything that the session said or asked for."""
        left = [*self.said(), *self.published(), *self.settled()]
        if (operation := self.asked()) is not None:
            left.append(repr(operation))
        assert not left, f"unexpected: {left}"

    # Ways to begin.

    def connect(self, version: str = "1.2") -> None:
        """Log in."""
        self.client("CONNECT", f"accept-version:{version}", "host:/", "login:guest", "passcode:guest")
        login = self.asked()
        assert isinstance(login, ops.Login)
        self.broker(ops.LoggedIn(renews_tokens=renews_tokens(login.settings, ())))
        assert self.said() == [f"CONNECTED {version}"]

    def prepare(self) -> ops.PreparePublisher:
        """Let the broker prepare publishing as it was just asked to."""
        operation = self.asked()
        assert isinstance(operation, ops.PreparePublisher), operation
        self.broker(ops.PublisherPrepared(self.publishing, FRAME_MAX, operation.confirms))
        return operation

    def lose(self, *subscriptions: Subscription, publishing: bool = False) -> ops.Recover:
        """Lose a link with these channels; what is asked for then."""
        self.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", subscriptions, publishing))
        operation = self.asked()
        assert isinstance(operation, ops.Recover), operation
        return operation

    def recover(self, operation: ops.Recover) -> None:
        """Let everything come back, on channels with other numbers."""
        subscribed = []
        for request in operation.subscriptions:
            request.subscription.set_channel(next(self._channels))
            subscribed.append(ops.Subscribed(request.subscription, request.queue_name or "amq.gen-2"))
        publisher = None
        if operation.publishing:
            self.publishing = next(self._channels)
            publisher = ops.PublisherPrepared(self.publishing, FRAME_MAX, confirms=True)
        self.broker(ops.Recovered(tuple(subscribed), publisher))

    def subscribe(self, identifier: str = "1", destination: str = "/queue/q", *headers: str) -> Subscription:
        """Subscribe, and let the broker agree."""
        self.client("SUBSCRIBE", f"id:{identifier}", f"destination:{destination}", *headers)
        operation = self.asked()
        assert isinstance(operation, ops.Subscribe), operation
        return self.subscribed(operation)

    def subscribed(self, operation: ops.Subscribe) -> Subscription:
        """Let the broker agree to a subscription."""
        subscription = operation.subscription
        channel = next(self._channels)
        subscription.set_channel(channel)
        name = operation.queue_name or "amq.gen-1"
        self.broker(ops.Subscribed(subscription, name), operation)
        return subscription

    def state(self) -> State:
        """Where the session is in its life."""
        return self.session.state


NO_PROPERTIES = b"\0\0"
# A headers table with x-stream-offset, 7 in 64 bits, and nothing else: what a stream delivers.
OF_STREAM = b"\x20\0" + b"\0\0\0\x19\x0fx-stream-offsetl" + (7).to_bytes(8, "big")
TO_QUEUE = b"\0\1q"


def deliver(subscription: Subscription, tag: int, text: str = "", *, redelivered: bool = False) -> None:
    """Deliver a message of the queue q without properties."""
    subscription.deliver(tag, redelivered, TO_QUEUE, NO_PROPERTIES, text.encode())


def ack_id(subscription: Subscription, tag: int) -> str:
    """What a client acknowledges a delivery by."""
    return f"{subscription.tag.decode()}@@{IDENTITY.decode()}@@{subscription.base + tag}"
