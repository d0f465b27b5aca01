"""Every transcript is played against RabbitMQ's plugin, the oracle, and against the gateway, over sockets."""

from pathlib import Path

import pytest

from tests.support.transcript import (
    AmqpBroker,
    Conversation,
    MismatchError,
    Received,
    ScriptError,
    ServerFrame,
    Side,
    SilenceError,
    SocketPeer,
    parse_conversation,
    play,
    read_conversation,
)

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
FILES = sorted(TRANSCRIPTS.rglob("*.stomp"))

Address = tuple[str, int]

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TRANSCRIPTS).with_suffix("")))


async def _play(path: Path, address: Address, broker_url: str, side: Side) -> None:
    async with AmqpBroker.connected(broker_url) as broker:
        await play(read_conversation(path), SocketPeer(address), broker, side)


@pytest.mark.system
@every_file
async def test_plugin(path: Path, plugin_address: Address, broker_url: str) -> None:
    await _play(path, plugin_address, broker_url, "plugin")


@pytest.mark.system
@every_file
async def test_gateway(path: Path, gateway_address: Address, broker_url: str) -> None:
    await _play(path, gateway_address, broker_url, "gateway")


def _departures() -> dict[str, bool]:
    """Return the rows of departures.md, and whether each promises a transcript."""
    rows = [line for line in (TRANSCRIPTS / "departures.md").read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    return {plugin: transcript == "yes" for plugin, _, transcript in cells}


def test_departures_named_are_those_of_the_table_and_each_is_shown() -> None:
    named = {departure for path in FILES for departure in read_conversation(path).departures}
    assert named == {departure for departure, is_shown in _departures().items() if is_shown}


def test_a_departure_is_named_only_where_the_two_sides_differ() -> None:
    conversations = [read_conversation(path) for path in FILES]
    idle = [each.name for each in conversations if each.departures and not any(step.side for step in each.steps)]
    assert not idle


# The player itself: a transcript that cannot fail would prove nothing.

HEAD = "title: t\nrule: r\n\n"


def _conversation(steps: str, head: str = HEAD) -> Conversation:
    return parse_conversation(head + steps, Path("inline.stomp"))


class ScriptedPeer:
    """A server that answers every frame by the same frames."""

    def __init__(self, *answers: ServerFrame) -> None:
        self._answers = answers
        self._waiting: list[Received] = []

    async def send(self, _client: str, _octets: bytes) -> None:
        self._waiting += self._answers

    async def receive(self, _client: str) -> Received:
        if not self._waiting:
            raise SilenceError("nothing more")
        return self._waiting.pop(0)

    async def hang_up(self, _client: str) -> None: ...

    async def close(self) -> None: ...


class NoBroker(AmqpBroker):
    """For conversations that have nothing to do with a broker."""

    def __init__(self) -> None: ...


REFUSAL = ServerFrame(b"ERROR", (b"message:Illegal command", b"content-length:2"), b"no")
EXPECTED = "C> SEND\n   destination:/topic/a\n\nS< ERROR\n   message:Illegal command\n\n   no\n"


async def test_a_conversation_that_goes_as_written_passes() -> None:
    await play(_conversation(EXPECTED), ScriptedPeer(REFUSAL), NoBroker(), "gateway")


@pytest.mark.parametrize(
    ("steps", "difference"),
    [
        (EXPECTED.replace("S< ERROR", "S< RECEIPT"), "is not RECEIPT"),
        (EXPECTED.replace("   message:Illegal command\n", ""), "has the unexpected header message:Illegal command"),
        (EXPECTED.replace("Illegal", "Legal"), "lacks the header message:Legal command"),
        (EXPECTED.replace("   message", "   receipt-id:1\n   message"), "lacks the header receipt-id:1"),
        (EXPECTED.replace("   no\n", "   yes\n"), "has another body"),
        (EXPECTED.replace("   no\n", "   no{lf}\n"), "has another body"),
        (EXPECTED.replace("   message", "   content-length:3\n   message"), "lacks the header content-length:3"),
        (EXPECTED + "S< closed\n", "nothing more"),
        (EXPECTED + "S< ERROR\n   ...\n\n   {*}\n", "nothing more"),
        (
            EXPECTED.replace("S< ERROR\n   message:Illegal command\n\n   no", "S< closed"),
            "expected the connection",
        ),
        (EXPECTED.replace("Illegal command", "{a:digits}"), "lacks the header message:{a:digits}"),
        (EXPECTED.replace("S< ERROR", "in any order\nS< RECEIPT") + "in order\n", "expected, in any order"),
    ],
)
async def test_a_conversation_that_goes_otherwise_fails(steps: str, difference: str) -> None:
    with pytest.raises(MismatchError, match="inline") as failure:
        await play(_conversation(steps), ScriptedPeer(REFUSAL), NoBroker(), "gateway")
    assert difference in str(failure.value)


async def test_a_frame_that_nobody_expected_fails_at_the_end() -> None:
    with pytest.raises(MismatchError, match="lacks the header message:Illegal command"):
        await play(
            _conversation(EXPECTED), ScriptedPeer(REFUSAL, ServerFrame(b"ERROR", (), b"")), NoBroker(), "gateway"
        )


async def test_a_wrong_content_length_fails() -> None:
    answer = ServerFrame(b"ERROR", (b"message:Illegal command", b"content-length:7"), b"no")
    with pytest.raises(MismatchError, match="about a body of 2 octets"):
        await play(_conversation(EXPECTED), ScriptedPeer(answer), NoBroker(), "gateway")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "S<plugin closed\n", "inline.stomp:4: only the plugin does this, and the file names no departure"),
        (HEAD + "Client sends\n", "inline.stomp:4: not a step"),
        (HEAD + "in any order\nS< RECEIPT\n", "lacks its `in order`"),
        (HEAD, "no steps"),
        ("rule: r\n\nC is open\n", "exactly one `title:`"),
        (HEAD + "C is open\n   really\n", "nothing may stand under this line"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ScriptError, match=problem):
        _conversation(text, head="")
