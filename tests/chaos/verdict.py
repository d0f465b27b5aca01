"""What the checks of a run say: how much was checked, what does not hold, and what is excused, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

_SHOWN: Final = 3
"""Examples for each kind of finding."""

Finding = str


class Check(Enum):
    """What is checked, and of what there is one each."""

    KEPT = "receipted messages in their queue"
    TO_EACH = "receipted messages at each subscriber of a topic or stream"
    SETTLED = "acknowledged messages"
    ONCE = "repeated deliveries"
    ORDER = "first deliveries in order"
    CONTENT = "contents"
    REPLIES = "replies"
    COMMIT = "transactions as a whole"
    SESSION = "sessions"


class Excuse(Enum):
    """Why something need not hold. Each is in ``docs/reliability.md``, and is given for one thing at one time."""

    NOT_PERSISTENT = "not persistent, in a classic queue when its broker ended"
    VHOST_DELETED = "in a virtual host that was deleted"
    QUEUE_DELETED = "in a queue that somebody deleted"
    SUBSCRIPTION_AWAY = "sent to a topic while the node of a durable subscription's classic queue was away"
    ON_ITS_WAY = "on its way under ack:auto when its client vanished"
    QUEUE_LOST = "for a transient queue that was lost with its link"
    OFFSET_UNKNOWN = "in a stream before the first delivery, when the link was lost"
    STREAM_MADE_AGAIN = "in a stream that was deleted, and made again before the gateway looked"
    ACK_LOST = "its ACK was on its way when the link, broker or gateway was lost"
    ACK_FORGOTTEN = "its ACK was not on disk when the broker was killed"
    NOT_CONFIRMED = "not confirmed when the link was lost, and published again"
    REJECTED = "rejected while another queue of the same topic was deleted, and published again"
    DELIVERY_FORGOTTEN = "the broker that ended forgot that it was delivered"
    OVERTAKEN = "the broker took what came behind it when a node went, and not it, and so it was published again"
    EARLIER_RUN = "of the run before, whose ACK was not on disk when the broker was killed"
    GATEWAY_KILLED = "under way when the gateway was killed"
    CLIENT_AND_LINK = "under way when its client was gone, and then the link"
    CLIENT_CUT = "its own connection was cut"
    GATEWAY_ENDED = "its gateway ended"
    NO_BROKER = "no broker to log in to for as long as a login may take"
    NO_VHOST = "its virtual host was away when it logged in"
    CANCELLED = "its queue was deleted by somebody"
    PERMISSION_TAKEN = "its permissions were taken"
    NOT_ANSWERED = "it waited for a stream to take what it had sent when a node went, and was not answered"
    NOT_RIDING = "its link was lost, and sessions do not ride through"


class Outcome(NamedTuple):
    """One thing that was checked. It holds if there is neither finding nor excuse."""

    check: Check
    finding: Finding = ""
    excuse: Excuse | None = None


@dataclass
class Verdict:
    """The outcomes of a run, or of several."""

    checked: Counter[Check] = field(default_factory=Counter)
    excused: Counter[tuple[Check, Excuse]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Count the outcomes of a check."""
        found = []
        for check, finding, excuse in outcomes:
            self.checked[check] += 1
            if excuse is not None:
                self.excused[check, excuse] += 1
            elif finding:
                found.append(finding)
        self.findings += _few(found)

    def add(self, other: Verdict) -> None:
        """Count another run's, too."""
        self.checked += other.checked
        self.excused += other.excused
        self.findings += other.findings

    def unproven(self, wanted: Iterable[Check]) -> list[Finding]:
        """The checks in which nothing was found to hold: all was excused, or nothing was there."""
        without = self.checked.copy()
        for (check, _), count in self.excused.items():
            without[check] -= count
        return [f"nothing was checked: {check.value}" for check in wanted if without[check] <= 0]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield "checked: " + ", ".join(f"{self.checked[check]:,} {check.value}" for check in Check)
        for (check, excuse), count in sorted(self.excused.items(), key=lambda each: -each[1]):
            yield f"excused: {count:,} of the {check.value}: {excuse.value}"


def _few(found: list[Finding]) -> list[Finding]:
    rest = len(found) - _SHOWN
    return found if rest <= 0 else [*found[:_SHOWN], f"... and {rest} more like that"]
