"""The rows of the benchmark and what each has to reach: the one table that everything else reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What the ratio gateway/plugin has to be.

    `ratio` is the bound itself; `at_least` says whether it is a floor (rates) or a ceiling (times, memory).
    """

    ratio: float
    at_least: bool

    def is_met_by(self, ratio: float) -> bool:
        """Tell whether `ratio`, a gateway figure divided by the plugin's, satisfies the target."""
        return ratio >= self.ratio if self.at_least else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.ratio:g}"


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    `unit` is that of its figure; `count` is how many operations one round does at scale 1 (messages, connections or
    sessions; sized for one to three seconds); `operation` names one of them; `target` is what the ratio must reach.
    """

    name: str
    unit: str
    count: int
    operation: str
    target: Target


def _floor(ratio: float) -> Target:
    return Target(ratio, at_least=True)


def _ceiling(ratio: float) -> Target:
    return Target(ratio, at_least=False)


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("send", "messages/s", 80_000, "message", _floor(1.2)),
        Row("send_confirmed", "messages/s", 30_000, "message", _floor(1.2)),
        Row("receive", "messages/s", 80_000, "message", _floor(1.2)),
        Row("receive_ack", "messages/s", 40_000, "message", _floor(1.2)),
        Row("e2e", "messages/s", 45_000, "message", _floor(1.4)),
        Row("fanout", "deliveries/s", 8_000, "delivery", _floor(1.2)),
        Row("rtt", "us, p50", 7_000, "round trip", _ceiling(1.5)),
        Row("connect", "sessions/s", 1_000, "session", _floor(3.0)),
        Row("idle", "kB/session", 2_000, "session", _ceiling(0.2)),
    )
}
