"""The command line of `stomp-gateway journal`."""

from __future__ import annotations

import argparse
import errno
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import (
    Commands,
    TerminatedError,
    add_command,
    as_in_configuration,
    exit_codes,
    passcode_from,
    run_coroutine,
    until_terminated,
)
from gateway.errors import ExitCode, GatewayError
from gateway.texts import counted

if TYPE_CHECKING:
    from gateway.journal.shipper import Shipper

_TEXT = """\
Read or ship a traffic journal: the directory in which gateways record what their clients do, one JSON object per line.
These commands do not change any line, and do not slow a gateway down.
"""

_TAIL = """\
Print the last lines of a journal in words, and with --follow new ones as they come. If several gateways write into the
directory, their lines are in order of time (UTC). A gateway keeps new lines in memory for at most 250 ms.

examples:
  stomp-gateway journal tail /var/lib/stomp-gateway/journal
  stomp-gateway journal tail DIR --follow --event err,drop
  stomp-gateway journal tail DIR -f --destination '/queue/orders*' --event send,conf
  stomp-gateway journal tail DIR -n 1000 --session 17
  stomp-gateway journal tail DIR -f --json | jq 'select(.l > 100000)'

events:
  open, close   a segment of the journal begins; a gateway stopped in an orderly way
  conn, end     a session begins, ends
  sub, unsub    a subscription begins, ends
  use           a session uses a feature for the first time
  err, blk      an ERROR frame; the gateway did not read a client for a while
  stat          what a session did in 10 s (journal level session)
  send, conf    a SEND, and the broker's answer to it (journal level message)
  dlv, ack, nack
                a delivery, and the client's answers (journal level message)
  audit         an operator asked the gateway for something
  drop          events that were not written
  bad           lines that cannot be read
""" + exit_codes("done", "the directory cannot be read")

_STAT = """\
Count what is in a journal: segments, boots of gateways, lines by event, sessions, destinations and errors; also lines
that are missing or cannot be read. The command reads everything once, about half a million lines a second.

examples:
  stomp-gateway journal stat /var/lib/stomp-gateway/journal
  stomp-gateway journal stat DIR --json | jq .events

  A boot is one run of a gateway. It numbers its lines from 0; a missing number is a lost line. Dropped events have no
  number, but the gateway counts them. A boot that did not close is still running, or was killed.
""" + exit_codes("done", "the directory cannot be read")

# When the command is stopped, the segment under way has this many seconds.
_END_WITHIN: Final = 5.0

_SHIP = """\
Copy every finished segment of a journal to the place from which the pipeline reads it: a directory, or an object store.
A gateway with journal.ship does this itself. This command is for other gateways' journals, and for segments that a
killed gateway has left open: it first finishes them at their last whole line, with --follow also every ten minutes. It
marks shipped segments, and does not ship them again. Object stores need pip install 'stomp-gateway[ship]', and take
their credentials from the environment.

examples:
  stomp-gateway journal ship /var/lib/stomp-gateway/journal --to s3://bucket/journal
  stomp-gateway journal ship DIR --to /mnt/journals --follow
  stomp-gateway journal ship DIR --to gs://bucket/journal --again        the place has lost segments

  The command does not replace a segment that the place already has, so you can repeat it at any time.
""" + exit_codes(
    "everything is shipped; with --follow: ended by SIGTERM",
    "something was not shipped, or an open segment may not be finished, and the messages say why",
)


_COLLECT = """\
Read the segments that gateways publish to a stream of RabbitMQ (journal.ship.to: amqp), and write them to the place
from which the pipeline reads them. Each segment is written once, by its name; a file there records how far the stream
was read. You may stop or kill the command at any moment, and run two at once. The user needs the permissions read for
the stream and write for amq.default.

examples:
  stomp-gateway journal collect --from amqps://collector@rabbit-a/orders --passcode-file FILE --to s3://bucket/journal
  stomp-gateway journal collect --from amqp://localhost --to /srv/journals --follow

environment:
  STOMP_GATEWAY_PASSCODE   the passcode, without --passcode-file (default: guest)

exit codes:
  0    everything in the stream was written; with --follow: ended by SIGTERM, even if messages were refused
  1    the broker or the place does not answer, or messages were refused; the output says which
  2    the command line is wrong
  130  interrupted (Ctrl-C)
  143  without --follow: ended by SIGTERM
"""


def add_journal(commands: Commands) -> None:
    """Add `journal` to the commands of `stomp-gateway`."""
    journal = commands.add_parser("journal", help="read or ship a traffic journal", text=_TEXT)
    actions = journal.add_subparsers(title="commands", metavar="COMMAND", required=True)
    tail = add_command(actions, "tail", _tail, "print the last lines in words, and new ones as they come", _TAIL)
    _add_directory(tail)
    tail.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="number of lines (default: 20)")
    tail.add_argument("-f", "--follow", action="store_true", help="continue with new lines until Ctrl-C")
    tail.add_argument("--json", action="store_true", help="print the lines as they are in the journal")
    choice = tail.add_argument_group("choice of lines")
    choice.add_argument("--event", metavar="EVENT,...", help="only these events, for example send,err")
    choice.add_argument("--session", type=int, metavar="N", help="only the session with this number")
    choice.add_argument("--destination", metavar="PATTERN", help="only destinations like '/queue/orders*'")
    choice.add_argument("--user", metavar="NAME", help="only this login, as the journal has it")
    stat = add_command(actions, "stat", _stat, "count what a journal holds, and what is missing", _STAT)
    _add_directory(stat)
    stat.add_argument("--json", action="store_true", help="print a JSON object")
    _add_collect(actions)
    _add_ship(actions)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the journal's directory, the one with d=2026-11-21 ..."
    )


def _tail(options: argparse.Namespace) -> ExitCode:
    from gateway.journal.tail import tail  # noqa: PLC0415 - only this command needs it

    tail(options)
    return ExitCode.OK


def _stat(options: argparse.Namespace) -> ExitCode:
    from gateway.journal.stat import stat  # noqa: PLC0415

    stat(options)
    return ExitCode.OK


def _add_ship(actions: Commands) -> None:
    ship = add_command(actions, "ship", _ship, "copy finished segments to an object store or a directory", _SHIP)
    ship.add_argument("directory", type=Path, metavar="DIR", help="the journal's directory")
    ship.add_argument(
        "--to", required=True, type=_place, metavar="PLACE",
        help="a directory, or a URL: s3://bucket/prefix, gs://..., az://...",
    )  # fmt: skip
    mode = ship.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="ship what is finished now, then end (default)")
    mode.add_argument("--follow", action="store_true", help="also ship later segments, until SIGTERM or Ctrl-C")
    mode.add_argument("--again", action="store_true", help="like --once, but also ship segments that are marked")


def _add_collect(actions: Commands) -> None:
    collect = add_command(
        actions, "collect", _collect, "write segments from a stream of RabbitMQ to one place", _COLLECT
    )
    collect.add_argument(
        "--from", dest="broker", required=True, metavar="URL", help="the broker: amqps://LOGIN@HOST:PORT/VIRTUAL_HOST"
    )
    collect.add_argument(
        "--to", required=True, type=_place, metavar="PLACE", help="a directory, or a URL: s3://bucket/prefix, ..."
    )
    collect.add_argument(
        "--stream", default="stomp-gateway.journal", metavar="NAME", help="the stream (default: %(default)s)"
    )
    collect.add_argument("--passcode-file", type=Path, metavar="FILE", help="a file with the passcode of LOGIN")
    collect.add_argument("--ca-file", type=Path, metavar="FILE", help="certificates (PEM) to trust, for amqps")
    mode = collect.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="collect what is there now, then end (default)")
    mode.add_argument("--follow", action="store_true", help="also collect later segments, until SIGTERM or Ctrl-C")


@as_in_configuration
def _place(text: str) -> str:
    from gateway.config.journal_settings import checked_place  # noqa: PLC0415 - the configuration loads slowly

    return checked_place(text)


def _ship(options: argparse.Namespace) -> ExitCode:
    from gateway.config.model import Logging  # noqa: PLC0415
    from gateway.journal.ship_targets import open_store  # noqa: PLC0415
    from gateway.journal.shipper import ShipError, Shipper  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415

    store = open_store(options.to)
    if not options.directory.is_dir():
        raise GatewayError(f"cannot read the journal {options.directory}: there is no such directory.")
    configure_logs(Logging())
    shipper = Shipper(options.directory, store)
    if options.follow:
        return _follow(shipper, options.directory)
    left_open = _finish_open(options.directory)
    try:
        shipper.ship_now(again=options.again)
    except (ShipError, OSError) as error:
        what = (
            f"{error.filename or options.directory}: {error.strerror or error}" if isinstance(error, OSError) else error
        )
        raise GatewayError(
            f"{what}. The segments that were not shipped wait in {options.directory}: run the same command again."
        ) from error
    finally:
        print(f"{counted(shipper.stats.segments, 'segment')} shipped, {counted(shipper.stats.bytes, 'byte')}")
    refused = sum(error.errno != errno.ENOLCK for error in left_open.values())
    if refused:
        raise GatewayError(f"open segments that cannot be finished: {refused}; the log lines above say why")
    return ExitCode.OK


def _follow(shipper: Shipper, directory: Path) -> ExitCode:
    from gateway.journal.files import CLEAN_INTERVAL  # noqa: PLC0415

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    left_open = _finish_open(directory)
    shipper.start()
    while not stop.wait(CLEAN_INTERVAL):
        left_open = _finish_open(directory, left_open)
    shipper.close(_END_WITHIN)
    return ExitCode.OK


def _finish_open(directory: Path, known: Mapping[Path, OSError] = MappingProxyType({})) -> dict[Path, OSError]:
    """Finish segments that killed gateways left open. Returns those that cannot be finished; logs new ones of these."""
    import structlog  # noqa: PLC0415

    from gateway.journal.files import recover  # noqa: PLC0415

    log = structlog.get_logger("gateway.journal")
    left_open = recover(directory, None)
    for path, error in left_open.items():
        if path not in known:
            reason = error.strerror or str(error)
            log.warning("journal segment left open", segment=path.name, reason=reason)
    return left_open


def _collect(options: argparse.Namespace) -> ExitCode:
    from gateway.config.model import Logging  # noqa: PLC0415
    from gateway.journal.ship_targets import open_store  # noqa: PLC0415
    from gateway.journal.stream import StreamBroker  # noqa: PLC0415
    from gateway.journal.stream_collector import StreamCollector  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415

    passcode = passcode_from(options.passcode_file, "STOMP_GATEWAY_PASSCODE", "guest")
    broker = StreamBroker.from_option(options.broker, passcode, options.stream, options.ca_file)
    collector = StreamCollector(broker, open_store(options.to))
    configure_logs(Logging())
    is_ended = False
    try:
        run_coroutine(until_terminated(collector.collect(follow=options.follow)))
    except TerminatedError:
        is_ended = True
    finally:
        done = collector.done
        segments, size = counted(done.segments, "segment"), counted(done.bytes, "byte")
        print(f"{segments} collected, {size}; {counted(done.refused, 'message')} refused")
    if options.follow:
        return ExitCode.OK
    if done.refused:
        what = counted(done.refused, "message", "of the stream was", "of the stream were")
        raise GatewayError(f"{what} refused; the log lines above say why")
    return ExitCode.TERMINATED if is_ended else ExitCode.OK
