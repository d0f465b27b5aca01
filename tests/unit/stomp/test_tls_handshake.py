"""TLS or HTTP where a frame should begin: seen at the first byte or line, however the bytes arrive."""

from __future__ import annotations

import pytest

from gateway.errors import CloseReason, FrameError, TlsHandshakeError
from gateway.pieces import joined
from gateway.session.context import State
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\n\0", b"CONNECT\n\n\0", b"SEND\ndestination:/queue/a\n\n\0\n"])
@pytest.mark.parametrize("after", [b"", b"\n\n", b"\n\r\n\0", b"x" * 100_000])
def test_it_is_told_apart_from_other_bytes(before: bytes, after: bytes) -> None:
    decoder = Decoder()
    decoder.feed(before + HELLO + after)
    with pytest.raises(TlsHandshakeError):
        list(iter(decoder.next_frame, None))


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n"])
def test_one_byte_is_enough(before: bytes) -> None:
    decoder = Decoder()
    for byte in before:
        decoder.feed(bytes((byte,)))
        assert decoder.next_frame() is None
    decoder.feed(HELLO[:1])
    with pytest.raises(TlsHandshakeError):
        decoder.next_frame()


@pytest.mark.parametrize("data", [b"SEND\ndestination:\x16\n\n\x16\0", b"\x15\x03\n\n\0", b"\x17\n\n\0", b"\x0e\n\n\0"])
def test_inside_of_a_frame_and_beside_it_the_byte_means_nothing(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    assert decoder.next_frame() is not None


def session() -> tuple[Session, Decoder]:
    limits = FrameLimits()
    return Session(b"session", b"server", lambda _host: None, limits), Decoder(limits)


def test_before_the_login_the_session_ends_without_an_answer() -> None:
    conversation, decoder = session()
    decoder.feed(HELLO)
    conversation.run(decoder)
    assert (conversation.state, conversation.close_reason) == (State.CLOSED, CloseReason.TLS_ON_PLAIN_PORT)
    assert not conversation.output


def test_after_the_login_it_is_a_malformed_frame_like_any_other() -> None:
    conversation, decoder = session()
    conversation.context.login = b"somebody"
    decoder.feed(HELLO)
    conversation.run(decoder)
    assert (conversation.state, conversation.close_reason) == (State.CLOSED, CloseReason.MALFORMED_FRAME)
    assert b"TLS is not spoken on this port" in joined(conversation.output)


def test_it_is_a_violation_of_the_grammar() -> None:
    assert issubclass(TlsHandshakeError, FrameError)


# An HTTP request, which is seen at the end of its first line.

REQUEST = b"GET /ws?a=b HTTP/1.1\r\n"


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("after", [b"", b"Host: a\r\n\r\n", b"Host: a\r\n\r\n\0"])
def test_an_http_request_is_answered_in_http_before_the_login(after: bytes, step: int) -> None:
    conversation, decoder = session()
    data = b"\n" + REQUEST + after
    for at in range(0, len(data), step):
        if conversation.state is not State.CLOSED:
            try:
                decoder.feed(data[at : at + step])
            except FrameError as error:
                conversation.malformed(error)
            conversation.run(decoder)
    assert (conversation.state, conversation.close_reason) == (State.CLOSED, CloseReason.HTTP_ON_STOMP_PORT)
    head, _, body = joined(conversation.output).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert b"STOMP" in body


def test_an_http_request_after_the_login_is_a_malformed_frame() -> None:
    conversation, decoder = session()
    conversation.context.login = b"somebody"
    decoder.feed(REQUEST)
    conversation.run(decoder)
    assert conversation.close_reason is CloseReason.MALFORMED_FRAME


@pytest.mark.parametrize(
    "line", [b"GET HTTP/1.1", b"GET / HTTP/1.1 x", b"SEND\ndestination:GET / HTTP/1.1", b" / HTTP/1.1"]
)
def test_other_lines_are_no_http_request(line: bytes) -> None:
    decoder = Decoder()
    decoder.feed(line + b"\n\n\0")
    assert decoder.next_frame() is not None
