"""From samples to medians, ratios and verdicts; printed as tables, written as JSON."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from tests.bench.environment import GATEWAY, PLUGIN, Sample
from tests.bench.targets import Row

SIDES = (PLUGIN, GATEWAY)
NOT_MEASURED: Final = "not measured"
_BUSY_CLIENT = 0.5
_BUSY_MACHINE = 0.2
Verdict = Literal["met", "missed", "failed", "not measured"]


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
    def round_ratios(self) -> list[float]:
        """The ratios of the single rounds, whose spread shows how much to trust the median."""
        if self.ratio is None:
            return []
        pairs = zip(self.samples[GATEWAY], self.samples[PLUGIN], strict=True)
        return [gateway.value / plugin.value for gateway, plugin in pairs if plugin.value]

    @property
    def verdict(self) -> Verdict:
        """The result of the row as a whole."""
        if self.failures:
            return "failed"
        if self.ratio is None:
            return NOT_MEASURED
        return "met" if self.row.target.is_met_by(self.ratio) else "missed"


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


def as_text(outcomes: Sequence[Outcome], circumstances: Circumstances) -> str:
    """Return the report as text: ratios, the CPU time, and a sentence for each oddity."""
    c = circumstances
    head = (
        f"{c.broker}, {c.python}, {c.cores} cores; medians of {c.rounds} rounds at scale {c.scale:g}, "
        f"sides in alternation, {c.seconds:.0f} s in all"
    )
    parts = [head, _table(_ratio_lines(outcomes)), "CPU microseconds per operation:", _table(_cpu_lines(outcomes))]
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


def _row_document(outcome: Outcome) -> dict[str, object]:
    return {
        "unit": outcome.row.unit,
        "operation": outcome.row.operation,
        "target": {"ratio": outcome.row.target.ratio, "at_least": outcome.row.target.at_least},
        "ratio": outcome.ratio,
        "round_ratios": outcome.round_ratios,
        "verdict": outcome.verdict,
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
        "operations": samples[0].operations if samples else None,
        "seconds": _median(sample.seconds for sample in samples),
        "cpu_us_per_operation": cpu_per_operation(samples),
        "servers_cpu_us_per_operation": servers_cpu(samples),
        "client_load": client_load(samples),
        "foreign_load": foreign_load(samples),
        **{name: outcome.other_figure(side, name) for name in names},
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
    return _median(
        sum(seen) / sample.operations * 1e6
        for sample in samples
        if (seen := [seconds for seconds in (sample.cpu.broker, sample.cpu.gateway) if seconds is not None])
    )


def foreign_load(samples: Sequence[Sample]) -> float | None:
    """Return the median share of the whole machine that neither the servers nor the client used."""
    cores = len(os.sched_getaffinity(0))
    return _median(sample.cpu.elsewhere / sample.seconds / cores for sample in samples)


def _ratio_lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    lines = [["row", "unit", *SIDES, "ratio", "of the rounds", "target", ""]]
    for outcome in outcomes:
        stats = [_number(outcome.figure(side), outcome, side) for side in SIDES]
        ratio = NOT_MEASURED if outcome.ratio is None else f"{outcome.ratio:.2f}"
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if (ratios := outcome.round_ratios) else ""
        verdict = "" if outcome.verdict == NOT_MEASURED else outcome.verdict
        lines.append([outcome.row.name, outcome.row.unit, *stats, ratio, spread, str(outcome.row.target), verdict])
        lines += _further_lines(outcome)
    return lines


def _further_lines(outcome: Outcome) -> Iterable[list[str]]:
    tail = {side: outcome.other_figure(side, "p99") for side in SIDES}
    if any(figure is not None for figure in tail.values()):
        ratio = _ratio(tail[GATEWAY], tail[PLUGIN])
        shown = NOT_MEASURED if ratio is None else f"{ratio:.2f}"
        yield ["", "us, p99", *(_number(figure, outcome, side) for side, figure in tail.items()), shown, "", "", ""]


def _cpu_lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    lines = [["row", "side", "broker", "gateway", "both", "client", "elsewhere", "client's load"]]
    for outcome in outcomes:
        for side in SIDES:
            if samples := outcome.samples.get(side):
                cpu = cpu_per_operation(samples)
                stats = (cpu["broker"], cpu["gateway"], servers_cpu(samples), cpu["client"], cpu["elsewhere"])
                shown = ["-" if figure is None else f"{figure:.1f}" for figure in stats]
                lines.append([outcome.row.name, side, *shown, f"{client_load(samples) or 0:.0%} of a core"])
    return lines


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
        if (share := foreign_load(samples) or 0.0) > _BUSY_MACHINE
    ]
    if disturbed:
        yield f"the machine was busy with something else, so trust CPU times more than rates: {', '.join(disturbed)}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    left = 2
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
