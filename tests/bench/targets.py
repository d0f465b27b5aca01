"""The rows of the benchmark and what each has to reach: the one table that everything else reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """What the ratio gateway/plugin has to be.

    `ratio` is the bound itself, None where nothing is asked for; `at_least` says whether it is a floor, since more is
    better (rates), or a ceiling (times, memory).
    """

    ratio: float | None
    at_least: bool

    def is_met_by(self, ratio: float) -> bool:
        """Tell whether `ratio`, a gateway figure divided by the plugin's, satisfies the target."""
        return self.ratio is None or (ratio >= self.ratio if self.at_least else ratio <= self.ratio)

    def __str__(self) -> str:
        return "" if self.ratio is None else f"{'>=' if self.at_least else '<='} {self.ratio:g}"


_MORE_IS_BETTER, _LESS_IS_BETTER = Target(None, at_least=True), Target(None, at_least=False)


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    `unit` is that of its figure; `count` is how many operations one round does at scale 1 (messages, connections or
    sessions; sized for one to three seconds); `operation` names one of them; `target` is what the ratio must reach, and
    `cpu_target` the ratio of CPU time per operation, the gateway's and its broker's to the plugin's broker's.
    `is_default` rows are measured when nobody says which; `is_memory` ones are measured first. `most_rounds` bounds the
    rounds of a row that takes minutes. A row that `is_proxied` is measured behind a proxy, too, and its target is of
    the ratio gateway/proxy. `others` are targets of other figures of its samples, by their names.
    """

    name: str
    unit: str
    count: int
    operation: str
    target: Target
    cpu_target: Target = _LESS_IS_BETTER
    is_default: bool = True
    is_memory: bool = False
    most_rounds: int | None = None
    is_proxied: bool = False
    others: Mapping[str, Target] = field(default_factory=dict)


def _floor(ratio: float) -> Target:
    return Target(ratio, at_least=True)


def _ceiling(ratio: float) -> Target:
    return Target(ratio, at_least=False)


def _reachable(least: float) -> tuple[Target, Target]:
    """What a gateway can reach that loses nothing: targets of the rate and of the CPU time.

    `least` is what `make bench-floor` has measured as "at least once/plugin" (or limit/plugin, where that is more): the
    CPU time of the broker behind a gateway that needs none itself. The gateway may add a fifth of it. What bounds a
    rate is the CPU time of the machine, or of one process.
    """
    cpu = round(1.2 * least, 2)
    return _floor(round(1 / cpu, 2)), _ceiling(cpu)


def _more(name: str, unit: str, count: int, operation: str, target: Target = _MORE_IS_BETTER) -> Row:
    return Row(name, unit, count, operation, target, is_default=False)


def _memory(name: str, unit: str, count: int, operation: str, target: Target, most_rounds: int | None = None) -> Row:
    return Row(name, unit, count, operation, target, is_default=False, is_memory=True, most_rounds=most_rounds)


def _beside_flood(name: str) -> Row:
    """Round trips beside a flood: at most 2 ms, 10 ms in the 99th percentile, where the plugin has 0.6 and 4.5."""
    others = {"p99": _ceiling(2.2), "flood_per_second": _floor(0.8)}
    return Row(name, "us, p50", 300, "message", _ceiling(3.3), others=others)


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("send", "messages/s", 60_000, "message", *_reachable(0.88)),
        Row("send_confirmed", "messages/s", 24_000, "message", *_reachable(0.58)),
        Row("receive", "messages/s", 60_000, "message", *_reachable(0.92)),
        Row("receive_ack", "messages/s", 36_000, "message", *_reachable(0.47)),
        Row("e2e", "messages/s", 36_000, "message", *_reachable(0.54)),
        Row("fanout", "deliveries/s", 6_000, "delivery", *_reachable(0.78)),
        Row("rtt", "us, p50", 5_000, "round trip", _ceiling(1.1), is_proxied=True),
        _beside_flood("rtt_busy"),
        _beside_flood("rtt_busy_50"),
        Row("connect", "sessions/s", 800, "session", _floor(6.0)),
        Row("subscribe", "subscriptions/s", 200, "subscription", _MORE_IS_BETTER),
        Row("visit", "sessions/s", 100, "session", _floor(1.0)),
        Row("first_sends", "messages/s", 400, "message", _floor(0.8)),
        Row("many", "messages/s", 30_000, "message", _MORE_IS_BETTER),
        Row("idle", "kB/session", 2_000, "session", _ceiling(0.08), is_memory=True),
        _more("send_headers", "messages/s", 20_000, "message"),
        _more("e2e_64", "messages/s", 45_000, "message"),
        _more("e2e_16k", "messages/s", 8_000, "message"),
        _more("e2e_tls", "messages/s", 30_000, "message"),
        _more("e2e_websocket", "messages/s", 30_000, "message"),
        _more("connect_together", "sessions/s", 1_000, "session"),
        _more("connect_logins", "sessions/s", 1_000, "session"),
        _more("beats", "us CPU/session/s", 10, "second of a session", _ceiling(0.2)),
        _memory("unacknowledged", "kB/MB", 64_000, "message", _LESS_IS_BETTER),
        _memory("uncommitted", "kB/MB", 64_000, "message", _LESS_IS_BETTER),
        _memory("idle_subscribed", "kB/session", 500, "session", _LESS_IS_BETTER),
        _memory("idle_many", "kB/session", 10_000, "session", _ceiling(0.08), most_rounds=1),
        _memory("idle_many_subscribed", "kB/session", 10_000, "session", _LESS_IS_BETTER, most_rounds=1),
    )
}

DEFAULT_ROWS = [row for row in ROWS.values() if row.is_default]
"""What `make bench` measures in less than six minutes; `make bench-full` measures all."""
