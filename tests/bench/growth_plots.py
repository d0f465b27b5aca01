"""Draws what `growth` has measured, as SVG in `docs/images`: `python -m tests.bench.growth_plots`.

The rest of the benchmark does without matplotlib.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.bench.environment import GATEWAY, PLUGIN
from tests.bench.growth_report import BOTH, Curve, Growth
from tests.support.long_run import SUCCESS

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_LINES = {PLUGIN: "plugin's broker", BOTH: BOTH, GATEWAY: "gateway alone"}


def draw(growth: Growth, directory: Path) -> list[Path]:
    """Draw a plot for each curve; return the files."""
    run, written = growth.circumstances, []
    where = f"{run.broker}, commit {run.commit}, {run.started[:10]}"
    # Text stays text, and the same figures make the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9}):
        for curve in growth.curves:
            written.append(directory / f"growth-{curve.name}.svg")
            _plot(curve, where).savefig(written[-1], format="svg", metadata={"Date": None, "Creator": None})
    return written


def _plot(curve: Curve, where: str) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for process, label in _LINES.items():
        known = [(point.amount, cpu) for point in curve.points if (cpu := point.median(process)) is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", label=label)
    amounts = [point.amount for point in curve.points]
    axes.set_xscale("log" if min(amounts) else "symlog")
    axes.set_xticks(amounts, [f"{amount:,}" for amount in amounts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.axis)
    axes.set_ylabel("CPU microseconds per message")
    axes.set_title(where, fontsize=7, loc="right")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth_plots", description="Draws the growth of cost.")
    parser.add_argument(
        "--json", type=Path, default=Path("var/growth.json"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--images", type=Path, default=_IMAGES, metavar="DIR", help="default: docs/images")
    options = parser.parse_args(arguments)
    for path in draw(Growth.read(options.json), options.images):
        print(f"drawn: {path}")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
