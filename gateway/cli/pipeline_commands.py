"""The command line of `stomp-gateway pipeline`. Only `ingest` and `archive` import Spark."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from gateway.cli.commands import Commands, above_zero, add_command, count, duration, passcode_from, size
from gateway.cli.lake_commands import add_lake_commands
from gateway.cli.pipeline_options import add_lake, add_new_lake, add_schedule, add_spark, needing, spark_options
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

_AMQP_PASSCODE: Final = "AMQP_PASSCODE"
_STOMP_PASSCODE: Final = "STOMP_PASSCODE"

_ARCHIVE = f"""\
Add the messages of RabbitMQ streams to the table messages of a lake, each one once. You may stop or kill it at any
moment: the next run continues. It reads only streams, because a queue deletes messages that are read, and after a
failure they would be lost. To archive the messages of a queue, bind a stream to the same exchange, or let the gateway
do that (archives, in its configuration).

examples:
  stomp-gateway pipeline archive --from amqp://broker/ --login archive --passcode-file FILE --stream orders --lake lake
  stomp-gateway pipeline archive --from amqps://broker/shop --stream orders --lake lake --every 1m \\
      --hide-header authorization --max-body 64KiB

exit codes:
  0    everything that was in the streams is in the lake; with --every: ended by SIGTERM
  1    failed, and the message says why
  2    the command line is wrong, or the extra is not installed
  130  interrupted (Ctrl-C), after the batch under way
  143  without --every: ended by SIGTERM, after the batch under way

environment:
  {_AMQP_PASSCODE}  the passcode of --login, without --passcode-file
  JAVA_HOME, SPARK_CONF_DIR, PYSPARK_PYTHON and all others that Spark reads
"""

_REPLAY = f"""\
Send archived messages again, through a gateway or any other STOMP server, each with a receipt. Messages of a stream
keep their order. Each has a header x-replay-id with its stream and offset, so that consumers recognise duplicates.

examples:
  stomp-gateway pipeline replay --lake lake --where "stream = 'orders' and archived >= '2026-11-21T14:00:00Z'" --dry-run
  stomp-gateway pipeline replay --lake lake --where "destination = '/topic/orders.new'" \\
      --to stomp://gateway:61613/ --login ops --passcode-file FILE --destination /queue/orders-again --rate 500

exit codes:
  0    all messages have a RECEIPT; with --dry-run: it printed what it would send
  1    failed, and the output says why, and how many messages have a RECEIPT
  2    the command line is wrong, or the extra is not installed
  130  interrupted (Ctrl-C)

environment:
  {_STOMP_PASSCODE}  the passcode of --login, without --passcode-file
"""


def add_pipeline(commands: Commands) -> None:
    """Add `pipeline` and its subcommands to the commands of `stomp-gateway`."""
    pipeline = commands.add_parser("pipeline", help="make tables and a report from traffic journals", text=_TEXT)
    subcommands = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ingest(subcommands)
    add_lake_commands(subcommands)
    _add_archive(subcommands)
    _add_replay(subcommands)


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


def _add_archive(commands: Commands) -> None:
    archive = add_command(commands, "archive", _archive, "keep the messages of RabbitMQ streams", _ARCHIVE)
    archive.add_argument(
        "--from", required=True, dest="source", metavar="URL", help="the broker: amqp://host:port/vhost, or amqps://"
    )
    _add_login(archive)
    archive.add_argument(
        "--stream", action="append", default=[], metavar="NAME", help="a stream; repeat it for several"
    )
    archive.add_argument("--super-stream", metavar="NAME", help="a super stream with numbered partitions")
    add_new_lake(archive)
    add_schedule(archive, "archive what is in the streams now", "new messages")
    archive.add_argument(
        "--hide-header", action="append", default=[], metavar="NAME",
        help="leave this header out, in upper or lower case; repeat it for several",
    )  # fmt: skip
    archive.add_argument("--max-body", type=size, metavar="SIZE", help="leave larger bodies out, such as 64KiB")
    archive.add_argument(
        "--batch-rows", type=count, default=500_000, metavar="N", help="the most messages of a batch (default: 500000)"
    )
    archive.add_argument(
        "--allow-data-loss", action="store_true",
        help="continue although messages were deleted by the stream's retention, or the stream was declared again",
    )  # fmt: skip
    archive.add_argument("--quiet", action="store_true", help="print only what needs attention")
    add_spark(archive)


def _add_replay(commands: Commands) -> None:
    replay = add_command(commands, "replay", _replay, "send archived messages again", _REPLAY)
    add_lake(replay)
    replay.add_argument(
        "--where", required=True, metavar="SQL", help="which messages: a condition on the table messages"
    )
    replay.add_argument("--to", metavar="URL", help="the server: stomp://host:port/vhost, or stomps:// with TLS")
    _add_login(replay)
    replay.add_argument(
        "--destination", metavar="D", help="where to send all of them (default: where each was sent before)"
    )
    replay.add_argument("--rate", type=above_zero, metavar="N", help="at most N messages a second")
    replay.add_argument(
        "--window", type=count, default=1000, metavar="N", help="most messages that wait for a receipt (default: 1000)"
    )
    replay.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")
    replay.add_argument("--quiet", action="store_true", help="print only what needs attention")


def _add_login(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--login", metavar="NAME", help="the user (default: that of the URL, or the server's default)")
    parser.add_argument("--passcode-file", type=Path, metavar="FILE", help="file with its passcode")


@needing("pyspark")
def _archive(options: argparse.Namespace) -> ExitCode:
    if not options.stream and options.super_stream is None:
        raise UsageError("give --stream NAME, or --super-stream NAME.")
    from gateway.pipeline.archive import ArchiveOptions, archive  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    source = {
        "url": options.source,
        "stream": json.dumps(options.stream),
        "superStream": options.super_stream,
        "login": options.login,
        "password": passcode_from(options.passcode_file, _AMQP_PASSCODE, None),
    }
    wanted = ArchiveOptions(
        source={name: value for name, value in source.items() if value is not None},
        lake=options.lake,
        every=options.every,
        spark=spark_options(options),
        batch_rows=options.batch_rows,
        hidden=tuple(options.hide_header),
        most_body=options.max_body,
        allow_data_loss=options.allow_data_loss,
    )
    return archive(wanted, Progress(quiet=options.quiet))


@needing()
def _replay(options: argparse.Namespace) -> ExitCode:
    if options.to is None and not options.dry_run:
        raise UsageError("give --to URL, or --dry-run.")
    from gateway.pipeline.replay import ReplayOptions, replay  # noqa: PLC0415
    from gateway.pipeline.stomp_sender import StompServer  # noqa: PLC0415

    server = None
    if not options.dry_run:
        server = StompServer.read(
            options.to, options.login, passcode_from(options.passcode_file, _STOMP_PASSCODE, None)
        )
    wanted = ReplayOptions(options.lake, options.where, server, options.destination, options.rate, options.window)
    replay(wanted, sys.stdout, quiet=options.quiet)
    return ExitCode.OK
