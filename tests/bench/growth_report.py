"""What `growth` has measured: as JSON and as tables."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.bench.environment import GATEWAY, PLUGIN
from tests.bench.report import Circumstances

BEHIND = "broker behind gateway"
BOTH = "gateway and its broker"


@dataclass(frozen=True)
class Point:
    """CPU microseconds per message in each round, by process, where `amount` of something is there."""

    amount: int
    rounds: Mapping[str, Sequence[float]]

    def median(self, process: str) -> float | None:
        """Return the median of a process; None if it was not measured."""
        if process == BOTH:
            parts = zip(self.rounds.get(BEHIND, ()), self.rounds.get(GATEWAY, ()), strict=True)
            found = [broker + gateway for broker, gateway in parts]
        else:
            found = list(self.rounds.get(process, ()))
        return statistics.median(found) if found else None


@dataclass(frozen=True)
class Curve:
    """The points of one series; `axis` says what grows."""

    name: str
    axis: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Growth:
    """All curves, and the conditions of their measurement."""

    circumstances: Circumstances
    curves: Sequence[Curve]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what `write` has written."""
        document = json.loads(path.read_text())
        curves = [
            Curve(curve["name"], curve["axis"], [Point(**point) for point in curve["points"]])
            for curve in document["curves"]
        ]
        return cls(Circumstances(**document["circumstances"]), curves)

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def growth_lines(growth: Growth) -> Iterator[list[list[str]]]:
    """Yield a table of CPU microseconds per message for each curve, the heading first."""
    for curve in growth.curves:
        processes = (PLUGIN, BEHIND, GATEWAY, BOTH)
        lines = [[curve.axis, *processes, f"both/{PLUGIN}"]]
        for point in curve.points:
            found = [point.median(process) for process in processes]
            plugin, both = found[0], found[-1]
            ratio = "-" if plugin is None or both is None or not plugin else f"{both / plugin:.2f}"
            shown = ["-" if figure is None else f"{figure:,.1f}" for figure in found]
            lines.append([f"{point.amount:,}", *shown, ratio])
        yield lines
