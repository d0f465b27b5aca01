"""Large bodies are written as they are, and not copied once more."""

import pytest

from gateway.amqp.codec import Publication, encode_publish
from gateway.pieces import LARGE, LargeBody, gathered, joined
from tests.support.playbook import Playbook, deliver, stomp

LARGE_BODY = b"x" * LARGE


def test_pieces_are_joined_but_for_the_large_ones() -> None:
    assert gathered([b"a", b"b", LARGE_BODY, b"c", b"", LARGE_BODY, LARGE_BODY]) == [
        b"ab",
        LARGE_BODY,
        b"c",
        LARGE_BODY,
        LARGE_BODY,
    ]
    assert gathered([b"", b""]) == []


def test_a_body_in_pieces_stays_so_but_for_small_ones_and_joins_where_all_is_joined() -> None:
    body = LargeBody([b"a", b"b", LARGE_BODY, b"c"])
    assert gathered([b"1", body, b"2"]) == [b"1", b"ab", LARGE_BODY, b"c", b"2"]
    assert joined([b"1", body, b"2"]) == b"1ab" + LARGE_BODY + b"c2"
    assert (len(body), bytes(body)) == (LARGE + 3, b"ab" + LARGE_BODY + b"c")


def test_a_body_in_pieces_is_cut_into_amqp_frames_like_one_that_is_not() -> None:
    publication = Publication(1, 131_072, encode_publish(1, b"", b"q"), b"\x20\0", (b"",), b"")
    for size in (LARGE, 131_063, 131_064, 131_065, 262_128, 300_000):
        whole = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
        for at in (1, 5000, 131_064):
            body = LargeBody([memoryview(whole)[:at], whole[at:]])
            assert b"".join(publication.pieces(body)) == publication.encode(whole)


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("sizes", [[LARGE], [LARGE, LARGE], [LARGE, 5, 70_000], [5, LARGE, 0, 5], [300_000]])
def test_what_is_published_is_the_same_however_large_the_bodies(sizes: list[int], has_length: bool) -> None:
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/topic/t")
    play.prepare()
    play.published()
    bodies = [b"%d" % number * size for number, size in enumerate(sizes)]
    play.data(
        b"".join(
            stomp("SEND", "destination:/topic/t", *[f"content-length:{len(body)}"] * has_length, body=body)
            for body in bodies
        )
    )
    assert play.published() == [f"amq.topic t {body.decode()}" for body in bodies]


def test_a_large_body_is_not_copied_on_its_way_to_the_broker() -> None:
    publication = Publication(1, 131_072, encode_publish(1, b"", b"q"), b"\x20\0", (b"",), b"")
    for body in (b"", b"y", LARGE_BODY, b"y" * 300_000):
        pieces = publication.pieces(body)
        assert b"".join(pieces) == publication.encode(body)
        assert all(piece is body or getattr(piece, "obj", None) is body for piece in pieces if len(piece) >= LARGE)


def test_a_large_body_is_not_copied_on_its_way_to_the_client() -> None:
    play = Playbook()
    play.connect()
    subscription = play.subscribe()
    body = LARGE_BODY.decode()
    deliver(subscription, 1, body)
    found = gathered(play.session.output)
    assert [len(piece) >= LARGE for piece in found] == [False, True, False]
