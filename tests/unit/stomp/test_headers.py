import pytest

from gateway.errors import FrameError
from gateway.stomp.headers import escape, quoted, read_boolean, read_integer, split_line, unescape


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        (b"", b""),
        (b"a", b"a"),
        (b":", b"\\c"),
        (b"\\", b"\\\\"),
        (b"\n", b"\\n"),
        (b"\r", b"\\r"),
        (b"\\n", b"\\\\n"),
        (b"\0", b"\0"),
    ],
)
def test_escapes(plain: bytes, escaped: bytes) -> None:
    assert escape(plain) == escaped
    assert unescape(escaped) == plain


@pytest.mark.parametrize("value", [b"\\", b"\\t", b"\\:", b"\\C", b"\\\n", b"\\\xff", b"a\\\\\\"])
def test_escapes_that_are_not_defined_are_refused(value: bytes) -> None:
    with pytest.raises(FrameError, match=r"^undefined escape sequence$"):
        unescape(value)


def test_a_colon_that_came_unescaped_stays_a_colon() -> None:
    assert unescape(b"a:b\\c") == b"a:b:"
    assert split_line(b"destination:/queue/a:b\r") == (b"destination", b"/queue/a:b")


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        (b"true", True),
        (b"True", True),
        (b"false", False),
        (b"False", False),
        (b"TRUE", None),
        (b" true", None),
        (b"1", None),
        (b"", None),
        (None, None),
    ],
)
def test_booleans(value: bytes | None, meaning: bool | None) -> None:
    assert read_boolean(value) is meaning


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0),
        (b"12", 12),
        (b"-12", -12),
        (b"+12", 12),
        (b"  7 ", 7),
        (b"007", 7),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9" * 1000, 10**1000 - 1),
        (b"", None),
        (b" ", None),
        (b"-", None),
        (b"1 2", None),
        (b"1.0", None),
        (b"1e3", None),
        (b"0x1", None),
        (b"X1", None),
        (b"\t1", None),
        (b"1\n", None),
        (b"1_000", None),
        ("٣".encode(), None),
        (b"9" * 5_000, None),
    ],
)
def test_integers(value: bytes, number: int | None) -> None:
    assert read_integer(value) == number


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "'plain'"),
        ("für".encode(), "'für'"),
        (b"\xff", r"'\xff'"),
        (b"a\nb\x1b[31m\0", r"'a\nb\x1b[31m\x00'"),
        (b"x" * 65, "'" + "x" * 64 + "...'"),
        (b"", "''"),
    ],
)
def test_bytes_are_shown_short_and_without_control_characters(data: bytes, text: str) -> None:
    assert quoted(data) == text
