"""The verdict on two servers that played the same transcript."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.parity.comparison import Outcome, Verdict, judge
from gateway.parity.play_state import MismatchError
from gateway.parity.player import play
from gateway.parity.recording import RecordedEvent
from gateway.parity.stomp_peer import ServerFrame, SocketPeer
from gateway.parity.transcript import parse_transcript
from tests.support.false_server import Answer, connected, false_server, receipt

HEAD = "title: t\nrule: r\n\n"
DEPARTURE = "departure: better\n" + HEAD
SUBSCRIBE = "C connects with 1.2\nC> SUBSCRIBE\n   id:1\n   destination:/topic/{run}\n   receipt:r\n\n"
MESSAGE = "S< MESSAGE\n   message-id:T_1@@{C.session}@@{*:digits}\n   ...\n\n   {*}\n"
SESSIONS = ("session-AAAAAAAAAAAAAAAAAAAAAA", "session-BBBBBBBBBBBBBBBBBBBBBB")


def server(name: str, session: str, *messages: str) -> Answer:
    """Answers CONNECT, receipts, and SUBSCRIBE with messages: `headers|body`; SESSION, RUN and NUMBERS are replaced."""

    def answer(command: str, headers: Mapping[str, str]) -> bytes:
        if command == "CONNECT":
            return connected(f"{name}/{len(messages)}", session)
        said = receipt(headers["receipt"]) if "receipt" in headers else b""
        if command == "SUBSCRIBE":
            run = headers["destination"].removeprefix("/topic/")
            as_numbers = ",".join(map(str, run.encode()))
            for message in messages:
                lines, _, body = (
                    message.replace("SESSION", session)
                    .replace("NUMBERS", as_numbers)
                    .replace("RUN", run)
                    .partition("|")
                )
                said += f"MESSAGE\n{lines}\ncontent-length:{len(body)}\n\n{body}\0\n".encode()
        return said

    return answer


async def verdict(text: str, plugin: Answer, gateway: Answer) -> Verdict:
    transcript = parse_transcript(text, Path("inline.stomp"))
    async with false_server(plugin) as one, false_server(gateway) as other:
        results = await asyncio.gather(
            play(transcript, SocketPeer(one, 0.2), None, "plugin"),
            play(transcript, SocketPeer(other, 0.2), None, "gateway"),
        )
    return judge(transcript, *results)


async def outcome(text: str, plugin: tuple[str, ...], gateway: tuple[str, ...]) -> Outcome:
    name = "RabbitMQ", "stomp-gateway"
    one, other = (server(name[side], SESSIONS[side], *(plugin, gateway)[side]) for side in (0, 1))
    return (await verdict(text, one, other)).outcome


PLAIN = HEAD + SUBSCRIBE + "S< RECEIPT\n   receipt-id:r\n" + MESSAGE


@pytest.mark.parametrize(
    ("plugin", "gateway"),
    [
        ("message-id:T_1@@SESSION@@7\ndestination:RUN|a", "destination:RUN\nmessage-id:T_1@@SESSION@@1|a"),
        (
            "message-id:T_1@@SESSION@@1\nreply-to:/reply-queue/amq.gen-AAAAAAAAAAAAAAAAAAAAAA|a",
            "message-id:T_1@@SESSION@@1\nreply-to:/reply-queue/amq.gen-BBBBBBBBBBBBBBBBBBBBBB|a",
        ),
        (
            # ADR 21. The same queue may be named again, without its prefix.
            "message-id:T_1@@SESSION@@1\nreply-to:/reply-queue/amq.gen-AAAAAAAAAAAAAAAAAAAAAA|amq.gen-AAAAAAAAAAAAAAAAAAAAAA",
            "message-id:T_1@@SESSION@@1\n"
            "reply-to:/reply-queue/stomp-subscription-BBBBBBBBBBBBBBBBBBBBBB|stomp-subscription-BBBBBBBBBBBBBBBBBBBBBB",
        ),
    ],
)
async def test_generated_names_and_the_order_of_headers_may_differ(plugin: str, gateway: str) -> None:
    assert await outcome(PLAIN, (plugin,), (gateway,)) is Outcome.EQUAL


@pytest.mark.parametrize(
    "gateway",
    [
        "message-id:T_1@@SESSION@@1\ncolor:red|a",
        "message-id:T_1@@SESSION@@1\ncolor:blue|b",
        "message-id:T_1@@SESSION@@1\ncolor:blue\nextra:1|a",
        "message-id:T_1@@SESSION@@1|a",
        "message-id:T_1@@SESSION@@1\ncolor:blue\ncolor:blue|a",
    ],
)
async def test_wildcards_do_not_hide_a_difference(gateway: str) -> None:
    plugin = "message-id:T_1@@SESSION@@1\ncolor:blue|a"
    assert await outcome(PLAIN, (plugin,), (plugin,)) is Outcome.EQUAL
    assert await outcome(PLAIN, (plugin,), (gateway,)) is Outcome.DIFFERENT


@pytest.mark.parametrize(
    ("plugin", "gateway"),
    [
        ("color:a|[97, 98]", "color:a|[97,98]"),
        ("server:RabbitMQ/4|a", "server:RabbitMQ/4 stomp-gateway/0|a"),
        ("color:RUN|a", "color:NUMBERS|a"),
        ("color:\\x07|a", "color:\x07|a"),
        ("color:a|a\n", "color:a|a"),
        ("color:amq.gen-AAAAAAAAAAAAAAAAAAAAAA|a", "color:stomp-subscription-AAAAAAAAAAAAAAAAAAAAAA|a"),
    ],
)
async def test_a_difference_that_is_allowed_elsewhere_counts(plugin: str, gateway: str) -> None:
    one, other = (f"message-id:T_1@@SESSION@@1\n{message}" for message in (plugin, gateway))
    text = PLAIN.replace("   {*}\n", "   {*:lines}\n")
    assert await outcome(text, (one,), (one,)) is Outcome.EQUAL
    assert await outcome(text, (one,), (other,)) is Outcome.DIFFERENT


async def beating(text: str, announced: str) -> MismatchError | None:
    """Play on a server that sends a heart-beat before each receipt, whatever it announced."""

    def answer(command: str, headers: Mapping[str, str]) -> bytes:
        if command == "CONNECT":
            return connected().replace(b"heart-beat:0,0", f"heart-beat:{announced}".encode())
        return b"\n" + receipt(headers["receipt"])

    transcript = parse_transcript(text, Path("inline.stomp"))
    async with false_server(answer) as address:
        played = await play(transcript, SocketPeer(address, 0.2), None, "plugin")
    return played.mismatch


@pytest.mark.parametrize(("announced", "fails"), [("0,0", True), ("0,1000", True), ("1000,0", False)])
async def test_an_unannounced_heart_beat_is_a_mismatch(announced: str, fails: bool) -> None:
    connect = "C> CONNECT\n   accept-version:1.2\n\nS< CONNECTED\n   ...\n"
    mismatch = await beating(HEAD + connect + "C is open\n", announced)
    assert bool(mismatch) is fails
    assert not mismatch or "(heart-beat)" in mismatch.problem


async def test_two_messages_with_one_id_differ_from_two_messages_with_two() -> None:
    messages = tuple(f"message-id:T_1@@SESSION@@{tag}|same" for tag in (3, 4))
    text = PLAIN + MESSAGE
    assert await outcome(text, messages, messages) is Outcome.EQUAL
    assert await outcome(text, messages, (messages[0], messages[0])) is Outcome.DIFFERENT


async def test_in_any_order_compares_without_order() -> None:
    text = HEAD + SUBSCRIBE + "in any order\nS< RECEIPT\n   receipt-id:r\n" + MESSAGE + MESSAGE + "in order\n"
    a, b, c = (f"message-id:T_1@@SESSION@@{tag}|{body}" for tag, body in ((1, "a"), (2, "b"), (3, "c")))
    assert await outcome(text, (a, b), (b, a)) is Outcome.EQUAL
    assert await outcome(text, (a, b), (b, c)) is Outcome.DIFFERENT


async def test_any_number_of_frames_may_be_fewer_on_one_side_but_not_others() -> None:
    text = HEAD + SUBSCRIBE + "S< RECEIPT\n   receipt-id:r\n" + MESSAGE.replace("S< ", "S< any number of ")
    text += "C> DISCONNECT\n   receipt:bye\n\nS< RECEIPT\n   receipt-id:bye\n"
    a, b = ("message-id:T_1@@SESSION@@1|a", "message-id:T_1@@SESSION@@2|b")
    assert await outcome(text, (a, b), (a,)) is Outcome.EQUAL
    assert await outcome(text, (a,), ()) is Outcome.EQUAL
    assert await outcome(text, (a,), (b,)) is Outcome.DIFFERENT


async def test_servers_with_the_same_mismatch_are_equal_with_a_remark() -> None:
    message = ("destination:elsewhere|a",)
    both = [server(name, SESSIONS[0], *message) for name in ("RabbitMQ", "stomp-gateway")]
    judged = await verdict(PLAIN, *both)
    assert judged.outcome is Outcome.EQUAL
    assert judged.remarks == ("neither goes as written in line 12; up to there both said the same",)


async def test_the_session_of_a_client_without_connect_may_differ() -> None:
    """It shows only in message ids. At the end the client is probed like one that has logged in."""
    text = "setup: configured\n" + HEAD + SUBSCRIBE.removeprefix("C connects with 1.2\n")
    text += "S< RECEIPT\n   receipt-id:r\n" + MESSAGE.replace("{C.session}", "{*}")
    one, other = "message-id:T_1@@SESSION@@1|a", "message-id:T_2@@SESSION@@1|a"
    assert await outcome(text, (one,), (one,)) is Outcome.EQUAL
    assert await outcome(text, (one,), (other,)) is Outcome.DIFFERENT


async def test_a_mismatch_on_one_server_is_a_difference() -> None:
    right = "message-id:T_1@@SESSION@@1|a"
    assert await outcome(PLAIN, (right,), ()) is Outcome.DIFFERENT
    assert await outcome(PLAIN, (), (right,)) is Outcome.DIFFERENT


async def test_servers_that_cannot_be_reached_are_not_equal() -> None:
    transcript = parse_transcript(PLAIN, Path("inline.stomp"))
    async with false_server(server("RabbitMQ", SESSIONS[0])) as gone:
        pass
    results = [await play(transcript, SocketPeer(gone, 0.2), None, side) for side in ("plugin", "gateway")]
    assert judge(transcript, *results).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize(
    ("plugin", "gateway", "expected"),
    [("a", "b", Outcome.DEPARTURE), ("a", "a", Outcome.DIFFERENT), ("b", "b", Outcome.DIFFERENT)],
)
async def test_in_a_departure_each_server_must_do_its_own_steps(plugin: str, gateway: str, expected: Outcome) -> None:
    either = "S<{} MESSAGE\n   message-id:{{*}}\n\n   {}\n"
    text = DEPARTURE + SUBSCRIBE + "S< RECEIPT\n   receipt-id:r\n"
    text += either.format("plugin", "a") + either.format("gateway", "b")
    messages = [(f"message-id:T_1@@SESSION@@1|{body}",) for body in (plugin, gateway)]
    assert await outcome(text, messages[0], messages[1]) is expected


@pytest.mark.parametrize(("gateway", "expected"), [("same", Outcome.DEPARTURE), ("other", Outcome.DIFFERENT)])
async def test_in_a_departure_the_steps_for_both_must_be_equal(gateway: str, expected: Outcome) -> None:
    either = "S<{} MESSAGE\n   message-id:{{*}}\n\n   {}\n"
    text = DEPARTURE + SUBSCRIBE + "S< RECEIPT\n   receipt-id:r\n" + "S<plugin MESSAGE\n   message-id:{*}\n\n   only\n"
    text += either.format("plugin", "a") + either.format("gateway", "b") + MESSAGE
    plugins, gateways = (
        [f"message-id:T_1@@SESSION@@{tag}|{body}" for tag, body in enumerate(bodies, 1)]
        for bodies in (("only", "a", "same"), ("b", gateway))
    )
    one = server("RabbitMQ", SESSIONS[0], *plugins)
    judged = await verdict(text, one, server("stomp-gateway", SESSIONS[1], *gateways))
    assert judged.outcome is expected
    line = text[: text.rindex("S< MESSAGE")].count("\n") + 1
    remark = (f"both go as written, but what they said in line {line} is not the same",)
    assert judged.remarks == (() if expected is Outcome.DEPARTURE else remark)


@pytest.mark.parametrize(("length", "is_recorded"), [(b"content-length:2", False), (b"content-length:3", True)])
def test_only_a_wrong_content_length_is_recorded(length: bytes, is_recorded: bool) -> None:
    event = RecordedEvent.from_server("C", ServerFrame(b"ERROR", (length, b"message:m"), b"no"))
    assert (length.decode() in event.headers) is is_recorded
