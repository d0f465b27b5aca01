"""What a trace shows, and its bounds: in time, frames per second, clients and bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from gateway.config.loader import parse
from gateway.errors import CloseReason
from gateway.server.client import redaction
from gateway.server.client.redaction import shown_headers
from gateway.server.client.trace import TracePart, TraceTarget, TraceTargetError
from gateway.server.client.traces import Traces, WatchedTransport
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.support.deadline import within
from tests.support.gateway import gateway_here
from tests.support.stomp_client import StompClient, encoded
from tests.support.traced_client import TracedClient

SECRET = "correct-horse-battery"
SEND = encoded("SEND", b"hello", destination="/queue/a")
EVERYBODY = TraceTarget(address="0.0.0.0/0")


@dataclass
class Clock:
    """Stands still until it is set, in seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def items(part: TracePart) -> list[dict[str, Any]]:
    return [json.loads(line.encoded) for line in part.lines]


def said(part: TracePart) -> list[str]:
    return [item.get("command") or item["event"] for item in items(part)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def traces(clock: Clock) -> Traces:
    return Traces(clock)


# What is shown.


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("CONNECT", "passcode"), ("CONNECT", "Passcode "), ("STOMP", "key"), ("connect", "x"), ("TOKEN", "token"),
        ("TOKEN", "anything"), ("SEND", "password"), ("SEND", "x-api-key"), ("SEND", "Authorization"),
        ("SUBSCRIBE", "access_token"), ("MESSAGE", "client-secret"), ("MESSAGE", "Set-Cookie"), ("INVENTED", "x"),
        ("SEND", "auth"), ("SEND", "x-auth"), ("SEND", "pin"), ("SEND", "sms.otp"), ("SEND", "sig"), ("SEND", "key"),
        ("SEND", "Key_2"), ("SEND", "x-key-id"),
    ],
)  # fmt: skip
def test_a_secret_is_not_shown(command: str, header: str) -> None:
    assert shown_headers(command.encode(), {header.encode(): SECRET.encode()}) == {header: "***"}


@pytest.mark.parametrize(
    "value",
    [
        "eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "Bearer abc", "basic Z3Vlc3Q6Z3Vlc3Q=", "amqp://guest:secret@rabbit-a:5672",
        "see eyJhbGciOiJSUzI1NiJ9.e30.c2ln", " basic geheim", "x: Bearer geheim", "token=geheim", "a=1&sig=abc",
        "https://h/?password=geheim", "auth_code=geheim", "key=geheim", '{"passcode": "geheim"}',
        "amqp://bob:ge/heim@h", "amqp://b/ob:ge@heim@h", "amqp://bob:" + "x" * 300 + "@h",
    ],
)  # fmt: skip
def test_a_value_that_looks_like_a_secret_is_not_shown(value: str) -> None:
    assert shown_headers(b"MESSAGE", {b"note": value.encode()}) == {"note": "***"}


def test_a_name_that_looks_like_a_secret_is_not_shown() -> None:
    names = (b"eyJhbGciOiJSUzI1NiJ9.e30.c2ln", b"destination", b"password=geheim")
    assert shown_headers(b"SEND", dict.fromkeys(names, b"/queue/a")) == {
        "*** 1": "/queue/a", "destination": "/queue/a", "*** 3": "***",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "is_shown_as"), [("geheim", "*** (6 bytes)"), ("connect", "connect"), ("TOKEN", "TOKEN")]
)
def test_only_a_command_of_stomp_is_shown(traces: Traces, command: str, is_shown_as: str) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 60, [client])
    client.receive(encoded(command))
    assert said(traces.take("a")) == [is_shown_as]


@pytest.mark.parametrize(
    "header",
    [
        "routing-key", "x-dead-letter-routing-key", "correlation-id", "x-message-ttl", "amqp-message-id", "app-id",
        "x-match", "expiration", "persistent", "prefetch-count", "author", "design", "keyboard", "spin", "x-assigned",
        "subscription", "reply-to", "content-encoding", "x-queue-type", "x-stream-offset", "user-id",
    ],
)  # fmt: skip
def test_an_ordinary_header_is_shown(header: str) -> None:
    for value in ("/exchange/logs/routing-key=a.b", "http://a.example:80/b", "bob@example.org 10:30", "author 7"):
        assert shown_headers(b"SEND", {header.encode(): value.encode()}) == {header: value}


def test_no_more_is_searched_for_secrets_than_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    monkeypatch.setattr(redaction, "_is_secret", searched.append)
    shown_headers(b"SEND", {b"x" * 2000 + b"%d" % number: b"y" * 100_000 for number in range(100)})
    assert sum(map(len, searched)) <= 4096


def test_what_is_no_secret_is_shown_and_bounded() -> None:
    connect = {b"accept-version": b"1.2", b"host": b"/", b"login": b"guest", b"heart-beat": b"0,0"}
    assert list(shown_headers(b"CONNECT", connect).values()) == ["1.2", "/", "guest", "0,0"]
    message = {b"destination": b"/queue/a", b"url": b"http://a.example/b?c:d", b"x": b"\xff"}
    assert list(shown_headers(b"MESSAGE", message).values()) == ["/queue/a", "http://a.example/b?c:d", "\ufffd"]
    long = shown_headers(b"SEND", {b"h%d" % number: b"x" * 100_000 for number in range(100)})
    assert len(long) == 13
    assert {len(value) for value in long.values()} == {300}


@pytest.mark.parametrize(
    ("address", "host", "is_meant"),
    [
        ("10.1.2.3", "10.1.2.3", True), ("10.1.2.3", "10.1.2.30", False), ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("10.1.2.0/24", "10.1.2.77", True), ("10.1.2.0/24", "10.1.3.77", False),
        ("10.0.0.0/8", "::ffff:10.9.9.9", True),
        ("unix:uid=1", "unix:uid=1", True), ("unix:uid=1", "10.1.2.3", False), ("10.0.0.0/8", "unix:uid=1", False),
        ("::1", "::1", True), ("fd00::/8", "fd12::1", True), ("fd00::/8", "10.1.2.3", False), ("10.0.0.0/8", "", False),
    ],
)  # fmt: skip
def test_an_address_or_a_network_is_meant(traces: Traces, address: str, host: str, is_meant: bool) -> None:
    assert traces.begin("a", TraceTarget(address=address), 60, [TracedClient(host)]) == is_meant


@pytest.mark.parametrize("target", [{}, {"login": "a", "session": "b"}, {"address": "here"}, {"address": "10.1.2.3:1"}])
def test_a_target_is_one_thing_and_has_sense(target: dict[str, str]) -> None:
    with pytest.raises(TraceTargetError):
        TraceTarget(**target)


def test_who_is_not_known_yet_is_shown_once_it_has_the_login_and_otherwise_never(traces: Traces) -> None:
    traces.begin("a", TraceTarget(login="billing"), 60, [])
    wanted, other, default = TracedClient(), TracedClient(), TracedClient()
    for client in (wanted, other, default):
        traces.arrived(client)
    wanted.receive(encoded("CONNECT", login="billing"))
    other.receive(encoded("CONNECT", login="audit"))
    default.receive(encoded("CONNECT"))
    assert said(traces.take("a")) == ["connected", "CONNECT"]
    other.facts.login, default.facts.login = b"audit", b"billing"
    for client in (other, default):
        client.send(1)
        client.receive(SEND)
    assert said(traces.take("a")) == ["connected", "CONNECT", "RECEIPT", "SEND"]
    for client in (wanted, other, default):
        traces.left(client, CloseReason.CLIENT_GONE)
    assert said(traces.take("a")) == ["closed", "closed"]


@pytest.mark.parametrize("told_by", ["an answer", "a frame"])
def test_a_client_that_says_much_at_once_is_shown_once_it_has_logged_in(traces: Traces, told_by: str) -> None:
    traces.begin("a", TraceTarget(login="billing"), 60, [])
    client, stranger = TracedClient(), TracedClient()
    for each in (client, stranger):
        traces.arrived(each)
        with each.held():
            each.receive(encoded("CONNECT") + SEND * 30)
    assert said(traces.take("a")) == []
    client.facts.login = b"billing"
    if told_by == "an answer":
        client.send(1)
    client.receive(SEND)
    part = traces.take("a")
    answers = ["RECEIPT"] * (told_by == "an answer")
    assert said(part) == ["connected", "CONNECT", *["SEND"] * 14, *answers, "SEND"]
    for each in (client, stranger):
        traces.left(each, CloseReason.CLIENT_GONE)
    rest = traces.take("a")
    assert (said(rest), part.left_out + rest.left_out) == (["closed"], 16)


def test_so_is_one_that_says_nothing_more(traces: Traces) -> None:
    traces.begin("a", TraceTarget(login="billing"), 60, [])
    client = TracedClient()
    traces.arrived(client)
    client.receive(encoded("CONNECT"))
    client.facts.login = b"billing"
    traces.sweep()
    assert said(traces.take("a")) == ["connected", "CONNECT"]


def test_what_is_missing_of_a_client_that_another_trace_shows_meanwhile_is_counted(traces: Traces) -> None:
    traces.begin("a", TraceTarget(login="billing"), 60, [])
    traces.begin("b", EVERYBODY, 60, [])
    client = TracedClient()
    traces.arrived(client)
    client.receive(SEND * 40)
    client.facts.login = b"billing"
    client.send(1)
    part = traces.take("a")
    assert (part.frames, part.left_out) == (16, 25)
    part = traces.take("b")
    assert (part.frames, part.left_out) == (41, 0)


def test_silent_clients_make_room_for_others_and_are_seen_again_once_they_have_logged_in(traces: Traces) -> None:
    silent = [TracedClient(name=f"session-{number}") for number in range(100)]
    traces.begin("a", TraceTarget(login="billing"), 60, silent[:50])
    for client in silent[50:]:
        traces.arrived(client)
    silent[0].receive(encoded("CONNECT", login="audit"))
    wanted = TracedClient()
    traces.arrived(wanted)
    wanted.receive(encoded("CONNECT", login="billing"))
    part = traces.take("a")
    assert (said(part), part.clients, part.clients_left_out) == (["connected", "CONNECT"], 1, 1)
    for client in silent[:2]:
        client.facts.login = b"billing"
        client.send(1)
        traces.logged_in(client)
        client.receive(SEND)
    # The first one had said something, and so was not the one to make room.
    assert said(traces.take("a")) == ["CONNECT", "RECEIPT", "SEND", "SEND"]


def test_who_asks_for_the_login_when_a_hundred_have_it_already_is_too_many(traces: Traces) -> None:
    others = [TracedClient(login=b"billing") for _ in range(100)]
    assert traces.begin("a", TraceTarget(login="billing"), 60, others) == 100
    late = TracedClient()
    traces.arrived(late)
    late.receive(encoded("CONNECT", login="billing"))
    part = traces.take("a")
    assert (said(part), part.clients, part.clients_left_out) == ([], 100, 1)


def test_a_line_tells_of_headers_and_the_size_of_the_body(traces: Traces) -> None:
    client = TracedClient()
    traces.begin("a", TraceTarget(session="session-a"), 60, [client])
    client.receive(SEND)
    client.receive(encoded("SEND", **{f"h{number}": "x" * 1000 for number in range(50)}))
    first, second = items(traces.take("a"))
    assert first.pop("time").endswith("Z")
    assert first == {
        "session": "session-a", "peer": "10.1.2.3:4711", "direction": "from-client", "command": "SEND",
        "headers": {"destination": "/queue/a", "content-length": "5"}, "body_bytes": 5,
    }  # fmt: skip
    assert len(second["headers"]) + second["headers_left_out"] == 50


# Bounds.


def test_what_is_too_much_for_a_second_is_left_out_and_counted_also_while_nobody_reads_the_frames(
    traces: Traces, clock: Clock
) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 60, [client])
    for _ in range(10):
        client.receive(SEND * 100)
        client.send(100)
    part = traces.take("a")
    assert (part.frames, len(part.lines)) == (200, 200)
    clock.now += 1
    client.receive(SEND * 3)
    client.send(3)
    part = traces.take("a")
    assert (part.frames, part.left_out) == (6, 1800)
    client.receive(SEND * 500)
    traces.left(client, CloseReason.CLIENT_GONE)
    part = traces.take("a")
    assert (part.frames, part.left_out, said(part)[-1]) == (194, 306, "closed")


def test_a_trace_that_has_had_enough_counts_what_another_one_shows(traces: Traces) -> None:
    client, other = TracedClient(), TracedClient(name="session-b")
    traces.begin("a", EVERYBODY, 60, [client, other])
    traces.begin("b", TraceTarget(session="session-b"), 60, [other])
    client.receive(SEND * 200)
    other.receive(SEND * 3)
    part = traces.take("a")
    assert (part.frames, part.left_out) == (200, 3)
    part = traces.take("b")
    assert (part.frames, part.left_out) == (3, 0)


def test_a_reader_that_takes_nothing_loses_lines_beyond_a_megabyte(traces: Traces, clock: Clock) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 600, [client])
    large = encoded("SEND", **{f"h{number}": "x" * 300 for number in range(10)})
    for _ in range(100):
        clock.now += 1
        client.receive(large * 10)
    traces.left(client, CloseReason.CLIENT_GONE)
    part = traces.take("a")
    assert sum(len(line.encoded) for line in part.lines) < 1_100_000
    assert part.frames + part.left_out == 1000
    assert part.frames < 400


def test_a_trace_looks_at_a_hundred_clients_and_tells_of_more(traces: Traces) -> None:
    clients = [TracedClient(name=f"session-{number}") for number in range(103)]
    assert traces.begin("a", EVERYBODY, 60, clients[:101]) == 100
    traces.left(clients[0], CloseReason.CLIENT_GONE)
    traces.arrived(clients[101])
    traces.arrived(clients[102])
    part = traces.take("a")
    assert (part.clients, part.clients_left_out) == (100, 2)


def test_a_trace_ends_with_its_time_and_lets_its_clients_go(traces: Traces, clock: Clock) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 60, [client])
    client.receive(SEND)
    client.receive(b"\n\n")
    client.transport.write(b"\n")
    clock.now += 61
    traces.sweep()
    assert type(client.decoder) is Decoder
    assert not isinstance(client.transport, WatchedTransport)
    client.receive(SEND)
    part = traces.take("a")
    assert (said(part), part.end) == (["SEND", "heart-beats"], "its time was over")
    assert (items(part)[1]["from_client"], items(part)[1]["to_client"]) == (2, 1)
    traces.end("a")
    assert not traces._running


def test_lines_that_nobody_fetches_are_not_kept_for_ever(traces: Traces, clock: Clock) -> None:
    traces.begin("a", EVERYBODY, 60, [])
    clock.now += 1000
    traces.sweep()
    assert not traces._running


def test_two_traces_see_the_same_client_and_end_on_their_own(traces: Traces) -> None:
    client = TracedClient(login=b"billing")
    traces.begin("a", EVERYBODY, 60, [client])
    traces.begin("b", TraceTarget(login="billing"), 60, [client])
    client.receive(SEND)
    assert said(traces.take("a")) == said(traces.take("b")) == ["SEND"]
    traces.end("a")
    client.receive(SEND)
    assert said(traces.take("b")) == ["SEND"]
    traces.end("b")
    assert type(client.decoder) is Decoder


def test_the_trace_of_a_session_that_is_not_there_does_not_begin(traces: Traces) -> None:
    assert traces.begin("a", TraceTarget(session="session-z"), 60, [TracedClient()]) == 0
    assert not traces._running


# In the middle of things.


def test_a_trace_that_begins_amid_a_frame_shows_what_ends_after(traces: Traces) -> None:
    """A frame whose header block came before is left out if its body has a known length."""
    client = TracedClient()
    large = encoded("SEND", b"x" * 100_000, destination="/queue/a")
    client.receive(SEND + large[:50_000])
    traces.begin("a", EVERYBODY, 60, [client])
    client.receive(large[50_000:] + SEND)
    other = TracedClient()
    other.receive(b"ACK\nid:")
    traces.begin("b", EVERYBODY, 60, [other])
    other.receive(b"7\n\n\0" + SEND)
    assert said(traces.take("a")) == ["SEND"]
    assert [item["headers"].get("id") for item in items(traces.take("b"))] == ["7", None]


def test_frames_that_wait_in_the_decoder_are_not_shown_again(traces: Traces) -> None:
    client = TracedClient()
    with client.held():
        client.receive(SEND * 3)
        traces.begin("a", EVERYBODY, 60, [client])
        client.receive(encoded("ACK", id="1"))
    traces.left(client, CloseReason.CLIENT_GONE)
    part = traces.take("a")
    assert (said(part), part.left_out) == (["ACK", "closed"], 0)


def test_frames_that_wait_in_the_decoder_are_not_taken_for_ones_that_were_left_out(
    traces: Traces, clock: Clock
) -> None:
    client = TracedClient()
    with client.held():
        client.receive(SEND * 3)
        traces.begin("a", EVERYBODY, 60, [client])
        client.receive(SEND * 300)
        clock.now += 1
        client.receive(SEND)
    client.receive(SEND)
    traces.left(client, CloseReason.CLIENT_GONE)
    part = traces.take("a")
    assert (part.frames, part.left_out) == (202, 100)


@pytest.mark.parametrize("head", [b"SEND\ndestination:/queue/a\n\n", b"SEND\ncontent-length:200\n\n"])
def test_a_trace_that_begins_within_a_skipped_body_reads_what_follows(head: bytes, traces: Traces) -> None:
    client = TracedClient()
    client.decoder.limits = FrameLimits(frame=100, skips_bodies=True)
    client.receive(head + b"x" * 100)
    traces.begin("a", EVERYBODY, 60, [client])
    client.receive(b"destination:/queue/b\n\n" + b"x" * 77)
    client.receive(b"x\0" + SEND)
    client.receive(SEND)
    traces.left(client, CloseReason.CLIENT_GONE)
    part = traces.take("a")
    assert set(said(part)) == {"SEND", "closed"}
    # All but the one that was under way. If a NUL ends its body, what comes with that is left out.
    assert part.frames + part.left_out == client.session.traffic.frames_received - 1 == 2


def test_what_a_client_has_begun_to_say_is_shown_at_its_end(traces: Traces) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 60, [client])
    client.receive(encoded("CONNECT", login="guest", passcode=SECRET)[:-1])
    traces.left(client, CloseReason.LOGIN_TIMEOUT)
    connect, closed = items(traces.take("a"))
    assert (connect["command"], connect["incomplete"]) == ("CONNECT", True)
    assert closed["reason"] == "login-timeout"


def test_what_cannot_be_read_is_told_without_its_text(traces: Traces) -> None:
    client = TracedClient()
    traces.begin("a", EVERYBODY, 60, [client])
    watched = client.decoder
    with pytest.raises(Exception, match="colon"):
        client.receive(b"CONNECT\n" + SECRET.encode() + b"\n\n\0")
    assert client.decoder is watched
    client.send(1)
    part = traces.take("a")
    assert said(part) == ["unreadable", "RECEIPT"]
    assert SECRET not in str(part)


# Faults.


@pytest.mark.parametrize("name", ["line_of", "FrameScanner"])
async def test_a_fault_of_a_trace_ends_it_and_no_session(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of the trace")

    config = parse("{listeners: [{tcp: '127.0.0.1:0'}], defaults: {journal: {level: off}}}", environment={})
    async with within(), gateway_here(config) as gateway:
        gateway.traces.begin("a", TraceTarget(address="127.0.0.1"), 60, [])
        monkeypatch.setattr(f"gateway.server.client.traces.{name}", fail)
        with structlog.testing.capture_logs() as lines:
            async with StompClient.dialled(gateway.addresses[0]) as client:
                for _ in range(2):
                    client.write("SEND", b"x", destination="/queue/a")
                    await client.expect("ERROR", message="Illegal command")
        assert gateway.traces.take("a").end == "a fault of the gateway; its log has it whole"
        assert "trace failed" in [line["event"] for line in lines]
        assert "internal error" not in [line["event"] for line in lines]
