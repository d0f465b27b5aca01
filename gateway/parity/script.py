"""What a transcript file says: the parser from its text to a list of steps.

The format is told in the README.md beside the transcripts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

from gateway.errors import GatewayError
from gateway.parity.block import BadLineError, Block, blocks_of
from gateway.parity.release import Release, Releases

Side = Literal["plugin", "gateway"]
SIDES: tuple[Side, ...] = get_args(Side)
_BOTH = set(SIDES)

Setup = Literal["plain", "configured", "no-default-user", "restricted-user"]
SETUPS: Mapping[Setup, str] = {
    "plain": 'servers as they come, the gateway without the virtual host "*"',
    "configured": "servers with implicit connect, a default user, virtual host and topic exchange of their own, NACK "
    "without requeueing, no server header, a login timeout of 2 seconds",
    "no-default-user": "servers with implicit connect and without a default user",
    "restricted-user": "a broker with the user `restricted`, passcode `restricted`, who may do little",
}
"""What the conversations of a setup ask of both servers."""

ANY_OTHER_HEADERS = "..."

_HEADER_KEYS = {"title", "rule", "departure", "cleanup", "setup"}
_STAYING = re.compile(r"(?<!temp-)queue/|x-queue-name:|(?:durable|persistent):true|auto-delete:false")
# For whom a step holds: nothing for both servers; `plugin[<4.3]`, `[>=4.3]`, `gateway,plugin[<4.3]`.
_PART = r"(?:plugin|gateway|\[[^\]]*\]?)"
_WHOM = rf"(?P<whom>{_PART}[^ ]*)?"
_TERM = re.compile(r"(?P<side>plugin|gateway)?(?:\[(?P<releases>[^\]]*)\])?(?P<more>,(?=.))?")
_TALK = re.compile(rf"(?P<client>C\d*)>{_WHOM}(?: +(?P<rest>.*))?$")
_ANSWER = re.compile(rf"S(?P<number>\d*)<{_WHOM}(?: +(?P<rest>.*))?$")
_BROKER = re.compile(rf"B(?P<way>[<>]){_WHOM} +(?P<rest>.*)$")
_CONNECT = re.compile(r"(?P<client>C\d*)(?P<whom>\[[^ ]*)? connects with (?P<version>1\.[012])$")
_DEED = re.compile(r"(?P<client>C\d*)(?P<whom>\[[^ ]*)? (?P<deed>hangs up|is open)$")
_SOMETIMES = re.compile(r"\[(?P<releases>[^\]]*)\] +(?P<header>.*)")
_MANY = "any number of "


class ScriptError(GatewayError):
    """A transcript file that breaks its own format; the text starts with `file:line:`."""


@dataclass(frozen=True, slots=True)
class FrameText:
    """A STOMP frame, or a message in the broker, as the file writes it: placeholders are still in it."""

    command: str
    headers: tuple[str, ...]
    body: str
    sometimes: tuple[tuple[Releases, str], ...] = ()
    """Headers that are there in some releases alone."""

    def on(self, release: Release) -> "FrameText":
        """Return the frame as it is with a broker of this release."""
        present = tuple(line for releases, line in self.sometimes if release in releases)
        return FrameText(self.command, self.headers + present, self.body)

    @property
    def tolerates_others(self) -> bool:
        """True when the file allows headers that it does not list."""
        return ANY_OTHER_HEADERS in self.headers


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens.

    Args:
        line: of the file.
        side: the server that it holds for; None for both.
        releases: those of the broker that it holds for; None for all.
    """

    line: int
    side: Side | None
    releases: Releases | None


_AnyStep = TypeVar("_AnyStep", bound=Step)


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
    def depends_on_release(self) -> bool:
        """True when some steps, or some headers in them, hold for some releases of RabbitMQ alone."""
        return any(step.releases or (isinstance(step, Expect) and step.frame.sometimes) for step in _each(self.steps))

    @property
    def departs(self) -> bool:
        """True when a step holds for one of the two servers alone. Depends on the release, so ask after `on`."""
        return any(whom != _BOTH for whom in _sides(self.steps).values())

    @property
    def common_lines(self) -> frozenset[int]:
        """Where the steps are that hold for both servers, with all that is in them. Depends on the release, too."""
        sides = _sides(self.steps)
        return frozenset(step.line for step in self.steps if all(sides[each.line] == _BOTH for each in _each([step])))

    def on(self, release: Release) -> "Conversation":
        """Return the conversation as it goes with a broker of this release; it depends on none any more."""
        return replace(self, steps=tuple(_on(release, self.steps)))

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


def _each(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        if isinstance(step, AnyOrder):
            yield from step.expected


def _sides(steps: Iterable[Step]) -> dict[int, set[Side]]:
    """Return which servers the steps of each line hold for."""
    sides: dict[int, set[Side]] = {}
    for step in _each(steps):
        sides.setdefault(step.line, set()).update([step.side] if step.side else SIDES)
    return sides


def _on(release: Release, steps: Iterable[_AnyStep]) -> Iterator[_AnyStep]:
    for step in steps:
        if step.releases is not None and release not in step.releases:
            continue
        kept = replace(step, releases=None)
        if isinstance(kept, AnyOrder):
            kept = replace(kept, expected=tuple(_on(release, kept.expected)))
        elif isinstance(kept, Expect):
            kept = replace(kept, frame=kept.frame.on(release))
        yield kept


def _sent(step: Step) -> str:
    if isinstance(step, Send):
        return "\n".join(step.frame.headers)
    return step.text if isinstance(step, SendRaw) else ""


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
    except BadLineError as bad:
        raise ScriptError(f"{path}:{bad.line}: {bad.problem}") from None


def _parse(text: str, path: Path) -> Conversation:
    blocks = list(blocks_of(text))
    first_step = next((index for index, block in enumerate(blocks) if not _is_header(block)), len(blocks))
    headers = _headers(blocks[:first_step])
    steps = tuple(_steps(blocks[first_step:]))
    for step in _each(steps):
        if step.side and not headers["departure"]:
            raise BadLineError(step.line, f"only the {step.side} does this, and the file names no departure")
    if all(step.releases for step in steps):
        raise BadLineError(1, "the file has no steps that hold for all releases" if steps else "the file has no steps")
    return Conversation(
        path=path,
        title=_only(headers, "title"),
        rule=_only(headers, "rule"),
        departures=tuple(headers["departure"]),
        cleanup=tuple(word for line in headers["cleanup"] for word in line.split()),
        setup=_setup(headers["setup"]),
        steps=steps,
    )


def _is_header(block: Block) -> bool:
    return block.opening.partition(":")[0] in _HEADER_KEYS


def _headers(blocks: Sequence[Block]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {key: [] for key in _HEADER_KEYS}
    for block in blocks:
        key, _, value = block.opening.partition(":")
        headers[key].append(" ".join([value.strip(), *(line.strip() for line in block.under)]).strip())
    return headers


def _only(headers: dict[str, list[str]], key: str) -> str:
    if len(headers[key]) != 1 or not headers[key][0]:
        raise BadLineError(1, f"the file must have exactly one `{key}:`")
    return headers[key][0]


def _setup(names: Sequence[str]) -> Setup:
    if len(names) > 1:
        raise BadLineError(1, "the file may have one `setup:` at most")
    name = names[0] if names else "plain"
    found = next((setup for setup in SETUPS if setup == name), None)
    if found is None:
        raise BadLineError(1, f"there is no setup {name!r}; there are {', '.join(SETUPS)}")
    return found


def _steps(blocks: Sequence[Block]) -> Iterator[Step]:
    waiting = iter(blocks)
    for block in waiting:
        if block.opening == "in any order":
            yield _any_order(block, waiting)
        else:
            yield from _held(block)


def _any_order(opening: Block, blocks: Iterator[Block]) -> AnyOrder:
    expected: list[Expect] = []
    for block in blocks:
        if block.opening == "in order":
            return AnyOrder(opening.line, None, None, tuple(expected))
        for step in _held(block):
            if not isinstance(step, Expect) or step.many:
                raise BadLineError(block.line, "between `in any order` and `in order` only single frames are expected")
            expected.append(step)
    raise BadLineError(opening.line, "`in any order` lacks its `in order`")


def _held(block: Block) -> Iterator[Step]:
    """Yield the step of a block, once for each of those whom it holds for: only one of them applies to a server."""
    step, whom = _step(block)
    if not whom:
        yield step
        return
    seen: set[Side | None] = set()
    place = 0
    while place < len(whom):
        term = _TERM.match(whom, place)
        if not term or term.end() == place or not (term["more"] or term.end() == len(whom)):
            raise BadLineError(block.line, f"{whom!r} is neither a server nor a range of releases, nor several")
        side = next((side for side in SIDES if side == term["side"]), None)
        if side in seen or (None in seen) or (side is None and (seen or term["more"])):
            raise BadLineError(block.line, f"{whom!r} names a server twice")
        seen.add(side)
        releases = None if term["releases"] is None else _releases(block, term["releases"])
        yield replace(step, side=side, releases=releases)
        place = term.end()


def _releases(block: Block, text: str) -> Releases:
    try:
        return Releases.read(text)
    except ValueError as error:
        raise BadLineError(block.line, str(error)) from None


def _step(block: Block) -> tuple[Step, str | None]:
    """Return the step of a block, as if it held for all, and the text that says for whom it holds."""
    if match := _TALK.match(block.opening):
        return _talk(block, match), match["whom"]
    if match := _ANSWER.match(block.opening):
        return _answer(block, match), match["whom"]
    if match := _BROKER.match(block.opening):
        kind = BrokerDeed if match["way"] == ">" else BrokerState
        return kind(block.line, None, None, match["rest"], _frame("", block)), match["whom"]
    if block.under:
        raise BadLineError(block.line, "nothing may stand under this line")
    if match := _CONNECT.match(block.opening):
        return Connect(block.line, None, None, match["client"], match["version"]), match["whom"]
    if match := _DEED.match(block.opening):
        deed = HangUp if match["deed"] == "hangs up" else IsOpen
        return deed(block.line, None, None, match["client"]), match["whom"]
    raise BadLineError(block.line, f"not a step: {block.opening!r}")


def _talk(block: Block, match: re.Match[str]) -> Step:
    if match["rest"] == "raw":
        return SendRaw(block.line, None, None, match["client"], "\n".join(block.under))
    return Send(block.line, None, None, match["client"], _frame(match["rest"], block))


def _answer(block: Block, match: re.Match[str]) -> Step:
    client, rest = "C" + match["number"], match["rest"] or ""
    if rest in ("closed", "closed in time"):
        return ExpectClosed(block.line, None, None, client, rest == "closed in time")
    if rest == "heart-beat":
        return ExpectBeat(block.line, None, None, client)
    many = rest.startswith(_MANY)
    return Expect(block.line, None, None, client, _expected_frame(rest.removeprefix(_MANY), block), many)


def _expected_frame(command: str, block: Block) -> FrameText:
    frame = _frame(command, block)
    always, sometimes = [], []
    for line in frame.headers:
        if match := _SOMETIMES.match(line):
            sometimes.append((_releases(block, match["releases"]), match["header"]))
        else:
            always.append(line)
    return replace(frame, headers=tuple(always), sometimes=tuple(sometimes))


def _frame(command: str | None, block: Block) -> FrameText:
    lines = list(block.under)
    end = lines.index("") if "" in lines else len(lines)
    return FrameText(command or "", tuple(lines[:end]), "\n".join(lines[end + 1 :]))
