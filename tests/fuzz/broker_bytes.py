"""The targets for a broker that sends anything: the splitter, the properties of a message, a session behind both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.amqp import properties
from gateway.amqp.codec import FRAME_HEADER, FRAME_OVERHEAD
from gateway.amqp.splitter import Return, Sink, Splitter
from gateway.errors import CodecError
from gateway.pieces import Body
from gateway.session import translate
from gateway.session.context import State
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import encode_headers
from tests.fuzz.violation import demand
from tests.support.model_broker import ModelBroker
from tests.support.session_peer import SERVER, ModelBridge, resolve

# The channels that the splitter knows; frames of others pass.
_REGISTERED: Final = (1, 2)

# Reading byte by byte shows the most, and costs the most.
_LONGEST_BY_BYTE: Final = 1000
_PIECE: Final = 7

# As large as an input can be.
_FRAME_MAX: Final = 8192

_Seen = tuple[list[object], bytes, str | None]


def check_splitter(data: bytes) -> None:
    """Read an input as what a broker sends: at once, in pieces and byte by byte, which must agree.

    Args:
        data: one byte without meaning, so that the target "broker" takes the same inputs; then what the broker sends.

    Raises:
        ViolationError: a promise of the splitter is broken.
        Exception: it raised something else than CodecError.
    """
    data = data[1:]
    whole = _split([data])
    sizes = [_PIECE, 1] if len(data) <= _LONGEST_BY_BYTE else [_PIECE]
    for size in sizes:
        events, passed, error = _split(data[at : at + size] for at in range(0, len(data), size))
        # The last read loses what it would have passed, when it ends in an error.
        same = passed.startswith(whole[1]) if whole[2] else passed == whole[1]
        told = f"{events, passed, error} and not {whole}"
        demand(same and (error is None) == (whole[2] is None), f"any split passes the same: {told}")
        demand(events == whole[0], f"any split tells the same: {told}")
    demand(_are_frames(whole[1]), "what passes is whole frames")


def _are_frames(data: bytes) -> bool:
    at = 0
    while at + FRAME_OVERHEAD <= len(data):
        _, _, size = FRAME_HEADER.unpack_from(data, at)
        at += FRAME_OVERHEAD + size
    return at == len(data)


def _split(pieces: Iterable[bytes]) -> _Seen:
    events: list[object] = []
    splitter = Splitter(lambda channel, method, frame: events.append((channel, method, frame)))
    splitter.frame_max = _FRAME_MAX
    for channel in _REGISTERED:
        splitter.register(channel, _sink(channel, events))
    passed = b""
    try:
        for piece in pieces:
            passed += splitter.receive(piece)
            kept = sum(map(len, splitter._rest))
            demand(kept < _FRAME_MAX + FRAME_OVERHEAD, "no more than a frame is kept")
    except CodecError as error:
        demand(bool(str(error)), "an error says what is wrong")
        return events, passed, str(error)
    return events, passed, None


def _sink(channel: int, events: list[object]) -> Sink:
    def deliver(tag: int, redelivered: bool, route: bytes, property_list: bytes, body: Body) -> None:
        events.append(("deliver", channel, tag, redelivered, route, property_list, bytes(body)))

    def confirm(sequence: int, multiple: bool, accepted: bool) -> None:
        events.append(("confirm", channel, sequence, multiple, accepted))

    def returned(message: Return) -> None:
        events.append(("return", channel, message))

    return Sink(deliver, confirm, channel, returned)


def check_properties(data: bytes) -> None:
    """Read an input as the properties of a message, and write them again.

    Raises:
        ViolationError: a promise of the codec is broken.
        Exception: it raised something else than CodecError.
    """
    try:
        found = properties.decode(data)
    except CodecError as error:
        demand(bool(str(error)), "an error says what is wrong")
        return
    texts = [(name, value) for name, value in found.headers or () if isinstance(value, bytes)]
    demand(sum(len(name) + len(value) for name, value in texts) <= len(data), "nothing is read twice")
    shown = encode_headers(translate.shown_headers(found))
    demand(b"\0" not in shown.replace(b"\\0", b"") or b"\0" in data, "no byte comes from nowhere")
    before, behind = properties.encode_around_table(found)
    table = properties.table_entries(texts)
    again = properties.decode(before + len(table).to_bytes(4, "big") + table + behind)
    found.headers = [*texts]
    demand(again == found, f"written and read again it is the same: {again} and not {found}")


_MODES: Final = (b"auto", b"client", b"client-individual")
_SENDS: Final = 3
_LIFE: Final = b"".join(
    (
        b"CONNECT\naccept-version:1.2\nlogin:guest\npasscode:guest\n\n\0",
        b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:%b\nprefetch-count:8\n\n\0",
        *(b"SEND\ndestination:/queue/full\nmandatory:true\nreceipt:%d\n\nx\0" % number for number in range(_SENDS)),
    )
)


def check_broker(data: bytes) -> None:
    """Give a session with a subscription on channel 2 and unconfirmed messages on channel 1 what a broker sends.

    Args:
        data: one byte for the mode of acknowledgement, then what the broker sends.

    Raises:
        ViolationError: a promise of the session is broken.
        Exception: something else than CodecError escaped.
    """
    session, decoder = _session(_MODES[data[0] % len(_MODES)] if data else b"auto")
    (subscription,) = session.subscriptions.all
    splitter = Splitter(lambda channel, method, frame: None)
    splitter.register(1, Sink(_nothing, session.confirm, session, session.message_returned))
    splitter.register(2, Sink(subscription.deliver, _nothing, session))
    try:
        splitter.receive(data[1:])
    except CodecError as error:
        demand(bool(str(error)), "an error says what is wrong")
    for _, failure in splitter.failures:
        # What a message's properties must be, only the session knows; this is how it says so.
        if not isinstance(failure, CodecError):
            raise failure
    session.subscriptions.settle_auto_acks()
    session.run(decoder)
    session.subscriptions.take_settlements()
    demand(session.state in (State.CONNECTED, State.CLOSED), "a session goes on or ends")
    receipts = [each for each in map(bytes, session.output) if each.startswith(b"RECEIPT")]
    demand(len(receipts) <= _SENDS and len(set(receipts)) == len(receipts), "a receipt comes once")
    demand(session.confirms.unconfirmed_bytes == len(session.confirms), "what is unconfirmed is counted")
    demand(subscription.stats.delivered >= 0, "nobody counts backwards")


class _MuteBridge(ModelBridge):
    """A bridge that keeps the model's confirms to itself: the input has those."""

    def _confirmed(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Nothing."""

    def _returned(self, returned: Return) -> None:
        """Nothing."""


def _session(mode: bytes) -> tuple[Session, Decoder]:
    """A session that is connected and subscribed, and has published."""
    limits = FrameLimits()
    session = Session(b"session-1", SERVER, resolve, limits)
    bridge = _MuteBridge(session, ModelBroker())
    decoder = Decoder(limits)
    decoder.feed(_LIFE % mode)
    session.run(decoder)
    while bridge.flush():
        session.run(decoder)
    demand(len(session.confirms) == _SENDS, "it has published")
    session.output.clear()
    return session, decoder


def _nothing(*_: object) -> None:
    """For what a channel does not get."""
