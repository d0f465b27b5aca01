"""The command line of `stomp-gateway parity`."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from gateway.cli.commands import TerminatedError, add_command, run_coroutine, until_terminated
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_DESCRIPTION = """\
Play the same conversations with RabbitMQ's STOMP plugin and with a gateway in front of the same broker, at the same
time, and compare every answer. There is one line per rule: equal, departure (the gateway differs on purpose), DIFFERENT
(with both conversations) or skipped. The command touches nothing that others use, and cleans up in the broker.
"""

_EPILOG = """\
examples:
  stomp-gateway parity --plugin mq.example.org:61613 --gateway localhost:61614
  STOMP_PASSCODE=... stomp-gateway parity ... --login tester --host orders
  stomp-gateway parity ... --only 'acknowledge/*' --verbose
  stomp-gateway parity --list

  The user needs permission to configure, write and read everything in the virtual host. docs/stomp-behaviour.md
  explains the departures.

setups (default: plain):
{setups}

exit codes:
  0    no rule is DIFFERENT
  1    a rule is DIFFERENT, a server cannot be asked, or nothing was played
  2    the command line is wrong
  130  interrupted (Ctrl-C)
  143  ended by SIGTERM; like Ctrl-C, only after the command has cleaned up in the broker

environment:
  STOMP_PASSCODE    the passcode of --login, without --passcode-file (default: guest)
"""


def add_parity(commands: Commands) -> None:
    """Add `parity` to the commands of `stomp-gateway`."""
    parity = add_command(
        commands, "parity", _run, help="compare the gateway with RabbitMQ's STOMP plugin",
        description=_DESCRIPTION, make_epilog=_make_epilog,
    )  # fmt: skip
    servers = parity.add_argument_group("servers")
    servers.add_argument("--plugin", metavar="HOST:PORT", help="a port of RabbitMQ's STOMP plugin without TLS")
    servers.add_argument("--gateway", metavar="HOST:PORT", help="a port of the gateway without TLS")
    servers.add_argument(
        "--amqp",
        metavar="URL",
        help="the broker of both, to prepare and check queues and to clean up "
        "(default: amqp://HOST-OF-PLUGIN:5672); a URL without user and virtual host has those of the clients",
    )
    user = parity.add_argument_group("user")
    user.add_argument("--login", default="guest", metavar="NAME", help="login of the clients (default: guest)")
    user.add_argument("--passcode", help=argparse.SUPPRESS)  # refused without repeating it
    user.add_argument("--passcode-file", metavar="FILE", help="file with its passcode (default: $STOMP_PASSCODE)")
    user.add_argument("--host", default="/", metavar="VHOST", help="RabbitMQ's name of the virtual host (default: /)")
    choice = parity.add_argument_group("conversations")
    choice.add_argument("--setup", action="append", metavar="NAME", help="the setup of both servers; repeatable")
    choice.add_argument("--only", metavar="PATTERN", help="only those with such a name, like connect/* or nack")
    choice.add_argument("--jobs", type=int, default=8, metavar="N", help="play N at the same time (default: 8)")
    choice.add_argument("--list", action="store_true", help="list the conversations and connect to nothing")
    choice.add_argument("--verbose", action="store_true", help="show every rule in full, with its conversation")


def _make_epilog() -> str:
    from gateway.parity.transcript import SETUPS  # noqa: PLC0415 - it loads slowly

    setups = (
        textwrap.fill(text, 100, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20)
        for name, text in SETUPS.items()
    )
    return _EPILOG.format(setups="\n".join(setups))


def _run(options: argparse.Namespace) -> ExitCode:
    from gateway.parity.command import compare, list_transcripts  # noqa: PLC0415

    if options.list:
        list_transcripts(options.only)
        return ExitCode.OK
    try:
        return ExitCode.OK if run_coroutine(until_terminated(compare(options))) else ExitCode.FAILURE
    except TerminatedError:
        return ExitCode.TERMINATED
