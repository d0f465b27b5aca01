"""The command lines of `stomp-gateway sessions`, `links` and `top`."""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.admin.terminal_columns import LINKS, PLUGIN_COLUMNS, SESSIONS, meanings
from gateway.cli.commands import add_command
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_SESSIONS_DESCRIPTION = """\
List the sessions of a running gateway, which is asked over its admin listener; or look at one, or close one.
"""

_SESSIONS_EPILOG = """\
examples:
  stomp-gateway sessions
  stomp-gateway sessions --login billing --sort unacknowledged --limit 20
  stomp-gateway sessions --hold client-write --columns id,peer,write_buffer_bytes
  stomp-gateway sessions --columns conn_name,auth_login,version,ssl    # as of rabbitmqctl list_stomp_connections
  stomp-gateway sessions --json | jq -r '.[].peer'
  stomp-gateway sessions show ID
  stomp-gateway sessions close ID --reason 'maintenance at 18:00'

columns:
{columns}

  Of `rabbitmqctl list_stomp_connections`, besides:
{plugin_columns}
"""

_CLOSE_DESCRIPTION = """\
Close a session. Its client gets an ERROR with the reason, and what it has not acknowledged goes back to the queues.
Most clients connect again at once.
"""

_LINKS_DESCRIPTION = """\
List the links of a running gateway, its AMQP connections to brokers; it is asked over its admin listener.
"""

_LINKS_EPILOG = """\
examples:
  stomp-gateway links
  stomp-gateway links --virtual-host orders --columns name,blocked,write_buffer_bytes
  stomp-gateway links --json

columns:
{columns}
"""

_TOP_DESCRIPTION = """\
Watch a running gateway: its figures, and its busiest sessions first. Each look is drawn over the last one; q or Ctrl-C
ends it. Rates are means over the time between two looks.
"""

_TOP_EPILOG = """\
examples:
  stomp-gateway top
  stomp-gateway top --interval 5 --virtual-host orders
  stomp-gateway top --once > now.txt         one look, for a file or a pipe; rates over one interval

  With more than 1000 sessions, only those are looked at that sent most and that got most since they began.
"""

_EPILOG = """\

exit codes:
  0    done
  1    the gateway does not answer, refuses, or has no such session
  2    the command line is wrong
  130  interrupted (Ctrl-C)

environment:
  STOMP_GATEWAY_ADMIN_URL       where the admin listener is, unless --url is given
  STOMP_GATEWAY_ADMIN_PASSCODE  the passcode of --user, unless --passcode-file is given
"""


def add_admin(commands: Commands) -> None:
    """Add `sessions`, `links` and `top` to the commands of `stomp-gateway`."""
    _add_sessions(commands)
    links = add_command(
        commands, "links", _run_links, help="list a running gateway's AMQP connections",
        description=_LINKS_DESCRIPTION, epilog=_LINKS_EPILOG.format(columns=meanings(LINKS)) + _EPILOG,
    )  # fmt: skip
    _add_server_options(links)
    _add_list_options(links)
    top = add_command(
        commands, "top", _run_top, help="watch a running gateway's figures and busiest sessions",
        description=_TOP_DESCRIPTION, epilog=_TOP_EPILOG + _EPILOG,
    )  # fmt: skip
    _add_server_options(top)
    top.add_argument("--virtual-host", metavar="NAME", help="sessions in this virtual host")
    top.add_argument("--login", metavar="NAME", help="sessions of this login")
    top.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    top.add_argument("--once", "--batch", action="store_true", help="print one look and end; so without a terminal")
    top.add_argument("--limit", type=int, metavar="N", help="sessions to show (default: as many as fit; --once: 20)")


def _add_sessions(commands: Commands) -> None:
    plugin_columns = textwrap.fill(", ".join(PLUGIN_COLUMNS), 100, initial_indent="  ", subsequent_indent="  ")
    epilog = _SESSIONS_EPILOG.format(columns=meanings(SESSIONS), plugin_columns=plugin_columns) + _EPILOG
    sessions = add_command(
        commands, "sessions", _run_sessions, help="list, look at and close a running gateway's sessions",
        description=_SESSIONS_DESCRIPTION, epilog=epilog,
    )  # fmt: skip
    _add_server_options(sessions)
    _add_list_options(sessions)
    sessions.add_argument("--hold", metavar="REASON", help="those that are held for this reason, like client-write")
    actions = sessions.add_subparsers(title="commands", metavar="COMMAND", dest="action")
    show = add_command(
        actions, "show", _run_sessions, help="print all that is known of a session",
        description="Print all that is known of a session.", epilog=_EPILOG,
    )  # fmt: skip
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
    close = add_command(
        actions, "close", _run_sessions, help="close a session", description=_CLOSE_DESCRIPTION, epilog=_EPILOG
    )
    close.add_argument("--reason", metavar="TEXT", help="shown to the client, and in the log")
    for action in (show, close):
        action.add_argument("id", metavar="ID", help="the session's id, like session-...")
        # Options may stand before the action as well: a default of the action's own would overwrite them.
        _add_server_options(action, default=argparse.SUPPRESS)


def _add_server_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    server = parser.add_argument_group("gateway")
    server.add_argument(
        "--url", default=default, metavar="URL", help="its admin listener (default: http://127.0.0.1:15692)"
    )
    server.add_argument("--user", default=default, metavar="NAME", help="who asks, where it has admin users")
    server.add_argument("--passcode", default=default, help=argparse.SUPPRESS)  # refused, without repeating it
    server.add_argument("--passcode-file", default=default, metavar="FILE", help="the passcode of --user")
    server.add_argument("--ca-file", default=default, metavar="FILE", help="whose certificates to trust (https)")
    server.add_argument(
        "--insecure",
        action="store_true",
        default=default or False,
        help="trust any certificate (https); whoever is in between can read the passcode",
    )


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_argument_group("list")
    choice.add_argument("--columns", metavar="A,B,...", help="what to show, see below")
    choice.add_argument("--virtual-host", metavar="NAME", help="those in this virtual host")
    choice.add_argument("--login", metavar="NAME", help="those of this login")
    choice.add_argument("--search", metavar="TEXT", help="those with this text in a name or an address")
    choice.add_argument(
        "--sort", metavar="COLUMN", help="numbers largest first, texts from A to Z, moments oldest first"
    )
    choice.add_argument("--reverse", action="store_true", help="the other way round")
    choice.add_argument("--limit", type=int, default=0, metavar="N", help="the first N (default: all)")
    choice.add_argument("--json", action="store_true", help="print one JSON array, for another program to read")


def _run_sessions(options: argparse.Namespace) -> ExitCode:
    # Imported here and below: other commands do not load what only these need.
    from gateway.admin.terminal_list import close_session, list_sessions, show_session  # noqa: PLC0415

    return _run({None: list_sessions, "show": show_session, "close": close_session}[options.action], options)


def _run_links(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_list import list_links  # noqa: PLC0415

    return _run(list_links, options)


def _run_top(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_top import top  # noqa: PLC0415

    return _run(top, options)


def _run(command: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> ExitCode:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A login with characters that the terminal does not have must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    command(options)
    return ExitCode.OK
