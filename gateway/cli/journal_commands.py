"""The command line of `stomp-gateway journal`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import add_command
from gateway.cli.ship_commands import add_ship
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_DESCRIPTION = """\
Read or ship a traffic journal: the directory in which gateways record what their clients do, one JSON object per line.
These commands change no line and do not slow a gateway down.
"""

_TAIL_DESCRIPTION = """\
Print the last lines of a journal in words, and with --follow new ones as they come. If several gateways write into the
directory, their lines are in order of time (UTC). A gateway keeps new lines in memory for at most 250 ms.
"""

_TAIL_EPILOG = """\
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

exit codes:
  0    done
  1    the directory cannot be read
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""

_STAT_DESCRIPTION = """\
Count what is in a journal: segments, boots of gateways, lines by event, sessions, destinations and errors; also lines
that are missing or cannot be read. The command reads everything once, about half a million lines a second.
"""

_STAT_EPILOG = """\
examples:
  stomp-gateway journal stat /var/lib/stomp-gateway/journal
  stomp-gateway journal stat DIR --json | jq .events

  A boot is one run of a gateway. It numbers its lines from 0; a missing number is a lost line. Dropped events have no
  number, but the gateway counts them. A boot that did not close is still running, or was killed.

exit codes:
  0    done
  1    the directory cannot be read
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""


def add_journal(commands: Commands) -> None:
    """Add `journal` to the commands of `stomp-gateway`."""
    journal = commands.add_parser("journal", help="read or ship a traffic journal", description=_DESCRIPTION)
    actions = journal.add_subparsers(title="commands", metavar="COMMAND", required=True)
    tail = add_command(
        actions, "tail", _tail, help="print the last lines in words, and new ones as they come",
        description=_TAIL_DESCRIPTION, epilog=_TAIL_EPILOG,
    )  # fmt: skip
    _add_directory(tail)
    tail.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="number of lines (default: 20)")
    tail.add_argument("-f", "--follow", action="store_true", help="continue with new lines until Ctrl-C")
    tail.add_argument("--json", action="store_true", help="print the lines as they are in the journal")
    choice = tail.add_argument_group("choice of lines")
    choice.add_argument("--event", metavar="EVENT,...", help="only these events, for example send,err")
    choice.add_argument("--session", type=int, metavar="N", help="only the session with this number")
    choice.add_argument("--destination", metavar="PATTERN", help="only destinations like '/queue/orders*'")
    choice.add_argument("--user", metavar="NAME", help="only this login, as the journal has it")
    stat = add_command(
        actions, "stat", _stat, help="count what a journal holds, and what is missing",
        description=_STAT_DESCRIPTION, epilog=_STAT_EPILOG,
    )  # fmt: skip
    _add_directory(stat)
    stat.add_argument("--json", action="store_true", help="print a JSON object")
    add_ship(actions)


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
