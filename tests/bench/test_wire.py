import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.bench import payload
from tests.bench.rows import Acknowledger
from tests.bench.wire import Account, RowError, Wire, connected_socket, pump, subscribe_frame

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
                    peer.settimeout(10)
                    _read_frame(peer)
                    conversation(peer)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            cleanup.callback(thread.join, 10)
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
