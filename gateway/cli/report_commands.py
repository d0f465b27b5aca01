"""The command line of `stomp-gateway pipeline report` and `compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import add_command
from gateway.cli.option_types import above_zero, duration, moment
from gateway.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gateway.cli.commands import Commands, Run

_REPORT = """\
Write a report on traffic, latencies, errors and durable subscriptions, as one self-contained HTML file. As JSON or as a
text file for Prometheus it has what stands out, for programs and alerts.
"""

_REPORT_EPILOG = """\
examples:
  stomp-gateway pipeline report --lake lake -o report.html
  stomp-gateway pipeline report --lake lake --from 2026-11-20 --to 2026-11-21T12:00 -o report.html
  stomp-gateway pipeline report --lake lake --format json -o - --fail-on abandoned-subscription --fail-on error-jump
  stomp-gateway pipeline report --lake lake --format prometheus -o /var/lib/node_exporter/stomp_lake.prom

  Times are in UTC. The report begins at --from and ends just before --to. docs/pipeline.md lists the rules.

exit codes:
  0    it wrote the file
  1    the lake cannot be read, the file cannot be written, or a rule of --fail-on found something
  2    the command line is wrong, or the extra is not installed
"""

_COMPARE = """\
Put two lakes side by side, for example before and after a migration: volumes, errors, redeliveries and latencies, with
a verdict for each row.
"""

_COMPARE_EPILOG = """\
examples:
  stomp-gateway pipeline compare --before plugin-lake --after gateway-lake
  stomp-gateway pipeline compare --before plugin-lake --after gateway-lake --tolerance 25 --format json

exit codes:
  0    no row is worse or different
  1    a row is, or a lake cannot be read
  2    the command line is wrong, or the extra is not installed
"""


def add_report(commands: Commands, guarded: Callable[[Run], Run]) -> None:
    """Add `report`. ``guarded`` makes what runs check for the extra and explain errors."""
    report = add_command(
        commands, "report", guarded(_report), help="write a report, or what stands out for programs",
        description=_REPORT, epilog=_REPORT_EPILOG,
    )  # fmt: skip
    report.add_argument("--lake", required=True, metavar="LAKE", help="the lake: a directory or URL")
    report.add_argument("--from", dest="start", type=moment, metavar="TIME", help="begin here (default: first event)")
    report.add_argument("--to", dest="end", type=moment, metavar="TIME", help="end before this (default: last event)")
    report.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write; - is standard output"
    )
    report.add_argument(
        "--format", default="html", choices=("html", "json", "prometheus"),
        help="a page (default), or what stands out as JSON or for Prometheus",
    )  # fmt: skip
    report.add_argument(
        "--fail-on", action="append", default=[], metavar="RULE",
        help="exit with 1 if this rule finds what needs attention, or any rule (all); may be repeated",
    )  # fmt: skip
    report.add_argument(
        "--lag", type=duration, default="1h", metavar="TIME",
        help="the age of the newest line that needs attention (default: 1h)",
    )  # fmt: skip
    report.add_argument(
        "--peak", type=above_zero, metavar="N", help="messages in a second that need attention (default: none do)"
    )


def add_compare(commands: Commands, guarded: Callable[[Run], Run]) -> None:
    """Add `compare`."""
    compare = add_command(
        commands, "compare", guarded(_compare), help="put two lakes side by side",
        description=_COMPARE, epilog=_COMPARE_EPILOG,
    )  # fmt: skip
    compare.add_argument("--before", required=True, metavar="LAKE", help="a directory or URL")
    compare.add_argument("--after", required=True, metavar="LAKE", help="another one")
    compare.add_argument(
        "--tolerance", type=above_zero, default=10.0, metavar="PERCENT",
        help="a change up to this part counts as none (default: 10)",
    )  # fmt: skip
    compare.add_argument("--format", default="text", choices=("text", "json"), help="for people (default), or JSON")


def _report(options: argparse.Namespace) -> ExitCode:
    if options.start is not None and options.end is not None and options.end <= options.start:
        raise UsageError("--to is not later than --from.")
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.report import ReportOptions, write_report  # noqa: PLC0415
    from gateway.pipeline.report.findings import RULES  # noqa: PLC0415

    for rule in options.fail_on:
        if rule not in (*RULES, "all"):
            raise UsageError(f"--fail-on {rule}: there is no such rule. Write all, or one of {', '.join(RULES)}.")
    lake = Lake(options.lake)
    lake.must_exist()
    wanted = ReportOptions(options.output, options.start, options.end, options.format, options.lag, options.peak)
    alerts = write_report(lake.snapshot().sql, wanted)
    fails = [rule for rule in alerts if rule in options.fail_on or "all" in options.fail_on]
    return ExitCode.FAILURE if fails else ExitCode.OK


def _compare(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.compare import compare, comparison_as_json, comparison_as_text, failed  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415

    lakes = [Lake(options.before), Lake(options.after)]
    for lake in lakes:
        lake.must_exist()
    compared = compare(lakes[0].snapshot().sql, lakes[1].snapshot().sql, options.tolerance / 100)
    sys.stdout.write((comparison_as_json if options.format == "json" else comparison_as_text)(compared))
    return ExitCode.FAILURE if failed(compared) else ExitCode.OK
