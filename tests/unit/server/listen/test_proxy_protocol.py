"""PROXY headers: bytes in, an address or an error out, and never a byte too many."""

from __future__ import annotations

import contextlib
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PORTS = struct.pack("!HH", 1000, 2000)
INET = bytes((10, 1, 1, 1, 10, 2, 2, 2)) + PORTS
INET6 = ip_address("fe80::1").packed + ip_address("::2").packed + PORTS


def binary(rest: bytes = INET, *, version_and_command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + bytes((version_and_command, family)) + struct.pack("!H", len(rest)) + rest


def read(stream: bytes) -> tuple[Peer | None, bytes]:
    """Read a header as a listener does, each time as much as is asked for; the rest of the stream is left."""
    header = b""
    while missing := bytes_missing(header):
        data, stream = stream[:missing], stream[missing:]
        if not data:
            raise EOFError
        header += data
    return parse_header(header), stream


FOUND = {
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n": Peer("10.1.1.1", 1000),
    b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n": Peer("255.255.255.255", 65535),
    b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n": Peer("0.0.0.0", 0),  # noqa: S104 - compared with
    b"PROXY TCP6 fe80::1 ::2 1000 2000\r\n": Peer("fe80::1", 1000),
    b"PROXY TCP6 ::ffff:10.1.1.1 ::2 1000 2000\r\n": Peer("10.1.1.1", 1000),
    b"PROXY TCP6 " + b" ".join([b"ffff:" * 7 + b"ffff"] * 2) + b" 65535 65535\r\n": Peer("ffff:" * 7 + "ffff", 65535),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN " + b" ".join([b"ffff:" * 7 + b"ffff"] * 2) + b" 65535 65535\r\n": None,
    b"PROXY UNKNOWN anything at all\r\n": None,
    b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n": None,
    binary(): Peer("10.1.1.1", 1000),
    binary(family=0x12): Peer("10.1.1.1", 1000),
    binary(INET6, family=0x21): Peer("fe80::1", 1000),
    binary(INET + b"\x04\0\3abc"): Peer("10.1.1.1", 1000),
    binary(INET + b"x" * 4084): Peer("10.1.1.1", 1000),
    binary(b"/socket".ljust(216, b"\0"), family=0x31): None,
    binary(b"", family=0): None,
    binary(b"more", family=0): None,
    binary(b"", version_and_command=0x20, family=0): None,
    binary(version_and_command=0x20): None,
    binary(b"any", version_and_command=0x20, family=0xFF): None,
}


@pytest.mark.parametrize(("header", "peer"), FOUND.items(), ids=lambda value: repr(value)[:60])
@pytest.mark.parametrize("rest", [b"", b"\x16\x03\x01", b"CONNECT\n\n\0", b"PROXY UNKNOWN\r\n", b"\r\n"])
def test_a_header_is_read_to_its_end_and_no_further(header: bytes, peer: Peer | None, rest: bytes) -> None:
    assert read(header + rest) == (peer, rest)


REFUSED = [
    b"CONNECT\naccept-version:1.2\n\n\0",
    b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3aaaaaaaaaaaaaaaaa",
    b"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
    b"proxy TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY  TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4  10.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000 \r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000 x\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000\r\n",
    b"PROXY TCP4 10.1.1.256 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 010.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 10.1 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 localhost 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 10.1.1.1 nowhere 1000 2000\r\n",
    b"PROXY TCP4 ::1 ::2 1000 2000\r\n",
    b"PROXY TCP6 10.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 65536 2000\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 65536\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 -1 2000\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 +1 2000\r\n",
    b"PROXY UDP4 10.1.1.1 10.2.2.2 1000 2000\r\n",
    b"PROXY UNKNOWNS\r\n" + b"\r\n",
    b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000\n",
    b"PROXY UNKNOWN\nxx",
    b"PROXY UNKNOWN " + b"x" * 200 + b"\r\n",
    b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
    binary(version_and_command=0x31),
    binary(version_and_command=0x11),
    binary(version_and_command=0x22),
    binary(family=0x41),
    binary(family=0x13),
    binary(family=0x10),
    binary(INET + b"x" * 4085),
    binary(INET[:-1]),
    binary(INET, family=0x21),
    binary(b"", family=0x31),
    SIGNATURE[:-1] + b"x" + binary()[12:],
]


@pytest.mark.parametrize("header", REFUSED, ids=lambda value: repr(value)[:60])
def test_anything_else_is_refused(header: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read(header)


def test_a_header_that_is_too_long_is_refused_before_the_rest_of_it_comes() -> None:
    with pytest.raises(ProxyHeaderError, match="longer than 4096 bytes"):
        bytes_missing(binary(b"x" * 4097)[:16])


def test_what_is_no_header_is_refused_at_its_first_byte() -> None:
    with pytest.raises(ProxyHeaderError, match="does not begin with a PROXY header"):
        bytes_missing(b"C")


@pytest.mark.parametrize("header", FOUND, ids=lambda value: repr(value)[:60])
def test_a_header_may_come_in_any_pieces(header: bytes) -> None:
    for size in range(min(len(header), 200)):
        missing = bytes_missing(header[:size])
        assert 0 < missing <= len(header) - size


likely = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda rest: b"PROXY " + rest, st.binary(max_size=120)),
    st.builds(lambda rest: b"PROXY TCP4 " + rest.encode() + b"\r\n", st.text("0123456789. -", max_size=60)),
    st.builds(lambda rest: SIGNATURE + rest, st.binary(max_size=300)),
    st.builds(
        binary, st.binary(max_size=250), version_and_command=st.sampled_from((0x20, 0x21)), family=st.integers(0, 255)
    ),
)


@given(likely)
def test_any_bytes_give_an_address_or_an_error(data: bytes) -> None:
    try:
        peer, _ = read(data)
    except (ProxyHeaderError, EOFError):
        return
    if peer is not None:
        assert str(ip_address(peer.host)) == peer.host
        assert 0 <= peer.port <= 65535


@given(st.binary(max_size=300))
def test_any_bytes_taken_for_a_complete_header_give_an_address_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ProxyHeaderError):
        peer = parse_header(data)
        assert peer is None or str(ip_address(peer.host)) == peer.host


@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 65535), st.integers(0, 65535))
def test_any_address_comes_through_in_both_versions(source: object, target: object, port: int, other: int) -> None:
    one, two = ip_address(str(source)), ip_address(str(target))
    if one.version != two.version:
        two = one
    line = f"PROXY TCP{one.version} {one} {two} {port} {other}\r\n".encode()
    addresses = one.packed + two.packed + struct.pack("!HH", port, other)
    header = binary(addresses, family=0x11 if one.version == 4 else 0x21)
    shown = str(getattr(one, "ipv4_mapped", None) or one)
    assert read(line) == read(header) == (Peer(shown, port), b"")


# Who counts as local.


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1"])
def test_the_loopback_addresses_are_local(host: str) -> None:
    assert Peer(host, 1).is_local


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost"],  # noqa: S104
)
def test_no_other_address_is_local(host: str) -> None:
    assert not Peer(host, 1).is_local


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("127.0.0.1", 5), "127.0.0.1:5"),
        (("fe80::1", 5, 0, 2), "[fe80::1]:5"),
        (None, "unknown"),
        ("", "unknown"),
    ],
)
def test_an_address_is_written_with_its_port(name: object, text: str) -> None:
    assert str(Peer.named(name)) == text
