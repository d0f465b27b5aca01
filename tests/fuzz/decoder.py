"""The target for the decoder: one stream, read in several ways that must agree, within its limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame
from tests.fuzz.script import Event, read_script
from tests.fuzz.violation import demand

# Roomy limits, and such as an input can reach.
LIMITS: Final = (
    FrameLimits(),
    FrameLimits(frame=200, headers=4, header=40),
    FrameLimits(frame=60, headers=3, header=12),
)

# Header blocks that a decoder caches at most; gateway/stomp/block_cache.py bounds their bytes.
_REMEMBERED: Final = 2000

# Reading byte by byte shows the most, and costs the most.
_LONGEST_BY_BYTE: Final = 2000

Found = tuple[bytes, tuple[tuple[bytes, bytes], ...], bytes, bytes | None]


def check_decoder(data: bytes) -> None:
    """Read an input as a stream: as it is cut, in one piece, byte by byte, and without the decoder's memory.

    Args:
        data: any input; of its events only the cuts matter.

    Raises:
        ViolationError: a promise of the decoder is broken.
        Exception: the decoder raised what it must not.
    """
    script = read_script(data)
    limits = LIMITS[script.setting % len(LIMITS)]
    pieces = [step for step in script.steps if not isinstance(step, Event)]
    stream = b"".join(pieces)
    whole = _read([stream], limits)
    slow = _read([stream], limits, forgetful=True)
    demand(slow == whole, f"the slow path reads the same: {slow} and not {whole}")
    _compare(_read(pieces, limits), whole, limits)
    if len(stream) <= _LONGEST_BY_BYTE:
        _compare(_read([stream[at : at + 1] for at in range(len(stream))], limits), whole, limits)


def _compare(split: tuple[list[Found], str | None], whole: tuple[list[Found], str | None], limits: FrameLimits) -> None:
    demand(split[0] == whole[0], f"any split gives the same frames: {split} and not {whole}")
    # Of two violations in one frame, the pieces may show the one or the other first when a limit is among them.
    same = split[1] == whole[1] if limits is LIMITS[0] else (split[1] is None) == (whole[1] is None)
    demand(same, f"any split gives the same error: {split} and not {whole}")


def _read(pieces: Iterable[bytes], limits: FrameLimits, *, forgetful: bool = False) -> tuple[list[Found], str | None]:
    decoder = Decoder(limits)
    frames: list[Found] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            demand(decoder.buffered <= limits.frame + len(piece), "what is buffered is a frame and a read at the most")
            while (frame := _next(decoder, forgetful)) is not None:
                frames.append(_found(frame, limits))
            demand(decoder.buffered <= limits.frame, "what is left over is less than a frame")
            demand(
                max(len(decoder._header_blocks), len(decoder._sized_blocks)) <= _REMEMBERED,
                "the memory of blocks is bounded",
            )
    except FrameError as error:
        demand(bool(str(error)), "an error says what is wrong")
        return frames, str(error)
    return frames, None


def _next(decoder: Decoder, forgetful: bool) -> Frame | None:
    if forgetful:
        decoder._header_blocks.clear()
        decoder._sized_blocks.clear()
    return decoder.next_frame()


def _found(frame: Frame, limits: FrameLimits) -> Found:
    headers = frame.headers
    demand(len(headers) <= limits.headers, "no frame has more headers than it may")
    longest = max((len(each) for pair in headers.items() for each in pair), default=0)
    demand(longest <= limits.header, "no header is longer than it may be")
    demand(len(frame.body) < limits.frame, "no body is longer than a frame may be")
    return frame.command, tuple(headers.items()), bytes(frame.body), frame.receipt
