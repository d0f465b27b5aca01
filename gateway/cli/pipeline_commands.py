"""The command line of `stomp-gateway pipeline`. Only `ingest` imports Spark."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import add_command
from gateway.cli.option_types import UNITS, duration
from gateway.cli.report_commands import add_compare, add_report
from gateway.errors import ExitCode, PipelineError, UsageError

if TYPE_CHECKING:
    from gateway.cli.commands import Commands, Run

_REQUIRED_PACKAGES: Final = ("pyspark", "pyarrow")
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

_DESCRIPTION = """\
Make Parquet tables and a report from the traffic journals of any number of gateways. The tables are called a lake.
Install with pip install 'stomp-gateway[pipeline]'; ingest also needs Java 17 or later.
"""

_EPILOG = """\
examples:
  stomp-gateway pipeline ingest --journal /var/lib/stomp-gateway/journal --lake /srv/lake
  stomp-gateway pipeline report --lake /srv/lake -o report.html
  stomp-gateway pipeline check --lake /srv/lake --journal /var/lib/stomp-gateway/journal

  `stomp-gateway pipeline COMMAND --help` shows the options and exit codes of a command.
"""

_INGEST = """\
Add every line of the journal's finished segments to the lake exactly once, and compute the tables made from them.
You may stop or kill it at any moment: the next run continues, and nothing is lost or counted twice. Unreadable lines go
to the table bad_lines.
"""

_INGEST_EPILOG = """\
examples:
  stomp-gateway pipeline ingest --journal journal --lake lake               once, for cron or a timer
  stomp-gateway pipeline ingest --journal journal --lake lake --every 30s   until SIGTERM or Ctrl-C

exit codes:
  0    all finished segments are in the lake; with --every: ended by SIGTERM
  1    failed, and the message says why; or some segments have a later schema version and were not read
  2    the command line is wrong, or the extra is not installed
  130  interrupted (Ctrl-C), after the batch under way
  143  without --every: ended by SIGTERM, after the batch under way

files:
  LAKE/_logs/spark.log has the output of Spark and Java. The first run on a machine keeps an archive of Java's classes
  in $XDG_CACHE_HOME/stomp-gateway (200 MB); later runs start in half the time.
"""

_CHECK = """\
Prove that the lake has every line of every boot exactly once: no gaps, no duplicates, no missing manifests, no foreign
files, and matching counts. Also prove that the computed tables have all their files. Their numbers are not checked.

With --journal, also prove that ingested segments have not changed and that no segment was skipped: if the lake has a
segment but lacks an earlier one of the same boot, it is incomplete. Newer segments wait for the next ingest and are
listed, except with --quiet.
"""

_CHECK_EPILOG = """\
example:
  stomp-gateway pipeline check --lake lake --journal journal

exit codes:
  0    the lake is complete; segments may wait for the next ingest
  1    the lake is not complete (the command lists what is missing), or cannot be read
  2    the command line is wrong, or the extra is not installed
"""

_COMPACT = "Merge the small files of many batches, so that reading gets faster. The tables keep their contents."

_COMPACT_EPILOG = """\
example:
  stomp-gateway pipeline compact --lake lake

exit codes:
  0    done
  1    failed, or another command is writing into the lake
  2    the command line is wrong, or the extra is not installed
"""

_GC = """\
Delete segments of the journal that are in the lake and older than --retain-days. With --events-days, also delete old
days of the table events. The tables computed from them stay, and so do days that these tables do not have as a whole.
"""

_GC_EPILOG = """\
example:
  stomp-gateway pipeline gc --lake lake --journal journal --retain-days 7 --events-days 90

exit codes:
  0    done
  1    failed, or another command is writing into the lake
  2    the command line is wrong, or the extra is not installed
"""


def add_pipeline(commands: Commands) -> None:
    """Add `pipeline` and its subcommands to the commands of `stomp-gateway`."""
    pipeline = commands.add_parser(
        "pipeline", help="make tables and a report from traffic journals", description=_DESCRIPTION, epilog=_EPILOG
    )
    subcommands = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ingest(subcommands)
    check = add_command(
        subcommands, "check", _needing_extra(_check), help="check that the lake has every line exactly once",
        description=_CHECK, epilog=_CHECK_EPILOG,
    )  # fmt: skip
    _add_lake(check)
    check.add_argument("--journal", type=Path, metavar="DIR", help="the journal it was made from")
    check.add_argument("--quiet", action="store_true", help="print only what is wrong")
    add_report(subcommands, _needing_extra)
    add_compare(subcommands, _needing_extra)
    compact = add_command(
        subcommands, "compact", _needing_extra(_compact), help="merge small files",
        description=_COMPACT, epilog=_COMPACT_EPILOG,
    )  # fmt: skip
    _add_lake(compact)
    compact.add_argument("--quiet", action="store_true", help="print only what needs attention")
    collect = add_command(
        subcommands, "gc", _needing_extra(_collect), help="delete old segments and events",
        description=_GC, epilog=_GC_EPILOG,
    )  # fmt: skip
    _add_lake(collect)
    collect.add_argument("--journal", required=True, type=Path, metavar="DIR", help="the journal it was made from")
    collect.add_argument(
        "--retain-days", required=True, type=_days, metavar="N", help="keep segments for N days, ingested or not"
    )
    collect.add_argument("--events-days", type=_days, metavar="N", help="keep the table events for N days")
    collect.add_argument("--quiet", action="store_true", help="print only what needs attention")


def _add_lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake")


def _add_ingest(commands: Commands) -> None:
    ingest = add_command(
        commands, "ingest", _needing_extra(_ingest), help="add journals to the lake",
        description=_INGEST, epilog=_INGEST_EPILOG,
    )  # fmt: skip
    ingest.add_argument("--journal", required=True, type=Path, metavar="DIR", help="the directory of the segments")
    ingest.add_argument("--lake", required=True, type=Path, metavar="DIR", help="the lake; created if it is missing")
    schedule = ingest.add_mutually_exclusive_group()
    schedule.add_argument("--once", action="store_true", help="ingest all finished segments, then end (default)")
    schedule.add_argument("--every", type=duration, metavar="TIME", help="look for new segments this often: 30s or 5m")
    ingest.add_argument(
        "--idle-after",
        type=duration,
        default=UNITS["d"],
        metavar="TIME",
        help="a durable subscription without a connection for this long is idle (default: 1d)",
    )
    ingest.add_argument(
        "--abandoned-after",
        type=duration,
        default=7 * UNITS["d"],
        metavar="TIME",
        help="and after this long it is abandoned (default: 7d)",
    )
    ingest.add_argument("--skip-missing", action="store_true", help="continue if a segment has been deleted")
    ingest.add_argument("--quiet", action="store_true", help="print only what needs attention")
    spark = ingest.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="local[N], or a cluster such as spark://host:7077 on which all machines have journal and lake at the same "
        "paths (default: local[*])",
    )
    spark.add_argument("--driver-memory", default="2g", metavar="SIZE", help="size of Java's heap (default: 2g)")


def _days(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return found


def _needing_extra(run: Run) -> Run:
    def checked(options: argparse.Namespace) -> ExitCode:
        missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            names = " and ".join(missing)
            raise UsageError(f"the pipeline needs {names}, not installed here: pip install 'stomp-gateway[pipeline]'")
        with _private_files(), _explained(getattr(options, "lake", "the lakes")):
            return run(options)

    return checked


@contextmanager
def _private_files() -> Iterator[None]:
    """Let only user and group read new files, Java's files too: lakes and reports contain personal data."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _explained(lake: Path | str) -> Iterator[None]:
    """Turn disk errors and damaged files into a PipelineError that says what to do."""
    from pyarrow import ArrowException  # noqa: PLC0415

    try:
        yield
    except BrokenPipeError:  # the reader of standard output has closed it: not a disk error
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
    from gateway.pipeline.parquet_lake import ParquetLake  # noqa: PLC0415

    complete = check(ParquetLake(options.lake), options.journal, sys.stdout, quiet=options.quiet)
    return ExitCode.OK if complete else ExitCode.FAILURE


def _compact(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.compact import compact  # noqa: PLC0415
    from gateway.pipeline.parquet_lake import ParquetLake  # noqa: PLC0415

    compact(ParquetLake(options.lake), sys.stdout, quiet=options.quiet)
    return ExitCode.OK


def _collect(options: argparse.Namespace) -> ExitCode:
    from gateway.pipeline.parquet_lake import ParquetLake  # noqa: PLC0415
    from gateway.pipeline.retention import collect  # noqa: PLC0415

    collect(
        ParquetLake(options.lake),
        options.journal,
        retain_days=options.retain_days,
        events_days=options.events_days,
        out=sys.stdout,
        quiet=options.quiet,
    )
    return ExitCode.OK
