"""What is shown of a frame or an error may end in a log, so it holds no passcode."""

import traceback

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits

SECRET = "s3cr3t"


def test_no_text_about_a_frame_holds_its_passcode() -> None:
    decoder = Decoder()
    start = f"CONNECT\nlogin:guest\npasscode:{SECRET}\n".encode()
    decoder.feed(start)
    assert decoder.next_frame() is None
    for shown in (decoder, decoder._partial):
        assert SECRET not in f"{shown!r} {shown}"
    decoder.feed(b"\n\0")
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.headers[b"passcode"] == SECRET.encode()
    for thing in (frame, frame.header_block, decoder):
        assert SECRET not in f"{thing!r} {thing}"
    assert repr(frame) == "<Frame 'CONNECT' with 2 headers, 0 bytes>"


def test_a_long_command_is_not_shown_in_full() -> None:
    decoder = Decoder()
    decoder.feed(b"x" * 1_000 + b"\n\n\0")
    assert len(repr(decoder.next_frame())) < 120


@pytest.mark.parametrize(
    "lines",
    [
        "passcode {}",
        "passcode={}",
        "passcode:one\n{}",
        "{}",
        "passcode:{}\\t",
        "passcode:\\{}",
        "passcode:{}\r.",
        "passcode:{}\\",
        "passcode:{}0123456789",
        "passcode:{}\none:1\ntwo:2\nthree:3",
        "passcode:{}\nx:" + "y" * 200,
        "passcode:{}\nx:\\t",
        "passcode:{}\nx",
    ],
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP", "connect", "SEND"])
def test_no_error_shows_what_may_be_a_passcode(command: str, lines: str) -> None:
    stream = f"{command}\nlogin:guest\n{lines.format(SECRET)}\n\n\0".encode()
    for step in (1, len(stream)):
        decoder = Decoder(FrameLimits(frame=150, headers=4, header=12))
        with pytest.raises(FrameError) as raised:  # noqa: PT012
            for at in range(0, len(stream), step):
                decoder.feed(stream[at : at + step])
                decoder.next_frame()
        shown = f"{raised.value!r} {raised.value} " + "".join(traceback.format_exception(raised.value))
        assert SECRET not in shown
        assert str(raised.value)
