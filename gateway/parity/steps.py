"""The steps of a transcript, and the servers and releases of RabbitMQ that each step holds for."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar, get_args

Side = Literal["plugin", "gateway"]
SIDES: tuple[Side, ...] = get_args(Side)

ANY_OTHER_HEADERS = "..."

_RELEASE = re.compile(r"(?P<major>\d+)(?:\.(?P<minor>\d+))?(?:\.(?P<patch>\d+))?")
_BOUND = re.compile(rf"(?P<sign>>=|<)(?P<release>{_RELEASE.pattern})")


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A release of RabbitMQ. A missing number is 0, and `4.3.0-rc.1` counts as 4.3.0."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the release at the start of a text; None if the text does not start with a number."""
        match = _RELEASE.match(text)
        return cls(*(int(number or 0) for number in match.group("major", "minor", "patch"))) if match else None

    @classmethod
    def from_server_header(cls, server: str) -> Self | None:
        """Return the release in a STOMP `server` header like `RabbitMQ/4.3.6`; None if it has none."""
        name, _, version = server.partition("/")
        return cls.parse(version) if name == "RabbitMQ" else None


ORACLE = Release(3, 10, 8)
"""The transcripts were written for the plugin of this release, and the tests' model broker imitates it."""


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """The releases from `since` on and before `before`; None leaves an end open."""

    since: Release | None
    before: Release | None

    def __contains__(self, release: Release) -> bool:
        return (self.since is None or self.since <= release) and (self.before is None or release < self.before)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range that a text describes: `>=4.3`, `<4.3.5`, or both, separated by a comma.

        Raises ValueError if the text is not a range, or if no release is in it.
        """
        bounds = [_BOUND.fullmatch(part) for part in text.split(",")]
        releases = {bound["sign"]: Release.parse(bound["release"]) for bound in bounds if bound}
        if len(releases) < len(bounds):  # a part that is not a bound, or the same sign twice
            raise ValueError(f"[{text}] is no range of releases; they look like [>=4.3], [<4.3.5] or [>=3.13,<4.3]")
        since, before = releases.get(">="), releases.get("<")
        if since and before and before <= since:
            raise ValueError(f"no release is in [{text}]")
        return cls(since, before)


@dataclass(frozen=True, slots=True)
class FrameTemplate:
    """A STOMP frame, or a message in the broker, as the file writes it: with placeholders."""

    command: str
    headers: tuple[str, ...]
    body: str
    release_headers: tuple[tuple[ReleaseRange, str], ...] = ()
    """Headers that are present on some releases only."""

    def for_release(self, release: Release) -> Self:
        """Return the frame as it is with a broker of this release."""
        present = tuple(line for releases, line in self.release_headers if release in releases)
        return replace(self, headers=self.headers + present, release_headers=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a transcript. `side` and `releases` are None if it holds for both servers, or for all releases."""

    line: int
    side: Side | None = None
    releases: ReleaseRange | None = None


_StepT = TypeVar("_StepT", bound=Step)


@dataclass(frozen=True, slots=True)
class ClientStep(Step):
    """A step on the connection of one client."""

    client: str


@dataclass(frozen=True, slots=True)
class SendFrame(ClientStep):
    """The client sends a frame."""

    frame: FrameTemplate


@dataclass(frozen=True, slots=True)
class SendRaw(ClientStep):
    """The client sends bytes. `text` still has its placeholders and the escapes of a raw block."""

    text: str


@dataclass(frozen=True, slots=True)
class LogIn(ClientStep):
    """The client sends CONNECT with version `version` of STOMP, and the server must answer CONNECTED."""

    version: str


class HangUp(ClientStep):
    """The client closes its connection without DISCONNECT."""


@dataclass(frozen=True, slots=True)
class ExpectFrame(ClientStep):
    """The server must send this frame next or, with `any_number`, zero or more frames that match."""

    frame: FrameTemplate
    any_number: bool = False


@dataclass(frozen=True, slots=True)
class ExpectFramesInAnyOrder(Step):
    """The server must send each of these frames once."""

    expected: tuple[ExpectFrame, ...]


class ExpectHeartBeat(ClientStep):
    """The server must send a heart-beat."""


@dataclass(frozen=True, slots=True)
class ExpectClosed(ClientStep):
    """The server must close the connection and send nothing before; `timed`: because a timeout expired."""

    timed: bool


class ExpectOpen(ClientStep):
    """The connection must still answer, and the server must have sent nothing in between."""


@dataclass(frozen=True, slots=True)
class BrokerStep(Step):
    """A step over AMQP instead of STOMP; `message` is empty where the sentence needs none."""

    sentence: str
    message: FrameTemplate


class BrokerAction(BrokerStep):
    """Change something in the broker."""


class ExpectInBroker(BrokerStep):
    """The broker must be in a certain state."""


def flattened(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield every step, and those within `in any order` too."""
    for step in steps:
        yield step
        if isinstance(step, ExpectFramesInAnyOrder):
            yield from step.expected


def steps_for(release: Release, steps: Iterable[_StepT]) -> Iterator[_StepT]:
    """Yield the steps, with the headers, for a broker of this release."""
    for step in steps:
        if step.releases is not None and release not in step.releases:
            continue
        kept = replace(step, releases=None)
        if isinstance(kept, ExpectFramesInAnyOrder):
            kept = replace(kept, expected=tuple(steps_for(release, kept.expected)))
        elif isinstance(kept, ExpectFrame):
            kept = replace(kept, frame=kept.frame.for_release(release))
        yield kept
