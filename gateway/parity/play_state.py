"""The state of one transcript that is played on one server, and the error that ends it."""

import secrets
from dataclasses import dataclass
from textwrap import indent

from gateway.parity.recording import Recording
from gateway.parity.rendering import FrameMatch, Scope, format_expected, format_received, shortened
from gateway.parity.steps import FrameTemplate, Side, Step
from gateway.parity.stomp_peer import ServerFrame
from gateway.parity.transcript import Transcript

_HEADINGS = {"expected", "expected, in any order", "got", "which"}


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and the virtual host of a run; `host` is RabbitMQ's name, `amqp_login` the user of AMQP."""

    login: str = "guest"
    passcode: str = "guest"
    host: str = "/"
    amqp_login: str = "guest"

    def __repr__(self) -> str:
        return f"Identity({self.login!r}, host={self.host!r})"

    @property
    def scope(self) -> Scope:
        """The values of `{login}`, `{passcode}`, `{host}` and `{amqp-login}`."""
        values = {"login": self.login, "passcode": self.passcode, "host": self.host, "amqp-login": self.amqp_login}
        return {name: value.encode() for name, value in values.items()}

    @property
    def header_scope(self) -> Scope:
        """The same values, escaped for headers: RabbitMQ decodes escapes in every frame, CONNECT included."""
        return {
            name: value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b":", b"\\c")
            for name, value in self.scope.items()
        }


class MismatchError(Exception):
    """The server did not do what the transcript expects. The text shortens long lines.

    `line` is a line of the transcript file. `is_answer` is False if the step could not be carried out, so that nothing
    is known about the server's behaviour.
    """

    def __init__(self, place: str, problem: str, so_far: str, *, line: int, is_answer: bool) -> None:
        super().__init__(f"{place}\n\n{problem}\n\nthe conversation so far\n{so_far}")
        self.problem = problem
        self.line = line
        self.is_answer = is_answer


class PlayState:
    """The current step, the values of placeholders and the recording. The transcript must not depend on the release."""

    def __init__(self, transcript: Transcript, side: Side, identity: Identity) -> None:
        if transcript.depends_on_release:
            raise ValueError(f"{transcript.name} depends on the release of RabbitMQ")
        self.transcript = transcript
        self.side: Side = side
        self.identity = identity
        self.run = b"t-" + secrets.token_hex(6).encode("ascii")
        self.scope: Scope = {**identity.scope, "run": self.run}
        self.recording = Recording(self.run.decode())
        self.step: Step = transcript.steps[0]

    def begin(self, step: Step) -> None:
        """Make a step the current one."""
        self.step, self.recording.line = step, step.line

    def match(self, expected: FrameTemplate, frame: ServerFrame) -> Scope:
        """Return the values that placeholders get from a frame. Raises MismatchError if it does not match."""
        match = FrameMatch(expected, frame, self.scope)
        if match.differences:
            wanted = format_expected(expected, self.scope)
            raise self.mismatch("expected", wanted, "got", format_received(frame), "which", *match.differences)
        return match.values

    def mismatch(self, *paragraphs: str, is_answer: bool = True) -> MismatchError:
        """Return the error for the current step. Paragraphs are indented, except headings like `expected`."""
        where = f"{self.transcript.path}:{self.step.line}: {self.transcript.title}"
        place = f"{where}\n(played against the {self.side})"
        shown = ("\n".join(map(shortened, each.split("\n"))) for each in paragraphs)
        problem = "\n".join(each if each in _HEADINGS else indent(each, "    ") for each in shown)
        so_far = "\n".join(shortened(line) for event in self.recording.events for line in event.lines)
        return MismatchError(place, problem, so_far, line=self.step.line, is_answer=is_answer)
