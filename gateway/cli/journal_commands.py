"""The command line of `stomp-gateway journal`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import ExitCode

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = """\
Look into a traffic journal: the directory into which gateways write what their clients do, one JSON object per line.
Nothing is changed, no gateway is asked, and none is disturbed.
"""

_TAIL_DESCRIPTION = """\
Print the last lines of a journal in words, and with --follow those that come, of all gateways that write into it, by
time (UTC). Lines that a gateway still holds in memory (250 ms at most) are not there yet.
"""

_TAIL_EPILOG = """\
examples:
  stomp-gateway journal tail /var/lib/stomp-gateway/journal
  stomp-gateway journal tail DIR --follow --event err,drop
  stomp-gateway journal tail DIR -f --destination '/queue/orders*' --event send,conf
  stomp-gateway journal tail DIR -n 1000 --session 17
  stomp-gateway journal tail DIR -f --json | jq 'select(.l > 100000)'

events:
  open, close   a segment of the journal begins; a gateway stopped in good order
  conn, end     a session begins and ends
  sub, unsub    a subscription begins and ends
  use           the first use of a feature in a session
  err, blk      an ERROR frame; a client that was not read for a while
  stat          what a session did in 10 s (journal level session)
  send, conf    a SEND, and the broker's answer to it (journal level message)
  dlv, ack, nack
                a delivery, and the client's answers (journal level message)
  drop          events that were not written
  bad           lines that cannot be read

exit codes:
  0    done
  1    the directory cannot be read
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""

_STAT_DESCRIPTION = """\
Count what is in a journal: segments, gateways' boots, lines by event, sessions, destinations, errors, and what is
missing or cannot be read. Reads everything once, about half a million lines a second.
"""

_STAT_EPILOG = """\
examples:
  stomp-gateway journal stat /var/lib/stomp-gateway/journal
  stomp-gateway journal stat DIR --json | jq .events

  A boot is one run of one gateway. Its lines are numbered from 0, and missing numbers are lines that were lost; what
  was dropped has no number, and is counted by the gateway. A boot that did not close is running, or was killed.

exit codes:
  0    done
  1    the directory cannot be read
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""


def add_journal(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `journal` to the commands.

    Args:
        commands: those of `stomp-gateway`.
    """
    journal = commands.add_parser("journal", help="look into a traffic journal", description=_DESCRIPTION)
    actions = journal.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_tail(actions)
    _add_stat(actions)


def _add_tail(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    tail = _add(actions, "tail", "print the last lines in words, and those that come", _TAIL_DESCRIPTION, _TAIL_EPILOG)
    tail.set_defaults(run=_tail)
    tail.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="how many lines (default: 20)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    tail.add_argument("--json", action="store_true", help="print the lines as they are in the journal")
    choice = tail.add_argument_group("choice of lines")
    choice.add_argument("--event", metavar="EVENT,...", help="those of these events, like send,err")
    choice.add_argument("--session", type=int, metavar="N", help="those of the session of this number")
    choice.add_argument("--destination", metavar="PATTERN", help="those of destinations like '/queue/orders*'")
    choice.add_argument("--user", metavar="NAME", help="those of a login, as the journal has it")


def _add_stat(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    stat = _add(actions, "stat", "count what is in it, and what is missing", _STAT_DESCRIPTION, _STAT_EPILOG)
    stat.set_defaults(run=_stat)
    stat.add_argument("--json", action="store_true", help="print one JSON object, for another program to read")


def _add(
    actions: _SubParsersAction[argparse.ArgumentParser], name: str, text: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the journal's directory, which has d=2026-11-21 ..."
    )
    return parser


def _tail(options: argparse.Namespace) -> ExitCode:
    from gateway.journal.tail import tail  # noqa: PLC0415 - as all commands: what is not asked for is not loaded

    tail(options)
    return ExitCode.OK


def _stat(options: argparse.Namespace) -> ExitCode:
    from gateway.journal.stat import stat  # noqa: PLC0415

    stat(options)
    return ExitCode.OK
