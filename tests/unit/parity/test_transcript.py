"""Transcript files that break the format, and steps that hold for some releases of RabbitMQ only."""

from pathlib import Path

import pytest

from gateway.parity.comparison import Comparison, Outcome, Verdict, judge
from gateway.parity.play_state import Identity, MismatchError
from gateway.parity.player import play
from gateway.parity.steps import Release, ReleaseRange, Side
from gateway.parity.stomp_peer import ServerFrame
from gateway.parity.transcript import SETUPS, Transcript, TranscriptError, parse_transcript
from tests.support.false_server import Answer, connected, false_server
from tests.support.scripted_peer import ScriptedPeer

HEAD = "title: t\nrule: r\n\n"
DEPARTURE = "departure: better\n" + HEAD
ILLEGAL = "message:Illegal command"  # the answer to the probe at the end, too
SEND = "C> SEND\n   destination:/topic/a\n\n"
OLD, NEW = Release(3, 10, 8), Release(4, 3, 6)


def _transcript(steps: str, head: str = HEAD) -> Transcript:
    return parse_transcript(head + steps, Path("inline.stomp"))


async def check(transcript: Transcript, peer: ScriptedPeer, side: Side = "gateway") -> None:
    """Play without a broker, and raise MismatchError if the server does something else."""
    (await play(transcript, peer, None, side)).raise_for_mismatch()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "S<plugin closed\n", "inline.stomp:4: only the plugin does this, and the file names no departure"),
        (HEAD + "Client sends\n", "inline.stomp:4: not a step"),
        (HEAD + "in any order\nS< RECEIPT\n", "lacks its `in order`"),
        (HEAD, "no steps"),
        ("rule: r\n\nC is open\n", "exactly one `title:`"),
        (HEAD + "C is open\n   really\n", "nothing may stand under this line"),
        ("setup: plane\n" + HEAD + "C is open\n", "there is no setup 'plane'; there are plain, configured"),
        ("setup: plain\nsetup: plain\n" + HEAD + "C is open\n", "one `setup:` at most"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused(text: str, problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        _transcript(text, head="")


@pytest.mark.parametrize("setup", SETUPS)
def test_a_file_names_its_setup(setup: str) -> None:
    assert _transcript("C is open\n", f"setup: {setup}\n" + HEAD).setup == setup
    assert _transcript("C is open\n").setup == "plain"


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=4.3", ["4.3", "4.3.0", "4.3.6", "4.10.1", "5"], ["4.2.9", "3.10.8"]),
        ("<4.3.5", ["4.3.4", "4.3", "3.10.8"], ["4.3.5", "4.3.10", "4.4"]),
        (">=3.13,<4", ["3.13.0", "3.13.7"], ["3.12.14", "4.0.0-rc.1"]),
        ("<4,>=3.13", ["3.13.0"], ["4"]),
    ],
)
def test_a_range_includes_its_first_release_but_not_its_last(text: str, inside: list[str], outside: list[str]) -> None:
    releases = ReleaseRange.parse(text)
    assert [text for text in inside + outside if (release := Release.parse(text)) and release in releases] == inside


@pytest.mark.parametrize(
    ("server", "release"),
    [
        ("RabbitMQ/4.3.6", Release(4, 3, 6)),
        ("RabbitMQ/4.0.0-beta.2", Release(4, 0, 0)),
        ("RabbitMQ/unknown", None),
        ("RabbitMQ/4.3.6 stomp-gateway/0.1.0", Release(4, 3, 6)),
        ("stomp-gateway/0.1.0", None),
        ("", None),
    ],
)
def test_release_from_the_server_header(server: str, release: Release | None) -> None:
    assert Release.from_server_header(server) == release


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("C is open\nS<[4.3] closed\n", "inline.stomp:6: [4.3] is no range of releases; they look like [>=4.3]"),
        ("S<[>4.3] closed\n", "inline.stomp:5: [>4.3] is no range"),
        ("S<[>=4.3,>=5] closed\n", "inline.stomp:5: [>=4.3,>=5] is no range"),
        ("S<[>=4.3,] closed\n", "inline.stomp:5: [>=4.3,] is no range"),
        ("S<[] closed\n", "inline.stomp:5: [] is no range"),
        ("C>[>=4.3.1.2] raw\n", "inline.stomp:5: [>=4.3.1.2] is no range"),
        ("B<[>=4.3,<4.3] queue q exists\n", "inline.stomp:5: no release is in [>=4.3,<4.3]"),
        ("S<[>=4.3 closed\n", "inline.stomp:5: '[>=4.3 closed' is neither a server nor a range"),
        ("S<[>= 4.3] closed\n", "inline.stomp:5: [>= 4.3] is no range"),
        ("S<plugin[<4.3]gateway closed\n", "inline.stomp:5: 'plugin[<4.3]gateway' is neither"),
        ("S<plugin, closed\n", "inline.stomp:5: 'plugin,' is neither"),
        ("S<plugin[<4],plugin[>=5] closed\n", "inline.stomp:5: 'plugin[<4],plugin[>=5]' names a server twice"),
        ("S<[<4],plugin closed\n", "inline.stomp:5: '[<4],plugin' names a server twice"),
        ("S<plugin,[<4] closed\n", "inline.stomp:5: 'plugin,[<4]' names a server twice"),
        ("C[4] is open\n", "inline.stomp:5: [4] is no range"),
        ("S< ERROR\n   [4] a:b\n", "inline.stomp:5: [4] is no range"),
        ("S<[<4] closed\n", "inline.stomp:1: the file has no steps that hold for all releases"),
    ],
)
def test_a_bad_range_is_refused_with_file_and_line(steps: str, problem: str) -> None:
    with pytest.raises(TranscriptError) as refusal:
        _transcript(steps, DEPARTURE)
    assert str(refusal.value).startswith(problem)


def test_a_server_under_a_range_needs_a_departure_too() -> None:
    with pytest.raises(TranscriptError, match=r"inline.stomp:5: only the plugin does this"):
        _transcript("C is open\nS<plugin[<4.3] closed\n")
    with pytest.raises(TranscriptError, match=r"inline.stomp:5: only the gateway does this"):
        _transcript("in any order\nS<gateway ERROR\nin order\n")


def _answer(mark: str) -> ServerFrame:
    """The answer to the probe at the end, too, with a mark."""
    return ServerFrame(b"ERROR", (b"message:Illegal command", b"mark:" + mark.encode()), b"")


OLD_OR_NEW = f"S<[<4.3] ERROR\n   {ILLEGAL}\n   mark:old\n\nS<[>=4.3] ERROR\n   {ILLEGAL}\n   mark:new\n"
STEPS = {
    "a step": SEND + OLD_OR_NEW,
    "in any order": SEND + "in any order\n" + OLD_OR_NEW + "in order\n",
    "a header": SEND + f"S< ERROR\n   {ILLEGAL}\n   [<4.3] mark:old\n   [>=4.3] mark:new\n",
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("side", ["plugin", "gateway"])
async def test_a_step_holds_on_its_releases_only(steps: str, side: Side) -> None:
    transcript = _transcript(steps)
    for release, message in ((OLD, "old"), (NEW, "new")):
        await check(transcript.for_release(release), ScriptedPeer(_answer(message)), side)
    for release, message in ((OLD, "new"), (NEW, "old")):
        with pytest.raises(MismatchError):
            await check(transcript.for_release(release), ScriptedPeer(_answer(message)), side)


@pytest.mark.parametrize(
    ("release", "side", "message"),
    [(OLD, "plugin", "both"), (OLD, "gateway", "both"), (NEW, "plugin", "own"), (NEW, "gateway", "both")],
)
async def test_a_step_may_hold_for_one_server_always_and_for_the_other_sometimes(
    release: Release, side: Side, message: str
) -> None:
    both, own = (f"ERROR\n   {ILLEGAL}\n   mark:{mark}\n\n" for mark in ("both", "own"))
    steps = SEND + "S<gateway,plugin[<4.3] " + both + "S<plugin[>=4.3] " + own
    transcript = _transcript(steps, DEPARTURE).for_release(release)
    await check(transcript, ScriptedPeer(_answer(message)), side)
    with pytest.raises(MismatchError):
        await check(transcript, ScriptedPeer(_answer("other")), side)
    assert transcript.expects_departure is (release == NEW)


@pytest.mark.parametrize("deed", ["C is open", "C connects with 1.2"])
async def test_steps_of_a_connection_may_depend_on_the_release(deed: str) -> None:
    whom, _, what = deed.partition(" ")
    transcript = _transcript(SEND + f"S< ERROR\n   message:Illegal command\n   mark:m\n\n{whom}[>=4.3] {what}\n")
    assert len(transcript.for_release(OLD).steps) == len(transcript.for_release(NEW).steps) - 1


def test_a_transcript_that_depends_on_the_release_is_not_played_without_one() -> None:
    transcript = _transcript(STEPS["a header"])
    assert transcript.depends_on_release
    assert not transcript.for_release(OLD).depends_on_release
    with pytest.raises(ValueError, match="depends on the release"):
        play(transcript, ScriptedPeer(), None, "plugin").send(None)


async def test_a_departure_of_other_releases_does_not_count() -> None:
    """If no step is for one server only on this release, the two must be equal."""
    new, some = (f"ERROR\n   {ILLEGAL}\n   mark:{mark}\n\n" for mark in ("new", "{*}"))
    steps = SEND + "S<plugin[>=4.3] " + new + "S<gateway,plugin[<4.3] " + some

    async def outcome(release: Release, plugin: str, gateway: str) -> Outcome:
        transcript = _transcript(steps, DEPARTURE).for_release(release)
        one = await play(transcript, ScriptedPeer(_answer(plugin)), None, "plugin")
        other = await play(transcript, ScriptedPeer(_answer(gateway)), None, "gateway")
        return judge(transcript, one, other).outcome

    assert await outcome(NEW, "new", "old") is Outcome.DEPARTURE
    assert await outcome(OLD, "old", "old") is Outcome.EQUAL
    assert await outcome(OLD, "old", "other") is Outcome.DIFFERENT


def server(name: str, heart_beat: str) -> Answer:
    """Answers CONNECT only."""
    return lambda command, _: connected(name).replace(b"0,0", heart_beat.encode()) if command == "CONNECT" else b""


@pytest.mark.parametrize(
    ("release", "outcome", "remark"),
    [(OLD, Outcome.EQUAL, "neither goes as written"), (NEW, Outcome.EQUAL, ""), (None, Outcome.SKIPPED, "--amqp")],
)
async def test_both_servers_play_the_steps_of_the_release_of_their_broker(
    release: Release | None, outcome: Outcome, remark: str
) -> None:
    connect = "C> CONNECT\n   accept-version:1.2\n   host:/\n\n"
    frame = "   version:1.2\n   session:{s:text}\n   server:{*}\n"
    text = connect + f"S< CONNECTED\n{frame}   [<4.3] heart-beat:0,0\n   [>=4.3] heart-beat:7,7\n\nC hangs up\n"
    verdicts: list[Verdict] = []
    async with (
        false_server(server("RabbitMQ/1", "7,7")) as one,
        false_server(server("RabbitMQ/4 stomp-gateway/0", "7,7")) as two,
    ):
        comparison = Comparison({"plugin": one, "gateway": two}, None, release, Identity(), SETUPS, jobs=1)
        await comparison.run([_transcript(text)], verdicts.append, lambda: None)
    assert [verdict.outcome for verdict in verdicts] == [outcome]
    assert remark in "".join(verdicts[0].remarks)
    assert bool(remark) is bool(verdicts[0].remarks)
