"""The command line of `stomp-gateway parity`."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from gateway.cli.commands import add_command, run_coroutine
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_DESCRIPTION = """\
Play the same conversations on RabbitMQ's STOMP plugin and on a gateway in front of the same broker, at the same time,
and compare every answer. One line per rule: equal, departure (the gateway does otherwise on purpose), DIFFERENT with
both exchanges, or skipped. Nothing that others use is touched, and what is made in the broker is removed again.
"""

_EPILOG = """\
examples:
  stomp-gateway parity --plugin mq.example.org:61613 --gateway localhost:61614
  STOMP_PASSCODE=... stomp-gateway parity ... --login tester --host orders
  stomp-gateway parity ... --only 'acknowledge/*' --verbose
  stomp-gateway parity --list

  The user needs the right to configure, write and read everything in the virtual host. The rows of departures are
  explained in docs/stomp-behaviour.md.

setups (plain, unless others are named):
{setups}

exit codes:
  0    no rule is DIFFERENT
  1    one is, or a server cannot be asked, or nothing was played
  2    the command line is wrong
  130  interrupted (Ctrl-C)
  143  ended by SIGTERM; in both cases what was made in the broker is removed first

environment:
  STOMP_PASSCODE    the passcode of --login, unless --passcode-file is given; guest where neither is
"""


def add_parity(commands: Commands) -> None:
    """Add `parity` to the commands of `stomp-gateway`."""
    parity = add_command(
        commands, "parity", _run, help="compare the gateway with RabbitMQ's STOMP plugin",
        description=_DESCRIPTION, make_epilog=_make_epilog,
    )  # fmt: skip
    servers = parity.add_argument_group("servers")
    servers.add_argument("--plugin", metavar="HOST:PORT", help="where RabbitMQ's STOMP plugin listens, without TLS")
    servers.add_argument("--gateway", metavar="HOST:PORT", help="where the gateway listens, without TLS")
    servers.add_argument(
        "--amqp",
        metavar="URL",
        help="the broker of both, to look behind their backs and to clean up; "
        "default: amqp://LOGIN:PASSCODE@HOST-OF-PLUGIN:5672/VHOST",
    )
    user = parity.add_argument_group("user")
    user.add_argument("--login", default="guest", metavar="NAME", help="who the clients log in as (default: guest)")
    user.add_argument("--passcode", help=argparse.SUPPRESS)  # refused, and not repeated
    user.add_argument("--passcode-file", metavar="FILE", help="the passcode of --login (default: $STOMP_PASSCODE)")
    user.add_argument("--host", default="/", metavar="VHOST", help="the virtual host, by RabbitMQ's name (default: /)")
    choice = parity.add_argument_group("conversations")
    choice.add_argument("--setup", action="append", metavar="NAME", help="what both servers are set up for; repeatable")
    choice.add_argument("--only", metavar="PATTERN", help="those whose name matches, like connect/* or nack")
    choice.add_argument("--jobs", type=int, default=8, metavar="N", help="how many at the same time (default: 8)")
    choice.add_argument("--list", action="store_true", help="only list the conversations; asks nobody")
    choice.add_argument("--verbose", action="store_true", help="show every rule in full, and every exchange")


def _make_epilog() -> str:
    from gateway.parity.transcript import SETUPS  # noqa: PLC0415 - it takes a while to load

    setups = (
        textwrap.fill(text, 100, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20)
        for name, text in SETUPS.items()
    )
    return _EPILOG.format(setups="\n".join(setups))


def _run(options: argparse.Namespace) -> ExitCode:
    from gateway.parity.command import compare, list_transcripts  # noqa: PLC0415
    from gateway.parity.shutdown import TerminatedError  # noqa: PLC0415

    if options.list:
        list_transcripts(options.only)
        return ExitCode.OK
    try:
        return ExitCode.OK if run_coroutine(compare(options)) else ExitCode.FAILURE
    except TerminatedError:
        return ExitCode.TERMINATED
