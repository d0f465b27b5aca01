"""From samples to medians, ratios and verdicts; printed as tables, written as JSON and read again."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.bench import processes
from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, PROXY, Cpu, Sample
from tests.bench.targets import ROWS, Row, Target

SIDES = (PLUGIN, GATEWAY, LIMIT, PROXY)
_COLUMNS = (PLUGIN, GATEWAY, LIMIT)
NOT_MEASURED: Final = "not measured"
_SHOWN = ("met", "missed", "failed")
_OTHERS = {"p99": "us, p99", "flood_per_second": "flood, messages/s"}
"""Figures beside that of a row which have a line of their own, and how it calls them."""
_BUSY_CLIENT = 0.5
BUSY_MACHINE = 0.05
"""Share of the machine that something else may use before a measurement counts as disturbed; usual is under 0.02."""
Verdict = Literal["met", "missed", "failed", "not measured", "measured"]


@dataclass
class Outcome:
    """The results of one row, by side: the samples, or a sentence about what went wrong.

    `failures` are lost messages and broken guarantees; `omissions` say why something could not be measured here.
    """

    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    omissions: dict[str, str] = field(default_factory=dict)

    def is_spoilt(self, side: str) -> bool:
        """Whether further rounds of `side` are useless."""
        return side in self.failures or side in self.omissions

    def figure(self, side: str) -> float | None:
        """Return the median of `side` in the row's unit; None when it was not measured, or the row failed."""
        samples = self.samples.get(side)
        return statistics.median(sample.value for sample in samples) if samples and not self.is_spoilt(side) else None

    def other_figure(self, side: str, name: str) -> float | None:
        """Return the median of another figure of the samples, for instance p99."""
        values = [sample.others[name] for sample in self.samples.get(side, ()) if name in sample.others]
        return statistics.median(values) if values and not self.is_spoilt(side) else None

    @property
    def ratio(self) -> float | None:
        """The gateway's median divided by the plugin's, None when either is missing."""
        return _ratio(self.figure(GATEWAY), self.figure(PLUGIN))

    @property
    def ratio_to_limit(self) -> float | None:
        """The gateway's median divided by that of the broker alone, None when either is missing."""
        return _ratio(self.figure(GATEWAY), self.figure(LIMIT))

    @property
    def ratio_to_proxy(self) -> float | None:
        """The gateway's median divided by that of the plugin behind a proxy, None when either is missing."""
        return _ratio(self.figure(GATEWAY), self.figure(PROXY))

    @property
    def cpu_ratio(self) -> float | None:
        """The CPU time of broker and gateway divided by that of the plugin's broker, per operation."""
        return _ratio(*(servers_cpu(self.samples.get(side, ())) for side in (GATEWAY, PLUGIN)))

    @property
    def cpu_ratio_to_limit(self) -> float | None:
        """The CPU time of broker and gateway divided by that of the broker alone, per operation."""
        return _ratio(*(servers_cpu(self.samples.get(side, ())) for side in (GATEWAY, LIMIT)))

    @property
    def round_ratios(self) -> list[float]:
        """The ratios of the single rounds, whose spread shows how much to trust the median."""
        if self.ratio is None:
            return []
        pairs = zip(self.samples[GATEWAY], self.samples[PLUGIN], strict=True)
        return [gateway.value / plugin.value for gateway, plugin in pairs if plugin.value]

    def other_ratio(self, name: str) -> float | None:
        """The gateway's median of another figure divided by the plugin's, None when either is missing."""
        return _ratio(self.other_figure(GATEWAY, name), self.other_figure(PLUGIN, name))

    @property
    def verdict(self) -> Verdict:
        """The result of the row's own figure."""
        if self.failures:
            return "failed"
        return _verdict(self.row.target, self.ratio_to_proxy if self.row.is_proxied else self.ratio)

    def other_verdict(self, name: str) -> Verdict:
        """The result of another figure; "measured" if it has no target."""
        if name not in self.row.others:
            return "measured"
        return "failed" if self.failures else _verdict(self.row.others[name], self.other_ratio(name))

    @property
    def cpu_verdict(self) -> Verdict:
        """The result for the CPU time."""
        return "failed" if self.failures else _verdict(self.row.cpu_target, self.cpu_ratio)


def _verdict(target: Target, ratio: float | None) -> Verdict:
    if ratio is None:
        return NOT_MEASURED
    if target.ratio is None:
        return "measured"
    return "met" if target.is_met_by(ratio) else "missed"


def _commit() -> str | None:
    """The commit that is measured, with a mark if files differ from it; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@dataclass(frozen=True)
class Circumstances:
    """The conditions of a measurement."""

    broker: str
    rounds: int
    scale: float
    started: str
    seconds: float
    client_nap_ms: float
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    kernel: str = field(default_factory=platform.release)
    python: str = field(default_factory=lambda: f"{platform.python_implementation()} {platform.python_version()}")
    processor: str = field(default_factory=processes.processor)
    commit: str | None = field(default_factory=_commit)


def as_text(outcomes: Sequence[Outcome], circumstances: Circumstances) -> str:
    """Return the report as text: the CPU time, the figures and their ratios, and a sentence for each oddity."""
    c = circumstances
    head = (
        f"{c.broker}, {c.python}, {c.cores} cores ({c.processor}), commit {c.commit}; medians of "
        f"{c.rounds} rounds at scale {c.scale:g}, sides in alternation, {c.seconds:.0f} s in all\n"
        f"+-: half the distance between the lowest and the highest round; {LIMIT}: AMQP to the broker without STOMP; "
        f"{PROXY}: the plugin behind a process that copies bytes"
    )
    parts = [head, "CPU microseconds per operation:", as_table(cpu_lines(outcomes)), as_table(ratio_lines(outcomes))]
    remarks = [f"* {remark}" for outcome in outcomes for remark in _remarks(outcome)]
    remarks += [f"* {remark}" for remark in _disturbances(outcomes)]
    return "\n\n".join([*parts, *(["\n".join(remarks)] if remarks else [])])


def as_json(outcomes: Sequence[Outcome], circumstances: Circumstances) -> str:
    """Return the same as a JSON document. What was not measured is null there, and its verdict says so."""
    rows = {outcome.row.name: _row_document(outcome) for outcome in outcomes}
    return json.dumps({"circumstances": asdict(circumstances), "rows": rows}, indent=2) + "\n"


def write_json(path: Path, outcomes: Sequence[Outcome], circumstances: Circumstances) -> None:
    """Write `as_json` to `path`, and create its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(outcomes, circumstances))


def read_json(path: Path) -> tuple[list[Outcome], Circumstances]:
    """Return what `write_json` has written."""
    document = json.loads(path.read_text())
    outcomes = []
    for name, row in document["rows"].items():
        samples = {side: [_sample(sample) for sample in row.get(side, {"samples": []})["samples"]] for side in SIDES}
        found = {side: list(measured) for side, measured in samples.items() if measured}
        outcomes.append(Outcome(ROWS[name], found, row["failures"], row["omissions"]))
    return outcomes, Circumstances(**document["circumstances"])


def _sample(document: Mapping[str, Any]) -> Sample:
    return Sample(cpu=Cpu(**document["cpu"]), **{name: what for name, what in document.items() if name != "cpu"})


def _row_document(outcome: Outcome) -> dict[str, object]:
    return {
        "unit": outcome.row.unit,
        "operation": outcome.row.operation,
        "target": {"ratio": outcome.row.target.ratio, "at_least": outcome.row.target.at_least},
        "ratio": outcome.ratio,
        "ratio_to_limit": outcome.ratio_to_limit,
        "ratio_to_proxy": outcome.ratio_to_proxy,
        "cpu_target": outcome.row.cpu_target.ratio,
        "cpu_ratio": outcome.cpu_ratio,
        "cpu_verdict": outcome.cpu_verdict,
        "cpu_ratio_to_limit": outcome.cpu_ratio_to_limit,
        "round_ratios": outcome.round_ratios,
        "verdict": outcome.verdict,
        "other_ratios": {name: outcome.other_ratio(name) for name in outcome.row.others},
        "other_verdicts": {name: outcome.other_verdict(name) for name in outcome.row.others},
        "failures": outcome.failures,
        "omissions": outcome.omissions,
        **{side: _side_document(outcome, side) for side in SIDES},
    }


def _side_document(outcome: Outcome, side: str) -> dict[str, object]:
    samples = outcome.samples.get(side, [])
    names = dict.fromkeys(name for sample in samples for name in sample.others)
    return {
        "median": outcome.figure(side),
        "rounds": [sample.value for sample in samples],
        "spread": _spread([sample.value for sample in samples]),
        "operations": samples[0].operations if samples else None,
        "seconds": _median(sample.seconds for sample in samples),
        "cpu_us_per_operation": cpu_per_operation(samples),
        "servers_cpu_us_per_operation": servers_cpu(samples),
        "servers_cpu_rounds": _cpu_rounds(samples, ("broker", "gateway")),
        "client_load": client_load(samples),
        "foreign_load": foreign_load(samples),
        **{name: outcome.other_figure(side, name) for name in names},
        "samples": [asdict(sample) for sample in samples],
    }


def cpu_per_operation(samples: Sequence[Sample]) -> Mapping[str, float | None]:
    """Return medians of CPU microseconds per operation, for broker, gateway, client, and elsewhere on the machine."""
    return {
        part: _median(
            seconds / sample.operations * 1e6
            for sample in samples
            if (seconds := getattr(sample.cpu, part)) is not None
        )
        for part in ("broker", "gateway", "client", "elsewhere")
    }


def client_load(samples: Sequence[Sample]) -> float | None:
    """Return the median share of one core that the load client was busy with."""
    return _median(sample.cpu.client / sample.seconds for sample in samples)


def servers_cpu(samples: Sequence[Sample]) -> float | None:
    """Return the median CPU microseconds per operation of broker and gateway together; None if neither can be seen."""
    return _median(_cpu_rounds(samples, ("broker", "gateway")))


def _cpu_rounds(samples: Sequence[Sample], parts: Sequence[str]) -> list[float]:
    """CPU microseconds per operation in each round, of these processes together as far as they can be seen."""
    return [
        sum(seen) / sample.operations * 1e6
        for sample in samples
        if (seen := [seconds for part in parts if (seconds := getattr(sample.cpu, part)) is not None])
    ]


def is_disturbed(sample: Sample) -> bool:
    """Whether something else used so much of the machine that the sample says little."""
    return _foreign_share(sample) > BUSY_MACHINE


def _foreign_share(sample: Sample) -> float:
    return sample.cpu.elsewhere / sample.seconds / len(os.sched_getaffinity(0))


def foreign_load(samples: Sequence[Sample]) -> float | None:
    """Return the median share of the whole machine that neither the servers nor the client used."""
    return _median(map(_foreign_share, samples))


def ratio_lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a table of the rows' figures and their ratios, the heading first."""
    over_plugin, over_limit = f"{GATEWAY}/{PLUGIN}", f"{GATEWAY}/{LIMIT}"
    lines = [["row", "unit", *_COLUMNS, over_plugin, "of the rounds", over_limit, "target", ""]]
    for outcome in outcomes:
        stats = [_with_spread(outcome, side) for side in _COLUMNS]
        ratio = NOT_MEASURED if outcome.ratio is None else f"{outcome.ratio:.2f}"
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if (ratios := outcome.round_ratios) else ""
        goal = ["", ""] if outcome.row.is_proxied else _goal(outcome)
        shown = [*stats, ratio, spread, _two_digits(outcome.ratio_to_limit), *goal]
        lines.append([outcome.row.name, outcome.row.unit, *shown])
        lines += _further_lines(outcome)
    return lines


def _goal(outcome: Outcome) -> list[str]:
    return [str(outcome.row.target), outcome.verdict if outcome.verdict in _SHOWN else ""]


def _with_spread(outcome: Outcome, side: str) -> str:
    shown = _number(outcome.figure(side), outcome, side)
    spread = _spread([sample.value for sample in outcome.samples.get(side, ())])
    return shown if spread is None or outcome.is_spoilt(side) else f"{shown} +-{spread:.0%}"


def _further_lines(outcome: Outcome) -> Iterable[list[str]]:
    if outcome.row.is_proxied:
        figures = [_with_spread(outcome, PROXY), _with_spread(outcome, GATEWAY), ""]
        over_proxy = NOT_MEASURED if outcome.ratio_to_proxy is None else f"{outcome.ratio_to_proxy:.2f}"
        yield ["", f"{outcome.row.unit}, plugin behind a {PROXY}", *figures, over_proxy, "", "", *_goal(outcome)]
    for name, text in _OTHERS.items():
        others = {side: outcome.other_figure(side, name) for side in _COLUMNS}
        if any(other is not None for other in others.values()):
            ratio = outcome.other_ratio(name)
            shown = NOT_MEASURED if ratio is None else f"{ratio:.2f}"
            over_limit = _two_digits(_ratio(others[GATEWAY], others[LIMIT]))
            verdict = outcome.other_verdict(name)
            goal = [str(outcome.row.others.get(name, "")), verdict if verdict in _SHOWN else ""]
            yield [
                "",
                text,
                *(_number(other, outcome, side) for side, other in others.items()),
                shown,
                "",
                over_limit,
                *goal,
            ]


def cpu_lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a table of CPU microseconds per operation, the heading first."""
    parts = {
        PLUGIN: (PLUGIN, ("broker",)),
        "broker behind gateway": (GATEWAY, ("broker",)),
        GATEWAY: (GATEWAY, ("gateway",)),
        "both": (GATEWAY, ("broker", "gateway")),
        LIMIT: (LIMIT, ("broker",)),
    }
    lines = [["row", "operation", *parts, f"both/{PLUGIN}", f"both/{LIMIT}", "target", ""]]
    for outcome in outcomes:
        shown = [_cpu_with_spread(outcome.samples.get(side, ()), names) for side, names in parts.values()]
        ratios = [_two_digits(outcome.cpu_ratio), _two_digits(outcome.cpu_ratio_to_limit)]
        verdict = outcome.cpu_verdict if str(outcome.row.cpu_target) and outcome.cpu_verdict in _SHOWN else ""
        lines.append([outcome.row.name, outcome.row.operation, *shown, *ratios, str(outcome.row.cpu_target), verdict])
    return lines


def _cpu_with_spread(samples: Sequence[Sample], parts: Sequence[str]) -> str:
    rounds = _cpu_rounds(samples, parts)
    if not rounds:
        return "-"
    return f"{statistics.median(rounds):,.1f}" + ("" if (spread := _spread(rounds)) is None else f" +-{spread:.0%}")


def _spread(rounds: Sequence[float]) -> float | None:
    """Half the distance between the lowest and the highest, as a share of the median; None for a single round."""
    return (max(rounds) - min(rounds)) / 2 / middle if rounds[1:] and (middle := statistics.median(rounds)) else None


def _two_digits(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _remarks(outcome: Outcome) -> Iterable[str]:
    name = outcome.row.name
    yield from (f"{name} of the {side} failed: {sentence}" for side, sentence in outcome.failures.items())
    yield from (f"{name} of the {side} was not measured: {sentence}" for side, sentence in outcome.omissions.items())
    for side, samples in outcome.samples.items():
        load = client_load(samples)
        if load is not None and load > _BUSY_CLIENT:
            yield f"{name} of the {side}: the client was busy for {load:.0%} of the time and may have limited it"


def _disturbances(outcomes: Sequence[Outcome]) -> Iterable[str]:
    disturbed = [
        f"{outcome.row.name} of the {side} {share:.0%}"
        for outcome in outcomes
        for side, samples in outcome.samples.items()
        if (share := foreign_load(samples) or 0.0) > BUSY_MACHINE
    ]
    if disturbed:
        yield f"the machine was busy with something else, so trust CPU times more than rates: {', '.join(disturbed)}"


def as_table(lines: Sequence[Sequence[str]], left: int = 2) -> str:
    """Return lines of cells as text; as many columns as `left` says are aligned there."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if position < left else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(figure: float | None, outcome: Outcome, side: str) -> str:
    if figure is None:
        return "failed" if side in outcome.failures else NOT_MEASURED
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.1f}"


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
