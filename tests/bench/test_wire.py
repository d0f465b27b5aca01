import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pamqp.base
import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
import pytest

from tests.bench import payload
from tests.bench.amqp_wire import AmqpWire, AtLeastOnceWire
from tests.bench.other_wires import WebSocketWire
from tests.bench.wire import Account, Acknowledger, RowError, Wire, connected_socket, pump, subscribe_frame
from tests.support.deadline import PATIENCE

Conversation = Callable[[socket.socket], None]
CONNECTED = b"CONNECTED\nversion:1.2\n\n\0\n"


def _message(number: int) -> bytes:
    return b"MESSAGE\nack:%d\ncontent-length:256\n\n%s\0\n" % (number, payload.body(number))


@pytest.fixture
def serve() -> Iterator[Callable[[Conversation], Account]]:
    """Starts a server for one connection: it answers CONNECT and then holds the conversation that the test gives."""
    with ExitStack() as cleanup:

        def start(conversation: Conversation) -> Account:
            listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(PATIENCE)
                    _read_frame(peer)
                    conversation(peer)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            cleanup.callback(thread.join, PATIENCE)
            return Account("127.0.0.1", listener.getsockname()[1], "guest", "guest", "/")

        yield start


def _read_frame(peer: socket.socket) -> bytes:
    frame = b""
    while not frame.endswith(b"\0"):
        byte = peer.recv(1)
        if not byte:
            raise EOFError(f"the client left within a frame: {frame!r}")
        frame += byte
    return frame


def test_messages_cut_into_pieces_are_counted_and_each_is_acknowledged_once(
    serve: Callable[[Conversation], Account],
) -> None:
    count = 2_000  # more bytes than the buffer has at first
    acknowledged: list[bytes] = []

    def conversation(peer: socket.socket) -> None:
        peer.sendall(CONNECTED)
        _read_frame(peer)
        data = b"".join(map(_message, range(count)))
        for at in range(0, len(data), 1_460):
            peer.sendall(data[at : at + 1_460])
        acknowledged.extend(_read_frame(peer) for _ in range(count))
        _read_frame(peer)
        peer.sendall(b"RECEIPT\nreceipt-id:bye\n\n\0\n")

    with Wire(serve(conversation)) as wire:
        wire.expect(0)
        wire.load(subscribe_frame("/queue/a"))
        pump({wire: count}, Acknowledger())
        assert payload.complaint_about_messages(wire.received, count) is None

    assert acknowledged == [b"ACK\nid:%d\n\n\0" % number for number in range(count)]


def test_a_payload_goes_out_only_as_far_as_it_is_allowed(serve: Callable[[Conversation], Account]) -> None:
    count, in_flight = 50, 3
    frames, length = payload.confirmed_sends("/queue/a", count)
    unanswered: list[int] = []

    def conversation(peer: socket.socket) -> None:
        peer.sendall(CONNECTED)
        for number in range(count):
            waiting = peer.recv(len(frames), socket.MSG_PEEK).count(0)
            unanswered.append(waiting)
            _read_frame(peer)
            peer.sendall(b"RECEIPT\nreceipt-id:%010d\n\n\0\n" % number)
        _read_frame(peer)
        peer.sendall(b"RECEIPT\nreceipt-id:bye\n\n\0\n")

    with Wire(serve(conversation)) as wire:
        wire.load(frames, allowed=in_flight * length)
        pump({wire: count}, lambda wire: wire.allow((wire.frames + in_flight) * length))
        assert payload.complaint_about_receipts(wire.received, count) is None

    assert max(unanswered) == in_flight


def test_the_error_of_a_server_that_closes_is_quoted(serve: Callable[[Conversation], Account]) -> None:
    def conversation(peer: socket.socket) -> None:
        peer.sendall(CONNECTED)
        _read_frame(peer)
        peer.sendall(_message(0) + b"ERROR\nmessage:not_found\n\nno queue 'a'\n\0\n")

    wire = Wire(serve(conversation))
    wire.load(subscribe_frame("/queue/a"))
    with wire.sock, pytest.raises(RowError, match=r"closed the connection; the server said .*not_found"):
        pump({wire: 10})


def test_a_refused_login_is_quoted(serve: Callable[[Conversation], Account]) -> None:
    def conversation(peer: socket.socket) -> None:
        peer.sendall(b"ERROR\nmessage:Bad CONNECT\n\nAccess refused\n\0\n")

    with pytest.raises(RowError, match="Bad CONNECT"):
        connected_socket(serve(conversation))


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ([0, 1, 2], None),
        ([0, 2], "1 of 3 messages did not arrive whole, the first is number 1; 0 came double"),
        ([0, 1, 1, 2], "1 messages arrived more than once"),
        ([0, 2, 1], "the messages arrived out of order"),
    ],
)
def test_received_messages_are_compared_with_the_sent_ones(numbers: list[int], complaint: str | None) -> None:
    assert payload.complaint_about_messages(b"".join(map(_message, numbers)), 3) == complaint


def test_a_cut_message_does_not_count() -> None:
    data = _message(0) + _message(1).replace(b"xxx", b"xx", 1)

    assert (
        payload.complaint_about_messages(data, 2)
        == "1 of 2 messages did not arrive whole, the first is number 1; 0 came double"
    )


def test_confirms_of_the_broker_are_counted_once_each_however_they_come(
    serve_amqp: Callable[[Conversation], Account],
) -> None:
    answers = [(2, False), (3, True), (5, False), (7, True), (8, False)]

    def conversation(peer: socket.socket) -> None:
        _answer(peer, amqp.Confirm.Select, amqp.Confirm.SelectOk())
        for tag, multiple in answers:
            peer.sendall(pamqp.frame.marshal(amqp.Basic.Ack(tag, multiple), 1))
        _answer(peer, amqp.Connection.Close, amqp.Connection.CloseOk())

    with AmqpWire(serve_amqp(conversation)) as wire:
        wire.load_confirmed_sends("/amq/queue/a", 8, 8)
        pump({wire: 8})
        assert wire.complaint_about_receipts(8) is None
        assert wire.complaint_about_receipts(9) == "8 of 9 messages were confirmed"


def test_a_rejected_message_is_not_taken_for_a_confirmed_one(serve_amqp: Callable[[Conversation], Account]) -> None:
    def conversation(peer: socket.socket) -> None:
        _answer(peer, amqp.Confirm.Select, amqp.Confirm.SelectOk())
        peer.sendall(pamqp.frame.marshal(amqp.Basic.Nack(1), 1))
        _answer(peer, amqp.Connection.Close, amqp.Connection.CloseOk())

    with AmqpWire(serve_amqp(conversation)) as wire:
        wire.load_confirmed_sends("/amq/queue/a", 1, 1)
        pump({wire: 1})
        assert wire.complaint_about_receipts(1) == "the broker rejected messages"


def test_deliveries_cut_into_pieces_are_counted_and_acknowledged_together(
    serve_amqp: Callable[[Conversation], Account],
) -> None:
    count = 300
    acknowledged: list[int] = []

    def conversation(peer: socket.socket) -> None:
        _answer(peer, amqp.Basic.Consume, amqp.Basic.ConsumeOk("0"))
        data = b"".join(map(_delivery, range(count)))
        for at in range(0, len(data), 1_460):
            peer.sendall(data[at : at + 1_460])
        pending = b""
        while acknowledged[-1:] != [count]:
            pending += peer.recv(4096)
            while len(pending) >= CONFIRM_SIZE and acknowledged[-1:] != [count]:
                used, _, frame = pamqp.frame.unmarshal(pending)
                assert isinstance(frame, amqp.Basic.Ack)
                assert frame.multiple
                acknowledged.append(frame.delivery_tag)
                pending = pending[used:]
        _answer(peer, amqp.Connection.Close, amqp.Connection.CloseOk(), pending)

    with AmqpWire(serve_amqp(conversation)) as wire:
        wire.expect(0)
        wire.load_subscribe("/amq/queue/a", ack="client-individual", prefetch=count)
        pump({wire: count}, wire.acknowledger())
        assert wire.complaint_about_messages(count) is None
        assert wire.complaint_about_messages(count + 1) is not None

    assert acknowledged == sorted(set(acknowledged))


def test_at_least_once_asks_for_confirms_and_settles_everything_that_came(
    serve_amqp: Callable[[Conversation], Account],
) -> None:
    count = 1_200
    asked: list[pamqp.base.Frame] = []

    def conversation(peer: socket.socket) -> None:
        answers = {
            amqp.Confirm.Select: amqp.Confirm.SelectOk(),
            amqp.Basic.Qos: amqp.Basic.QosOk(),
            amqp.Basic.Consume: amqp.Basic.ConsumeOk("0"),
            amqp.Connection.Close: amqp.Connection.CloseOk(),
        }
        pending = b""
        while not asked or not isinstance(asked[-1], amqp.Connection.Close):
            pending += peer.recv(1 << 16)
            while len(pending) > 7 and len(pending) >= (size := int.from_bytes(pending[3:7], "big") + 8):
                _, channel, frame = pamqp.frame.unmarshal(pending[:size])
                pending = pending[size:]
                if isinstance(frame, pamqp.base.Frame):
                    asked.append(frame)
                    if (answer := answers.get(type(frame))) is not None:
                        peer.sendall(pamqp.frame.marshal(answer, channel))
                if isinstance(frame, amqp.Basic.Consume):
                    peer.sendall(b"".join(map(_delivery, range(count))))

    with AtLeastOnceWire(serve_amqp(conversation)) as wire:
        wire.load_sends("/amq/queue/a", 2)
        pump({wire: 0})
        wire.expect(0)
        wire.load_subscribe("/amq/queue/a", ack="auto")
        pump({wire: count})

    assert [type(frame).__name__ for frame in asked[:5]] == ["Select", "Publish", "Publish", "Qos", "Consume"]
    assert isinstance(asked[4], amqp.Basic.Consume)
    assert not asked[4].no_ack
    settled = [frame.delivery_tag for frame in asked if isinstance(frame, amqp.Basic.Ack) and frame.multiple]
    assert settled == sorted(set(settled))
    assert settled[-1] == count


def test_a_delivery_whose_last_byte_comes_alone_is_counted_then_and_not_before(
    serve_amqp: Callable[[Conversation], Account],
) -> None:
    data, go_on = _delivery(0), threading.Event()

    def conversation(peer: socket.socket) -> None:
        peer.sendall(data[:-1])
        go_on.wait(PATIENCE)
        peer.sendall(data[-1:])
        _answer(peer, amqp.Connection.Close, amqp.Connection.CloseOk())

    with AmqpWire(serve_amqp(conversation)) as wire:
        while wire.filled < len(data) - 1:
            wire.read()
        before = wire.frames
        go_on.set()
        pump({wire: 1})
        assert (before, wire.frames) == (0, 1)


CONFIRM_SIZE = 21


@pytest.fixture
def serve_amqp(serve: Callable[[Conversation], Account]) -> Callable[[Conversation], Account]:
    """As `serve`, for AMQP: the connection and a channel are opened before the conversation."""

    def start(conversation: Conversation) -> Account:
        def run(peer: socket.socket) -> None:
            _answer(peer, amqp.Connection.Open, amqp.Connection.OpenOk())
            _answer(peer, amqp.Channel.Open, amqp.Channel.OpenOk())
            conversation(peer)

        return serve(run)

    return start


def _answer(
    peer: socket.socket, request: type[pamqp.base.Frame], answer: pamqp.base.Frame, received: bytes = b""
) -> None:
    """Await a request, of which some may have been received before, and answer it."""
    while request.index.to_bytes(4, "big") not in received or not received.endswith(b"\xce"):
        received += peer.recv(1 << 16)
    peer.sendall(pamqp.frame.marshal(answer, 0 if answer.name.startswith("Connection") else 1))


def _delivery(number: int) -> bytes:
    body = payload.body(number)
    header = pamqp.header.ContentHeader(body_size=len(body), properties=amqp.Basic.Properties())
    parts = (amqp.Basic.Deliver("0", number + 1, False, "", "a"), header, pamqp.body.ContentBody(body))
    return b"".join(pamqp.frame.marshal(part, 1) for part in parts)


def test_a_payload_that_goes_out_in_parts_cannot_be_measured_over_websocket() -> None:
    wire = WebSocketWire.__new__(WebSocketWire)
    with pytest.raises(RowError, match="not encoded for WebSocket"):
        wire.load(b"SEND\n\n\0" * 2, allowed=7)
