"""Micro-benchmarks of the functions that every message passes through: `python -m tests.bench.micro`.

Each entry of `BENCHES` builds its own input and returns the function to time. For a new one, write a function that
returns a callable, and put it in the table with the number of operations that one call does. The best of several
repetitions is shown: whatever else runs on the machine can only make a function look slower.
"""

import argparse
import gc
import json
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import pamqp.base
import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header

from gateway.amqp.codec import Publication, encode_ack, encode_publish
from gateway.amqp.properties import Properties, decode, encode_around_table, table_entries
from gateway.amqp.splitter import Sink, Splitter
from gateway.config.virtual_host import ConfirmWindow, FindVirtualHost, Upstream, VirtualHost
from gateway.session import ops
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import encode_receipt
from tests.bench import payload

_BATCH = 100
_FRAME_MAX = 131_072
_REPETITIONS = 7
_SECONDS_PER_REPETITION = 0.1


@dataclass(frozen=True)
class Bench:
    """A function to time.

    `build` prepares the input and returns the function; `operations` is how many operations one call of it does.
    """

    build: Callable[[], Callable[[], object]]
    operations: int = 1


def _decode_sends() -> Callable[[], object]:
    return _decoding(payload.sends("/queue/orders", _BATCH))


def _decode_confirmed_sends() -> Callable[[], object]:
    return _decoding(payload.confirmed_sends("/queue/orders", _BATCH)[0])


def _decode_acks() -> Callable[[], object]:
    return _decoding(b"".join(b"ACK\nid:T_0@@session-x@@%d\n\n\0" % number for number in range(_BATCH)))


def _decoding(data: bytes) -> Callable[[], object]:
    decoder = Decoder()

    def run() -> int:
        decoder.feed(data)
        frames = 0
        while decoder.next_frame() is not None:
            frames += 1
        return frames

    if run() != _BATCH:
        raise AssertionError("the decoder did not find every frame")
    return run


def _encode_receipt() -> Callable[[], object]:
    return lambda: encode_receipt(b"0000000042")


def _encode_publication() -> Callable[[], object]:
    before, behind = encode_around_table(Properties(delivery_mode=2))
    method = encode_publish(3, b"amq.topic", b"orders.new")
    publication = Publication(3, _FRAME_MAX, method, before, (b"",), behind)
    body = payload.body(42)
    return lambda: publication.encode(body)


def _encode_publication_with_pamqp() -> Callable[[], object]:
    body = payload.body(42)

    def run() -> bytes:
        properties = pamqp.commands.Basic.Properties(delivery_mode=2, headers={})
        method = pamqp.commands.Basic.Publish(exchange="amq.topic", routing_key="orders.new")
        frames: tuple[pamqp.base.Frame | pamqp.header.ContentHeader | pamqp.body.ContentBody, ...] = (
            method,
            pamqp.header.ContentHeader(body_size=len(body), properties=properties),
            pamqp.body.ContentBody(body),
        )
        return b"".join(pamqp.frame.marshal(frame, 3) for frame in frames)

    return run


def _encode_ack() -> Callable[[], object]:
    return lambda: encode_ack(3, 4_711, multiple=True)


def _encode_ack_with_pamqp() -> Callable[[], object]:
    return lambda: pamqp.frame.marshal(pamqp.commands.Basic.Ack(4_711, multiple=True), 3)


def _split_deliveries() -> Callable[[], object]:
    return _splitting(b"".join(_delivery(tag) for tag in range(1, _BATCH + 1)))


def _split_confirms() -> Callable[[], object]:
    return _splitting(b"".join(encode_ack(3, tag, multiple=False) for tag in range(1, _BATCH + 1)))


def _splitting(data: bytes) -> Callable[[], object]:
    splitter = Splitter(lambda _channel, _method, _frame: None)
    taken: list[int] = []
    splitter.register(
        3,
        Sink(
            deliver=lambda tag, _redelivered, _route, _properties, _body: taken.append(tag),
            confirm=lambda tag, _multiple, _accepted: taken.append(tag),
            owner=None,
            deliver_alike=lambda tag, bodies: taken.extend(range(tag, tag + len(bodies))),
        ),
    )

    def run() -> int:
        taken.clear()
        splitter.receive(data)
        return len(taken)

    if run() != _BATCH:
        raise AssertionError("the splitter did not find everything")
    return run


def _split_deliveries_with_pamqp() -> Callable[[], object]:
    data = b"".join(_delivery(tag) for tag in range(1, _BATCH + 1))

    def run() -> int:
        at = frames = 0
        while at < len(data):
            used, _channel, _frame = pamqp.frame.unmarshal(data[at : at + 7 + _payload_size(data, at) + 1])
            at += used
            frames += 1
        return frames

    return run


def _payload_size(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 3 : at + 7], "big")


def _decode_properties() -> Callable[[], object]:
    properties = pamqp.commands.Basic.Properties(content_type="text/plain", delivery_mode=2, headers={"key": "value"})
    data = properties.marshal()
    return lambda: decode(data)


def _delivery(tag: int) -> bytes:
    body = payload.body(tag)
    properties = pamqp.commands.Basic.Properties(headers={"content-length": str(len(body))})
    method = pamqp.commands.Basic.Deliver("consumer", tag, False, "amq.topic", "orders.new")
    header = pamqp.header.ContentHeader(body_size=len(body), properties=properties)
    return b"".join(pamqp.frame.marshal(part, 3) for part in (method, header, pamqp.body.ContentBody(body)))


class _Conversation:
    """A session that is logged in, and the decoder that feeds it."""

    def __init__(self, upstream: Upstream | None = None) -> None:
        window = ConfirmWindow(messages=(1 << 31) - 1, bytes=1 << 60)
        settings = VirtualHost(name="/", upstream=upstream or Upstream(), confirm_window=window, selectors=True)
        self.connect(lambda _: settings, FrameLimits())

    def connect(self, settings_of: FindVirtualHost, limits: FrameLimits) -> None:
        """Begin a session, and log it in."""
        self.session = Session(b"session-x", b"server", settings_of, limits)
        self._decoder = Decoder(limits)
        self.say(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:a\npasscode:b\n\n\0")
        self.answer(ops.LoggedIn())

    def say(self, frames: bytes) -> None:
        self._decoder.feed(frames)
        self.session.run(self._decoder)

    def answer(self, event: ops.Event) -> None:
        self.session.handle(event)
        self.session.run(self._decoder)
        self.session.output.clear()

    def prepare(self) -> None:
        """Give the session what its first SEND has asked for."""
        operation = self.session.take_operation()
        if not isinstance(operation, ops.PreparePublisher):
            raise AssertionError("the session did not ask for a channel")
        self.answer(ops.PublisherPrepared(3, _FRAME_MAX, operation.confirms))

    def subscribe(self, mode: bytes, destination: bytes = b"/queue/q", selector: bytes = b"") -> Subscription:
        self.say(b"SUBSCRIBE\nid:0\ndestination:%b\nack:%b\nselector:%b\n\n\0" % (destination, mode, selector))
        operation = self.session.take_operation()
        if not isinstance(operation, ops.Subscribe):
            raise AssertionError("the session did not ask to subscribe")
        self.answer(ops.Subscribed(operation.subscription, "q"))
        return operation.subscription


def _send() -> Callable[[], object]:
    return _sending(_Conversation(), payload.sends("/topic/orders", _BATCH), confirmed=_BATCH, receipts=0)


def _send_with_receipts() -> Callable[[], object]:
    frames = payload.confirmed_sends("/topic/orders", _BATCH)[0]
    return _sending(_Conversation(), frames, confirmed=_BATCH, receipts=_BATCH)


def _send_without_confirms() -> Callable[[], object]:
    ends_with_its_link = _Conversation(Upstream(ride_through=0))
    return _sending(ends_with_its_link, payload.sends("/topic/orders", _BATCH), confirmed=0, receipts=0)


def _sending(conversation: _Conversation, frames: bytes, confirmed: int, receipts: int) -> Callable[[], object]:
    session = conversation.session
    conversation.say(frames)
    conversation.prepare()

    def run() -> tuple[int, int, int]:
        conversation.say(frames)
        published, unconfirmed = len(b"".join(session.publisher.output.take())), len(session.confirms)
        if unconfirmed:
            session.confirm(session.confirms.last_sequence, True, True)
        sent = len(session.output)
        session.output.clear()
        return published, unconfirmed, sent

    run()
    published, *found = run()
    if published < len(frames) or found != [confirmed, receipts]:
        raise AssertionError("not every SEND was published, confirmed and answered as it should be")
    return run


def _confirm() -> Callable[[], object]:
    conversation = _Conversation()
    session = conversation.session
    conversation.say(payload.confirmed_sends("/topic/orders", _BATCH)[0])
    conversation.prepare()
    confirms = session.confirms
    messages = list(confirms.messages)
    session.confirm(confirms.last_sequence, True, True)

    def run() -> int:
        session.output.clear()
        first = confirms.last_sequence + 1
        confirms.add(messages, sum(message[2] for message in messages))
        for sequence in range(first, first + len(messages)):
            session.confirm(sequence, False, True)
        return len(session.output)

    if run() != _BATCH:
        raise AssertionError("not every message was confirmed and answered")
    return run


def _deliver() -> Callable[[], object]:
    conversation = _Conversation()
    session, subscription = conversation.session, conversation.subscribe(b"auto")
    body, tags = payload.body(42), iter(range(1, 1 << 60))

    def run() -> object:
        for _ in range(_BATCH):
            subscription.deliver(next(tags), False, b"\0\1q", b"\0\0", body)
        session.output.clear()
        session.subscriptions.settle_auto_acks()
        return session.subscriptions.take_settlements()

    return run


def _deliver_alike() -> Callable[[], object]:
    conversation = _Conversation()
    session, subscription = conversation.session, conversation.subscribe(b"auto")
    body, tags = payload.body(42), iter(range(1, 1 << 60, _BATCH))
    bodies = [body] * (_BATCH - 1)

    def run() -> object:
        tag = next(tags)
        subscription.deliver(tag, False, b"\0\1q", b"\0\0", body)
        subscription.deliver_alike(tag + 1, bodies)
        session.output.clear()
        session.subscriptions.settle_auto_acks()
        return session.subscriptions.take_settlements()

    return run


def _select(prices: Sequence[int], *, selects: bool) -> Callable[[], object]:
    """Deliveries with these prices in turn to a subscription that selects none of them, or all."""
    conversation = _Conversation()
    sign = b">" if selects else b"<"
    subscription = conversation.subscribe(b"auto", b"/topic/t", b"price %b 0 AND symbol LIKE 'A%%'" % sign)
    session, body, tags = conversation.session, payload.body(42), iter(range(1, 1 << 60))
    entries = [table_entries([(b"price", b"%d" % price), (b"symbol", b"ACME")]) for price in prices]
    before, behind = encode_around_table(Properties())
    blocks = cycle([before + len(each).to_bytes(4, "big") + each + behind for each in entries])

    def run() -> object:
        for _ in range(_BATCH):
            subscription.deliver(next(tags), False, b"\x09amq.topic\1t", next(blocks), body)
        sent = len(session.output)
        session.output.clear()
        session.subscriptions.settle_auto_acks()
        session.subscriptions.take_settlements()
        return sent

    if bool(run()) is not selects:
        raise AssertionError("the selector does not do what it should")
    return run


def _acknowledge() -> Callable[[], object]:
    conversation = _Conversation()
    subscription, tags = conversation.subscribe(b"client-individual"), iter(range(1, 1 << 60))

    def run() -> object:
        frames = []
        for _ in range(_BATCH):
            tag = next(tags)
            subscription.deliver(tag, False, b"\0\1q", b"\0\0", b"")
            frames.append(b"ACK\nid:T_0@@session-x@@%d\n\n\0" % tag)
        conversation.session.output.clear()
        conversation.say(b"".join(frames))
        return conversation.session.subscriptions.take_settlements()

    return run


def _connect() -> Callable[[], object]:
    conversation, settings, limits = _Conversation(), VirtualHost(name="/", upstream=Upstream()), FrameLimits()
    return lambda: conversation.connect(lambda _: settings, limits)


BENCHES: dict[str, Bench] = {
    "stomp: decode SEND": Bench(_decode_sends, _BATCH),
    "stomp: decode SEND with receipt": Bench(_decode_confirmed_sends, _BATCH),
    "stomp: decode ACK": Bench(_decode_acks, _BATCH),
    "stomp: encode RECEIPT": Bench(_encode_receipt),
    "amqp: encode publish": Bench(_encode_publication),
    "amqp: encode publish (pamqp)": Bench(_encode_publication_with_pamqp),
    "amqp: encode ack": Bench(_encode_ack),
    "amqp: encode ack (pamqp)": Bench(_encode_ack_with_pamqp),
    "amqp: split deliver": Bench(_split_deliveries, _BATCH),
    "amqp: split deliver (pamqp)": Bench(_split_deliveries_with_pamqp, _BATCH),
    "amqp: split confirm": Bench(_split_confirms, _BATCH),
    "amqp: decode properties": Bench(_decode_properties),
    "session: CONNECT": Bench(_connect),
    "session: SEND, and confirm": Bench(_send, _BATCH),
    "session: SEND with receipt, and confirm": Bench(_send_with_receipts, _BATCH),
    "session: SEND, ride_through 0": Bench(_send_without_confirms, _BATCH),
    "session: confirm with receipt": Bench(_confirm, _BATCH),
    "session: deliver": Bench(_deliver, _BATCH),
    "session: deliver many that are alike": Bench(_deliver_alike, _BATCH),
    "session: deliver, and ACK": Bench(_acknowledge, _BATCH),
    "session: deliver what a selector selects": Bench(partial(_select, [7], selects=True), _BATCH),
    "session: filter out what it does not": Bench(partial(_select, [7], selects=False), _BATCH),
    "session: filter out, 64 kinds of headers in turn": Bench(partial(_select, range(64), selects=False), _BATCH),
    "session: filter out, headers that are always new": Bench(partial(_select, range(5_000), selects=False), _BATCH),
}
"""Name to benchmark. Lines marked (pamqp) do the same with pamqp, for comparison."""


def best_microseconds(bench: Bench, repetitions: int = _REPETITIONS) -> float:
    """Return the microseconds of one operation in the fastest of `repetitions` repetitions of a tenth of a second."""
    timer = timeit.Timer(bench.build())
    gc.collect()
    calls, seconds = timer.autorange()
    calls = max(1, round(calls * _SECONDS_PER_REPETITION / seconds))
    return min(timer.repeat(repetitions, calls)) / calls / bench.operations * 1e6


def as_text(stats: Mapping[str, float]) -> str:
    """Return a table of `figures`, microseconds by name."""
    width = max(map(len, stats), default=0)
    lines = [f"{name:{width}}  {figure:8.2f}  {1e6 / figure:12,.0f}" for name, figure in stats.items()]
    return "\n".join([f"{'':{width}}  {'us':>8}  {'per second':>12}", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the micro-benchmarks that `arguments` (the process's own, if None) name; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.micro", description="Times the hot functions, best of n."
    )
    parser.add_argument("names", nargs="*", metavar="TEXT", help="only benchmarks whose name holds one of these")
    parser.add_argument(
        "--repeat", type=int, default=_REPETITIONS, metavar="N", help="repetitions (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    chosen = {name: bench for name, bench in BENCHES.items() if _is_chosen(name, options.names)}
    if not chosen:
        parser.error(f"no such benchmark; there are: {', '.join(BENCHES)}")
    stats = {name: best_microseconds(bench, options.repeat) for name, bench in chosen.items()}
    print(as_text(stats))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(stats, indent=2) + "\n")
    return 0


def _is_chosen(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part.lower() in name.lower() for part in parts)


if __name__ == "__main__":
    sys.exit(main())
