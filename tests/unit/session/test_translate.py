"""Headers of SEND to AMQP properties and a headers table, and both back to the headers of a MESSAGE."""

import pytest

from gateway.amqp.properties import Properties, encode_around_table
from gateway.errors import StompError
from gateway.session.translate import properties_of_send, shown_headers, table_of_send
from gateway.stomp.frame import encode_headers
from tests.support.model_broker import read_properties

Headers = dict[bytes, bytes]


def table(headers: Headers, *gaps: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    return table_of_send(headers, gaps)


def read_table(pieces: bytes) -> dict[str, object]:
    """What pamqp reads from the entries of a table."""
    before, behind = encode_around_table(Properties())
    return dict(read_properties(before + len(pieces).to_bytes(4, "big") + pieces + behind).headers or {})


# To AMQP.


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (b"content-type", "content_type"), (b"content-encoding", "content_encoding"),
        (b"correlation-id", "correlation_id"), (b"type", "type"), (b"user-id", "user_id"), (b"app-id", "app_id"),
        (b"amqp-message-id", "message_id"), (b"expiration", "expiration"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [b"text", b"", b" spaces ", b"\xff\0\n", b"x" * 255])
def test_texts_become_properties_as_they_are(header: bytes, field: str, value: bytes) -> None:
    assert properties_of_send({header: value}, None) == Properties(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("header", [b"content-type", b"correlation-id", b"expiration", b"amqp-message-id", b"user-id"])
def test_a_text_of_more_than_255_bytes_is_an_error_that_names_the_header(header: bytes) -> None:
    with pytest.raises(StompError, match="Invalid header") as found:
        properties_of_send({header: b"x" * 256}, None)
    assert found.value.body == b"The value of '%b' has 256 octets; AMQP carries at most 255 there.\n" % header
    assert found.value.close is None


def test_a_reply_to_of_more_than_255_bytes_is_an_error() -> None:
    assert properties_of_send({}, b"/queue/" + b"x" * 248).reply_to == b"/queue/" + b"x" * 248
    with pytest.raises(StompError, match="Invalid header") as found:
        properties_of_send({}, b"/queue/" + b"x" * 249)
    assert b"'reply-to' has 256" in found.value.body


@pytest.mark.parametrize(
    ("value", "priority"), [(b"4", 4), (b" 4 ", 4), (b"+4", 4), (b"255", 255), (b"300", 44), (b"256", 0), (b"-1", 255)]
)
def test_a_priority_has_eight_bits_and_wraps(value: bytes, priority: int) -> None:
    assert properties_of_send({b"priority": value}, None).priority == priority


@pytest.mark.parametrize(
    ("value", "timestamp"), [(b"0", 0), (b"1700000000", 1_700_000_000), (b"-1", 2**64 - 1), (b"%d" % 2**64, 0)]
)
def test_a_timestamp_has_64_bits_and_wraps(value: bytes, timestamp: int) -> None:
    assert properties_of_send({b"timestamp": value}, None).timestamp == timestamp


@pytest.mark.parametrize("header", [b"priority", b"timestamp"])
@pytest.mark.parametrize("value", [b"high", b"", b"1.5", b"0x1", b"\t1", b"9" * 5000])
def test_a_number_that_is_none_is_an_error(header: bytes, value: bytes) -> None:
    with pytest.raises(StompError, match="Processing error"):
        properties_of_send({header: value}, None)


@pytest.mark.parametrize(
    ("value", "mode"),
    [(b"true", 2), (b"True", 2), (b"false", None), (b"False", None), (b"yes", None), (b"", None), (b"TRUE", None)],
)
def test_only_true_is_persistent_and_nothing_is_transient(value: bytes, mode: int | None) -> None:
    assert properties_of_send({b"persistent": value}, None).delivery_mode == mode


def test_other_headers_are_no_properties() -> None:
    assert properties_of_send({b"color": b"red", b"message_id": b"x", b"reply-to": b"not taken here"}, None) == (
        Properties()
    )


def test_every_header_that_is_no_property_is_in_the_table_last_first() -> None:
    headers = {
        b"destination": b"/queue/q", b"receipt": b"r1", b"transaction": b"t", b"content-length": b"5",
        b"id": b"9", b"ack": b"client", b"x-custom": b"1", b"durable": b"true", b"selector": b"a > b",
        b"persistent": b"true", b"reply-to": b"/queue/a", b"priority": b"1", b"content-type": b"text/plain",
    }  # fmt: skip
    (piece,), gaps = table(headers)
    assert gaps == ()
    assert list(read_table(piece).items()) == [
        ("selector", "a > b"), ("durable", "true"), ("x-custom", "1"), ("ack", "client"), ("id", "9"),
        ("content-length", "5"), ("transaction", "t"), ("receipt", "r1"),
    ]  # fmt: skip


def test_bytes_pass_untouched_into_the_table() -> None:
    (piece,), _ = table({b"latin": b"\xe9", "größe".encode(): "↑".encode(), b"": b"no name", b"empty": b""})
    assert read_table(piece) == {"empty": "", "": "no name", "größe": "↑", "latin": b"\xe9"}


def test_the_table_is_cut_where_values_belong_to_the_single_message() -> None:
    headers = {b"a": b"1", b"receipt": b"r1", b"b": b"2", b"content-length": b"5", b"c": b"3"}
    pieces, gaps = table(headers, b"receipt", b"content-length")
    assert gaps == (b"content-length", b"receipt")
    values = (b"77", b"another receipt")
    joined = pieces[0] + b"".join(
        len(value).to_bytes(4, "big") + value + piece for value, piece in zip(values, pieces[1:], strict=True)
    )
    assert read_table(joined) == {"c": "3", "content-length": "77", "b": "2", "receipt": "another receipt", "a": "1"}


def test_a_name_of_more_than_255_bytes_is_an_error() -> None:
    (piece,), _ = table({b"x" * 255: b"y"})
    assert len(piece) == 1 + 255 + 1 + 4 + 1
    with pytest.raises(StompError, match="Invalid header") as found:
        table({b"x" * 256: b"y"})
    assert found.value.body == b"The header name '%b...' has 256 octets; AMQP carries at most 255.\n" % (b"x" * 64)


# From AMQP.


def message_headers(properties: Properties) -> bytes:
    return encode_headers(shown_headers(properties))


def test_properties_become_headers_in_the_plugins_order() -> None:
    found = message_headers(
        Properties(
            content_type=b"ct",
            content_encoding=b"ce",
            headers=[(b"h", b"1"), (b"g", -2)],
            delivery_mode=2,
            priority=0,
            correlation_id=b"c:1",
            reply_to=b"answers",
            expiration=b"60",
            message_id=b"m",
            timestamp=7,
            type=b"t",
            user_id=b"u",
            app_id=b"a",
        )
    )
    assert found.decode().splitlines() == [
        "h:1", "g:-2", "app-id:a", "user-id:u", "type:t", "timestamp:7", "amqp-message-id:m", "expiration:60",
        "reply-to:/reply-queue/answers", "correlation-id:c\\c1", "priority:0", "persistent:true",
        "content-encoding:ce", "content-type:ct",
    ]  # fmt: skip


def test_a_message_without_properties_has_no_such_headers() -> None:
    assert message_headers(Properties()) == b""
    assert message_headers(Properties(headers=[])) == b""


@pytest.mark.parametrize(("mode", "line"), [(1, b"persistent:1\n"), (2, b"persistent:true\n"), (0, b"persistent:0\n")])
def test_a_delivery_mode_other_than_2_is_shown_as_a_number(mode: int, line: bytes) -> None:
    assert message_headers(Properties(delivery_mode=mode)) == line


def test_empty_texts_are_shown() -> None:
    assert message_headers(Properties(content_type=b"", headers=[(b"", b"")])) == b":\ncontent-type:\n"


def test_names_and_values_are_escaped() -> None:
    found = message_headers(Properties(headers=[(b"a:b\n", b"\\\r")], type=b"c:d"))
    assert found == b"a\\cb\\n:\\\\\\r\ntype:c\\cd\n"


@pytest.mark.parametrize(
    "name", [b"subscription", b"destination", b"message-id", b"redelivered", b"ack", b"content-length"]
)
def test_a_table_cannot_pose_as_the_servers_headers(name: bytes) -> None:
    assert message_headers(Properties(headers=[(name, b"forged"), (b"color", b"red")])) == b"color:red\n"


def test_a_property_wins_over_an_entry_of_its_name_and_an_absent_one_does_not() -> None:
    headers: list[tuple[bytes, bytes | int]] = [(b"type", b"forged"), (b"app-id", b"kept")]
    assert message_headers(Properties(headers=headers, type=b"real")) == b"app-id:kept\ntype:real\n"
