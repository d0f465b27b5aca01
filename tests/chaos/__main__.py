"""``python -m tests.chaos``: many seeded runs with faults, or one again."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Final

from deploy.local.broker import VAR
from deploy.local.errors import LocalError
from tests.chaos.checks import Promise
from tests.chaos.recording import Confirmed, Delivered, Fault, Sent, Settled
from tests.chaos.remains import Inspector, prepare
from tests.chaos.run import RunReport, perform
from tests.chaos.schedule import Harm, drawn
from tests.chaos.servers import Servers

_SUCCESS, _FOUND, _NOT_STARTED = 0, 1, 2
_COUNTED: Final = (Sent, Confirmed, Delivered, Settled)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the runs; 1 if something was found."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    try:
        return asyncio.run(_campaign(options))
    except LocalError as error:
        print(error, file=sys.stderr)
        return _NOT_STARTED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _campaign(options: argparse.Namespace) -> int:
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.runs)
    riding = None if options.ride_through == "none" else options.ride_through
    promise = Promise(ride_through=riding not in (None, "0"))
    deadline = time.monotonic() + options.minutes * 60
    harms: Counter[Harm] = Counter()
    events: Counter[type] = Counter()
    failed: list[int] = []
    runs = 0
    async with Servers.started(riding) as servers:
        await prepare(servers)
        inspectors: dict[str, Inspector] = {}
        for seed in seeds:
            if time.monotonic() > deadline:
                print(f"stopped after {options.minutes:g} minutes")
                break
            report = await perform(drawn(seed, options.only), servers, inspectors, promise)
            runs += 1
            harms.update(fault.harm for fault in report.recording.of(Fault))
            events.update(type(event) for event in report.recording.events)
            _tell(report)
            if report.findings:
                failed.append(seed)
                _keep(report)
                if options.stop:
                    break
        for inspector in inspectors.values():
            print(inspector.growth())
    print(f"{runs} runs: " + ", ".join(f"{events[kind]} {kind.__name__.lower()}" for kind in _COUNTED))
    print("faults: " + ", ".join(f"{count} x {harm.value}" for harm, count in harms.most_common()))
    if failed:
        print(
            f"{len(failed)} runs found something; to repeat: " + ", ".join(f"make chaos SEED={seed}" for seed in failed)
        )
    return _FOUND if failed else _SUCCESS


def _tell(report: RunReport) -> None:
    faults = ", ".join(fault.harm.value for fault in report.recording.of(Fault)) or "no fault"
    print(
        f"seed {report.schedule.seed}: {report.count(Sent)} sent, {report.count(Confirmed)} receipts, "
        f"{report.count(Delivered)} delivered, {report.seconds:.1f} s ({report.schedule.variant.value}; {faults})",
        flush=True,
    )
    for line in report.findings:
        print(f"  {line}", flush=True)


def _keep(report: RunReport) -> None:
    """Write everything that explains a finding."""
    folder: Path = VAR / "chaos" / f"seed-{report.schedule.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "findings.txt").write_text("\n".join(report.findings) + "\n")
    (folder / "schedule.txt").write_text(pformat(report.schedule, width=120) + "\n")
    (folder / "gateway.log").write_text(report.log)
    report.recording.save(folder / "recording.jsonl")
    print(f"  to repeat: make chaos SEED={report.schedule.seed}; recording, schedule and log: {folder}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many; 200 without")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed; 1 without")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--only", type=Harm, choices=list(Harm), metavar="FAULT", help="this fault in every run, alone")
    parser.add_argument("--minutes", type=float, default=30.0, help="the most that all runs may take; 30 without")
    parser.add_argument("--stop", action="store_true", help="stop at the first finding")
    parser.add_argument("--ride-through", default="none", help="the gateway's key; none leaves it out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
