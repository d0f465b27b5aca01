"""What happened in a run, by message, by session and by fault: a recording as the checks need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from tests.chaos.recording import Began, Confirmed, Copy, Delivered, Ended, Fault, Recording, Sent, Subscribed
from tests.chaos.schedule import BROKER_ENDS, GATEWAY_ENDS, LINK_LOSSES, NODE_ENDS, NODE_KILLS, Harm, Schedule

GRACE: Final = 1.0
"""Seconds by which a client may see an effect after the fault, and a process act before it was recorded."""

FORGOTTEN: Final = 5.0
"""Seconds of acknowledgements that RabbitMQ may not have written to disk when it is killed."""

_UNKNOWN: Final = 5.0
"""Seconds in which a message without a receipt is thought to be confirmed, whatever stalls."""

_NEW_QUEUES: Final = 4
"""From this release of RabbitMQ on they are other ones."""

_SLOW: Final = frozenset({Harm.LINK_STALL, Harm.LINK_DELAY, Harm.ALARM})
LOSSES: Final = LINK_LOSSES | BROKER_ENDS | GATEWAY_ENDS | {Harm.VHOST_DELETION}
"""After these links are lost."""


KeyT = TypeVar("KeyT")


class Span(NamedTuple):
    """From when until when."""

    begin: float
    end: float

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether something of both is at the same time."""
        return self.begin <= end and begin <= self.end


def any_overlap(spans: Iterable[Span], begin: float, end: float) -> bool:
    """Whether one of them overlaps."""
    return any(span.overlaps(begin, end) for span in spans)


@dataclass(frozen=True)
class Promise:
    """What the servers are configured to do.

    With ``ride_through`` sessions outlive their links. A cluster is there as long as most of its nodes are. ``release``
    is the major one of RabbitMQ.
    """

    ride_through: bool = True
    is_cluster: bool = False
    release: int = 3

    @property
    def drops_for_absent(self) -> bool:
        """Whether the broker confirms what it drops because the queue's node is away; later ones reject it."""
        return self.is_cluster and self.release < _NEW_QUEUES

    @property
    def forgets_to_confirm(self) -> bool:
        """Whether a stream never answers for some messages that came when its leader's node went."""
        return self.release < _NEW_QUEUES

    @property
    def quorum_queues_have_priorities(self) -> bool:
        """Whether a message overtakes those with a lower priority in every quorum queue."""
        return self.release >= _NEW_QUEUES


@dataclass(frozen=True)
class History:
    """One run."""

    schedule: Schedule
    recording: Recording
    promise: Promise

    @cached_property
    def sent(self) -> dict[Copy, Sent]:
        """Every SEND."""
        return {event.copy: event for event in self.recording.of(Sent)}

    @cached_property
    def confirmed(self) -> dict[Copy, float]:
        """When the first RECEIPT came for each copy."""
        return _first((event.copy, event.at) for event in self.recording.of(Confirmed))

    @cached_property
    def receipted(self) -> dict[Copy, float]:
        """When the copy's own RECEIPT came, if it asked for one."""
        return _first((event.copy, event.at) for event in self.recording.of(Confirmed) if not event.of_disconnect)

    @cached_property
    def publishing(self) -> dict[Copy, Span]:
        """From when until when each copy may have been without a confirm."""
        return {
            copy: Span(event.at, self.receipted.get(copy, event.at + _UNKNOWN)) for copy, event in self.sent.items()
        }

    def was_there_at(self, copy: Copy) -> float:
        """From when on the broker may have had a message."""
        return self.receipted.get(copy, self.sent[copy].at)

    @cached_property
    def deliveries(self) -> list[Delivered]:
        """Every MESSAGE, and what was left at the end."""
        return self.recording.of(Delivered)

    @cached_property
    def by_session(self) -> dict[tuple[str, int], list[Delivered]]:
        """Every MESSAGE, by client and connection."""
        found: dict[tuple[str, int], list[Delivered]] = defaultdict(list)
        for event in self.deliveries:
            found[event.consumer, event.connection].append(event)
        return found

    @cached_property
    def began(self) -> dict[tuple[str, int], float]:
        """When each session logged in."""
        return _first(((event.client, event.connection), event.at) for event in self.recording.of(Began))

    @cached_property
    def subscribed(self) -> dict[tuple[str, int], float]:
        """When each session was subscribed."""
        return _first(((event.consumer, event.connection), event.at) for event in self.recording.of(Subscribed))

    @cached_property
    def ended(self) -> list[Ended]:
        """Every session's end."""
        return self.recording.of(Ended)

    # Faults.

    @cached_property
    def lost(self) -> list[Span]:
        """The times in which links were lost."""
        return [Span(fault.at, fault.until) for fault in self.recording.faults(LOSSES)]

    @cached_property
    def losses(self) -> list[Span]:
        """The times of what is lost with links. One that was slow meanwhile loses what it held since it became slow."""
        return [Span(self._since(fault) - GRACE, fault.until) for fault in self.recording.faults(LOSSES)]

    def forgotten(self, queue: str) -> list[Span]:
        """The times whose acknowledgements a killed broker may have forgotten."""
        kills = self._ends_of(queue, {Harm.BROKER_KILL} | NODE_KILLS)
        return [Span(fault.at - FORGOTTEN, fault.until) for fault in kills]

    def ends(self, queue: str) -> list[Span]:
        """The times, and a little longer, in which the broker ended that has a queue."""
        return [Span(fault.at - GRACE, fault.until + GRACE) for fault in self._ends_of(queue, BROKER_ENDS | NODE_ENDS)]

    def _ends_of(self, queue: str, harms: Iterable[Harm]) -> list[Fault]:
        """In a cluster a node has a classic queue, and several have any other."""
        return [fault for fault in self.recording.faults(harms) if fault.harm in BROKER_ENDS or queue in fault.queues]

    def deleted(self, queue: str) -> list[Fault]:
        """When somebody deleted a queue, and until when it was made again."""
        return [fault for fault in self.recording.faults({Harm.QUEUE_DELETION}) if queue in fault.queues]

    def deleted_during(self, queue: str, begin: float, end: float) -> bool:
        """Whether somebody deleted a queue, or made it again, in some part of a time."""
        return any(Span(fault.at, fault.until).overlaps(begin, end) for fault in self.deleted(queue))

    def spans(self, harms: Iterable[Harm]) -> list[Span]:
        """The times of some faults, and a little longer."""
        return [Span(fault.at - GRACE, fault.until + GRACE) for fault in self.recording.faults(harms)]

    def _since(self, loss: Fault) -> float:
        slow: Sequence[Fault] = self.recording.faults(_SLOW)
        before = [fault.at for fault in slow if fault.at <= loss.until and loss.at <= fault.until + GRACE]
        return min([loss.at, *before])

    def was_over_after(self, harms: Iterable[Harm], at: float) -> bool:
        """Whether one of these faults, or its effect, came to its end after a moment."""
        return any(at <= fault.until + GRACE for fault in self.recording.faults(harms))


def _first(events: Iterable[tuple[KeyT, float]]) -> dict[KeyT, float]:
    found: dict[KeyT, float] = {}
    for key, at in events:
        _ = found.setdefault(key, at)
    return found
