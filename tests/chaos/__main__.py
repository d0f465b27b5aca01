"""``python -m tests.chaos``: many seeded runs with faults, or some of them again."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.campaign import Campaign, folder
from tests.chaos.drawing import drawn
from tests.chaos.recording import Confirmed, Delivered, Fault, Sent, Settled
from tests.chaos.run import RunReport
from tests.chaos.schedule import Harm
from tests.chaos.verdict import Check, Verdict
from tests.support.long_run import FOUND, SUCCESS, status_of

_MANY: Final = 20
"""Runs in which every check must have found something to check."""

_TOO_FEW: Final = 3
"""The exit status if nothing was found, but not all runs were made."""

_COUNTED: Final = {Sent: "messages", Confirmed: "receipts", Delivered: "deliveries", Settled: "acknowledgements"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the runs; 1 if something was found, 3 if nothing was but there was no time for all."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: asyncio.run(_campaign(options)))


async def _campaign(options: argparse.Namespace) -> int:
    seeds = options.seed or range(options.first, options.first + options.runs)
    deadline = time.monotonic() + options.minutes * 60
    totals = _Totals()
    left = deque(seeds)
    needs_servers = True
    while needs_servers:
        async with Campaign.begun(options.ride_through, is_cluster=options.cluster is not None) as campaign:
            needs_servers = await _perform(campaign, left, deadline, totals, options)
            print("\n".join(campaign.remarks()))
    # One run need not have everything, but many must.
    unproven = totals.verdict.unproven(Check) if totals.runs >= _MANY else []
    print("\n".join([*totals.lines(), *unproven]))
    if totals.failed or unproven:
        return FOUND
    if totals.runs < len(seeds):
        print(
            f"only {totals.runs} of {len(seeds)} runs were made in {options.minutes:g} minutes: this proves too little"
        )
        return _TOO_FEW
    return SUCCESS


async def _perform(
    campaign: Campaign, left: deque[int], deadline: float, totals: _Totals, options: argparse.Namespace
) -> bool:
    """Make the runs that are left, while there is time. Whether other servers are needed for the rest."""
    while left and time.monotonic() <= deadline:
        seed = left.popleft()
        print(f"seed {seed}: ", end="", flush=True)
        is_cluster = options.cluster is not None
        report = await campaign.perform(drawn(seed, options.only, is_cluster=is_cluster, has_workers=options.workers))
        totals.add(report)
        _tell(report, options)
        if report.findings and options.stop:
            break
        if report.is_broken:
            return bool(left)
    return False


@dataclass
class _Totals:
    """Sums over all runs."""

    runs: int = 0
    harms: Counter[Harm] = field(default_factory=Counter)
    events: Counter[type] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    failed: list[int] = field(default_factory=list)

    def add(self, report: RunReport) -> None:
        self.runs += 1
        self.harms.update(fault.harm for fault in report.recording.of(Fault))
        self.events.update(type(event) for event in report.recording.events)
        self.verdict.add(report.verdict)
        if report.findings:
            self.failed.append(report.schedule.seed)

    def lines(self) -> Iterator[str]:
        yield f"{self.runs} runs: " + ", ".join(f"{self.events[kind]:,} {name}" for kind, name in _COUNTED.items())
        yield "faults: " + ", ".join(f"{count} x {harm.value}" for harm, count in self.harms.most_common())
        yield from self.verdict.lines()
        if self.failed:
            yield f"{len(self.failed)} runs found something: " + " ".join(map(str, self.failed))
        else:
            yield "nothing found"


def _tell(report: RunReport, options: argparse.Namespace) -> None:
    faults = ", ".join(fault.harm.value for fault in report.recording.of(Fault)) or "no fault"
    print(
        f"{report.count(Sent)} sent, {report.count(Confirmed)} receipts, {report.count(Delivered)} delivered, "
        f"{report.verdict.excused.total()} excused, {report.seconds:.1f} s ({report.schedule.variant.value}; {faults})",
        flush=True,
    )
    for line in report.findings:
        print(f"  {line}")
    if report.findings:
        seed = report.schedule.seed
        more = f" CLUSTER={options.cluster}" if options.cluster else ""
        more += " ARGS=--workers" if options.workers else ""
        print(f"  to repeat: make chaos SEED={seed}{more}; recording, schedule and log: {folder(seed)}", flush=True)


def _positive(kind: type[float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        # Written so that NaN is refused, too.
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=_positive(int), default=200, help="how many; 200 without")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed; 1 without")
    parser.add_argument("--seed", type=int, nargs="+", help="only this one, or only these")
    parser.add_argument("--only", type=Harm, choices=list(Harm), metavar="FAULT", help="this fault in every run, alone")
    parser.add_argument(
        "--minutes", type=_positive(float), default=120.0, help="the most that all runs may take; 120 without"
    )
    parser.add_argument("--stop", action="store_true", help="stop at the first finding")
    parser.add_argument("--cluster", type=int, choices=[3], metavar="NODES", help="with a cluster of so many nodes: 3")
    parser.add_argument("--workers", action="store_true", help="with two workers, which are killed")
    parser.add_argument("--ride-through", metavar="TIME", help="the gateway's key")
    return parser


if __name__ == "__main__":
    sys.exit(main())
