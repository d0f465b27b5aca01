"""The command line of `stomp-gateway pipeline`. Only `ingest` and `archive` import Spark."""

from __future__ import annotations

import argparse

from gateway.cli.commands import Commands, add_command, duration, size
from gateway.cli.lake_commands import add_lake_commands
from gateway.cli.pipeline_options import add_new_lake, add_schedule, add_spark, needing, spark_options
from gateway.cli.stream_commands import add_stream_commands
from gateway.errors import ExitCode, UsageError

_TEXT = """\
Make Delta tables and a report from the traffic journals of any number of gateways. The tables are called a lake.
Install with pip install 'stomp-gateway[pipeline]'; ingest also needs Java 17 or later.

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
    pipeline = commands.add_parser("pipeline", help="make tables and a report from traffic journals", text=_TEXT)
    subcommands = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ingest(subcommands)
    add_lake_commands(subcommands)
    add_stream_commands(subcommands)


def _add_ingest(commands: Commands) -> None:
    ingest = add_command(commands, "ingest", _ingest, "add journals to the lake", _INGEST)
    ingest.add_argument(
        "--journal", action="append", required=True, metavar="PLACE",
        help="a directory or URL of segments; repeat it for several",
    )  # fmt: skip
    add_new_lake(ingest)
    add_schedule(ingest, "ingest all finished segments", "new segments")
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
    add_spark(ingest)


@needing("pyspark")
def _ingest(options: argparse.Namespace) -> ExitCode:
    if options.abandoned_after < options.idle_after:
        raise UsageError("--abandoned-after is shorter than --idle-after: first idle, then abandoned.")
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    wanted = IngestOptions(
        journals=options.journal,
        lake=options.lake,
        every=options.every,
        spark=spark_options(options),
        idle_after=options.idle_after,
        abandoned_after=options.abandoned_after,
        batch_bytes=options.batch_bytes,
        again=options.again,
    )
    return ingest(wanted, Progress(quiet=options.quiet))
