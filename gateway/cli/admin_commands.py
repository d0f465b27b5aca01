"""The command lines of `stomp-gateway sessions`, `links`, `reload`, `config` and `top`."""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections.abc import Callable
from typing import Final

from gateway.admin.terminal_output import LINKS, PLUGIN_COLUMNS, SESSIONS, meanings
from gateway.cli.commands import Commands, add_command, duration, exit_codes
from gateway.errors import ExitCode

ENVIRONMENT: Final = """\

environment:
  STOMP_GATEWAY_URL             the URL of the admin listener, without --url
  STOMP_GATEWAY_USER            the admin user, without --user
  STOMP_GATEWAY_PASSCODE_FILE   the file with the user's passcode, without --passcode-file
  STOMP_GATEWAY_ADMIN_PASSCODE  the passcode itself, if no file is named
"""

_SESSIONS_DESCRIPTION = """\
List, show or close sessions of a running gateway, through its admin listener.
"""

_SESSIONS_EPILOG = """\
examples:
  stomp-gateway sessions
  stomp-gateway sessions --login billing --sort unacknowledged --limit 20
  stomp-gateway sessions --hold client-write --columns id,peer,write_buffer_bytes
  stomp-gateway sessions --columns conn_name,auth_login,version,ssl    # as rabbitmqctl list_stomp_connections
  stomp-gateway sessions --json | jq -r '.[].peer'
  stomp-gateway sessions show ID
  stomp-gateway sessions close ID --reason 'maintenance at 18:00'

columns:
{columns}

  Also these, as in `rabbitmqctl list_stomp_connections`:
{plugin_columns}
"""

_CLOSE_DESCRIPTION = """\
Close a session. Its client gets an ERROR with the reason, and unacknowledged messages return to their queues. Most
clients connect again at once.
"""

_LINKS_DESCRIPTION = """\
List the links of a running gateway (its AMQP connections to brokers), through its admin listener.
"""

_LINKS_EPILOG = """\
examples:
  stomp-gateway links
  stomp-gateway links --virtual-host orders --columns name,blocked,write_buffer_bytes
  stomp-gateway links --json
  stomp-gateway links fail-back --virtual-host orders

columns:
{columns}
"""

_FAIL_BACK_DESCRIPTION = """\
Move the links back to their preferred broker, which is the first of upstream.urls. New channels go to new links there.
The links to other brokers are drained: they close when their channels have ended. No session ends. With
upstream.order: shuffle all links are replaced, so that they spread over the brokers again. If the preferred broker does
not answer, nothing changes.
"""

_RELOAD_DESCRIPTION = """\
Make a running gateway read its configuration file and its certificates again, through its admin listener. Only clients
of a listener that you have removed are disconnected. If the file has mistakes, the command lists them like
`stomp-gateway check`, and the gateway keeps its old configuration. SIGHUP does the same and answers in the log.
"""

_RELOAD_EPILOG = """\
examples:
  stomp-gateway check --offline --config gateway.yaml && stomp-gateway reload
  stomp-gateway reload --json | jq -r '.restart[].key'

exit codes:
  0    the new configuration is in use; what needs a restart is listed
  1    the gateway does not answer, or refuses the request
  2    the configuration has mistakes and is not used, or the command line is wrong
  130  interrupted (Ctrl-C)
"""

_CONFIG_DESCRIPTION = """\
Print the configuration that a running gateway uses, as a complete file: every key, and for each virtual host also the
values from defaults. Passcodes and their hashes are ***. If there are admin users, this needs the role full or
read_only.
"""

_CONFIG_EPILOG = """\
examples:
  stomp-gateway config
  stomp-gateway config --json | jq .virtual_hosts.orders.prefetch
"""

_TOP_DESCRIPTION = """\
Watch a running gateway: its totals and rates, and its busiest sessions. The command redraws the screen after each
interval; q or Ctrl-C ends it. A rate is the mean over one interval.
"""

_TOP_EPILOG = """\
examples:
  stomp-gateway top
  stomp-gateway top --interval 5 --virtual-host orders
  stomp-gateway top --once > now.txt         print once, for a file or a pipe, with the rates of one interval

  If there are more than 1000 sessions, it shows only those that have sent or received the most messages so far.
"""

_EPILOG = exit_codes("done", "the gateway does not answer, refuses the request, or has no such session") + ENVIRONMENT


def add_admin(commands: Commands) -> None:
    """Add `sessions`, `links`, `reload`, `config` and `top` to the commands of `stomp-gateway`."""
    _add_sessions(commands)
    links = add_command(
        commands, "links", _run_links, help="list a running gateway's AMQP connections",
        description=_LINKS_DESCRIPTION, epilog=_LINKS_EPILOG.format(columns=meanings(LINKS)) + _EPILOG,
    )  # fmt: skip
    add_server_options(links)
    _add_list_options(links)
    actions = links.add_subparsers(title="commands", metavar="COMMAND", dest="action")
    back = add_command(
        actions, "fail-back", _run_links, help="move the links back to the preferred broker",
        description=_FAIL_BACK_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    back.add_argument(
        "--virtual-host", default=argparse.SUPPRESS, metavar="NAME", help="only links of this virtual host"
    )
    add_server_options(back, default=argparse.SUPPRESS)
    reload = add_command(
        commands, "reload", _run_reload, help="make a running gateway read its configuration again",
        description=_RELOAD_DESCRIPTION, epilog=_RELOAD_EPILOG + ENVIRONMENT,
    )  # fmt: skip
    add_server_options(reload)
    reload.add_argument("--json", action="store_true", help="print a JSON object")
    config = add_command(
        commands, "config", _run_config, help="show the configuration that a running gateway uses",
        description=_CONFIG_DESCRIPTION, epilog=_CONFIG_EPILOG + _EPILOG,
    )  # fmt: skip
    add_server_options(config)
    config.add_argument("--json", action="store_true", help="print a JSON object")
    top = add_command(
        commands, "top", _run_top, help="watch a running gateway's totals and busiest sessions",
        description=_TOP_DESCRIPTION, epilog=_TOP_EPILOG + _EPILOG,
    )  # fmt: skip
    add_server_options(top)
    top.add_argument("--virtual-host", metavar="NAME", help="only sessions of this virtual host")
    top.add_argument("--login", metavar="NAME", help="only sessions of this login")
    top.add_argument(
        "--interval", type=duration, default="2s", metavar="TIME", help="between two updates (default: 2s)"
    )
    top.add_argument("--once", "--batch", action="store_true", help="print once and end (default without a terminal)")
    top.add_argument("--limit", type=int, metavar="N", help="sessions to show (default: all that fit; --once: 20)")


def _add_sessions(commands: Commands) -> None:
    plugin_columns = textwrap.fill(", ".join(PLUGIN_COLUMNS), 100, initial_indent="  ", subsequent_indent="  ")
    epilog = _SESSIONS_EPILOG.format(columns=meanings(SESSIONS), plugin_columns=plugin_columns) + _EPILOG
    sessions = add_command(
        commands, "sessions", _run_sessions, help="list, show and close a running gateway's sessions",
        description=_SESSIONS_DESCRIPTION, epilog=epilog,
    )  # fmt: skip
    add_server_options(sessions)
    _add_list_options(sessions)
    sessions.add_argument("--hold", metavar="REASON", help="only those with this hold, like client-write")
    actions = sessions.add_subparsers(title="commands", metavar="COMMAND", dest="action")
    show = add_command(
        actions, "show", _run_sessions, help="show a session in full",
        description="Show a session in full, with its subscriptions and the destinations it sends to.", epilog=_EPILOG,
    )  # fmt: skip
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print a JSON object")
    close = add_command(
        actions, "close", _run_sessions, help="close a session", description=_CLOSE_DESCRIPTION, epilog=_EPILOG
    )
    close.add_argument("--reason", metavar="TEXT", help="text for the client and the log")
    for action in (show, close):
        action.add_argument("id", metavar="ID", help="id of the session, for example session-...")
        # Options may also stand before the action. A default here would overwrite them.
        add_server_options(action, default=argparse.SUPPRESS)


def add_server_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that choose the gateway."""
    server = parser.add_argument_group("gateway")
    server.add_argument(
        "--url", default=default, metavar="URL",
        help="URL of the admin listener, or unix:PATH (default: http://127.0.0.1:15693)",
    )  # fmt: skip
    server.add_argument("--user", default=default, metavar="NAME", help="an admin user, if the gateway has any")
    server.add_argument("--passcode", default=default, help=argparse.SUPPRESS)  # refused without repeating it
    server.add_argument("--passcode-file", default=default, metavar="FILE", help="file with its passcode")
    server.add_argument("--ca-file", default=default, metavar="FILE", help="certificates to trust (PEM, for https)")
    server.add_argument(
        "--insecure", action="store_true", default=default or False,
        help="trust any certificate (https); an attacker between the two can read the passcode",
    )  # fmt: skip


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_argument_group("list")
    choice.add_argument("--columns", metavar="A,B,...", help="columns to show, see below")
    choice.add_argument("--virtual-host", metavar="NAME", help="only those of this virtual host")
    choice.add_argument("--login", metavar="NAME", help="only those of this login")
    choice.add_argument("--search", metavar="TEXT", help="only those with this text in a name or an address")
    choice.add_argument(
        "--sort", metavar="COLUMN", help="order: numbers largest first, texts from A to Z, times oldest first"
    )
    choice.add_argument("--reverse", action="store_true", help="reverse the order")
    choice.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N (default: all)")
    choice.add_argument("--json", action="store_true", help="print a JSON array")


def _run_sessions(options: argparse.Namespace) -> ExitCode:
    # Imported here and below, so that other commands do not load these modules.
    from gateway.admin.terminal_list import close_session, list_sessions, show_session  # noqa: PLC0415

    return run_and_print({None: list_sessions, "show": show_session, "close": close_session}[options.action], options)


def _run_links(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_list import fail_back, list_links  # noqa: PLC0415

    return run_and_print({None: list_links, "fail-back": fail_back}[options.action], options)


def _run_reload(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_commands import reload  # noqa: PLC0415

    return run_and_print(reload, options)


def _run_config(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_commands import show_config  # noqa: PLC0415

    return run_and_print(show_config, options)


def _run_top(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_top import top  # noqa: PLC0415

    return run_and_print(top, options)


def run_and_print(command: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> ExitCode:
    """Run a command that prints texts of clients."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A login with characters that the terminal lacks must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    command(options)
    return ExitCode.OK
