"""What a transcript file says: the parser from its text to a list of steps.

The format is told in the README.md beside the transcripts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gateway.errors import GatewayError

Side = Literal["plugin", "gateway"]
SIDES: tuple[Side, ...] = get_args(Side)

Setup = Literal["plain", "configured", "no-default-user", "restricted-user"]
SETUPS: Mapping[Setup, str] = {
    "plain": "servers as they come",
    "configured": "implicit connect, a default user, virtual host and topic exchange of their own, NACK without "
    "requeueing, no server header, a login timeout of 2 seconds",
    "no-default-user": "servers with implicit connect and without a default user",
    "restricted-user": "a broker with the user `restricted`, passcode `restricted`, who may do little",
}
"""What the conversations of a setup ask of both servers."""

ANY_OTHER_HEADERS = "..."

_HEADER_KEYS = {"title", "rule", "departure", "cleanup", "setup"}
_STAYING = re.compile(r"(?<!temp-)queue/|x-queue-name:|(?:durable|persistent):true|auto-delete:false")
_TALK = re.compile(r"(?P<client>C\d*)>(?P<side>plugin|gateway)?(?: +(?P<rest>.*))?$")
_ANSWER = re.compile(r"S(?P<number>\d*)<(?P<side>plugin|gateway)?(?: +(?P<rest>.*))?$")
_BROKER = re.compile(r"B(?P<way>[<>])(?P<side>plugin|gateway)? +(?P<rest>.*)$")
_CONNECT = re.compile(r"(?P<client>C\d*) connects with (?P<version>1\.[012])$")
_DEED = re.compile(r"(?P<client>C\d*) (?P<deed>hangs up|is open)$")
_MANY = "any number of "


class ScriptError(GatewayError):
    """A transcript file that breaks its own format; the text starts with `file:line:`."""


@dataclass(frozen=True, slots=True)
class FrameText:
    """A STOMP frame, or a message in the broker, as the file writes it: placeholders are still in it."""

    command: str
    headers: tuple[str, ...]
    body: str

    @property
    def tolerates_others(self) -> bool:
        """True when the file allows headers that it does not list."""
        return ANY_OTHER_HEADERS in self.headers


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens; `side` restricts it to one server and is None for both."""

    line: int
    side: Side | None


@dataclass(frozen=True, slots=True)
class Send(Step):
    """The client sends a frame."""

    client: str
    frame: FrameText


@dataclass(frozen=True, slots=True)
class SendRaw(Step):
    """The client sends these octets; `text` still holds placeholders and the escapes of raw blocks."""

    client: str
    text: str


@dataclass(frozen=True, slots=True)
class Expect(Step):
    """The server must send this frame next, or (`many`) any number of its like."""

    client: str
    frame: FrameText
    many: bool


@dataclass(frozen=True, slots=True)
class ExpectBeat(Step):
    """The server must send a heart-beat."""

    client: str


@dataclass(frozen=True, slots=True)
class ExpectClosed(Step):
    """The server must close the connection, and send nothing before that; `in_time`: because its patience ended."""

    client: str
    in_time: bool


@dataclass(frozen=True, slots=True)
class AnyOrder(Step):
    """The server must send exactly these frames, in whatever order."""

    expected: tuple[Expect, ...]


@dataclass(frozen=True, slots=True)
class Connect(Step):
    """The client logs in, with the given version of STOMP."""

    client: str
    version: str


@dataclass(frozen=True, slots=True)
class HangUp(Step):
    """The client closes its connection without a word."""

    client: str


@dataclass(frozen=True, slots=True)
class IsOpen(Step):
    """The connection answers, and nothing was said in between."""

    client: str


@dataclass(frozen=True, slots=True)
class BrokerDeed(Step):
    """Something is done to the broker behind the server's back."""

    sentence: str
    message: FrameText


@dataclass(frozen=True, slots=True)
class BrokerState(Step):
    """Something must be seen in the broker."""

    sentence: str
    message: FrameText


@dataclass(frozen=True, slots=True)
class Conversation:
    """A parsed transcript file."""

    path: Path
    title: str
    rule: str
    departures: tuple[str, ...]
    cleanup: tuple[str, ...]
    setup: Setup
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """The file's name without its ending, and its folder's: `connect/version-highest`."""
        return "/".join(self.path.with_suffix("").parts[-2:])

    @property
    def uses_broker(self) -> bool:
        """True when a step looks at the broker, or does something to it, behind the server's back."""
        return any(isinstance(step, BrokerDeed | BrokerState) for step in self.steps)

    @property
    def leaves_queues(self) -> bool:
        """True when queues may outlast the clients' connections, so that somebody has to remove them."""
        texts = (_sent(step) for step in self.steps)
        return bool(self.cleanup) or any(_STAYING.search(text) for text in texts)

    @property
    def uses_clock(self) -> bool:
        """True when a step waits for something that only time brings."""
        return any(isinstance(step, ExpectBeat) or getattr(step, "in_time", False) for step in self.steps)


def _sent(step: Step) -> str:
    if isinstance(step, Send):
        return "\n".join(step.frame.headers)
    return step.text if isinstance(step, SendRaw) else ""


@dataclass(frozen=True, slots=True)
class _Block:
    """A line that starts in the first column, and the indented lines under it, their indentation removed."""

    line: int
    opening: str
    under: tuple[str, ...]


def read_conversation(path: Path) -> Conversation:
    """Read one transcript file.

    Raises:
        ScriptError: the file breaks the format; among others, it expects different things of the two servers
            without naming the departure that allows it.
    """
    return parse_conversation(path.read_text(encoding="utf-8"), path)


def parse_conversation(text: str, path: Path) -> Conversation:
    """Parse the text of a transcript file; `path` only names it in errors. Raises ScriptError."""
    try:
        return _parse(text, path)
    except _BadLineError as bad:
        raise ScriptError(f"{path}:{bad.line}: {bad.problem}") from None


class _BadLineError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


def _parse(text: str, path: Path) -> Conversation:
    blocks = list(_blocks(text))
    first_step = next((index for index, block in enumerate(blocks) if not _is_header(block)), len(blocks))
    headers = _headers(blocks[:first_step])
    steps = tuple(_steps(blocks[first_step:]))
    for step in steps:
        if step.side and not headers["departure"]:
            raise _BadLineError(step.line, f"only the {step.side} does this, and the file names no departure")
    if not steps:
        raise _BadLineError(1, "the file has no steps")
    return Conversation(
        path=path,
        title=_only(headers, "title"),
        rule=_only(headers, "rule"),
        departures=tuple(headers["departure"]),
        cleanup=tuple(word for line in headers["cleanup"] for word in line.split()),
        setup=_setup(headers["setup"]),
        steps=steps,
    )


def _blocks(text: str) -> Iterator[_Block]:
    opening: tuple[int, str] | None = None
    under: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            continue
        if not line or line.startswith(" "):
            under.append(line)
            continue
        if opening:
            yield _Block(*opening, _dedented(under))
        opening, under = (number, line), []
    if opening:
        yield _Block(*opening, _dedented(under))


def _dedented(lines: Sequence[str]) -> tuple[str, ...]:
    """Remove the first line's indentation from all, and empty lines from the end."""
    first = next((line for line in lines if line), "")
    indentation = " " * (len(first) - len(first.lstrip(" ")))
    kept = [line.removeprefix(indentation) for line in lines]
    while kept and not kept[-1].strip():
        kept.pop()
    return tuple(kept)


def _is_header(block: _Block) -> bool:
    return block.opening.partition(":")[0] in _HEADER_KEYS


def _headers(blocks: Sequence[_Block]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {key: [] for key in _HEADER_KEYS}
    for block in blocks:
        key, _, value = block.opening.partition(":")
        headers[key].append(" ".join([value.strip(), *(line.strip() for line in block.under)]).strip())
    return headers


def _only(headers: dict[str, list[str]], key: str) -> str:
    if len(headers[key]) != 1 or not headers[key][0]:
        raise _BadLineError(1, f"the file must have exactly one `{key}:`")
    return headers[key][0]


def _setup(names: Sequence[str]) -> Setup:
    if len(names) > 1:
        raise _BadLineError(1, "the file may have one `setup:` at most")
    name = names[0] if names else "plain"
    found = next((setup for setup in SETUPS if setup == name), None)
    if found is None:
        raise _BadLineError(1, f"there is no setup {name!r}; there are {', '.join(SETUPS)}")
    return found


def _steps(blocks: Sequence[_Block]) -> Iterator[Step]:
    waiting = iter(blocks)
    for block in waiting:
        if block.opening == "in any order":
            yield _any_order(block, waiting)
        else:
            yield _step(block)


def _any_order(opening: _Block, blocks: Iterator[_Block]) -> AnyOrder:
    expected: list[Expect] = []
    for block in blocks:
        if block.opening == "in order":
            return AnyOrder(opening.line, None, tuple(expected))
        step = _step(block)
        if not isinstance(step, Expect) or step.many:
            raise _BadLineError(block.line, "between `in any order` and `in order` only single frames are expected")
        expected.append(step)
    raise _BadLineError(opening.line, "`in any order` lacks its `in order`")


def _step(block: _Block) -> Step:
    if match := _TALK.match(block.opening):
        return _talk(block, match)
    if match := _ANSWER.match(block.opening):
        return _answer(block, match)
    if match := _BROKER.match(block.opening):
        kind = BrokerDeed if match["way"] == ">" else BrokerState
        return kind(block.line, _side(match), match["rest"], _frame("", block))
    if block.under:
        raise _BadLineError(block.line, "nothing may stand under this line")
    if match := _CONNECT.match(block.opening):
        return Connect(block.line, None, match["client"], match["version"])
    if match := _DEED.match(block.opening):
        deed = HangUp if match["deed"] == "hangs up" else IsOpen
        return deed(block.line, None, match["client"])
    raise _BadLineError(block.line, f"not a step: {block.opening!r}")


def _talk(block: _Block, match: re.Match[str]) -> Step:
    if match["rest"] == "raw":
        return SendRaw(block.line, _side(match), match["client"], "\n".join(block.under))
    return Send(block.line, _side(match), match["client"], _frame(match["rest"], block))


def _answer(block: _Block, match: re.Match[str]) -> Step:
    client, rest = "C" + match["number"], match["rest"] or ""
    if rest in ("closed", "closed in time"):
        return ExpectClosed(block.line, _side(match), client, rest == "closed in time")
    if rest == "heart-beat":
        return ExpectBeat(block.line, _side(match), client)
    many = rest.startswith(_MANY)
    return Expect(block.line, _side(match), client, _frame(rest.removeprefix(_MANY), block), many)


def _frame(command: str | None, block: _Block) -> FrameText:
    lines = list(block.under)
    end = lines.index("") if "" in lines else len(lines)
    return FrameText(command or "", tuple(lines[:end]), "\n".join(lines[end + 1 :]))


def _side(match: re.Match[str]) -> Side | None:
    return next((side for side in SIDES if side == match["side"]), None)
