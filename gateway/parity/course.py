"""The course that a conversation takes on one server: what is known, what was said, and where it goes otherwise."""

import secrets
from collections.abc import Mapping
from textwrap import indent

from gateway.parity.identity import Identity
from gateway.parity.recording import Recording
from gateway.parity.script import Conversation, Side, Step
from gateway.parity.text import Scope, shortened

SERVER_NAMES: Mapping[Side, str] = {"plugin": "RabbitMQ", "gateway": "stomp-gateway"}
"""What the servers call themselves in CONNECTED, before the slash and the version."""

_HEADINGS = {"expected", "expected, in any order", "got", "which"}


class MismatchError(Exception):
    """The server did otherwise than the transcript says; the text shows what, where and after which words.

    Long lines are shortened in it.

    Args:
        place: file and line, and the title.
        problem: what went otherwise, several lines.
        so_far: the conversation up to there, several lines.
        line: of the file.
        is_answer: True when the server said something else than expected, or nothing; False when it could not be
            asked properly, so that the conversation shows nothing about it.
    """

    def __init__(self, place: str, problem: str, so_far: str, *, line: int, is_answer: bool) -> None:
        super().__init__(f"{place}\n\n{problem}\n\nthe conversation so far\n{so_far}")
        self.problem = problem
        self.line = line
        self.is_answer = is_answer


class Course:
    """What a conversation has come to.

    Args:
        conversation: as it goes with the release of the server's broker.
        side: whose expectations hold where a departure tells the two apart.
        identity: who the clients are.

    Raises:
        ValueError: it has steps for some releases alone.
    """

    def __init__(self, conversation: Conversation, side: Side, identity: Identity) -> None:
        if conversation.depends_on_release:
            raise ValueError(f"{conversation.name} depends on the release of RabbitMQ: play what `on` returns for one")
        self.conversation = conversation
        self.side: Side = side
        self.identity = identity
        self.run = b"t-" + secrets.token_hex(6).encode("ascii")
        self.scope: Scope = {**identity.scope, "run": self.run, "server-name": SERVER_NAMES[side].encode()}
        self.recording = Recording(self.run.decode())
        self.step: Step = conversation.steps[0]

    def begin(self, step: Step) -> None:
        """Note which step comes now."""
        self.step = step
        self.recording.line = step.line

    def learn(self, found: Scope) -> None:
        """Remember the values that placeholders got."""
        self.scope |= found

    def mismatch(self, *paragraphs: str, is_answer: bool = True) -> MismatchError:
        """Return the error that tells of a server that does otherwise; headings stand out, all else is indented."""
        where = f"{self.conversation.path}:{self.step.line}: {self.conversation.title}"
        place = f"{where}\n(played against the {self.side})"
        shown = ("\n".join(map(shortened, each.split("\n"))) for each in paragraphs)
        problem = "\n".join(each if each in _HEADINGS else indent(each, "    ") for each in shown)
        so_far = "\n".join(shortened(line) for entry in self.recording.entries for line in entry.lines)
        return MismatchError(place, problem, so_far, line=self.step.line, is_answer=is_answer)
