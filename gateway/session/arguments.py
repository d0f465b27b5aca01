"""Headers that become arguments of queue.declare and basic.consume, typed as AMQP's tables want them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from gateway.session import error_frames
from gateway.stomp.headers import read_boolean, read_integer

Argument = str | int | datetime | list[str]
"""A value in an AMQP table: a long string, an integer or a boolean, a timestamp in whole seconds, an array."""

_TEXT_ARGUMENTS: Final = (b"x-dead-letter-exchange", b"x-dead-letter-routing-key", b"x-queue-type", b"x-max-age")
# A long-long-int of AMQP's tables.
_NUMBER_BOUND: Final = 1 << 63
_NUMBER_ARGUMENTS: Final = (
    b"x-expires",
    b"x-max-length",
    b"x-max-length-bytes",
    b"x-max-priority",
    b"x-message-ttl",
    b"x-stream-max-segment-size-bytes",
    b"x-stream-filter-size-bytes",
)
QUEUE_ARGUMENTS: Final = frozenset((*_TEXT_ARGUMENTS, *_NUMBER_ARGUMENTS))
"""The headers that become arguments of queue.declare."""
# How a stream's offset begins; anything else in x-stream-offset is ignored, as in RabbitMQ's adapter.
_OFFSET_WORDS: Final = (b"first", b"last", b"next")
_OFFSET: Final = b"offset="
_TIMESTAMP: Final = b"timestamp="
_END_OF_TIME: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
# RabbitMQ crashes over other texts, and takes along the link and all who share it.
_AGE: Final = re.compile(r"[0-9]+[YMDhms]")


def queue_arguments(headers: Mapping[bytes, bytes]) -> dict[str, Argument]:
    """The headers that become arguments of queue.declare, typed.

    Raises:
        StompError: "Processing error" for a number or an age that is none, "Invalid header" for a text that is not
            UTF-8.
    """
    arguments: dict[str, Argument] = {}
    for name in _TEXT_ARGUMENTS:
        if name in headers:
            arguments[name.decode()] = _text(name, headers[name].strip(b" "))
    if not _AGE.fullmatch(str(arguments.get("x-max-age", "1s"))):
        raise error_frames.processing_error()
    for name in _NUMBER_ARGUMENTS:
        if name in headers:
            arguments[name.decode()] = _number(headers[name])
    return arguments


def consumer_arguments(headers: Mapping[bytes, bytes]) -> dict[str, Argument]:
    """The headers of SUBSCRIBE that become arguments of basic.consume, typed.

    Raises:
        StompError: "Processing error" for a number that is none, "Invalid header" for a text that is not UTF-8.
    """
    arguments: dict[str, Argument] = {}
    offset = _stream_offset(headers.get(b"x-stream-offset", b""))
    if offset is not None:
        arguments["x-stream-offset"] = offset
    if b"x-stream-filter" in headers:
        name = b"x-stream-filter"
        arguments["x-stream-filter"] = [_text(name, each) for each in headers[name].split(b",")]
    unfiltered = read_boolean(headers.get(b"x-stream-match-unfiltered"))
    if unfiltered is not None:
        arguments["x-stream-match-unfiltered"] = unfiltered
    if b"x-priority" in headers:
        arguments["x-priority"] = _number(headers[b"x-priority"])
    return arguments


def _stream_offset(text: bytes) -> Argument | None:
    if text in _OFFSET_WORDS:
        return text.decode()
    if text.startswith(_OFFSET):
        return _number(_bare(text[len(_OFFSET) :]))
    if text.startswith(_TIMESTAMP):
        seconds = _number(_bare(text[len(_TIMESTAMP) :]))
        # AMQP has no times before 1970, and no library writes those after 9999. A stream has messages of neither.
        return datetime.fromtimestamp(min(max(seconds, 0), _END_OF_TIME), UTC)
    return None


def _bare(number: bytes) -> bytes:
    """A number of an offset, which has no spaces around it as others may."""
    if number != number.strip(b" "):
        raise error_frames.processing_error()
    return number


def _text(name: bytes, octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise error_frames.not_text(name) from error


def _number(text: bytes) -> int:
    number = read_integer(text)
    if number is None or not -_NUMBER_BOUND <= number < _NUMBER_BOUND:
        raise error_frames.processing_error()
    return number
