"""The confirm window: what is published and not confirmed."""

import pytest

from gateway.amqp.splitter import Return
from gateway.config.virtual_host import ConfirmWindow, Upstream, VirtualHost
from gateway.session import ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.confirms import PublisherConfirms
from tests.support.playbook import ENDS_WITH_ITS_LINK, FRAME_MAX, Playbook


def route(destination: str = "/topic/t") -> CachedPublish:
    return CachedPublish({b"destination": destination.encode()}, (), b"amq.topic")


def confirm_window(messages: int = 10, size: int = 1000) -> PublisherConfirms:
    return PublisherConfirms(VirtualHost(name="/", confirm_window=ConfirmWindow(messages=messages, bytes=size)))


def publish(to: PublisherConfirms, receipt: bytes | None = None, size: int = 0, destination: str = "/topic/t") -> None:
    to.add([(receipt, route(destination), size, None, None, None, ())], size)


def receipts(of: PublisherConfirms, sequence: int, *, multiple: bool) -> list[bytes | None]:
    return [receipt for receipt, *_ in of.confirm(sequence, multiple=multiple)]


def test_without_confirms_nothing_is_kept() -> None:
    window = ConfirmWindow(messages=1, bytes=1000)
    play = Playbook(VirtualHost(name="/", upstream=Upstream(ride_through=0), confirm_window=window))
    play.connect()
    play.client("SEND", "destination:/topic/t", body=b"x" * 5000)
    play.prepare()
    assert len(play.published()) == 1
    confirms = play.session.confirms
    assert (len(confirms), confirms.unconfirmed_bytes, confirms.is_full) == (0, 0, False)
    assert not play.session.holds


@pytest.mark.parametrize("line", ["x:{}", "destination:/topic/{}"], ids=["varied", "own"])
def test_large_headers_of_one_message_count(line: str) -> None:
    window = ConfirmWindow(messages=1000, bytes=10_000)
    play = Playbook(VirtualHost(name="/", confirm_window=window))
    play.connect()
    play.client("SEND", "destination:/topic/first", "receipt:first")
    play.prepare()
    for number in range(9):
        play.client("SEND", line.format(number), "destination:/topic/t", "large:" + f"{number}".rjust(1800, "x"))
    confirms = play.session.confirms
    assert confirms.is_full
    assert play.session.holds
    assert len(confirms) < 8
    # What was held goes on.
    for sequence in range(1, 11):
        play.confirm(sequence, multiple=True)
    assert (len(confirms), confirms.unconfirmed_bytes) == (0, 0)


def test_headers_of_many_messages_do_not_count() -> None:
    play = Playbook(VirtualHost(name="/"))
    play.connect()
    play.client("SEND", "destination:/topic/first", "receipt:first")
    play.prepare()
    large = "large:" + "x" * 1800
    play.client("SEND", "destination:/topic/t", large, body=b"body")
    before = play.session.confirms.unconfirmed_bytes
    for _ in range(3):
        play.client("SEND", "destination:/topic/t", large, body=b"body")
    # The second one may be the first of its kind.
    assert play.session.confirms.unconfirmed_bytes - before < 3 * 1800


def test_a_returned_message_with_large_headers_is_found() -> None:
    play = Playbook(VirtualHost(name="/"))
    play.connect()
    play.client("SEND", "destination:/topic/first", "receipt:first")
    play.prepare()
    play.client("SEND", "destination:/topic/t", "mandatory:true", "large:" + "x" * 1800, body=b"body")
    found = play.session.confirms.take_returned(Return(312, b"NO_ROUTE", b"amq.topic", b"t", b"\0\0", 4))
    assert found is not None
    assert found[2] > 1800


def test_sequence_numbers_count_from_when_confirms_are_on() -> None:
    play = Playbook(ENDS_WITH_ITS_LINK)
    play.connect()
    play.client("SEND", "destination:/topic/t")
    play.prepare()
    play.client("SEND", "destination:/topic/t", "receipt:first")
    play.prepare()
    play.confirm(1)
    assert play.said() == ["RECEIPT first"]


def test_confirms_rejections_and_receipts_are_counted_once_each() -> None:
    play = Playbook()
    play.connect()
    play.client("SEND", "destination:/topic/t", "receipt:0")
    play.prepare()
    for number in range(1, 4):
        play.client("SEND", "destination:/topic/t", f"receipt:{number}")
    play.confirm(2, multiple=True)
    play.confirm(3, accepted=False)
    play.confirm(4, accepted=False)
    traffic = play.session.traffic
    assert (traffic.confirmed, traffic.rejected, traffic.receipts_sent) == (2, 2, 2)


def test_single_confirms_come_in_any_order() -> None:
    found = confirm_window()
    for name in (b"1", b"2", b"3"):
        publish(found, name)
    assert receipts(found, 2, multiple=False) == [b"2"]
    assert receipts(found, 3, multiple=False) == [b"3"]
    assert receipts(found, 1, multiple=False) == [b"1"]
    assert len(found) == 0


def test_a_multiple_confirms_all_up_to_it_in_the_order_of_publishing() -> None:
    found = confirm_window()
    for name in (b"1", None, b"3", b"4"):
        publish(found, name)
    assert receipts(found, 2, multiple=False) == [None]
    assert receipts(found, 3, multiple=True) == [b"1", b"3"]
    assert len(found) == 1
    assert receipts(found, 4, multiple=True) == [b"4"]


def test_one_multiple_confirms_as_many_as_the_window_holds() -> None:
    found = confirm_window(10_000, 20_000)
    for number in range(10_000):
        publish(found, b"%d" % number, size=1)
    assert receipts(found, 10_000, multiple=True) == [b"%d" % number for number in range(10_000)]
    assert (len(found), found.unconfirmed_bytes) == (0, 0)


@pytest.mark.parametrize("multiple", [False, True])
def test_a_confirm_that_says_nothing_new(multiple: bool) -> None:
    found = confirm_window()
    publish(found, b"1")
    publish(found, b"2")
    assert receipts(found, 1, multiple=False) == [b"1"]
    assert receipts(found, 1, multiple=multiple) == []
    assert len(found) == 1


def test_bytes_are_given_back_when_they_are_confirmed() -> None:
    found = confirm_window()
    for size in (100, 200, 300):
        publish(found, size=size)
    assert found.unconfirmed_bytes == 600
    found.confirm(2, multiple=False)
    assert found.unconfirmed_bytes == 400
    found.confirm(3, multiple=True)
    assert found.unconfirmed_bytes == 0


@pytest.mark.parametrize(("count", "size", "full"), [(9, 0, False), (10, 0, True), (1, 999, False), (1, 1000, True)])
def test_the_window_is_full_by_number_or_by_bytes(count: int, size: int, full: bool) -> None:
    found = confirm_window(10, 1000)
    for _ in range(count):
        publish(found, size=size)
    assert found.is_full is full


@pytest.mark.parametrize(
    ("count", "size", "room"), [(5, 0, True), (6, 0, False), (1, 500, True), (1, 501, False), (0, 0, True)]
)
def test_there_is_room_again_at_half_of_both(count: int, size: int, room: bool) -> None:
    found = confirm_window(10, 1000)
    for _ in range(count):
        publish(found, size=size)
    assert found.is_half_empty is room


def test_receipts_are_owed_until_they_are_confirmed() -> None:
    found = confirm_window()
    publish(found)
    assert [found.owes_receipts, len(found)] == [False, 1]
    publish(found, b"r")
    owed = [found.owes_receipts]
    found.confirm(2, multiple=False)
    assert [*owed, found.owes_receipts] == [True, False]


@pytest.mark.parametrize(
    ("text", "receipt"),
    [
        ("NOT_FOUND - no exchange 'e' in vhost '/'", b"e"),
        ("NOT_FOUND - no exchange 'f' in vhost '/'", None),
        ("ACCESS_REFUSED - cannot publish to internal exchange 'e' in vhost '/'", b"e"),
        ("ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'guest'", b"q"),
        ("ACCESS_REFUSED - access to topic 'b' in exchange 'amq.topic' in vhost '/' refused for user 'guest'", b"b"),
        ("ACCESS_REFUSED - access to exchange 'amq.topic' in vhost '/' refused for user 'guest'", b"a"),
        ("ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'guest'", b"q"),
        (
            "ACCESS_REFUSED - write access to topic 'b' in exchange 'amq.topic' in vhost '/' refused for user 'guest'",
            b"b",
        ),
        ("ACCESS_REFUSED - write access to exchange 'amq.topic' in vhost '/' refused for user 'guest'", b"a"),
        ("ACCESS_REFUSED - access to exchange 'x' in vhost 'e' refused for user 'e'", None),
        ("PRECONDITION_FAILED - invalid expiration 'soon': no_integer", None),
    ],
)
def test_the_receipt_of_the_message_that_closed_the_channel(text: str, receipt: bytes | None) -> None:
    found = confirm_window()
    for name, destination in (
        (b"a", "/topic/a"),
        (b"e", "/exchange/e/k"),
        (b"b", "/topic/b"),
        (b"q", "/queue/q"),
        (b"e2", "/exchange/e/k"),
    ):
        publish(found, name, destination=destination)
    assert found.receipt_of_failure(text) == receipt


def test_a_single_candidate_is_the_one() -> None:
    found = confirm_window()
    publish(found, b"r1")
    publish(found, b"r2")
    found.confirm(1, multiple=False)
    assert found.receipt_of_failure("PRECONDITION_FAILED - invalid expiration 'soon': no_integer") == b"r2"


@pytest.mark.parametrize("order", ["at once", "one by one", "the last ones first", "in two parts"])
def test_however_many_are_confirmed_at_once_each_has_its_receipt(order: str) -> None:
    play, many = Playbook(), 9_000
    play.connect()
    play.client("SEND", "destination:/topic/t", "receipt:0")
    play.prepare()
    for number in range(1, many):
        play.client("SEND", "destination:/topic/t", f"receipt:{number}")
    assert len(play.published()) == many
    if order == "at once":
        play.confirm(many, multiple=True)
    elif order == "in two parts":
        play.confirm(5_001, multiple=True)
        play.confirm(many, multiple=True)
    else:
        for sequence in range(1, many + 1) if order == "one by one" else range(many, 0, -1):
            play.confirm(sequence)
    assert sorted(play.said()) == sorted(f"RECEIPT {number}" for number in range(many))
    assert len(play.session.confirms) == play.session.confirms.unconfirmed_bytes == 0
    play.finish()


def test_a_message_waits_until_it_is_confirmed() -> None:
    """The gateway measures how long confirms take by it."""
    window = confirm_window()
    assert 0 not in window
    publish(window)
    publish(window)
    assert (1 in window, 2 in window, 3 in window) == (True, True, False)
    window.confirm(1, multiple=False)
    assert (1 in window, 2 in window) == (False, True)


def test_after_a_rejected_message_the_next_one_goes_out_on_a_fresh_channel() -> None:
    """A channel that rejected one message for a quorum queue may reject all that follow (see `Publisher`)."""
    play = Playbook(ENDS_WITH_ITS_LINK)
    play.connect()
    for name in ("first", "second"):
        play.client("SEND", "destination:/topic/t", f"receipt:{name}")
        if name == "first":
            play.prepare()
    play.confirm(1, accepted=False)
    play.confirm(2)
    assert play.said()[-1] == "RECEIPT second"
    play.published()
    play.client("SEND", "destination:/topic/t", "receipt:third")
    assert play.published() == []
    asked = play.asked()
    assert asked == ops.PreparePublisher(confirms=True, queue=None, is_fresh=True)
    play.broker(ops.PublisherPrepared(7, FRAME_MAX, confirms=True, is_new=True))
    assert b"".join(play.session.publisher.output.take())[1:3] == b"\x00\x07"
    play.confirm(1)
    assert play.said() == ["RECEIPT third"]
    play.client("SEND", "destination:/topic/t", "receipt:fourth")
    assert play.asked() is None
