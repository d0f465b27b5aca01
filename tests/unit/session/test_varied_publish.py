"""SENDs whose headers differ from message to message mean what each of them means alone."""

import tracemalloc
from collections.abc import Mapping
from typing import cast

import pytest
from pamqp import header

from gateway.amqp.properties import Properties
from gateway.session import cached_publish
from gateway.session.translate import properties_of_send
from gateway.session.varied_publish import VariedPublish, VariedPublishes
from tests.support.playbook import Playbook, amqp_frames, stomp


def tables(play: Playbook) -> list[object]:
    """The headers tables of the messages that the session publishes."""
    frames = [found for _, found in amqp_frames(b"".join(play.session.publisher.output.take()))]
    return [found.properties.headers for found in frames if isinstance(found, header.ContentHeader)]


def alone(frames: list[bytes], version: str = "1.2") -> bytes:
    """What a session publishes that has carried out no SEND before, frame by frame."""
    published = []
    for frame in frames:
        play = started(version)
        play.data(frame)
        published.append(b"".join(play.session.publisher.output.take()))
    return b"".join(published)


def started(version: str = "1.2") -> Playbook:
    """A session whose publishing channel is there."""
    play = Playbook()
    play.connect(version)
    play.client("SEND", "destination:/topic/first", "receipt:first")
    play.prepare()
    play.confirm(1)
    play.said()
    play.session.publisher.output.take()
    return play


@pytest.mark.parametrize(
    "lines",
    [
        ["x:{0}", "destination:/topic/a"],
        ["destination:/topic/a", "x:{0}", "y: {0} and more", "x:ignored"],
        ["receipt:r{0}", "x:{0}", "destination:/topic/a", "content-length:2"],
        ["x:{0}", "content-length:2", "receipt:r{0}", "destination:/exchange/amq.topic/a", "y:{1}"],
        ["destination:/topic/a", "persistent:true", "x:{1}"],
        ["destination:/topic/a", "priority:{2}", "x:{0}"],
        ["destination:/topic/{2}", "x:{0}", "correlation-id:same"],
        ["destination:/topic/a", "correlation-id:{0}", "x:{0}"],
        ["destination:/topic/a", "persistent:{3}", "x:{0}"],
        ["destination:/topic/a", "x:{4}", "y:\\c{0}"],
    ],
)
@pytest.mark.parametrize("version", ["1.0", "1.2"])
def test_values_that_differ_reach_the_broker_in_their_place(lines: list[str], version: str) -> None:
    frames = [
        stomp("SEND", *(line.format(n, "x" * n, n % 3, ["true", "false"][n % 2], " " * n) for line in lines), body="ab")
        for n in range(12)
    ]
    play = started(version)
    for frame in frames:
        play.data(frame)
    assert b"".join(play.session.publisher.output.take()) == alone(frames, version)


def test_what_differs_is_published_again_after_a_loss_as_it_was() -> None:
    play = started()
    for number in range(6):
        play.client("SEND", "destination:/topic/a", f"x:{number}", f"receipt:r{number}", body="ab")
    published = tables(play)
    assert published[5] == {"x": "5", "receipt": "r5"}
    play.recover(play.lose(publishing=True))
    assert tables(play) == published


def test_a_mistake_is_an_error_however_often_it_comes() -> None:
    play = started()
    for number in range(4):
        play.client("SEND", "destination:/topic/a", "priority:high", f"x:{number}")
    assert [said.split()[0] for said in play.said()] == ["ERROR"] * 4


def test_headers_that_do_not_fit_into_an_amqp_frame_are_an_error_of_their_message_only() -> None:
    play = started()
    for number in range(4):
        play.client("SEND", "destination:/topic/a", f"x:{number}", "y:" + "y" * 1000)
    play.session.publisher.output.take()
    play.client("SEND", "destination:/topic/a", "x:4", "y:" + "y" * 90_000, "z:" + "z" * 90_000)
    assert [said.split()[0] for said in play.said()] == ["ERROR"]
    assert not play.published()


def test_what_is_in_common_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Mapping[bytes, bytes]] = []

    def counted(headers: Mapping[bytes, bytes], reply_to: bytes | None) -> Properties:
        made.append(headers)
        return properties_of_send(headers, reply_to)

    play = started()
    monkeypatch.setattr(cached_publish, "properties_of_send", counted)
    for number in range(20):
        play.client("SEND", "destination:/topic/a", f"x:{number}")
    # The first two alone, and what they have in common with the third.
    assert len(made) == 3


def test_many_kinds_with_many_headers_take_a_bounded_memory() -> None:
    play = started()
    tracemalloc.start()
    try:
        for sequence in range(2, 202):
            kind = sequence // 4
            lines = [f"{kind}-{number}:{'v' * 9}" for number in range(90)]
            play.client("SEND", "destination:/topic/a", f"x:{sequence}", *lines)
            play.session.publisher.output.take()
            play.confirm(sequence)
        assert tracemalloc.get_traced_memory()[0] < 600_000
    finally:
        tracemalloc.stop()


def test_kinds_that_never_come_again_do_not_take_the_place_of_others() -> None:
    made: list[str] = []

    def make(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> VariedPublish:
        del names
        made.append(headers[b"destination"].decode())
        return cast(VariedPublish, object())

    kinds = VariedPublishes(make, ())
    often = {b"destination": b"/topic/often", b"x": b"1"}
    found = [kinds.find(often) for _ in range(4)][-1]
    assert found is not None
    for number in range(2000):
        # Neither with other names of headers, nor with the same.
        once = {b"destination": b"/topic/%d" % number, b"x": b"1"}
        assert kinds.find(once) is None
        assert kinds.find({**once, b"y%d" % number: b"y" * 500}) is None
        assert kinds.find(often) is found
    assert made == ["/topic/often"]
