"""The command lines of the subcommands of `stomp-gateway pipeline` that need neither Spark nor Java."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from gateway.cli.commands import Commands, above_zero, add_command, as_in_configuration, duration, exit_codes, moment
from gateway.cli.pipeline_options import WRONG, add_lake, needing
from gateway.config.scalars import Factor
from gateway.errors import ExitCode, UsageError

_CHECK = """\
Prove that the lake has every line of every boot exactly once: no gaps, no duplicates, no lost files, and matching
counts. Also prove that the computed tables have all batches. Their numbers are not checked. Other commands may write
into the lake meanwhile.

With --journal, also prove that ingested segments have not changed and that no segment was skipped: if the lake has a
segment but lacks an earlier one of the same boot, it is incomplete. Newer segments wait for the next ingest and are
listed, except with --quiet. A lake is also incomplete if a damaged segment was left out, if a finished one has waited
for longer than --overdue, and if there is a symbolic link among the segments.

example:
  stomp-gateway pipeline check --lake lake --journal journal
""" + exit_codes(
    "the lake is complete; segments may wait for the next ingest, but for no longer than --overdue",
    "the lake is not complete (the command lists what is missing), or cannot be read",
    WRONG,
)

_COMPACT = """\
Merge the small files of many batches, so that reading gets faster, and remove files that no table has named for a week.
The tables keep their contents, and other commands may read and write meanwhile.

example:
  stomp-gateway pipeline compact --lake lake
""" + exit_codes("done", "failed, and the message says why", WRONG)

_GC = """\
Delete segments of the journal that are in the lake and older than --retain-days. With --events-days, also delete old
days of the table events. The tables computed from them stay, and so do days that are incomplete in these tables.
With --messages-days, delete messages that were archived longer ago. A week later, `pipeline compact` removes the files.

The lake remembers the name of each segment that it has, so that none is read twice. With --segments-days it forgets
those that were begun more than N days ago, and refuses segments of these days from now on. It does not forget days of
which a --journal still has segments.

examples:
  stomp-gateway pipeline gc --lake lake --journal journal --retain-days 7 --events-days 90
  stomp-gateway pipeline gc --lake lake --messages-days 30
""" + exit_codes("done", "failed, and the message says why", WRONG)

_SQL = """\
Answer an SQL query over the tables of the lake, in DataFusion's dialect, which is close to PostgreSQL's. It needs
neither Spark nor Java. A table that does not exist yet is empty. The command refuses a query that does not only read.

examples:
  stomp-gateway pipeline sql --lake lake "select vhost, sum(sent) from dest_hour group by vhost"
  stomp-gateway pipeline sql --lake lake --format csv "select * from sessions" > sessions.csv
""" + exit_codes("it printed the answer", "the query is wrong or too slow, or the lake cannot be read", WRONG)  # noqa: S608

_UPGRADE = """\
Convert a lake of Parquet files, which an older release has made, to a lake of Delta tables in its place. The old one is
kept beside it as LAKE.before-upgrade, so you need twice the room. Then run `pipeline ingest`, which computes the other
tables.

example:
  stomp-gateway pipeline upgrade --lake lake
""" + exit_codes("done", "failed, and the message says why; the old lake is unchanged", WRONG)

_REPORT = """\
Write a report on traffic, latencies, errors and durable subscriptions, as one self-contained HTML file. As JSON, or as
a text file for Prometheus, it has only the findings: what needs attention, for programs and alerts.

examples:
  stomp-gateway pipeline report --lake lake -o report.html
  stomp-gateway pipeline report --lake lake --from 2026-11-20 --to 2026-11-21T12:00 -o report.html
  stomp-gateway pipeline report --lake lake --format json -o - --fail-on abandoned-subscription --fail-on error-jump
  stomp-gateway pipeline report --lake lake --format prometheus -o /var/lib/node_exporter/stomp_lake.prom

  Times are in UTC. The report begins at --from and ends just before --to. docs/pipeline.md lists the rules.
""" + exit_codes(
    "it wrote the file",
    "the lake cannot be read, the file cannot be written, or a rule of --fail-on found something",
    WRONG,
)

_COMPARE = """\
Compare two lakes, for example from before and after a migration: volumes, errors, redeliveries and latencies, with a
verdict for each row.

examples:
  stomp-gateway pipeline compare --before plugin-lake --after gateway-lake
  stomp-gateway pipeline compare --before plugin-lake --after gateway-lake --tolerance 25 --format json
""" + exit_codes("no row is worse or different", "a row is, or a lake cannot be read", WRONG)


_days: Final = as_in_configuration(Factor(least=0, most=1_000_000).read)


def add_lake_commands(commands: Commands) -> None:
    """Add the subcommands."""
    check = add_command(commands, "check", _check, "check that the lake has every line exactly once", _CHECK)
    add_lake(check)
    _add_journals(check)
    check.add_argument(
        "--overdue", type=duration, default="6h", metavar="TIME",
        help="with --journal: report a finished segment that has waited longer (default: 6h)",
    )  # fmt: skip
    check.add_argument(
        "--since", type=moment, metavar="DAY",
        help="check lines and roll-up only of segments that were begun on this day (2026-11-21) or later",
    )  # fmt: skip
    check.add_argument("--quiet", action="store_true", help="print only what is wrong")
    compact = add_command(commands, "compact", _compact, "merge small files", _COMPACT)
    add_lake(compact)
    compact.add_argument("--quiet", action="store_true", help="print only what needs attention")
    _add_gc(commands)
    sql = add_command(commands, "sql", _sql, "answer an SQL query", _SQL)
    add_lake(sql)
    sql.add_argument("query", metavar="QUERY", help="for example: select * from boots")
    sql.add_argument(
        "--format", choices=("table", "csv", "json"), default="table",
        help="how to print it; json is one object per line (default: table, of the first 1,000 rows)",
    )  # fmt: skip
    sql.add_argument(
        "--timeout", type=duration, metavar="TIME", help="give up after this long: 30s or 5m (default: never)"
    )
    upgrade = add_command(commands, "upgrade", _upgrade, "convert a lake of an older release", _UPGRADE)
    upgrade.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake of the older release")
    _add_report(commands)
    _add_compare(commands)


def _add_gc(commands: Commands) -> None:
    collect = add_command(commands, "gc", _collect, "delete old segments and events", _GC)
    add_lake(collect)
    _add_journals(collect)
    collect.add_argument("--retain-days", type=_days, metavar="N", help="keep segments for N days, ingested or not")
    collect.add_argument("--events-days", type=_days, metavar="N", help="keep the table events for N days")
    collect.add_argument("--messages-days", type=_days, metavar="N", help="keep the table messages for N days")
    collect.add_argument(
        "--segments-days", type=_days, metavar="N", help="remember for N days which segments the lake has, at least 8"
    )
    collect.add_argument("--quiet", action="store_true", help="print only what needs attention")


def _add_journals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal", action="append", default=[], metavar="PLACE",
        help="a journal it was made from, a directory or URL; repeatable",
    )  # fmt: skip


@needing()
def _check(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.check import check  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415

    since = f"{options.since:%Y-%m-%d}" if options.since else ""
    complete = check(
        Lake(options.lake), options.journal, sys.stdout, quiet=options.quiet, overdue=options.overdue, since=since
    )
    return ExitCode.OK if complete else ExitCode.FAILURE


@needing()
def _compact(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.maintenance import compact  # noqa: PLC0415

    compact(Lake(options.lake), sys.stdout, quiet=options.quiet)
    return ExitCode.OK


@needing()
def _collect(options: argparse.Namespace) -> ExitCode:
    if bool(options.journal) != (options.retain_days is not None):
        raise UsageError("--journal and --retain-days go together.")
    if options.retain_days is options.events_days is options.messages_days is options.segments_days is None:
        raise UsageError("give --journal and --retain-days, --events-days, --messages-days or --segments-days.")
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.maintenance import collect, collect_messages, forget_segments  # noqa: PLC0415

    lake = Lake(options.lake)
    collect(
        lake,
        options.journal,
        retain_days=options.retain_days or 0,
        events_days=options.events_days,
        out=sys.stdout,
        quiet=options.quiet,
    )
    if options.messages_days is not None:
        collect_messages(lake, options.messages_days, sys.stdout, quiet=options.quiet)
    if options.segments_days is not None:
        forget_segments(lake, options.journal, options.segments_days, sys.stdout, quiet=options.quiet)
    return ExitCode.OK


@needing()
def _sql(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.query_output import print_query  # noqa: PLC0415

    print_query(Lake(options.lake), options.query, options.format, sys.stdout, timeout=options.timeout)
    return ExitCode.OK


@needing()
def _upgrade(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.upgrade import upgrade  # noqa: PLC0415

    upgrade(options.lake.absolute(), sys.stdout)
    return ExitCode.OK


def _add_report(commands: Commands) -> None:
    report = add_command(commands, "report", _report, "write a report, or its findings for programs", _REPORT)
    report.add_argument("--lake", required=True, metavar="LAKE", help="the lake: a directory or URL")
    report.add_argument("--from", dest="start", type=moment, metavar="TIME", help="begin here (default: first event)")
    report.add_argument("--to", dest="end", type=moment, metavar="TIME", help="end before this (default: last event)")
    report.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write; - is standard output"
    )
    report.add_argument(
        "--format", default="html", choices=("html", "json", "prometheus"),
        help="a page (default), or only the findings as JSON or for Prometheus",
    )  # fmt: skip
    report.add_argument(
        "--fail-on", action="append", default=[], metavar="RULE",
        help="exit with 1 if this rule has a finding, or with `all` if any rule has one; repeatable",
    )  # fmt: skip
    report.add_argument(
        "--lag", type=duration, default="1h", metavar="TIME",
        help="a finding if the newest line is older than this (default: 1h)",
    )  # fmt: skip
    report.add_argument(
        "--peak", type=above_zero, metavar="N", help="a finding if a second has this many messages (default: no limit)"
    )


def _add_compare(commands: Commands) -> None:
    compare = add_command(commands, "compare", _compare, "compare two lakes", _COMPARE)
    compare.add_argument("--before", required=True, metavar="LAKE", help="a directory or URL")
    compare.add_argument("--after", required=True, metavar="LAKE", help="the other one, a directory or URL")
    compare.add_argument(
        "--tolerance", type=above_zero, default=10.0, metavar="PERCENT",
        help="ignore changes up to this percentage (default: 10)",
    )  # fmt: skip
    compare.add_argument("--format", default="text", choices=("text", "json"), help="for people (default), or JSON")


@needing()
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


@needing()
def _compare(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.compare import compare, comparison_as_json, comparison_as_text, failed  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415

    lakes = [Lake(options.before), Lake(options.after)]
    for lake in lakes:
        lake.must_exist()
    compared = compare(lakes[0].snapshot().sql, lakes[1].snapshot().sql, options.tolerance / 100)
    sys.stdout.write((comparison_as_json if options.format == "json" else comparison_as_text)(compared))
    return ExitCode.FAILURE if failed(compared) else ExitCode.OK
