"""What clients, server and broker said while a transcript was played, and how recordings of two servers compare."""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from gateway.parity.rendering import content_length_problem, is_content_length, unambiguous
from gateway.parity.stomp_peer import Closed, Received, ServerFrame


class EventOrder(Enum):
    """How the events of a group compare with those of the other server."""

    EXACT = "exact"
    """The same events in the same order."""
    ANY = "any"
    """The same events, each once, in any order."""
    ANY_NUMBER = "any number"
    """Events that may repeat: one server may have sent fewer of them, or none."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    r"""Something that a client or the server sent, or that happened in the broker.

    Bytes that are not printable are written as `\xNN`, and backslashes are doubled.
    """

    source: str
    """`C1>` for a client, `S1<` for the server's answer to it, `B>` and `B<` for the broker."""
    first_line: str
    """A frame's command; words in parentheses for anything that is not a frame."""
    headers: tuple[str, ...] = ()
    """The lines as sent, except a correct content-length."""
    body: str = ""

    @classmethod
    def from_client(cls, client: str, data: bytes, passcode: str) -> Self:
        """Record what a client sent, without its passcode: recordings are printed."""
        text = re.sub(rf"(?m)^(passcode: *){re.escape(passcode)}", r"\1{passcode}", unambiguous(data))
        first_line, _, rest = text.partition("\n")
        return cls(f"{client}>", first_line, tuple(rest.rstrip("\n").split("\n")) if rest.strip("\n") else ())

    @classmethod
    def from_server(cls, client: str, received: Received) -> Self:
        """Record what the server sent to a client."""
        source = f"S{client[1:]}<"
        if not isinstance(received, ServerFrame):
            return cls(source, "(closed)" if isinstance(received, Closed) else "(heart-beat)")
        keep_length = content_length_problem(received) is not None
        headers = (unambiguous(line) for line in received.headers if keep_length or not is_content_length(line))
        return cls(source, unambiguous(received.command), tuple(headers), unambiguous(received.body))

    @property
    def lines(self) -> tuple[str, ...]:
        """The event in the notation of transcripts."""
        indented = [*self.headers, *(["", *self.body.split("\n")] if self.body else [])]
        indent = " " * (len(self.source) + 1)
        return (f"{self.source} {self.first_line}", *((indent + line).rstrip() for line in indented))

    def replaced(self, pattern: re.Pattern[str], name: str | Callable[[re.Match[str]], str]) -> Self:
        """Return the event with each match replaced by `name`, as `re.sub` does."""
        parts = (self.first_line, *self.headers, self.body)
        first_line, *headers, body = (pattern.sub(name, part) for part in parts)
        return type(self)(self.source, first_line, tuple(headers), body)


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events that are compared together, and the line of their step; 0 after the last step."""

    order: EventOrder
    line: int = field(compare=False)
    events: list[RecordedEvent] = field(default_factory=list)

    def matches(self, other: Self) -> bool:
        """Tell whether two servers said the same. Of events that may repeat, one may have sent fewer."""
        if self.order is EventOrder.ANY_NUMBER and other.order is EventOrder.ANY_NUMBER:
            return set(self.events) <= set(other.events) or set(other.events) <= set(self.events)
        return self == other


class Recording:
    """What was said while a transcript was played on one server. All names of this run start with `run`."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.groups: list[EventGroup] = []
        self.line = 0
        """The line of the step that is played; 0 after the last step."""
        self._order = EventOrder.EXACT

    def add(self, event: RecordedEvent) -> None:
        """Record an event, in a group of its own unless `group` has opened one."""
        if self._order is EventOrder.EXACT:
            self.groups.append(EventGroup(self._order, self.line))
        self.groups[-1].events.append(event)

    @contextmanager
    def group(self, order: EventOrder) -> Iterator[None]:
        """Record the events of the `with` block, if any, as one group."""
        self.groups.append(EventGroup(order, self.line))
        self._order = order
        try:
            yield
        finally:
            self._order = EventOrder.EXACT

    @property
    def events(self) -> list[RecordedEvent]:
        """All events, in the order in which they happened."""
        return [event for group in self.groups for event in group.events]


# The header in which a server tells its session. A client that sent no CONNECT learns it from its messages.
_SESSION = {
    "CONNECTED": re.compile(r"session:(session-[A-Za-z0-9_-]{22})"),
    "MESSAGE": re.compile(r"message-id:.*@@(session-[A-Za-z0-9_-]{22})@@[0-9]+"),
}
# Names that the broker generates, and a server of STOMP. Which of the two does is a difference, but for the queue of a
# `/temp-queue/`: there the gateway takes a name of its own (ADR 21). A message id ends with `@@session@@tag`, and the
# server counts the tags.
_GENERATED = re.compile(
    r"(?P<broker>amq\.gen-[A-Za-z0-9_-]{22})"
    r"|(?P<server>stomp-subscription-[A-Za-z0-9_-]{22})"
    r"|(?P<tag>(?<=session\}@@)[0-9]+)"
)
# The header that tells others of the queue of a `/temp-queue/`, in STOMP and in AMQP.
_REPLY_TO = re.compile(r"(?:reply-to:/reply-queue/|reply_to:)(\S+)")
_MESSAGE_ID = re.compile(r"[QT]_[^\n]*$")
# RabbitMQ quotes bytes that are not UTF-8 as a list of numbers, and folds it where the line is full.
_QUOTED_BYTES = re.compile(r"\[[0-9]+(?:,\s*[0-9]+)*\]")


def normalised(recording: Recording, lines: Collection[int] | None = None) -> list[EventGroup]:
    """Return the groups of a recording, or only those at `lines`, so that they are equal if servers behave the same.

    Names of the run, sessions, message ids and generated queues become placeholders, numbered in the order in which
    they first appear, so that different names stay different. Headers are sorted by name, and so are events unless
    their order counts. Dropped are the value of CONNECTED's server header, the line feed that some releases of the
    plugin put at the end of an ERROR's body, and the line breaks within bytes that an ERROR quotes.
    """
    normaliser = _Normaliser(recording)
    return [normaliser.group(group) for group in recording.groups if lines is None or group.line in lines]


class _Normaliser:
    def __init__(self, recording: Recording) -> None:
        self._known = {recording.run: "{run}"}
        self._generated: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        headers = (line for event in recording.events for line in event.headers)
        self._replies = {found[1] for line in headers if (found := _REPLY_TO.fullmatch(line))}
        for event in recording.events:
            if event.first_line in _SESSION:
                self._learn_session(event)

    def _learn_session(self, event: RecordedEvent) -> None:
        pattern = _SESSION[event.first_line]
        found = next((match for line in event.headers if (match := pattern.fullmatch(line))), None)
        if found and found[1] not in self._known:
            client = "C" + event.source[1:-1]
            earlier = sum(name.startswith(f"{{{client}.") for name in self._known.values())
            ordinal = f"{earlier + 1}. " if earlier else ""
            self._known[found[1]] = f"{{{client}.{ordinal}session}}"

    def group(self, group: EventGroup) -> EventGroup:
        events = [self._with_known_names(event) for event in group.events]
        if group.order is not EventOrder.EXACT:
            events.sort(key=lambda event: event.replaced(_GENERATED, self._unnumbered).lines)
        if group.order is EventOrder.ANY_NUMBER:  # how often they came does not matter
            events = list(dict.fromkeys(event.replaced(_GENERATED, self._unnumbered) for event in events))
        else:
            events = [event.replaced(_GENERATED, self._numbered) for event in events]
        return EventGroup(group.order, group.line, events)

    def _with_known_names(self, event: RecordedEvent) -> RecordedEvent:
        headers, body = event.headers, event.body
        if event.first_line == "CONNECTED":
            headers = tuple("server:{server}" if line.startswith("server:") else line for line in headers)
        if event.source.endswith("<"):  # a client's headers stay in the order in which it sent them
            headers = tuple(sorted(headers, key=lambda line: line.partition(":")[0]))
        if event.first_line == "ERROR":
            body = _QUOTED_BYTES.sub(lambda quoted: re.sub(r"\s", "", quoted[0]), body.removesuffix("\n"))
        named = RecordedEvent(event.source, event.first_line, headers, body)
        for value, name in self._known.items():
            as_numbers = ",".join(map(str, value.encode()))
            named = named.replaced(re.compile(re.escape(value)), name)
            named = named.replaced(re.compile(as_numbers), f"{name[:-1]} in bytes}}")
        return named

    def _numbered(self, match: re.Match[str]) -> str:
        kind = self._kind_of(match)
        # One server starts to count tags anew for each subscription, the other does not: a tag means something only
        # together with the subscription and session before it.
        before = _MESSAGE_ID.search(match.string[: match.start()]) if kind == "tag" else None
        counter = before[0] if before else kind
        key = (counter, match[0])
        if key not in self._generated:
            self._counts[counter] = self._counts.get(counter, 0) + 1
            self._generated[key] = f"{{{kind} {self._counts[counter]}}}"
        return self._generated[key]

    def _kind_of(self, match: re.Match[str]) -> str:
        return "reply" if match[0] in self._replies else str(match.lastgroup)

    def _unnumbered(self, match: re.Match[str]) -> str:
        return f"{{{self._kind_of(match)}}}"
