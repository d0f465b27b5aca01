"""``stomp-gateway pipeline ...``: the options of its commands. Only ``ingest`` imports Spark."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.errors import ExitCode, PipelineError, UsageError

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_REQUIRED_PACKAGES: Final = ("pyspark", "pyarrow")
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

_DESCRIPTION = """\
From the traffic journals of any number of gateways to tables that any engine can read (Parquet), and to a report.
Needs the extra: pip install 'stomp-gateway[pipeline]', and Java 17 or later for ingest.
"""

_EPILOG = """\
examples:
  stomp-gateway pipeline ingest --journal /var/lib/stomp-gateway/journal --lake /srv/lake
  stomp-gateway pipeline report --lake /srv/lake -o report.html
  stomp-gateway pipeline check --lake /srv/lake --journal /var/lib/stomp-gateway/journal

  `stomp-gateway pipeline COMMAND --help` has the options and exit codes of each.
"""

_INGEST = """\
Bring every line of the journal's finished segments into the lake, once, and compute the tables that follow from them.
It may be stopped or killed at any moment; the next run goes on from there, and nothing is lost or counted twice.
Lines that cannot be read go to the table bad_lines.
"""

_INGEST_EPILOG = """\
examples:
  stomp-gateway pipeline ingest --journal journal --lake lake            what is there now, for cron or a timer
  stomp-gateway pipeline ingest --journal journal --lake lake --every 30s   until SIGTERM or Ctrl-C

exit codes:
  0    everything that was there is in the lake; with --every: ended by SIGTERM
  1    failed, and the message says why; or segments of a later schema version were left unread
  2    the command line is wrong, or the extra is not installed
  130  interrupted (Ctrl-C), after the batch that was under way
  143  without --every: ended by SIGTERM, after the batch that was under way

files:
  LAKE/_logs/spark.log has the output of Spark and Java. The first run on a machine keeps an archive of Java's classes
  in $XDG_CACHE_HOME/stomp-gateway (200 MB), with which all later ones start in half the time.
"""

_CHECK = """\
Prove that the lake has every line of every boot once: no gaps, no duplicates, no lost manifests, no files that do not
belong, and counts that agree; and that the computed tables have all their files. Figures in those are not proven.

With --journal, also that ingested segments have not changed, and that none was skipped: a segment that is not in the
lake, although a later one of the same boot is, makes the lake incomplete. Newer segments are only waiting for the next
ingest; they are noted, except with --quiet.
"""

_CHECK_EPILOG = """\
example:
  stomp-gateway pipeline check --lake lake --journal journal

exit codes:
  0    complete; segments may be waiting for the next ingest
  1    not complete, or the lake cannot be read; what is missing is listed
  2    the command line is wrong, or the extra is not installed
"""

_REPORT = "Write a report, one HTML file that needs nothing else: traffic, latencies, errors, durable subscriptions."

_REPORT_EPILOG = """\
examples:
  stomp-gateway pipeline report --lake lake -o report.html
  stomp-gateway pipeline report --lake lake --from 2026-11-20 --to 2026-11-21T12:00 -o report.html

  Times are UTC; --from is part of the span, --to is not.

exit codes:
  0    written
  1    the lake cannot be read, or the file cannot be written
  2    the command line is wrong, or the extra is not installed
"""

_COMPACT = "Put the small files of many batches together, so that reading gets faster. Nothing that is counted changes."

_COMPACT_EPILOG = """\
example:
  stomp-gateway pipeline compact --lake lake

exit codes:
  0    done
  1    failed, or another command is writing into the lake
  2    the command line is wrong, or the extra is not installed
"""

_GC = """\
Delete segments of the journal that are in the lake and older than so many days, and with --events-days also old days
of the table events. The tables computed from them stay, and a day that they do not have yet as a whole is kept.
"""

_GC_EPILOG = """\
example:
  stomp-gateway pipeline gc --lake lake --journal journal --retain-days 7 --events-days 90

exit codes:
  0    done
  1    failed, or another command is writing into the lake
  2    the command line is wrong, or the extra is not installed
"""


def add_pipeline(commands: _Commands) -> None:
    """Add ``pipeline`` and its subcommands to the commands of ``stomp-gateway``."""
    pipeline = _parser(commands, "pipeline", "traffic journals to tables and a report", _DESCRIPTION, _EPILOG)
    own = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ingest(own)
    check = _parser(own, "check", "is every line in the lake, once?", _CHECK, _CHECK_EPILOG)
    check.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake")
    check.add_argument("--journal", type=Path, metavar="DIR", help="the journal that it was made of")
    check.add_argument("--quiet", action="store_true", help="print only what is wrong")
    check.set_defaults(run=_needing_extra(_check))
    report = _parser(own, "report", "write an HTML report", _REPORT, _REPORT_EPILOG)
    report.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake")
    report.add_argument("--from", dest="start", type=moment, metavar="TIME", help="begin here (default: first event)")
    report.add_argument("--to", dest="end", type=moment, metavar="TIME", help="end before this (default: last event)")
    report.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write")
    report.set_defaults(run=_needing_extra(_report))
    compact = _parser(own, "compact", "put small files together", _COMPACT, _COMPACT_EPILOG)
    compact.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake")
    compact.add_argument("--quiet", action="store_true", help="print only what goes wrong")
    compact.set_defaults(run=_needing_extra(_compact))
    collect = _parser(own, "gc", "delete what is old", _GC, _GC_EPILOG)
    collect.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake")
    collect.add_argument("--journal", required=True, type=Path, metavar="DIR", help="the journal that it was made of")
    collect.add_argument(
        "--retain-days", required=True, type=_days, metavar="N", help="keep segments for so many days, ingested or not"
    )
    collect.add_argument("--events-days", type=_days, metavar="N", help="keep the table events for so many days")
    collect.add_argument("--quiet", action="store_true", help="print only what needs attention")
    collect.set_defaults(run=_needing_extra(_collect))


def _add_ingest(commands: _Commands) -> None:
    ingest = _parser(commands, "ingest", "bring journals into the lake", _INGEST, _INGEST_EPILOG)
    ingest.add_argument("--journal", required=True, type=Path, metavar="DIR", help="the directory of the segments")
    ingest.add_argument("--lake", required=True, type=Path, metavar="DIR", help="where the tables are, or will be")
    rhythm = ingest.add_mutually_exclusive_group()
    rhythm.add_argument("--once", action="store_true", help="read what is there, then end (default)")
    rhythm.add_argument(
        "--every", type=duration, metavar="TIME", help="how often to look for new segments, as in 30s or 5m"
    )
    ingest.add_argument(
        "--idle-after",
        type=duration,
        default=_UNITS["d"],
        metavar="TIME",
        help="a durable subscription without a connection for this long is idle (default: 1d)",
    )
    ingest.add_argument(
        "--abandoned-after",
        type=duration,
        default=7 * _UNITS["d"],
        metavar="TIME",
        help="and after this long, abandoned (default: 7d)",
    )
    ingest.add_argument("--skip-missing", action="store_true", help="go on if a segment has been deleted")
    ingest.add_argument("--quiet", action="store_true", help="print only what goes wrong")
    spark = ingest.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="local[N], or a cluster such as spark://host:7077, whose machines all see journal and lake at the same "
        "paths (default: local[*])",
    )
    spark.add_argument("--driver-memory", default="2g", metavar="SIZE", help="Java's heap (default: 2g)")
    ingest.set_defaults(run=_needing_extra(_ingest))


def _parser(commands: _Commands, name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def duration(text: str) -> float:
    """Seconds of a duration such as 30s, 5m, 2h or 7d."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: write 30s, 5m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def moment(text: str) -> datetime:
    """A time such as 2026-11-21 or 2026-11-21T14:30, in UTC unless it has a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 2026-11-21 or 2026-11-21T14:30") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _days(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return found


def _needing_extra(run: Callable[[argparse.Namespace], ExitCode]) -> Callable[[argparse.Namespace], ExitCode]:
    def checked(options: argparse.Namespace) -> ExitCode:
        missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            names = " and ".join(missing)
            raise UsageError(f"the pipeline needs {names}, not installed here: pip install 'stomp-gateway[pipeline]'")
        with _private_files(), _explained(options.lake):
            return run(options)

    return checked


@contextmanager
def _private_files() -> Iterator[None]:
    """Let only user and group read the files written, by Java too: lakes and reports contain personal data."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _explained(lake: Path) -> Iterator[None]:
    """Turn errors of the disk, and of damaged files, into a PipelineError that says what to do."""
    from pyarrow import ArrowException  # noqa: PLC0415

    try:
        yield
    except BrokenPipeError:  # the reader of standard output has ended; not an error of the disk
        raise
    except OSError as error:
        where = error.filename or lake
        if error.errno in _DISK_FULL:
            sentence = f"no space is left for {where}. Make room and run the same command again."
        elif error.errno in _NO_PERMISSION:
            sentence = (
                f"no permission to write or read {where}. Run as a user with permission, or give another directory."
            )
        else:
            sentence = f"{error.strerror or error}: {where}."
        raise PipelineError(sentence) from error
    except ArrowException as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise PipelineError(f"a file of {lake} is damaged: {reason}. `pipeline check` says which.") from error


def _ingest(options: argparse.Namespace) -> ExitCode:
    if options.abandoned_after < options.idle_after:
        raise UsageError("--abandoned-after is shorter than --idle-after: first idle, then abandoned.")
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    wanted = IngestOptions(
        journal=options.journal,
        lake=options.lake,
        every=options.every,
        spark=SparkOptions(options.master, options.driver_memory),
        skip_missing=options.skip_missing,
        idle_after=options.idle_after,
        abandoned_after=options.abandoned_after,
    )
    return ingest(wanted, Progress(quiet=options.quiet))


def _check(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.check import check  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415

    complete = check(Lake(options.lake), options.journal, sys.stdout, quiet=options.quiet)
    return ExitCode.OK if complete else ExitCode.FAILURE


def _report(options: argparse.Namespace) -> ExitCode:
    if options.start is not None and options.end is not None and options.end <= options.start:
        raise UsageError("--to is not later than --from.")
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.report import write_report  # noqa: PLC0415

    write_report(Lake(options.lake), options.output, options.start, options.end)
    return ExitCode.OK


def _compact(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.compact import compact  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415

    compact(Lake(options.lake), sys.stdout, quiet=options.quiet)
    return ExitCode.OK


def _collect(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.retention import collect  # noqa: PLC0415

    collect(
        Lake(options.lake),
        options.journal,
        retain_days=options.retain_days,
        events_days=options.events_days,
        out=sys.stdout,
        quiet=options.quiet,
    )
    return ExitCode.OK
