"""How often a large body is copied on its way: bytes of memory that each step takes anew, for each byte of the body."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.amqp.codec import Publication, encode_publish
from gateway.amqp.splitter import Sink, Splitter
from gateway.pieces import Body, gathered
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import PendingAutoAcks, Subscription
from gateway.stomp.decoder import Decoder
from tests.support.playbook import stomp

READ = 256_000
BODY = b"x" * (4 * 1024 * 1024 - 200)
PUBLICATION = Publication(1, 131_072, encode_publish(1, b"", b"q"), b"\x20\0", (b"",), b"")


class Copies:
    """Counts the memory that steps take."""

    def __init__(self) -> None:
        self.bytes = 0

    def of(self, step: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - any step
        """Do a step, and count what it takes at its most."""
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            return step(*arguments)
        finally:
            self.bytes += tracemalloc.get_traced_memory()[1] - before

    def require(self, least: float, most: float) -> None:
        """Check how often the body was copied."""
        copies = self.bytes / len(BODY)
        assert least <= copies <= most, f"{copies:.2f} copies"


@pytest.fixture
def copies() -> Iterator[Copies]:
    tracemalloc.start()
    try:
        yield Copies()
    finally:
        tracemalloc.stop()


def reads(stream: bytes) -> list[bytes]:
    return [stream[at : at + READ] for at in range(0, len(stream), READ)]


def decoded(stream: bytes, copies: Copies) -> Body:
    """The body that a decoder reads."""
    decoder = Decoder()
    for read in reads(stream):
        copies.of(decoder.feed, read)
        frame = copies.of(decoder.next_frame)
    assert frame is not None
    body: Body = frame.body
    return body


def test_what_the_event_loop_has_read_stays_where_it_is(copies: Copies) -> None:
    body = decoded(stomp("SEND", f"content-length:{len(BODY)}", body=BODY), copies)
    copies.require(0, 0.05)
    assert (len(body), bytes(body)) == (len(BODY), BODY)


def test_an_announced_length_takes_no_memory(copies: Copies) -> None:
    decoder = Decoder()
    decoder.limits.frame = 1 << 30
    start = stomp("SEND", f"content-length:{1 << 29}")[:-1] + BODY[:READ]
    copies.of(decoder.feed, start)
    copies.of(decoder.next_frame)
    for _ in range(4):
        copies.of(decoder.feed, b"x")
    assert copies.bytes < READ


def test_a_body_is_cut_into_amqp_frames_where_it_is(copies: Copies) -> None:
    body = decoded(stomp("SEND", f"content-length:{len(BODY)}", body=BODY), Copies())
    pieces = copies.of(PUBLICATION.pieces, body)
    written = copies.of(gathered, pieces)
    copies.require(0, 0.05)
    assert b"".join(written) == PUBLICATION.encode(BODY)


def test_a_delivery_goes_to_the_client_as_it_was_read(copies: Copies) -> None:
    splitter, output = Splitter(lambda *_: None), list[Body]()
    subscription = Subscription(b"T_1", b"1", AckMode.AUTO, b"session-1", destination=b"/queue/q")
    subscription.set_channel(1)
    subscription.start(output, PendingAutoAcks())
    splitter.register(1, Sink(subscription.deliver, lambda *_: None, None))
    # basic.deliver with the consumer tag "c", the delivery tag 1 and the route to "q"; then the content as published.
    method = b"\0\x3c\0\x3c\x01c" + (1).to_bytes(8, "big") + b"\0\0\x01q"
    deliver = b"\x01\0\x01" + len(method).to_bytes(4, "big") + method + b"\xce"
    content = PUBLICATION.encode(BODY)[len(encode_publish(1, b"", b"q")) :]
    for read in reads(deliver + content):
        copies.of(splitter.receive, read)
    written = copies.of(gathered, output)
    # Of each read that ends with the beginning of an AMQP frame, or begins with the end of one, a small part may be.
    copies.require(0, 0.2)
    message = b"".join(written)
    assert message.endswith(b"content-length:%d\n\n%b\0\n" % (len(BODY), BODY))
