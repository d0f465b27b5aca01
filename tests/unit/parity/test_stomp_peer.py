"""Reading what a server sends, and showing bytes as text."""

import asyncio

import pytest

from gateway.parity.rendering import readable, unambiguous
from gateway.parity.stomp_peer import Closed, FrameReader, HeartBeat, ServerFrame, ServerFrameError, SocketPeer
from tests.support.false_server import false_server


@pytest.mark.parametrize("length", [b"abc", b"-1", b"+2", b"", b"1" * 5000])
def test_an_invalid_content_length_is_an_error(length: bytes) -> None:
    with pytest.raises(ServerFrameError, match="content-length is not a number"):
        FrameReader().feed(b"MESSAGE\ncontent-length:" + length + b"\n\nx\0\n")


def test_the_line_feed_after_nul_belongs_to_the_frame() -> None:
    reader = FrameReader()
    reader.feed(b"RECEIPT\n\n\0\n\n")
    assert [reader.take(), reader.take(), reader.take()] == [ServerFrame(b"RECEIPT", (), b""), HeartBeat(), None]


def test_a_connection_that_is_lost_while_sending_is_closed() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def talk() -> list[object]:
        async with false_server(lambda *_: b"") as address:
            peer = SocketPeer(address, 5.0)
            await peer.send("C", b"CONNECT\n\n\0")
            first = await peer.receive("C")
            for _ in range(3):
                await peer.send("C", b"SEND\n\n\0" * 1000)
            second = await peer.receive("C")
            await peer.hang_up("C")
            return [first, second]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(talk()) == [Closed(), Closed()]


def test_different_bytes_have_different_texts() -> None:
    different = [b"\xff", b"\\xff", b"\x85", "\x85".encode(), b"\\", b"\\\\", b"\\n", b"\n", "\u00a0".encode(), b"\xa0"]
    assert len({unambiguous(data) for data in different}) == len(different)
    assert [readable(data) for data in (b"\xff", "\x85".encode(), b"a\\c", "é".encode())] == [
        "\\xff",
        "\\xc2\\x85",
        "a\\c",
        "é",
    ]
