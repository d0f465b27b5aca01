"""What the clients of a run sent and saw, and when; the only thing that the checks look at."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.chaos.schedule import Harm


class Copy(NamedTuple):
    """A message as it was sent on one connection. A producer that tries again sends another copy."""

    producer: str
    number: int
    connection: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something at a moment, in seconds since the run began."""

    at: float


@dataclass(frozen=True, slots=True)
class Began(Event):
    """A session has logged in."""

    client: str
    connection: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """A session ended, or a login failed. ``error`` is the ERROR that came before, ``wanted`` that it disconnected."""

    client: str
    connection: int
    error: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """The RECEIPT of a SUBSCRIBE came."""

    consumer: str
    connection: int


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """A SEND was written.

    ``aborted`` means that its transaction is not to be committed, ``unit`` which one it is; None without.
    """

    copy: Copy
    place: str
    persistent: bool
    aborted: bool
    unit: int | None = None


@dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """The RECEIPT came that says that the broker has the message; that of DISCONNECT speaks for all at once."""

    copy: Copy
    of_disconnect: bool = False


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    """A MESSAGE arrived. ``queue`` is what the consumer reads, ``whole`` whether headers and body are what was sent."""

    consumer: str
    connection: int
    queue: str
    copy: Copy
    redelivered: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Settled(Event):
    """The RECEIPT of an ACK came, or of the COMMIT that carries it."""

    consumer: str
    connection: int
    queue: str
    copy: Copy


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """A fault, from ``at`` until ``until``; ``client`` if it hits one client only.

    ``queues`` are those that are deleted, or the classic queues of the nodes that it hits.
    """

    until: float
    harm: Harm
    client: str = ""
    queues: tuple[str, ...] = ()


EventT = TypeVar("EventT", bound=Event)

REPLIES = "replies to "
"""What the queue of a producer is called in which it gets the replies to its messages."""

STRANGER = Copy("somebody else", -1, 0)
"""Stands for a message that is not of this run."""

EARLIER = Copy("somebody before", -1, 0)
"""Stands for a message of an earlier run of the same campaign."""

REMAINS = "what remains"
"""The consumer that takes what is left in the queues after everybody has gone."""


@dataclass
class Recording:
    """All events of a run, in the order in which they were recorded."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)

    def of(self, kind: type[EventT]) -> list[EventT]:
        """The events of one kind."""
        return [event for event in self.events if type(event) is kind]

    def faults(self, harms: Iterable[Harm]) -> list[Fault]:
        """The faults of some kinds."""
        wanted = set(harms)
        return [fault for fault in self.of(Fault) if fault.harm in wanted]

    def save(self, path: Path) -> None:
        """Write one line of JSON for each event."""
        with path.open("w") as file:
            for event in self.events:
                line = {"event": type(event).__name__, **asdict(event)}
                file.write(json.dumps(line, default=_plain) + "\n")


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)
