"""What was said in a conversation, as it was said, so that two of them can be compared afterwards."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from gateway.parity.matcher import is_length, length_problems
from gateway.parity.text import recorded
from gateway.parity.wire import Closed, Received, ServerFrame


class Order(Enum):
    """What the order of a passage's entries means."""

    EXACT = "exact"
    """They came one after the other."""
    FREE = "free"
    """Each came once, in an order that means nothing."""
    REPEATED = "repeated"
    """How often each came, if at all, means nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    r"""Something that a client said, that the server said, or that happened in the broker.

    Args:
        speaker: `C1>` for a client, `S1<` for the server's answer to it, `B>` and `B<` for the broker.
        opening: a frame's command; words in parentheses for what is no frame.
        headers: the lines as on the wire; a `content-length` that is right is left out.
        body: text; octets that are not printable are shown as `\xNN`, and backslashes are doubled.
    """

    speaker: str
    opening: str
    headers: tuple[str, ...] = ()
    body: str = ""

    @classmethod
    def of_client(cls, client: str, octets: bytes, passcode: str) -> "Entry":
        """Return what a client sent, but for its passcode: a recording is for printing."""
        text = re.sub(rf"(?m)^(passcode: *){re.escape(passcode)}", r"\1{passcode}", recorded(octets))
        opening, _, rest = text.partition("\n")
        return cls(f"{client}>", opening, tuple(rest.rstrip("\n").split("\n")) if rest.strip("\n") else ())

    @classmethod
    def of_server(cls, client: str, received: Received) -> "Entry":
        """Return what the server sent to a client."""
        speaker = f"S{client[1:]}<"
        if not isinstance(received, ServerFrame):
            return cls(speaker, "(closed)" if isinstance(received, Closed) else "(heart-beat)")
        right = not list(length_problems(received))
        lines = [line for line in received.headers if not (right and is_length(line))]
        return cls(speaker, recorded(received.command), tuple(map(recorded, lines)), recorded(received.body))

    @property
    def lines(self) -> tuple[str, ...]:
        """The entry as a transcript would write it."""
        under = [*self.headers, *(["", *self.body.split("\n")] if self.body else [])]
        indent = " " * (len(self.speaker) + 1)
        return (f"{self.speaker} {self.opening}", *((indent + line).rstrip() for line in under))


@dataclass(slots=True)
class Passage:
    """Entries that belong together.

    Args:
        order: what their order means.
        line: of the file, where the step is to which they belong; 0 for what is asked when all steps are over.
        entries: what was said.
    """

    order: Order
    line: int
    entries: list[Entry] = field(default_factory=list)


class Recording:
    """Everything that was said in one conversation, in passages.

    Conversations about the same steps on two servers have the same passages, where both did as they should.

    Args:
        run: the text that the names of this conversation have, and no others.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.passages: list[Passage] = []
        self.line = 0
        """Of the step that is played."""
        self._order = Order.EXACT

    def add(self, entry: Entry) -> None:
        """Note what was said; in a passage of its own, unless `within` says otherwise."""
        if self._order is Order.EXACT:
            self.passages.append(Passage(self._order, self.line))
        self.passages[-1].entries.append(entry)

    @contextmanager
    def within(self, order: Order) -> Iterator[None]:
        """Put what is said from now on into one passage, also where that is nothing."""
        self.passages.append(Passage(order, self.line))
        self._order = order
        try:
            yield
        finally:
            self._order = Order.EXACT

    @property
    def entries(self) -> list[Entry]:
        """All entries, in the order in which they came."""
        return [entry for passage in self.passages for entry in passage.entries]
