"""The side `limit`: the load client speaks AMQP to the broker itself, so a row shows what the broker alone can do.

It sends the same messages to the same queues in writes as large, encoded before the clock starts, and does only what
a row needs: confirms where the row has receipts, no acknowledgements where it has ack:auto, and one acknowledgement for
all that a read brought where it has ACKs. `AtLeastOnceWire` has the broker do what the gateway promises besides.
"""

import itertools
import os
import socket
import struct
from collections.abc import Callable

import pamqp.base
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header

from tests.bench import payload
from tests.bench.payload import PLAIN, Shape
from tests.bench.wire import CHUNK, PATIENCE, Account, RowError, Wire, excerpt, pump, tcp_socket

_FRAME_MAX = 131_072
_FRAME_END = b"\xce"
_END_OF_BODY = b"xx" + _FRAME_END
"""What stands behind a message and nowhere else: no name of the benchmark ends in xx."""
_BODY_FRAME = struct.Struct(">BHI")
_CONFIRM = struct.Struct(">BHIIQBB")
_ACK = pamqp.commands.Basic.Ack.index
_CLOSES = (amqp.Connection.Close.index, amqp.Channel.Close.index)
_numbers = itertools.count(1)

_PREFETCH = 2000
_TOGETHER = 500
"""What a gateway has in hand of a subscription with ack:auto, and settles at once, with default settings."""


class AmqpWire(Wire):
    """One AMQP connection of the load client with one channel.

    `frames` counts messages, confirms, or answers to a method, whichever the row awaits.
    """

    loses_messages = True
    """Whether the broker forgets messages as it sends them, where the row has ack:auto."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.awaited = _END_OF_BODY
        # One byte for each message that awaits its confirm, by publish sequence number, and the first that does.
        self._confirmed: bytearray | None = None
        self._first_unconfirmed = 1
        self._rejected = False
        try:
            self._call(amqp.Channel.Open(), amqp.Channel.OpenOk)
        except RowError:
            self.sock.close()
            raise
        self.awaited = _END_OF_BODY

    @classmethod
    def begin(cls, account: Account) -> socket.socket:
        """Open a TCP connection and send all of the client's side in one write; return the blocking socket."""
        sock = tcp_socket(account)
        sock.sendall(_opening(account))
        return sock

    @classmethod
    def await_begun(cls, sock: socket.socket) -> None:
        """Await connection.open-ok."""
        _await(sock, amqp.Connection.OpenOk)

    def count_frames(self, start: int, end: int) -> int:
        """Return how many awaited things ended between two places of the buffer."""
        if self._confirmed is None:
            return super().count_frames(start, end)
        return self._count_confirms(start - start % _CONFIRM.size, end - end % _CONFIRM.size, self._confirmed)

    def load_sends(self, destination: str, count: int, *, receipt_on_last: bool = False, shape: Shape = PLAIN) -> int:
        """Take transient messages as the next thing to write; instead of a receipt the queue says that it has them."""
        frames = _publishes(destination, count, shape, persistent=False)
        size = len(frames) // count
        if receipt_on_last:
            self._expect_answer(amqp.Queue.DeclareOk)
            frames += _frame(amqp.Queue.Declare(queue=_route(destination)[1], passive=True))
        self.load(frames)
        return size

    def load_confirmed_sends(self, destination: str, count: int, in_flight: int) -> int:
        """Take persistent messages as the next thing to write, `in_flight` of them at once; return the size of one."""
        self._call(amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        frames = _publishes(destination, count, PLAIN, persistent=True)
        self.expect(count * _CONFIRM.size)
        self._confirmed = bytearray(count + 1)
        self.load(frames, allowed=in_flight * (len(frames) // count))
        return len(frames) // count

    def load_subscribe(self, destination: str, *, ack: str, prefetch: int | None = None) -> None:
        """Take basic.consume as the next thing to write."""
        self.awaited = _END_OF_BODY
        method = amqp.Basic.Consume(
            queue=_route(destination)[1], consumer_tag="0", no_ack=ack == "auto" and self.loses_messages
        )
        limit = b"" if prefetch is None else _frame(amqp.Basic.Qos(prefetch_count=prefetch))
        self.load(limit + _frame(method))

    def subscribe(self, destination: str, identifier: int = 0) -> None:
        """Consume a queue; for a topic a queue of its own, made and bound in the same write."""
        exchange, key = _route(destination)
        queue, frames = key, b""
        if exchange:
            queue = f"stomp-bench-{os.getpid()}-limit-{next(_numbers)}"
            frames = _frame(amqp.Queue.Declare(queue=queue, exclusive=True, auto_delete=True))
            frames += _frame(amqp.Queue.Bind(queue=queue, exchange=exchange, routing_key=key))
        consume = amqp.Basic.Consume(queue=queue, consumer_tag=str(identifier), no_ack=self.loses_messages)
        self._ask(frames + _frame(consume), amqp.Basic.ConsumeOk)
        self.awaited = _END_OF_BODY

    def acknowledger(self) -> Callable[[Wire], None]:
        """Return what answers each read with one basic.ack for everything that came so far."""
        answered = 0

        def acknowledge(wire: Wire) -> None:
            nonlocal answered
            if wire.frames > answered:
                answered = wire.frames
                wire.append(_frame(amqp.Basic.Ack(answered, multiple=True)))

        return acknowledge

    def complaint_about_messages(self, count: int, shape: Shape = PLAIN) -> str | None:
        """Check that messages 0 to `count`-1 have come; return None or what is wrong."""
        return payload.complaint_about_messages(self.received, count, size=shape.size, end=_FRAME_END)

    def complaint_about_receipts(self, count: int) -> str | None:
        """Check that the broker has confirmed as many messages; return None or what is wrong."""
        if self._rejected:
            return "the broker rejected messages"
        return None if self.frames == count else f"{self.frames:,} of {count:,} messages were confirmed"

    def require_last_receipt(self) -> None:
        """Require the queue's answer behind the last message."""
        if not self.frames:
            raise RowError(f"the queue did not answer{self.error_clause()}")

    def disconnect(self) -> None:
        """End the connection in the orderly way."""
        self._call(amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk, channel=0)

    def error_clause(self) -> str:
        """Return a clause with the reason of the broker's close, or nothing."""
        for index in _CLOSES:
            start = self.buffer.find(struct.pack(">I", index), 0, self.filled)
            if start >= 0:
                return f"; the broker said {excerpt(self.buffer[start : self.filled])}"
        return ""

    def _call(self, method: pamqp.base.Frame, answer: type[pamqp.base.Frame], channel: int = 1) -> None:
        self._ask(_frame(method, channel), answer)

    def _ask(self, frames: bytes, answer: type[pamqp.base.Frame]) -> None:
        self.expect(CHUNK)
        self._expect_answer(answer)
        self.load(frames)
        pump({self: 1})
        self.expect(0)

    def _expect_answer(self, method: type[pamqp.base.Frame]) -> None:
        self._confirmed = None
        self.awaited = struct.pack(">I", method.index)

    def _count_confirms(self, start: int, end: int, confirmed: bytearray) -> int:
        count = 0
        with memoryview(self.buffer) as view, view[start:end] as part:
            for _, _, _, method, tag, multiple, _ in _CONFIRM.iter_unpack(part):
                self._rejected = self._rejected or method != _ACK
                first = self._first_unconfirmed if multiple else tag
                count += confirmed.count(0, first, tag + 1)
                confirmed[first : tag + 1] = b"\1" * (tag + 1 - first)
                if first == self._first_unconfirmed:
                    self._first_unconfirmed = tag + 1
        return count


class AtLeastOnceWire(AmqpWire):
    """The same, while no message may be lost: confirms from the first message on, and nothing is forgotten unsettled.

    That is what the gateway asks of the broker; it is the least that a row can cost behind it. A wire either sends or
    receives.
    """

    loses_messages = False

    def __init__(self, account: Account) -> None:
        # Messages that were acknowledged; None while the row itself acknowledges, or nothing comes.
        self._acknowledged: int | None = None
        super().__init__(account)

    def load_sends(self, destination: str, count: int, *, receipt_on_last: bool = False, shape: Shape = PLAIN) -> int:
        """Take transient messages as the next thing to write, which the broker confirms."""
        self._call(amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        self.expect(count * _CONFIRM.size)
        return super().load_sends(destination, count, receipt_on_last=receipt_on_last, shape=shape)

    def load_subscribe(self, destination: str, *, ack: str, prefetch: int | None = None) -> None:
        """Take basic.consume as the next thing to write."""
        if ack == "auto":
            self._acknowledged = 0
        super().load_subscribe(destination, ack=ack, prefetch=prefetch or _PREFETCH)

    def subscribe(self, destination: str, identifier: int = 0) -> None:
        """Consume a queue."""
        self._call(amqp.Basic.Qos(prefetch_count=_PREFETCH), amqp.Basic.QosOk)
        super().subscribe(destination, identifier)
        self._acknowledged = 0

    def read(self) -> int:
        """Read once, and acknowledge what came when it is enough; return the number of bytes."""
        count = super().read()
        if self._acknowledged is not None and self.frames - self._acknowledged >= _TOGETHER:
            self._acknowledged = self.frames
            self.append(_frame(amqp.Basic.Ack(self.frames, multiple=True)))
        return count

    def disconnect(self) -> None:
        """Acknowledge the rest, and end the connection."""
        if self._acknowledged is not None and self.frames > self._acknowledged:
            self.append(_frame(amqp.Basic.Ack(self.frames, multiple=True)))
            pump({self: 0})
        self._acknowledged = None
        super().disconnect()


def _opening(account: Account) -> bytes:
    methods = (
        amqp.Connection.StartOk(client_properties={}, response=f"\0{account.login}\0{account.passcode}"),
        amqp.Connection.TuneOk(channel_max=2047, frame_max=_FRAME_MAX, heartbeat=0),
        amqp.Connection.Open(virtual_host=account.virtual_host),
    )
    return b"AMQP\0\0\x09\x01" + b"".join(_frame(method, 0) for method in methods)


def _publishes(destination: str, count: int, shape: Shape, *, persistent: bool) -> bytes:
    exchange, key = _route(destination)
    method = _frame(amqp.Basic.Publish(exchange=exchange, routing_key=key))
    body_frame = _BODY_FRAME.pack(3, 1, shape.size)
    start = method + _content_header(shape, 0, persistent=persistent) + body_frame
    frames = []
    for number in range(count):
        if shape.headers:
            start = method + _content_header(shape, number, persistent=persistent) + body_frame
        frames.append(b"%b%b%b" % (start, payload.body(number, shape.size), _FRAME_END))
    return b"".join(frames)


def _content_header(shape: Shape, number: int, *, persistent: bool) -> bytes:
    properties = amqp.Basic.Properties(
        delivery_mode=2 if persistent else None,
        headers={"content-length": str(shape.size), **dict(shape.own_headers(number))},
    )
    return pamqp.frame.marshal(pamqp.header.ContentHeader(body_size=shape.size, properties=properties), 1)


def _route(destination: str) -> tuple[str, str]:
    """Exchange and routing key of one of the benchmark's destinations."""
    if destination.startswith("/topic/"):
        return "amq.topic", destination.removeprefix("/topic/")
    return "", destination.removeprefix("/amq/queue/")


def _frame(method: pamqp.base.Frame, channel: int = 1) -> bytes:
    return pamqp.frame.marshal(method, channel)


def _await(sock: socket.socket, answer: type[pamqp.base.Frame]) -> None:
    """Read until the answer is there; what comes before it is skipped."""
    wanted, received = struct.pack(">I", answer.index), b""
    sock.settimeout(PATIENCE)
    while wanted not in received:
        if not (more := sock.recv(4096)):
            raise RowError(f"the broker closed the AMQP connection; it said {excerpt(received)}")
        received += more
