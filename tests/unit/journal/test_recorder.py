"""What a session writes, line by line, with a clock that is set by hand and no broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec
import pytest
from pamqp import header

from gateway.amqp import properties as amqp
from gateway.config.journal_settings import JournalSettings
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason
from gateway.journal.histogram import bucket_of
from gateway.journal.privacy import DestinationNames, UserNames
from gateway.journal.recorder import Recorder
from gateway.journal.schema import Line
from gateway.journal.session_lines import MAX_TIMES, CumulativeDeliveryTimes
from gateway.journal.session_recorder import VirtualHostJournal
from gateway.journal.writer import Clock, Writer
from gateway.pieces import joined
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import Hold
from gateway.session.translate import PUBLISHED
from tests.support.playbook import NO_PROPERTIES, TO_QUEUE, Playbook, ack_id, amqp_frames, deliver

_START = 1_795_219_200_000_000


class ManualClock(Clock):
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now, self.offset = 0, _START

    def tick(self) -> None:
        pass


class RecordingWriter:
    """A writer that only keeps what it is given."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.boot = "0123456789abcdef"
        self.events: list[Line] = []

    def next_session(self) -> int:
        return 7

    def put(self, event: Line) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass

    def lines(self, *names: str) -> list[dict[str, Any]]:
        """The lines of some events, without what they all have."""
        found = [msgspec.json.decode(msgspec.json.encode(event)) for event in self.events]
        common = ("t", "q", "c", "vh", "u")
        return [{k: v for k, v in line.items() if k not in common} for line in found if line["e"] in names]


class JournalledSession:
    """A session that is journalled."""

    def __init__(
        self, level: str, max_destinations: int = 10_000, *, before: str | None = None, correlate: bool = False,
        compatibility: Literal["released", "next"] = "released",
    ) -> None:  # fmt: skip
        self.writer = RecordingWriter()
        self.play = Playbook(VirtualHost(name="/", selectors=True, compatibility=compatibility))
        writer, destinations = cast(Writer, self.writer), DestinationNames((), max_destinations)
        settings = JournalSettings.model_validate({"level": level, "correlate": correlate})
        journal = VirtualHostJournal(writer, settings, UserNames(None), destinations)
        session = self.play.session

        def observe() -> Recorder:
            self.recorder = Recorder(journal, session, "/", -2_000, peer="192.0.2.1", tls=False)
            return self.recorder

        session.set_client(ClientFacts(), observe)
        if before is not None:
            self.play.client(before)
            assert self.play.said()  # an ERROR
        self.play.connect()

    def wait(self, milliseconds: int) -> None:
        self.writer.clock.now += milliseconds * 1000

    def end(self, reason: CloseReason = CloseReason.DISCONNECT) -> None:
        for _ in self.recorder.ended(reason, 100, 200):
            pass


@pytest.fixture
def journalled() -> Callable[[str], JournalledSession]:
    return JournalledSession


def test_a_session_begins_with_who_it_is_and_how_long_that_took(journalled: Callable[[str], JournalledSession]) -> None:
    found = journalled("session").writer.lines("conn")
    assert found == [{"e": "conn", "ip": "192.0.2.1", "ver": "1.2", "hb": "0,0", "l": 2000}]


def test_confirms_and_acknowledgements_carry_their_latency(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("message")
    play = at.play
    play.client("SEND", "destination:/queue/q", "receipt:r")
    play.prepare()
    at.wait(3)
    play.confirm(1)
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1, "hello")
    at.wait(5)
    deliver(subscription, 2, "you", redelivered=True)
    at.wait(10)
    play.client("ACK", f"id:{ack_id(subscription, 2)}")
    play.client("NACK", f"id:{ack_id(subscription, 1)}", "requeue:false")
    assert at.writer.lines("conf", "ack", "nack") == [
        {"e": "conf", "d": "/queue/q", "dk": "queue", "m": 1, "l": 3000},
        {"e": "ack", "d": "/queue/q", "dk": "queue", "s": "1", "am": "client-individual", "m": 2, "l": 10_000},
        {
            "e": "nack", "d": "/queue/q", "dk": "queue", "s": "1", "am": "client-individual", "m": 1, "x": "discard",
            "l": 15_000,
        },
    ]  # fmt: skip


def test_a_cumulative_acknowledgement_is_a_line_per_moment_of_delivery(
    journalled: Callable[[str], JournalledSession],
) -> None:
    at = journalled("message")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    at.wait(4)
    for tag in (4, 5):
        deliver(subscription, tag)
    at.wait(1)
    at.play.client("ACK", f"id:{ack_id(subscription, 5)}")
    found = [(line.get("n", 1), line["l"], line["m"]) for line in at.writer.lines("ack")]
    assert found == [(3, 5000, 3), (2, 1000, 5)]


def test_counts_come_every_ten_seconds_and_begin_anew(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1, "12345")
    deliver(subscription, 2, "12345", redelivered=True)
    at.wait(2)
    at.play.client("ACK", f"id:{ack_id(subscription, 2)}")
    at.recorder.time_passed()
    assert at.writer.lines("stat") == []
    at.wait(10_000)
    at.recorder.time_passed()
    at.wait(10_000)
    at.recorder.time_passed()
    assert at.writer.lines("stat") == [
        {
            "e": "stat", "d": "/queue/q", "dk": "queue", "s": "1", "am": "client",
            "cnt": {"dlv": 2, "dlv_bytes": 10, "redelivered": 1, "ack": 2}, "h": {f"ack:{bucket_of(2000)}": 2},
        }
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["session", "message"])
def test_the_end_sums_up_and_ends_every_subscription_first(
    journalled: Callable[[str], JournalledSession], level: str
) -> None:
    at = journalled(level)
    subscription = at.play.subscribe("1", "/topic/a.b", "ack:client", "durable:true", "auto-delete:false")
    for tag in range(1, 5):
        deliver(subscription, tag)
    at.play.client("ACK", f"id:{ack_id(subscription, 1)}")
    at.wait(50)
    at.end(CloseReason.CLIENT_GONE)
    unsub, end = at.writer.lines("unsub", "end")
    assert (unsub["d"], unsub["x"], unsub["n"]) == ("/topic/a.b", "end", 3)
    assert unsub["sn"].startswith("stomp-subscription-")
    assert end["x"] == "client-gone"
    assert end["f"] == {
        "frames_in": 3, "frames_out": 5, "bytes_in": 100, "bytes_out": 200, "unacked": 3, "max_unacked": 4,
        "us": 50_000,
    }  # fmt: skip


def test_an_error_before_the_login_is_not_part_of_the_session() -> None:
    at = JournalledSession("session", before="SEND")
    at.end()
    [end] = at.writer.lines("end")
    assert end["f"]["frames_out"] == 1  # CONNECTED


def test_what_arrives_after_the_end_is_not_counted(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("message")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    at.play.session.client_gone()
    deliver(subscription, 1)
    at.end()
    assert at.writer.lines("dlv") == []


def test_a_hold_is_written_when_it_is_over(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.recorder.look({Hold.CONFIRM_WINDOW, Hold.OPERATION})
    at.wait(30)
    at.recorder.look({Hold.CONFIRM_WINDOW})
    at.wait(12)
    at.recorder.look({Hold.OPERATION})
    at.recorder.look(set())
    assert at.writer.lines("blk") == [{"e": "blk", "x": "confirm-window", "l": 42_000}]


def test_each_feature_is_written_once(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    play = at.play
    play.client("SEND", "destination:/queue/q", "priority:3", "own:1", "persistent:true")
    play.prepare()
    play.client("SEND", "destination:/queue/q", "priority:4", "expiration:1")
    play.client("SEND", "destination:/queue/q", "reply-to:/temp-queue/x")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.subscribed(operation)
    found = [line["x"] for line in at.writer.lines("use")]
    assert len(found) == len(set(found))
    assert set(found) == {"queue", "priority", "user-headers", "persistent", "expiration", "temp-queue", "ack-auto"}


def test_an_unsubscribe_that_deletes_says_so(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.play.subscribe("1", "/topic/t", "durable:true")
    at.play.subscribe("2", "/queue/q")
    at.play.client("UNSUBSCRIBE", "id:1", "durable:true")
    operation = at.play.asked()
    assert isinstance(operation, ops.Unsubscribe)
    at.play.broker(ops.Unsubscribed())
    at.play.client("UNSUBSCRIBE", "id:2")
    assert [line["x"] for line in at.writer.lines("unsub")] == ["deleted", "unsubscribe"]


@pytest.mark.parametrize("level", ["session", "message"])
def test_what_is_settled_after_an_unsubscribe_was_not_returned_by_it(level: str) -> None:
    at = JournalledSession(level, compatibility="next")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1, "hello")
    deliver(subscription, 2, "you")
    at.play.client("UNSUBSCRIBE", "id:1")
    at.play.broker(ops.Unsubscribed())
    at.play.client("ACK", f"id:{ack_id(subscription, 1)}")
    at.end()
    (unsubscribed,), (ended,) = at.writer.lines("unsub"), at.writer.lines("end")
    assert unsubscribed.get("n", 0) == 0
    assert ended["f"]["unacked"] == 1
    assert ended["f"]["max_unacked"] == 2


@pytest.mark.parametrize("level", ["session", "message"])
def test_messages_that_were_shed_are_not_delivered(journalled: Callable[[str], JournalledSession], level: str) -> None:
    at = journalled(level)
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1, "12345")
    subscription.drop_for_requeue(2, False, TO_QUEUE, NO_PROPERTIES, b"12345")
    subscription.ledger.requeue_dropped()
    deliver(subscription, 3, "12345", redelivered=True)
    at.end()
    if level == "session":
        (stat,) = at.writer.lines("stat")
        assert stat["cnt"] == {"dlv": 2, "dlv_bytes": 10, "redelivered": 1}
    else:
        assert [line["m"] for line in at.writer.lines("dlv")] == [1, 3]


def test_rejected_messages_are_counted(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.play.client("SEND", "destination:/topic/q", "receipt:r")
    at.play.prepare()
    at.play.confirm(1, accepted=False)
    at.end()
    (stat,) = at.writer.lines("stat")
    assert stat["cnt"] == {"send": 1, "rejected": 1}
    assert "h" not in stat


def test_a_message_that_the_broker_returns_is_rejected_even_though_its_confirm_follows(
    journalled: Callable[[str], JournalledSession],
) -> None:
    at = journalled("message")
    at.play.client("SEND", "destination:/topic/t", "receipt:r", "mandatory:true")
    at.play.prepare()
    at.play.return_message("amq.topic", "t", receipt="r")
    at.play.confirm(1)
    assert [line["x"] for line in at.writer.lines("conf")] == ["rejected"]


def test_a_cancelled_subscription_ends_as_such(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    at.play.broker(ops.ConsumerCancelled(subscription))
    at.end()
    (unsub,) = at.writer.lines("unsub")
    assert (unsub["x"], unsub["n"]) == ("cancelled", 1)
    (end,) = at.writer.lines("end")
    assert (end["f"].get("unacked", 0), end["f"]["max_unacked"]) == (0, 1)


def test_a_subscription_that_the_broker_refused_never_began(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.play.client("SUBSCRIBE", "id:1", "destination:/amq/queue/none")
    assert isinstance(at.play.asked(), ops.Subscribe)
    at.play.broker(ops.OperationFailed(404, "NOT_FOUND - no queue 'none'"))
    at.end()
    assert at.writer.lines("sub", "unsub") == []


@pytest.mark.parametrize("level", ["session", "message"])
def test_what_the_client_settled_before_it_went_counts(
    journalled: Callable[[str], JournalledSession], level: str
) -> None:
    """It is carried out after the connection is gone: a hold had kept it waiting."""
    at = journalled(level)
    session = at.play.session
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    session.holds.add(Hold.LINK_WRITE)
    at.play.client("ACK", f"id:{ack_id(subscription, 2)}")
    session.subscriptions.stop_deliveries()
    deliver(subscription, 4)
    session.holds.discard(Hold.LINK_WRITE)
    at.play.go_on()
    session.client_gone()
    at.end()
    unsub, end = at.writer.lines("unsub", "end")
    assert (unsub["n"], end["f"]["unacked"], end["f"]["max_unacked"]) == (1, 1, 3)
    if level == "message":
        assert [line.get("n", 1) for line in at.writer.lines("ack")] == [2]
    else:
        assert at.writer.lines("stat")[0]["cnt"] == {"dlv": 3, "ack": 2}


def test_many_destinations_in_turn_do_not_pile_up(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.play.client("SEND", "destination:/topic/0")
    at.play.prepare()
    for number in range(1, 3000):
        at.play.client("SEND", f"destination:/topic/{number}")
    assert len(at.recorder.active) <= 1024
    at.end()
    assert sum(line["cnt"]["send"] for line in at.writer.lines("stat")) == 3000


def test_destinations_that_share_the_name_other_are_counted_by_kind() -> None:
    at = JournalledSession("session", max_destinations=1)
    at.play.client("SEND", "destination:/topic/a")
    at.play.prepare()
    for destination in ("/topic/b", "/exchange/amq.direct/c", "/topic/d"):
        at.play.client("SEND", f"destination:{destination}")
    at.end()
    sent = {(line["d"], line["dk"]): line["cnt"]["send"] for line in at.writer.lines("stat")}
    assert sent == {("/topic/a", "topic"): 1, ("other", "topic"): 2, ("other", "exchange"): 1}


def test_only_what_rabbitmq_takes_for_an_argument_is_one(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    at.play.client("SEND", "destination:/topic/t", "x-request-id:1")
    at.play.prepare()
    assert {line["x"] for line in at.writer.lines("use")} == {"topic", "user-headers"}
    at.play.client("SEND", "destination:/queue/q", "x-max-length:10", "exclusive:true")
    assert {"queue-arguments", "exclusive"} <= {line["x"] for line in at.writer.lines("use")}


def test_a_queue_that_was_declared_before_is_shown_the_same(journalled: Callable[[str], JournalledSession]) -> None:
    at = journalled("session")
    headers = ("auto-delete:true", "durable:false")
    at.play.client("SEND", "destination:/queue/q", *headers)
    at.play.prepare()
    at.play.subscribe("1", "/queue/q", *headers)
    (sub,) = at.writer.lines("sub")
    assert sub["ad"] is True


def test_acknowledging_behind_many_costs_no_more_than_what_it_acknowledges() -> None:
    """Counted in steps, not in time: each delivery is looked at once, however many are outstanding."""
    runs = CumulativeDeliveryTimes()
    for tag in range(1, 60_001):
        runs.note(tag, tag)
    taken = runs.take(59_999)
    assert [last for last, _, _ in taken] == list(range(1, 60_000))
    assert runs.take(59_999) == []
    assert runs.take(60_000) == [(60_000, 1, 60_000)]


def test_delivery_times_are_bounded_and_the_rest_is_acknowledged_without_a_latency(
    journalled: Callable[[str], JournalledSession],
) -> None:
    at = journalled("message")
    subscription = at.play.subscribe("1", "/queue/q", "ack:client")
    for tag in range(1, MAX_TIMES + 4):
        at.writer.clock.now += 1
        deliver(subscription, tag)
    at.play.client("ACK", f"id:{ack_id(subscription, MAX_TIMES + 3)}")
    found = [(line.get("n", 1), "l" in line) for line in at.writer.lines("ack")]
    assert found[-1] == (3, False)
    assert len(found) == MAX_TIMES + 1


def test_the_end_of_very_many_subscriptions_leaves_others_their_turns(
    journalled: Callable[[str], JournalledSession],
) -> None:
    at = journalled("session")
    for number in range(1000):
        at.play.subscribe(str(number), "/queue/q")
    turns = sum(1 for _ in at.recorder.ended(CloseReason.DISCONNECT, 100, 200))
    assert turns == 10
    assert len(at.writer.lines("unsub")) == 1000


# Correlation.


def stamped(published: int) -> bytes:
    """Properties of a message with the time of publishing."""
    entry = amqp.number_name(PUBLISHED) + published.to_bytes(8, "big")
    return b"\x20\0" + len(entry).to_bytes(4, "big") + entry


@pytest.mark.parametrize("ack", ["auto", "client"])
def test_deliveries_tell_how_long_their_messages_have_waited(ack: str) -> None:
    at = JournalledSession("message", correlate=True)
    subscription = at.play.subscribe("1", "/queue/q", f"ack:{ack}")
    at.wait(50)
    now = at.writer.clock.time
    for tag, published in enumerate((now - 3_000, now, now + 5_000), 1):
        subscription.deliver(tag, False, TO_QUEUE, stamped(published), b"")
    deliver(subscription, 4)
    assert [line.get("ql") for line in at.writer.lines("dlv")] == [3_000, 0, 0, None]


@pytest.mark.parametrize("ack", ["auto", "client"])
def test_counts_tell_how_long_messages_have_waited(ack: str) -> None:
    at = JournalledSession("session", correlate=True)
    subscription = at.play.subscribe("1", "/queue/q", f"ack:{ack}")
    at.wait(50)
    waited = stamped(at.writer.clock.time - 3_000)
    subscription.deliver(1, False, TO_QUEUE, waited, b"")
    subscription.deliver_alike(2, [b"", b""])
    deliver(subscription, 4)
    at.end()
    (line,) = (line for line in at.writer.lines("stat") if "s" in line)
    assert (line["cnt"], line["h"]) == ({"dlv": 4}, {f"queue:{bucket_of(3_000)}": 3})
    assert at.writer.lines("end")[0]["f"].get("unacked", 0) == (0 if ack == "auto" else 4)


@pytest.mark.parametrize("correlate", [False, True])
@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("level", ["session", "message"])
def test_what_a_selector_filters_out_is_no_delivery(level: str, ack: str, correlate: bool) -> None:
    at = JournalledSession(level, correlate=correlate)
    subscription = at.play.subscribe("1", "/topic/t", f"ack:{ack}", "selector:destination = '/queue/q'")
    published = stamped(at.writer.clock.time) if correlate else NO_PROPERTIES
    for tag, route in enumerate((b"\0\1x", TO_QUEUE, b"\0\1x", TO_QUEUE), 1):
        subscription.deliver(tag, False, route, published, b"12")
    if ack == "client":
        at.play.client("ACK", f"id:{ack_id(subscription, 4)}")
    at.end()
    if level == "message":
        assert [(line["m"], line.get("ql")) for line in at.writer.lines("dlv")] == [
            (tag, 0 if correlate else None) for tag in (2, 4)
        ]
        acknowledged = [(line["m"], line.get("n", 1)) for line in at.writer.lines("ack")]
        assert acknowledged == ([(2, 1), (4, 1)] if ack == "client" else [])
    else:
        (line,) = (line for line in at.writer.lines("stat") if "s" in line)
        assert line["cnt"] == {"dlv": 2, "dlv_bytes": 4} | ({"ack": 2} if ack == "client" else {})
    end = at.writer.lines("end")[0]["f"]
    assert (end["frames_out"], end.get("unacked", 0)) == (3, 2 if ack == "client-individual" else 0)


def test_a_message_carries_the_time_of_publishing_only_if_it_shall_be_correlated() -> None:
    for correlate in (False, True):
        at = JournalledSession("session", correlate=correlate)
        at.play.client("SEND", "destination:/topic/t")
        at.play.prepare()
        at.wait(7)
        for number in range(3):
            at.play.client(
                "SEND", "destination:/topic/t", f"number:{number}", "receipt:r", "x-stomp-gateway-published:1"
            )
        tables = [
            found.properties.headers
            for _, found in amqp_frames(b"".join(at.play.session.publisher.output.take()))
            if isinstance(found, header.ContentHeader)
        ]
        own = {"x-stomp-gateway-published": at.writer.clock.time} if correlate else {}
        assert tables[1:] == [{**own, "number": str(number), "receipt": "r"} for number in range(3)]
        assert [*(tables[0] or {})] == list(own)


def test_no_client_sees_the_time_of_publishing() -> None:
    for correlate in (False, True):
        at = JournalledSession("message", correlate=correlate)
        subscription = at.play.subscribe("1", "/queue/q")
        subscription.deliver(1, False, TO_QUEUE, stamped(1), b"")
        assert b"published" not in joined(at.play.session.output)
        assert b"MESSAGE" in joined(at.play.session.output)
