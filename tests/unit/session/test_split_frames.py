"""Whole frames out of a session's output: the pieces of `Subscription.deliver`, whatever their bodies hold."""

from __future__ import annotations

import itertools

import pytest

from gateway.errors import CloseReason, StompError
from gateway.pieces import Body, joined
from gateway.session.delivery_ledger import AckMode
from gateway.session.error_frames import encode_error
from gateway.session.subscription import Subscription, split_frames
from gateway.stomp.frame import encode, encode_receipt

ROUTE = b"\x00\x05queue"
PROPERTIES = (b"\0\0", b"\x80\0\x0atext/plain")
BODIES = (
    b"", b"x", b"1", b"\0\n", b"\n\0\n", b"MESSAGE\n", b"content-length:1\n\n", b"a\0\nMESSAGE\n\n\0\n", b"\n",
)  # fmt: skip
ERROR = encode_error(StompError("Malformed frame", b"MESSAGE\n\0\n", close=CloseReason.MALFORMED_FRAME), b"r")
OTHERS = (encode(b"CONNECTED", [(b"version", b"1.2")]), encode_receipt(b"MESSAGE"), encode_receipt(b""), ERROR, b"\n")


def delivered(body: bytes, properties: bytes, mode: AckMode, *, shows_ack: bool) -> list[Body]:
    subscription = Subscription(b"T_1", b"1", mode, b"session-1", shows_ack=shows_ack, window=100, base=6)
    subscription.deliver(1, True, ROUTE, properties, body)
    return subscription.output


MESSAGES = [
    delivered(body, properties, mode, shows_ack=shows_ack)
    for body, properties, mode, shows_ack in itertools.product(BODIES, PROPERTIES, AckMode, (True, False))
]


def test_frames_are_found_in_any_order() -> None:
    others: list[list[Body]] = [[other] for other in OTHERS]
    batch = others + MESSAGES + others + MESSAGES[::-1]
    expected = [joined(pieces) for pieces in batch]
    assert split_frames(list(itertools.chain(*batch))) == expected
    assert all(frame.endswith((b"\0\n", b"\n")) for frame in expected)


@pytest.mark.parametrize("pieces", MESSAGES)
def test_each_alone(pieces: list[Body]) -> None:
    assert split_frames(pieces) == [joined(pieces)]


def test_nothing_is_nothing() -> None:
    assert split_frames([]) == []
