"""Fills the tables in the documents from measurements: `python -m tests.bench.pages`.

A page marks the place of a table with two comments. What stands between them is replaced:

    <!-- bench: cpu -->
    <!-- end of bench -->
"""

import argparse
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.bench.environment import GATEWAY, PLUGIN
from tests.bench.growth_report import Growth, growth_lines
from tests.bench.report import (
    BUSY_MACHINE,
    Circumstances,
    Outcome,
    cpu_lines,
    cpu_per_operation,
    foreign_load,
    ratio_lines,
    read_json,
    servers_cpu,
)
from tests.bench.targets import ROWS
from tests.support.long_run import NOT_STARTED, SUCCESS

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "tuning.md")
_PLACE = re.compile(r"(<!-- bench: ([a-z ]+) -->\n).*?(<!-- end of bench -->)", re.DOTALL)
_ON_PAPER = ("send", "send_confirmed", "receive", "receive_ack", "e2e", "fanout", "many")
_SPREAD = 0.86
"""What is of use of many workers, because the busiest one has more than its share of the connections."""
_DATE = 10
"""Characters of the date in a time."""


@dataclass(frozen=True)
class Measured:
    """Rows, each with the circumstances of its measurement."""

    rows: Mapping[str, tuple[Outcome, Circumstances]]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Self:
        """Read files that `python -m tests.bench --json` wrote; a row of a later one replaces that of an earlier."""
        found = {}
        for path in paths:
            outcomes, circumstances = read_json(path)
            found.update({outcome.row.name: (outcome, circumstances) for outcome in outcomes})
        return cls({name: found[name] for name in ROWS if name in found})

    @property
    def outcomes(self) -> list[Outcome]:
        """Without their circumstances, in the order of the rows."""
        return [outcome for outcome, _ in self.rows.values()]

    def caption(self) -> str:
        """Return a line for each run that something is from."""
        by_run: dict[str, list[Outcome]] = {}
        for outcome, circumstances in self.rows.values():
            by_run.setdefault(origin(circumstances), []).append(outcome)
        lines = [f"{run}{_disturbance(outcomes)}." for run, outcomes in by_run.items()]
        if len(lines) == 1:
            return fill_lines(lines[0])
        names = [", ".join(f"`{outcome.row.name}`" for outcome in outcomes) for outcomes in by_run.values()]
        return "\n".join(fill_lines(f"* {rows}: {line}", "  ") for rows, line in zip(names, lines, strict=True))


def origin(run: Circumstances) -> str:
    """Return where figures are from, in a clause."""
    rounds = f"{run.rounds} round{'s' if run.rounds > 1 else ''}"
    machine = f"{run.broker}, {run.python}, {run.cores} cores ({run.processor})"
    return f"{machine}; commit {run.commit}, {run.started[:_DATE]}, medians of {rounds}"


def fill_lines(text: str, indent: str = "") -> str:
    """Return a paragraph in lines as long as those of a page."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _disturbance(outcomes: Sequence[Outcome]) -> str:
    shares = [share for o in outcomes for samples in o.samples.values() if (share := foreign_load(samples)) is not None]
    share = statistics.median(shares) if shares else 0.0
    return f"; something else used {share:.0%} of the machine meanwhile" if share > BUSY_MACHINE else ""


def cpu_table(measured: Measured) -> str:
    """CPU time per operation, and what the gateway is worse in."""
    lines = cpu_lines([outcome for outcome in measured.outcomes if not outcome.row.is_memory])
    return "\n\n".join((markdown(lines), measured.caption()))


def figures_table(measured: Measured) -> str:
    """Rates, waits and memory with their ratios."""
    return "\n\n".join((markdown(ratio_lines(measured.outcomes)), worse_sentence(measured), measured.caption()))


def short_table(measured: Measured) -> str:
    """The rows that are measured by default, without the limit and the spreads."""
    head = ["row", "CPU, plugin", "CPU, gateway and broker", "ratio", PLUGIN, GATEWAY, "ratio"]
    default = {name: entry for name, entry in measured.rows.items() if entry[0].row.is_default}
    lines = [head]
    for outcome, _ in default.values():
        cpu = [_decimal(servers_cpu(outcome.samples.get(side, ()))) for side in (PLUGIN, GATEWAY)]
        cpu = ["", "", ""] if outcome.row.is_memory else [*cpu, _ratio(outcome.cpu_ratio)]
        figures = [_number(outcome.figure(side)) for side in (PLUGIN, GATEWAY)]
        lines.append([f"`{outcome.row.name}`, {outcome.row.unit}", *cpu, *figures, _ratio(outcome.ratio)])
        tail = [outcome.other_figure(side, "p99") for side in (GATEWAY, PLUGIN)]
        if tail[0] is not None and tail[1]:
            lines.append(["p99, us", "", "", "", _number(tail[1]), _number(tail[0]), _ratio(tail[0] / tail[1])])
    shown = Measured(default)
    return "\n\n".join((markdown(lines, left=1), worse_sentence(shown), shown.caption()))


def worse_sentence(measured: Measured) -> str:
    """Say in which rows the plugin is better."""
    slower, dearer = [], []
    for outcome in measured.outcomes:
        ratio, row = outcome.ratio, outcome.row
        if ratio is not None and (ratio < 1 if row.target.at_least else ratio > 1):
            slower.append(f"`{row.name}` ({ratio:.2f})")
        if outcome.cpu_ratio is not None and not row.is_memory and outcome.cpu_ratio > 1:
            dearer.append(f"`{row.name}` ({outcome.cpu_ratio:.2f})")
    return fill_lines(
        f"The plugin has better figures in {_listed(slower)}. Broker and gateway together need more CPU time than the "
        f"broker with the plugin in {_listed(dearer)}."
    )


def sizing_table(measured: Measured) -> str:
    """What one core of the gateway does, and 2, 8 and 32 that it shares with the broker: computed from CPU time."""
    cores = (2, 8, 32)
    lines = [["row", "broker, us", "gateway, us", "one core of the gateway", *(f"{n} cores for both" for n in cores)]]
    for name, b, g in _cpu_on_paper(measured):
        rates = [f"{_thousands(count / (b + g))}, {count * g / (b + g):.1f}" for count in cores]
        lines.append([name, f"{b:.1f}", f"{g:.1f}", _thousands(1 / g), *rates])
    return markdown(lines, left=1)


def alone_table(measured: Measured) -> str:
    """What a gateway does on a machine of its own with 8 and 32 cores, and what the broker needs for that."""
    cores = (8, 32)
    lines = [["row", *(f"gateway alone on {count} cores: rate, cores of the broker" for count in cores)]]
    for name, b, g in _cpu_on_paper(measured):
        lines.append([name, *(f"{_thousands(_SPREAD * n / g)}, {_SPREAD * n * b / g:.0f}" for n in cores)])
    return markdown(lines, left=1)


def _cpu_on_paper(measured: Measured) -> Iterator[tuple[str, float, float]]:
    """The rows with messages, and the CPU time of broker and gateway for one, in microseconds."""
    for outcome in measured.outcomes:
        cpu = cpu_per_operation(outcome.samples.get(GATEWAY, ()))
        if outcome.row.name in _ON_PAPER and (b := cpu["broker"]) and (g := cpu["gateway"]):
            yield outcome.row.name, b, g


def _thousands(per_microsecond: float) -> str:
    """A rate in thousands a second."""
    return f"{per_microsecond * 1e3:,.0f}k"


def growth_table(growth: Growth) -> str:
    """CPU time per message against what grows."""
    tables = [markdown(lines, left=1) for lines in growth_lines(growth)]
    return "\n\n".join((*tables, f"{origin(growth.circumstances)}."))


def markdown(lines: Sequence[Sequence[str]], left: int = 2) -> str:
    """Return lines of cells, the heading first, as a table; the names of rows as code."""
    head, *rest = lines
    ruler = ["---" if position < left else "--:" for position in range(len(head))]
    named = [[f"`{line[0]}`" if line[0] in ROWS else line[0], *line[1:]] for line in rest]
    return "\n".join(f"| {' | '.join(cells)} |".replace("+-", "±") for cells in (head, ruler, *named))


def fill(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with the tables that there are in their places; the other places stay as they are."""

    def filled(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        return f"{begin}\n{tables[name]}\n\n{end}" if name in tables else place.group()

    return _PLACE.sub(filled, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the pages; return the exit status."""
    options = _parser().parse_args(arguments)
    tables = {}
    wanted: dict[str, tuple[Sequence[Path], Callable[[Measured], str]]] = {
        "short": (options.bench, short_table),
        "cpu": (options.bench, cpu_table),
        "figures": (options.bench, figures_table),
        "sizing": (options.bench, sizing_table),
        "alone": (options.bench, alone_table),
        "newest cpu": (options.newest, cpu_table),
        "newest figures": (options.newest, figures_table),
    }
    for name, (paths, table) in wanted.items():
        if there := [path for path in paths if path.exists()]:
            tables[name] = table(Measured.read(there))
    if options.growth.exists():
        tables["growth"] = growth_table(Growth.read(options.growth))
    if not tables:
        print("pages: there is no measurement; `make bench` makes one", file=sys.stderr)
        return NOT_STARTED
    for page in PAGES:
        page.write_text(fill(page.read_text("utf-8"), tables), "utf-8")
    print(f"filled: {', '.join(tables)}")
    return SUCCESS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.pages",
        description="Fills the tables of README.md and of two pages in docs/. Skips files that do not exist.",
    )
    for name, default, what in (
        ("--bench", "var/bench.json", "of `make bench`; a row of a later file replaces that of an earlier one"),
        ("--newest", "var/bench-newest.json", "the same with the newest RabbitMQ"),
    ):
        parser.add_argument(name, type=Path, nargs="+", default=[Path(default)], metavar="FILE", help=what)
    parser.add_argument("--growth", type=Path, default=Path("var/growth.json"), metavar="FILE", help="of bench-growth")
    return parser


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no row"


def _number(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def _decimal(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,.1f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    sys.exit(main())
