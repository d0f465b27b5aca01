"""Transcripts and the table of departures, read from their files. README.md beside them describes the format."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Literal, Self

from gateway.errors import GatewayError
from gateway.parity import steps
from gateway.parity.steps import SIDES, FrameTemplate, Release, ReleaseRange, Side, Step

Setup = Literal["plain", "configured", "no-default-user", "restricted-user"]
SETUPS: Mapping[Setup, str] = {
    "plain": "servers with their default settings",
    "configured": "servers with implicit connect, a default user, virtual host and topic exchange of their own, NACK "
    "without requeueing, no server header, a login timeout of 2 seconds",
    "no-default-user": "servers with implicit connect and without a default user",
    "restricted-user": "a broker with the user `restricted`, passcode `restricted`, who may do little",
}
"""How both servers must be configured for the transcripts of a setup."""

_LASTING_QUEUE = re.compile(r"(?<!temp-)queue/|x-queue-name:|(?:durable|persistent):true|auto-delete:false")
_FILE_KEYS = {"title", "rule", "departure", "cleanup", "setup"}
# The servers and releases a step holds for: nothing for all, `plugin[<4.3]`, `[>=4.3]`, `gateway,plugin[<4.3]`.
_SCOPE = r"(?P<scope>(?:plugin|gateway|\[[^\]]*\]?)[^ ]*)?"
_SCOPE_PART = re.compile(r"(?P<side>plugin|gateway)?(?:\[(?P<releases>[^\]]*)\])?")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_CLIENT_SENDS = re.compile(rf"(?P<client>C\d*)>{_SCOPE}(?: +(?P<rest>.*))?$")
_SERVER_SENDS = re.compile(rf"S(?P<number>\d*)<{_SCOPE}(?: +(?P<rest>.*))?$")
_BROKER = re.compile(rf"B(?P<direction>[<>]){_SCOPE} +(?P<rest>.*)$")
_CLIENT_DOES = re.compile(
    r"(?P<client>C\d*)(?P<scope>\[[^ ]*)? (?:(?P<hangs_up>hangs up)|is open|connects with (?P<version>1\.[012]))$"
)
_RELEASE_HEADER = re.compile(r"\[(?P<releases>[^\]]*)\] +(?P<header>.*)")
_ANY_NUMBER = "any number of "


class TranscriptError(GatewayError):
    """A transcript file that breaks the format; the text starts with `file:line:`."""


class TranscriptsMissingError(GatewayError):
    """The installation has no transcripts."""


class _LineError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class Transcript:
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
        """The name of the folder and of the file, without its suffix: `connect/version-highest`."""
        return "/".join(self.path.with_suffix("").parts[-2:])

    @property
    def depends_on_release(self) -> bool:
        """True if some steps, or some of their headers, hold for some releases of RabbitMQ only."""
        return any(
            step.releases or (isinstance(step, steps.ExpectFrame) and step.frame.release_headers)
            for step in steps.flattened(self.steps)
        )

    def for_release(self, release: Release) -> Self:
        """Return the transcript with the steps and headers for a broker of this release."""
        return replace(self, steps=tuple(steps.steps_for(release, self.steps)))

    @property
    def expects_departure(self) -> bool:
        """True if a step holds for one of the two servers only. Call `for_release` first."""
        lines_for_both = self.lines_for_both
        return any(step.line not in lines_for_both for step in self.steps)

    @property
    def lines_for_both(self) -> frozenset[int]:
        """The lines of the steps that hold, with all they contain, for both servers. Call `for_release` first."""
        sides: dict[int, set[Side]] = {}
        for step in steps.flattened(self.steps):  # a line that names both servers makes two steps
            sides.setdefault(step.line, set()).update([step.side] if step.side else SIDES)
        return frozenset(
            step.line
            for step in self.steps
            if all(len(sides[each.line]) == len(SIDES) for each in steps.flattened([step]))
        )

    @property
    def uses_broker(self) -> bool:
        """True if a step needs an AMQP connection to the broker."""
        return any(isinstance(step, steps.BrokerStep) for step in self.steps)

    @property
    def leaves_queues(self) -> bool:
        """True if queues may outlive the clients' connections and have to be deleted."""
        headers = ["\n".join(step.frame.headers) for step in self.steps if isinstance(step, steps.SendFrame)]
        raw = [step.text for step in self.steps if isinstance(step, steps.SendRaw)]
        return bool(self.cleanup) or any(_LASTING_QUEUE.search(text) for text in headers + raw)


# The files.


@dataclass(frozen=True, slots=True)
class Departure:
    """A row of departures.md; `plugin` is also the text by which transcripts name the row."""

    plugin: str
    gateway: str
    has_transcript: bool


def load_transcripts(only: str | None = None) -> list[Transcript]:
    """Return the transcripts, sorted by name; `only` is a part of the name, or a pattern with `*`, `?` or `[...]`.

    Raises TranscriptsMissingError and TranscriptError.
    """
    transcripts = (read_transcript(path) for path in sorted(_directory().rglob("*.stomp")))
    pattern = only or "*"
    if not any(sign in pattern for sign in "*?["):
        pattern = f"*{pattern}*"
    return [transcript for transcript in transcripts if fnmatchcase(transcript.name, pattern)]


def load_departures() -> dict[str, Departure]:
    """Return the rows of departures.md by their first column. Raises TranscriptsMissingError."""
    rows = [line for line in (_directory() / "departures.md").read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    return {plugin: Departure(plugin, gateway, shown == "yes") for plugin, gateway, shown in cells}


def _directory() -> Path:
    """Return the transcripts beside this module, where they are installed, or those of the tests in a checkout."""
    here = Path(__file__).parent
    for candidate in (here / "transcripts", here.parents[1] / "tests" / "transcripts"):
        if (candidate / "departures.md").is_file():
            return candidate
    raise TranscriptsMissingError(
        f"the conversations are missing in {here / 'transcripts'}. Install stomp-gateway again."
    )


def read_transcript(path: Path) -> Transcript:
    """Read one transcript file. Raises TranscriptError."""
    return parse_transcript(path.read_text(encoding="utf-8"), path)


def parse_transcript(text: str, path: Path) -> Transcript:
    """Parse the text of a transcript file; `path` is for its name and for errors.

    Raises TranscriptError if the text breaks the format, or has different steps for the two servers without naming the
    departure that allows them.
    """
    try:
        return _parse(text, path)
    except _LineError as error:
        raise TranscriptError(f"{path}:{error.line}: {error}") from None


# The layout: lines in the first column, and what is indented under them.


@dataclass(frozen=True, slots=True)
class _Block:
    """A line that starts in the first column, and the lines under it."""

    line: int
    first: str
    under: list[str] = field(default_factory=list)

    @property
    def indented(self) -> list[str]:
        """The lines under the first, without the indentation of their first one and without empty lines at the end."""
        first = next((line for line in self.under if line), "")
        indentation = " " * (len(first) - len(first.lstrip(" ")))
        lines = [line.removeprefix(indentation) for line in self.under]
        while lines and not lines[-1].strip():
            lines.pop()
        return lines


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            continue
        if line and not line.startswith(" "):
            blocks.append(_Block(number, line))
        elif blocks:
            blocks[-1].under.append(line)
    return blocks


# The head of a file.


def _parse(text: str, path: Path) -> Transcript:
    blocks = _blocks(text)
    head_blocks = list(takewhile(lambda block: block.first.partition(":")[0] in _FILE_KEYS, blocks))
    head: dict[str, list[str]] = {key: [] for key in _FILE_KEYS}
    for block in head_blocks:
        key, _, value = block.first.partition(":")
        head[key].append(" ".join([value.strip(), *(line.strip() for line in block.indented)]).strip())
    parsed = tuple(_steps(iter(blocks[len(head_blocks) :])))
    for step in steps.flattened(parsed):
        if step.side and not head["departure"]:
            raise _LineError(step.line, f"only the {step.side} does this, and the file names no departure")
    if all(step.releases for step in parsed):
        raise _LineError(1, "the file has no steps that hold for all releases" if parsed else "the file has no steps")
    return Transcript(
        path=path,
        title=_only(head, "title"),
        rule=_only(head, "rule"),
        departures=tuple(head["departure"]),
        cleanup=tuple(word for line in head["cleanup"] for word in line.split()),
        setup=_setup(head["setup"]),
        steps=parsed,
    )


def _only(head: dict[str, list[str]], key: str) -> str:
    if len(head[key]) != 1 or not head[key][0]:
        raise _LineError(1, f"the file must have exactly one `{key}:`")
    return head[key][0]


def _setup(names: Sequence[str]) -> Setup:
    if len(names) > 1:
        raise _LineError(1, "the file may have one `setup:` at most")
    name = names[0] if names else "plain"
    found = next((setup for setup in SETUPS if setup == name), None)
    if found is None:
        raise _LineError(1, f"there is no setup {name!r}; there are {', '.join(SETUPS)}")
    return found


# The steps.


def _steps(blocks: Iterator[_Block]) -> Iterator[Step]:
    for block in blocks:
        if block.first == "in any order":
            yield _in_any_order(block, blocks)
        else:
            yield from _scoped_steps(block)


def _in_any_order(start: _Block, blocks: Iterator[_Block]) -> steps.ExpectFramesInAnyOrder:
    expected: list[steps.ExpectFrame] = []
    for block in blocks:
        if block.first == "in order":
            return steps.ExpectFramesInAnyOrder(tuple(expected), line=start.line)
        for step in _scoped_steps(block):
            if not isinstance(step, steps.ExpectFrame) or step.any_number:
                raise _LineError(block.line, "between `in any order` and `in order` only single frames are expected")
            expected.append(step)
    raise _LineError(start.line, "`in any order` lacks its `in order`")


def _scoped_steps(block: _Block) -> Iterator[Step]:
    """Yield the step of a block, once for each server that its scope names."""
    step, scope = _step(block)
    if not scope:
        yield step
        return
    seen: list[Side | None] = []
    for part in _COMMA_OUTSIDE_BRACKETS.split(scope):
        match = _SCOPE_PART.fullmatch(part)
        if not part or not match:
            raise _LineError(block.line, f"{scope!r} is neither a server nor a range of releases, nor several")
        side = next((side for side in SIDES if side == match["side"]), None)
        if seen and (side is None or side in seen or None in seen):
            raise _LineError(block.line, f"{scope!r} names a server twice")
        seen.append(side)
        releases = None if match["releases"] is None else _releases(block, match["releases"])
        yield replace(step, side=side, releases=releases)


def _releases(block: _Block, text: str) -> ReleaseRange:
    try:
        return ReleaseRange.parse(text)
    except ValueError as error:
        raise _LineError(block.line, str(error)) from None


def _step(block: _Block) -> tuple[Step, str | None]:
    """Return the step of a block without its scope, and the text of the scope."""
    if match := _CLIENT_SENDS.match(block.first):
        if match["rest"] == "raw":
            return steps.SendRaw(match["client"], "\n".join(block.indented), line=block.line), match["scope"]
        return steps.SendFrame(match["client"], _frame(match["rest"] or "", block), line=block.line), match["scope"]
    if match := _SERVER_SENDS.match(block.first):
        return _server_sends(block, "C" + match["number"], match["rest"] or ""), match["scope"]
    if match := _BROKER.match(block.first):
        kind = steps.BrokerAction if match["direction"] == ">" else steps.ExpectInBroker
        return kind(match["rest"], _frame("", block), line=block.line), match["scope"]
    if block.indented:
        raise _LineError(block.line, "nothing may stand under this line")
    if match := _CLIENT_DOES.match(block.first):
        if match["version"]:
            return steps.LogIn(match["client"], match["version"], line=block.line), match["scope"]
        does = steps.HangUp if match["hangs_up"] else steps.ExpectOpen
        return does(match["client"], line=block.line), match["scope"]
    raise _LineError(block.line, f"not a step: {block.first!r}")


def _server_sends(block: _Block, client: str, rest: str) -> Step:
    if rest in ("closed", "closed in time"):
        return steps.ExpectClosed(client, rest == "closed in time", line=block.line)
    if rest == "heart-beat":
        return steps.ExpectHeartBeat(client, line=block.line)
    frame = _frame(rest.removeprefix(_ANY_NUMBER), block)
    always, on_some = [], []
    for header in frame.headers:
        if match := _RELEASE_HEADER.match(header):
            on_some.append((_releases(block, match["releases"]), match["header"]))
        else:
            always.append(header)
    frame = replace(frame, headers=tuple(always), release_headers=tuple(on_some))
    return steps.ExpectFrame(client, frame, rest.startswith(_ANY_NUMBER), line=block.line)


def _frame(command: str, block: _Block) -> FrameTemplate:
    lines = block.indented
    end = lines.index("") if "" in lines else len(lines)
    return FrameTemplate(command, tuple(lines[:end]), "\n".join(lines[end + 1 :]))
