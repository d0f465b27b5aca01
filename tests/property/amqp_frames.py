"""What pamqp, the oracle, makes of messages: content headers with every type of a headers table, and whole frames."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pamqp import body, commands, common, frame, header

from gateway.amqp.properties import Properties

channels = st.integers(1, 0xFFFF)
tags = st.integers(0, 2**63 - 1)  # pamqp takes them for signed

_characters = st.characters(exclude_categories=["Cs"])


def texts(longest: int, shortest: int = 0) -> st.SearchStrategy[str]:
    """Texts of so many bytes in UTF-8."""
    return st.text(_characters, min_size=shortest, max_size=min(longest, 20)).filter(
        lambda text: len(text.encode()) <= longest
    ) | st.sampled_from(["x" * longest, "é" * (longest // 2)])


# pamqp takes an empty text for an absent one.
optional_texts = st.none() | texts(255, shortest=1)
exchanges = st.text("abz019-_.:@#,/ ", max_size=20) | st.just("x" * 127)
# pamqp cuts the names of headers at 128 bytes.
header_names = texts(128)
string_tables = st.dictionaries(header_names, texts(2_000), max_size=5)

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**31) - 1, -(2**31), -32_769, -129, 0, 128, 65_535, 65_536, 2**31 - 1, 2**31, 2**32])
    | st.floats(width=32, allow_nan=False)
    | st.integers(-(2**31), 2**31 - 1).map(lambda number: Decimal(number).scaleb(-2))
    | st.text(_characters, max_size=20)
    | st.datetimes(datetime(1970, 1, 1), datetime(2400, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
    | st.binary(max_size=20).map(bytearray)
)
_nested = st.recursive(
    _scalars,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(header_names, values, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(header_names, _scalars | _nested, max_size=8)


@st.composite
def properties(draw: st.DrawFn, headers: st.SearchStrategy[Mapping[str, Any]]) -> commands.Basic.Properties:
    """Properties as pamqp sees them, with a headers table in any case."""
    return commands.Basic.Properties(
        content_type=draw(optional_texts),
        content_encoding=draw(optional_texts),
        headers=dict(draw(headers)),
        delivery_mode=draw(st.sampled_from([None, 1, 2])),
        priority=draw(st.none() | st.integers(0, 255)),
        correlation_id=draw(optional_texts),
        reply_to=draw(optional_texts),
        expiration=draw(optional_texts),
        message_id=draw(optional_texts),
        timestamp=draw(st.none() | st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))),
        message_type=draw(optional_texts),
        user_id=draw(optional_texts),
        app_id=draw(optional_texts),
    )


def as_bytes(text: str | None) -> bytes | None:
    """A text as the wire has it."""
    return None if text is None else text.encode()


def shown(headers: common.FieldTable) -> list[tuple[bytes, bytes | int]]:
    """The entries of a table that STOMP can show, in pamqp's order.

    Besides texts these are the integers for which pamqp needs 32 bits with a sign, or more than 32.
    """
    entries: list[tuple[bytes, bytes | int]] = []
    for name, value in sorted(headers.items()):
        if isinstance(value, str):
            entries.append((name.encode(), value.encode()))
        elif isinstance(value, int) and not isinstance(value, bool):
            smaller = -(2**15) <= value < 2**16
            unsigned = 2**31 <= value < 2**32
            if not smaller and not unsigned:
                entries.append((name.encode(), value))
    return entries


def hand_made(given: commands.Basic.Properties) -> Properties:
    """The same properties in the gateway's own words."""
    return Properties(
        content_type=as_bytes(given.content_type),
        content_encoding=as_bytes(given.content_encoding),
        headers=shown(given.headers or {}),
        delivery_mode=given.delivery_mode,
        priority=given.priority,
        correlation_id=as_bytes(given.correlation_id),
        reply_to=as_bytes(given.reply_to),
        expiration=as_bytes(given.expiration),
        message_id=as_bytes(given.message_id),
        timestamp=None if given.timestamp is None else int(given.timestamp.timestamp()),
        type=as_bytes(given.message_type),
        user_id=as_bytes(given.user_id),
        app_id=as_bytes(given.app_id),
    )


def content_frames(channel: int, given: commands.Basic.Properties, data: bytes, frame_max: int) -> list[bytes]:
    """Content header and body as pamqp writes them, the body cut to fit the frames."""
    step = frame_max - 8 if frame_max else max(1, len(data))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    return [
        frame.marshal(header.ContentHeader(body_size=len(data), properties=given), channel),
        *(frame.marshal(body.ContentBody(piece), channel) for piece in pieces),
    ]
