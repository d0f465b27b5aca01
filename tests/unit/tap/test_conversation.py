"""What the tap makes of the bytes of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config.journal_settings import JournalSettings
from gateway.journal.privacy import DestinationNames, UserNames
from gateway.journal.session_recorder import VirtualHostJournal
from gateway.journal.writer import Clock, Writer, WriterSettings
from gateway.parity.transcript import load_transcripts
from gateway.tap import departures, tapped_session
from gateway.tap.conversation import Conversation
from gateway.tap.tapped_session import TapJournal

CONNECTED = b"CONNECTED\nsession:session-1\nheart-beat:0,0\nversion:1.2\n\n\0\n"


class _StandingClock(Clock):
    """Moves when a test says so."""

    __slots__ = ()

    def tick(self) -> None:
        """It stands."""


@dataclass
class Talk:
    """A conversation, and the lines that it has written."""

    folder: Path
    by_message: bool = True
    impl: str = "plugin"
    notes: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = _StandingClock()
        self.writer = Writer(WriterSettings(self.folder, "node", impl=self.impl), self.clock, 1)
        settings = JournalSettings(level="message" if self.by_message else "session")
        host = VirtualHostJournal(self.writer, settings, UserNames(None), DestinationNames())
        journal = TapJournal(host, is_plugin=self.impl == "plugin")
        self.heard = Conversation(
            journal, "192.0.2.1", tls=False, note=lambda whose, reason: self.notes.append((whose, reason))
        )

    def client(self, *frames: str, after: int = 0) -> None:
        self._say(frames, after, from_client=True)

    def server(self, *frames: str, after: int = 0) -> None:
        self._say(frames, after, from_client=False)

    def _say(self, frames: tuple[str, ...], after: int, *, from_client: bool) -> None:
        self.clock.now += after
        for frame in frames:
            head, _, body = frame.partition("|")
            data = head.strip().replace("; ", "\n").encode() + b"\n\n" + body.encode() + b"\0\n"
            self.hear(data, from_client=from_client)

    def hear(self, data: bytes, *, from_client: bool) -> None:
        for _ in self.heard.heard(data, from_client=from_client):
            pass

    def end(self, *, by_client: bool, is_stopping: bool = False) -> int:
        """In how many steps."""
        return sum(1 for _ in self.heard.ended(by_client=by_client, is_stopping=is_stopping))

    def log_in(self, host: str = "orders") -> None:
        self.client(f"CONNECT; accept-version:1.2; login:anna; passcode:secret-word; host:{host}")
        self.hear(CONNECTED, from_client=False)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(line) for line in self.writer.events]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["e"] == event]

    @property
    def used(self) -> set[str]:
        return {line["x"] for line in self.of("use")}


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    talk.log_in()
    yield talk
    assert b"secret-word" not in msgspec.json.encode(talk.lines)


def test_a_session_has_its_login_its_times_and_its_totals(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.client("CONNECT; accept-version:1.1,1.2; login:anna; passcode:p; host:orders", after=100)
    talk.server("CONNECTED; version:1.1; heart-beat:0,10000; session:s", after=200)
    (line,) = talk.of("conn")
    assert {key: line.get(key) for key in ("vh", "u", "ip", "ver", "hb", "l")} == {
        "vh": "orders", "u": "anna", "ip": "192.0.2.1", "ver": "1.1", "hb": "0,10000", "l": 300,
    }  # fmt: skip
    assert talk.used == {"heart-beat"}
    talk.client("DISCONNECT; receipt:1")
    talk.end(by_client=False)
    talk.end(by_client=False)
    (line,) = talk.of("end")
    assert line["x"] == "disconnect"
    assert (line["f"]["frames_in"], line["f"]["frames_out"]) == (2, 1)


@pytest.mark.parametrize(
    ("frames", "by_client", "is_stopping", "reason"),
    [
        ((), True, False, "client-gone"),
        ((), False, False, "other"),
        (("ERROR; message:not_found|",), False, False, "broker-error"),
        ((), True, True, "shutdown"),
    ],
)
def test_the_end_says_why(frames: tuple[str, ...], by_client: bool, is_stopping: bool, reason: str, talk: Talk) -> None:
    talk.server(*frames)
    talk.end(by_client=by_client, is_stopping=is_stopping)
    assert talk.of("end")[0]["x"] == reason


def test_a_receipt_confirms_its_send(talk: Talk) -> None:
    talk.client("SEND; destination:/queue/a; receipt:r1; persistent:true; x:y|hello", "SEND; destination:/queue/a|")
    talk.server("RECEIPT; receipt-id:r1", "RECEIPT; receipt-id:r1", after=700)
    first, second = talk.of("send")
    assert (first["d"], first["dk"], first["m"], first["b"], first["p"], first["rc"]) == (
        "/queue/a", "queue", 1, 5, True, True,
    )  # fmt: skip
    assert second["m"] == 2
    (confirm,) = talk.of("conf")
    assert (confirm["m"], confirm["l"]) == (1, 700)
    assert talk.used == {"queue", "receipt", "persistent", "user-headers"}


def test_frames_in_front_of_connected_count(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.client("CONNECT; accept-version:1.2", "SUBSCRIBE; id:1; destination:/topic/a", "SEND; destination:/topic/a|x")
    talk.hear(CONNECTED, from_client=False)
    assert [line["e"] for line in talk.lines if line["e"] != "use"] == ["conn", "sub", "send"]


def test_a_client_that_leaves_out_connect_has_a_session(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.client("SEND; destination:/queue/a; receipt:1|x")
    talk.server("RECEIPT; receipt-id:1", after=5)
    assert "implicit-connect" in talk.used
    assert talk.of("conf")[0]["l"] == 5


def test_version_1_0_has_spaces_in_front_of_values(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.client("CONNECT; login: anna; passcode: p", "SUBSCRIBE; destination: /queue/a; ack: client")
    talk.server("CONNECTED; session: 1", "MESSAGE; destination: /queue/a; message-id: 7|x")
    talk.client("ACK; message-id: 7", after=3)
    assert talk.of("conn")[0]["u"] == "anna"
    assert talk.of("ack")[0]["l"] == 3


def message(number: int, subscription: int = 1, more: str = "") -> str:
    return f"MESSAGE; subscription:{subscription}; message-id:m{number}; ack:a{number}; destination:/queue/a{more}|body"


def test_acknowledgements_are_timed_from_the_delivery(talk: Talk) -> None:
    talk.client("SUBSCRIBE; id:1; destination:/queue/a; ack:client-individual; prefetch-count:5")
    talk.server(message(1), message(2, more="; redelivered:true"), message(3), after=100)
    talk.client("ACK; id:a2", after=10)
    talk.client("NACK; id:a1; requeue:false", after=10)
    talk.client("NACK; id:a3", "ACK; id:a3", after=10)
    assert [(line["m"], line["b"], line.get("r", False)) for line in talk.of("dlv")] == [
        (1, 4, False), (2, 4, True), (3, 4, False),
    ]  # fmt: skip
    assert [(line["m"], line["l"]) for line in talk.of("ack")] == [(2, 10)]
    assert [(line["m"], line["x"], line["l"]) for line in talk.of("nack")] == [(1, "discard", 20), (3, "requeue", 30)]
    (line,) = talk.of("sub")
    assert (line["pf"], line["am"]) == (5, "client-individual")
    talk.client("UNSUBSCRIBE; id:1")
    assert talk.of("unsub")[0].get("n", 0) == 0


@pytest.mark.parametrize(("impl", "acknowledged"), [("plugin", {"1": 2, "2": 1}), ("other", {"1": 2})])
def test_an_ack_of_a_client_counts_for_all_before_it(impl: str, acknowledged: dict[str, int], tmp_path: Path) -> None:
    talk = Talk(tmp_path, impl=impl)
    talk.log_in()
    talk.client(*(f"SUBSCRIBE; id:{each}; destination:/queue/a; ack:client" for each in (1, 2)))
    talk.server(message(1), message(2, 2), message(3), message(4))
    talk.client("ACK; id:a3")
    found: dict[str, int] = {}
    for line in talk.of("ack"):
        found[line["s"]] = found.get(line["s"], 0) + line.get("n", 1)
    assert found == acknowledged
    assert (departures.OTHER_SUBSCRIPTIONS in talk.used) == (impl == "plugin")


def test_at_level_session_there_are_counts(tmp_path: Path) -> None:
    talk = Talk(tmp_path, by_message=False)
    talk.log_in()
    talk.client("SUBSCRIBE; id:1; destination:/queue/a; ack:client", "SUBSCRIBE; id:2; destination:/queue/b")
    for number in range(3):
        talk.client(f"SEND; destination:/queue/a; receipt:{number}|12345")
        talk.server(f"RECEIPT; receipt-id:{number}", message(number), after=20)
    talk.server(message(9, 2))
    talk.client("ACK; id:a2", after=10)
    assert not talk.of("stat")
    talk.heard.time_passed()
    assert not talk.of("stat")
    talk.clock.now += 10_000_000
    talk.heard.time_passed()
    counts = {line.get("s", ""): line["cnt"] for line in talk.of("stat")}
    assert counts == {
        "": {"send": 3, "send_bytes": 15, "conf": 3},
        "1": {"dlv": 3, "dlv_bytes": 12, "ack": 3},
        "2": {"dlv": 1, "dlv_bytes": 4},
    }
    assert sum(next(line["h"] for line in talk.of("stat") if line.get("s") == "1").values()) == 3
    talk.end(by_client=True)
    assert talk.of("end")[0]["f"]["max_unacked"] == 3


def test_what_is_heard_later_has_the_time_when_it_passed(talk: Talk) -> None:
    at = talk.clock.now
    for _ in talk.heard.heard(b"SEND\ndestination:/topic/a\n\n\0" * 30, from_client=True):
        talk.clock.now += 1000
    assert {line["t"] for line in talk.of("send")} == {at + talk.clock.offset}


def test_many_subscriptions_end_one_after_the_other(talk: Talk) -> None:
    talk.client(*(f"SUBSCRIBE; id:{number}; destination:/topic/a" for number in range(30)))
    assert talk.end(by_client=True) == len(talk.of("unsub")) == 30
    assert talk.lines[-1]["e"] == "end"


def test_a_durable_subscription_has_the_name_of_its_queue(talk: Talk) -> None:
    talk.client("SUBSCRIBE; id:shop; destination:/topic/orders; durable:true; auto-delete:false")
    (line,) = talk.of("sub")
    assert line["du"] is True
    # The one that RabbitMQ's plugin computes, and the gateway too.
    assert line["sn"].startswith("stomp-subscription-")
    talk.client("UNSUBSCRIBE; id:shop; durable:true")
    assert talk.of("unsub")[0]["x"] == "deleted"


def test_replies_come_without_a_subscription(talk: Talk) -> None:
    talk.client("SEND; destination:/queue/ask; reply-to:/temp-queue/answers|?")
    talk.server("MESSAGE; subscription:/temp-queue/answers; message-id:1; destination:/reply-queue/x|!")
    assert "temp-queue" in talk.used
    assert (talk.of("dlv")[0]["d"], talk.of("dlv")[0]["s"]) == ("/temp-queue/*", "/temp-queue/*")


def test_errors_have_a_code_and_no_text(talk: Talk) -> None:
    talk.server("ERROR; message:not_found; content-type:text/plain|no queue 'secret-word'")
    talk.server("ERROR; message:secret-word|")
    assert [line["x"] for line in talk.of("err")] == ["not-found", "other"]


def test_what_cannot_be_read_ends_one_side_only(talk: Talk) -> None:
    talk.client("SEND; destination:/queue/a|1")
    talk.hear(b"\x16\x03\x01 no frame\n", from_client=True)
    talk.client("SEND; destination:/queue/a|2")
    talk.server("ERROR; message:not_found|")
    assert [whose for whose, _ in talk.notes] == ["client"]
    assert (len(talk.of("send")), len(talk.of("err"))) == (1, 1)
    assert departures.MALFORMED in talk.used


def test_what_a_client_makes_the_tap_remember_is_bounded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MAX_RECEIPTS", "_MAX_UNACKED", "_MAX_SUBSCRIPTIONS"):
        monkeypatch.setattr(tapped_session, name, 10)
    long = "x" * 2000
    talk.client(f"SEND; destination:/queue/a; receipt:{long}|", f"SUBSCRIBE; id:{long}; destination:/queue/a")
    for number in range(30):
        talk.client(
            f"SEND; destination:/queue/a; receipt:{number}|",
            f"SUBSCRIBE; id:{number}; destination:/queue/a; ack:client-individual",
        )
    talk.server(*(message(number, 1) for number in range(30)), message(31, 1).replace("a31", "a" * 2000))
    heard = talk.heard._session
    assert heard is not None
    assert (len(heard._receipts), len(heard._unacked), len(heard._subscriptions)) == (10, 10, 10)
    assert not [each for each in (*heard._receipts, *heard._subscriptions, *heard._unacked) if len(each) > 1024]
    talk.server("RECEIPT; receipt-id:25")
    talk.client("ACK; id:a25", "ACK; id:a1")
    assert (len(talk.of("conf")), len(talk.of("ack"))) == (0, 1)


def test_what_comes_before_a_login_is_bounded(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    for _ in range(100):
        talk.client(f"SEND; destination:/queue/{'x' * 1000}|")
    assert len(talk.heard._early) < 70
    small = Talk(tmp_path)
    for _ in range(3000):
        small.client("NACK")
    assert len(small.heard._early) == 1000


# Rules in which the gateway differs.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "\\c\\c1"])
def test_a_virtual_host_that_is_called_as_the_machine_is_found(host: str, tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.log_in(host)
    assert talk.used == {"connect/host-localhost"}


def test_each_rule_is_one_in_which_the_gateway_differs() -> None:
    assert set(departures.RULES) <= {each.name for each in load_transcripts() if each.departures}


@pytest.mark.parametrize(
    ("rule", "frames"),
    [
        ("connect/second-connect", ["C CONNECT; accept-version:1.2"]),
        ("error/receipt-id", ["C COMMIT; transaction:t; receipt:1", "S ERROR; message:Bad transaction|"]),
        (
            "subscribe/refused-receipt",
            ["C SUBSCRIBE; id:1; destination:/amq/queue/a; receipt:1", "S ERROR; message:not_found|",
             "S RECEIPT; receipt-id:1"],
        ),
        ("receipt/disconnect-after-send", ["C SEND; destination:/queue/a; receipt:1|", "C DISCONNECT"]),
        ("acknowledge/other-session", ["C ACK; id:T_1@@session-other@@1"]),
        (
            "acknowledge/unsubscribe-gives-back",
            ["C SUBSCRIBE; id:1; destination:/queue/a; ack:client", f"S {message(1)}", "C UNSUBSCRIBE; id:1"],
        ),
        (
            "frame/escapes-message-id",
            ["C SUBSCRIBE; id:a\\cb; destination:/queue/a",
             "S MESSAGE; subscription:a\\cb; message-id:T_a:b@@s@@1; destination:/queue/a|"],
        ),
        (
            "subscribe/stream-nack",
            ["C SUBSCRIBE; id:1; destination:/queue/a; ack:client; x-queue-type:stream", f"S {message(1)}",
             "C NACK; id:a1"],
        ),
        (
            "subscribe/prefetch-next",
            ["C SUBSCRIBE; id:1; destination:/queue/a; prefetch-count:1", "C SUBSCRIBE; id:2; destination:/queue/b"],
        ),
        ("acknowledge/id-with-separator", ["C SUBSCRIBE; id:a@@b; destination:/queue/a; ack:client"]),
        ("subscribe/prefetch-negative", ["C SUBSCRIBE; id:1; destination:/queue/a; prefetch-count:-1"]),
        ("subscribe/stream-auto", ["C SUBSCRIBE; id:1; destination:/queue/a; x-stream-offset:first"]),
        ("durable/exchange-offline", ["C SUBSCRIBE; id:1; destination:/exchange/a/b; durable:true"]),
        ("send/persistent-false-queue", ["C SEND; destination:/queue/a; persistent:false|"]),
        ("send/header-collision", ["C SEND; destination:/queue/a; message-id:mine|"]),
        ("destination/name-too-long", [f"C SEND; destination:/queue/{'x' * 256}|"]),
        ("send/property-too-long", [f"C SEND; destination:/queue/a; correlation-id:{'x' * 256}|"]),
        ("send/number-wraps-stomp", ["C SEND; destination:/queue/a; priority:300|"]),
    ],
)  # fmt: skip
def test_a_use_that_the_gateway_answers_differently_has_the_rules_name(
    rule: str, frames: list[str], tmp_path: Path
) -> None:
    for impl in ("plugin", "other"):
        talk = Talk(tmp_path, impl=impl)
        talk.log_in()
        for frame in frames:
            (talk.client if frame.startswith("C") else talk.server)(frame[2:])
        assert (rule in talk.used) == (impl == "plugin"), talk.used
        assert impl == "plugin" or not [each for each in talk.used if "/" in each]


def test_usual_traffic_has_no_rules_name(talk: Talk) -> None:
    talk.client(
        "SUBSCRIBE; id:1; destination:/queue/a; ack:client; prefetch-count:10; receipt:0",
        "SUBSCRIBE; id:2; destination:/topic/b; prefetch-count:10; durable:true",
        "SEND; destination:/queue/a; receipt:1; persistent:true; priority:4; correlation-id:1; reply-to:/queue/b|x",
    )
    talk.server("RECEIPT; receipt-id:0", "RECEIPT; receipt-id:1", message(1))
    talk.client("ACK; id:a1", "UNSUBSCRIBE; id:1", "DISCONNECT; receipt:3")
    assert not [each for each in talk.used if "/" in each]
