"""The command line of `stomp-gateway pipeline`. Only `ingest` and `archive` import Spark."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.cli.commands import Commands, Run, add_command, duration, size
from gateway.cli.lake_commands import add_compare, add_lake_commands, add_report
from gateway.cli.stream_commands import add_stream_commands
from gateway.errors import ExitCode, PipelineError, UsageError

_PACKAGES: Final = ("deltalake", "pyarrow")

_DESCRIPTION = """\
Make Delta tables and a report from the traffic journals of any number of gateways. The tables are called a lake.
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
Add every line of the journals' finished segments to the lake exactly once, and compute the tables made from them.
You may stop or kill it at any moment: the next run continues, and nothing is lost or counted twice. Unreadable lines go
to the table bad_lines. A damaged segment is left out, with the reason in the table segments_aside, and the next run
reads it if it has changed by then. Any number of ingests and other commands may work on one lake at the same time.
"""

_INGEST_EPILOG = """\
examples:
  stomp-gateway pipeline ingest --journal journal --lake lake               once, for cron or a timer
  stomp-gateway pipeline ingest --journal journal --lake lake --every 30s   until SIGTERM or Ctrl-C
  stomp-gateway pipeline ingest --journal s3://bucket/journal --lake s3://bucket/lake \\
      --packages org.apache.hadoop:hadoop-aws:3.5.0 --conf spark.driver.memory=4g

exit codes:
  0    all finished segments are in the lake; with --every: ended by SIGTERM
  1    failed, and the message says why; or segments were not read: damaged ones, which are put aside, links, or those
       of a later schema version
  2    the command line is wrong, or the extra is not installed
  130  interrupted (Ctrl-C), after the batch under way
  143  without --every: ended by SIGTERM, after the batch under way

environment:
  JAVA_HOME, SPARK_CONF_DIR and all others that Spark reads; for object stores the variables of their platforms.
"""


def add_pipeline(commands: Commands) -> None:
    """Add `pipeline` and its subcommands to the commands of `stomp-gateway`."""
    pipeline = commands.add_parser(
        "pipeline", help="make tables and a report from traffic journals", description=_DESCRIPTION, epilog=_EPILOG
    )
    subcommands = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ingest(subcommands)
    add_lake_commands(subcommands, _needing_extra)
    add_report(subcommands, _needing_extra)
    add_compare(subcommands, _needing_extra)
    add_stream_commands(subcommands, _needing_spark, _needing_extra, _add_spark)


def _add_ingest(commands: Commands) -> None:
    ingest = add_command(
        commands, "ingest", _needing_spark(_ingest), help="add journals to the lake",
        description=_INGEST, epilog=_INGEST_EPILOG,
    )  # fmt: skip
    ingest.add_argument(
        "--journal", action="append", required=True, metavar="PLACE",
        help="a directory or URL of segments; repeat it for several",
    )  # fmt: skip
    ingest.add_argument(
        "--lake", required=True, metavar="PLACE", help="a directory or URL for the lake; created if it is missing"
    )
    schedule = ingest.add_mutually_exclusive_group()
    schedule.add_argument("--once", action="store_true", help="ingest all finished segments, then end (default)")
    schedule.add_argument("--every", type=duration, metavar="TIME", help="look for new segments this often: 30s or 5m")
    ingest.add_argument(
        "--idle-after", type=duration, default="1d", metavar="TIME",
        help="a durable subscription without a connection for this long is idle (default: 1d)",
    )  # fmt: skip
    ingest.add_argument(
        "--abandoned-after", type=duration, default="7d", metavar="TIME",
        help="one without a connection for this long is abandoned (default: 7d)",
    )  # fmt: skip
    ingest.add_argument(
        "--batch-bytes", type=size, default="256MiB", metavar="SIZE",
        help="the most that a batch reads; a larger segment is a batch of its own (default: 256MiB)",
    )  # fmt: skip
    ingest.add_argument(
        "--again", action="store_true", help="also read segments that were put aside and have not changed"
    )
    ingest.add_argument("--quiet", action="store_true", help="print only what needs attention")
    _add_spark(ingest)


def _add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options about how to run Spark."""
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master", metavar="URL",
        help="local[N], or a cluster such as spark://host:7077 (default: Spark's own, local[*])",
    )  # fmt: skip
    spark.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.driver.memory=4g; repeat it for several",
    )  # fmt: skip
    spark.add_argument("--packages", metavar="LIST", help="Maven coordinates of packages that Spark is to load")


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not a setting of Spark: write spark.driver.memory=4g")
    return name, value


def _needing_spark(run: Run) -> Run:
    return _needing_extra(run, ("pyspark", *_PACKAGES))


def _needing_extra(run: Run, packages: Sequence[str] = _PACKAGES) -> Run:
    def checked(options: argparse.Namespace) -> ExitCode:
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
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

    from gateway.pipeline.lake import known_trouble  # noqa: PLC0415

    try:
        yield
    except BrokenPipeError:  # the reader of standard output has closed it: not a disk error
        raise
    except OSError as error:
        where = error.filename or lake
        sentence = known_trouble(str(error), where) or f"{error.strerror or error}: {where}."
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
        journals=options.journal,
        lake=options.lake,
        every=options.every,
        spark=SparkOptions(options.master, dict(options.conf), options.packages),
        idle_after=options.idle_after,
        abandoned_after=options.abandoned_after,
        batch_bytes=options.batch_bytes,
        again=options.again,
    )
    return ingest(wanted, Progress(quiet=options.quiet))
