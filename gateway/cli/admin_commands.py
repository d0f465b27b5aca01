"""The command lines of the commands that ask a running gateway, through its admin listener."""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from functools import partial
from importlib import import_module
from typing import Final

from gateway.admin.terminal_output import LINKS, PLUGIN_COLUMNS, SESSIONS, meanings
from gateway.cli.commands import Commands, add_command, duration, exit_codes
from gateway.errors import ExitCode

_EXIT_CODES: Final = exit_codes("done", "the gateway does not answer, refuses the request, or has no such session")
_ENVIRONMENT: Final = """\

environment:
  STOMP_GATEWAY_URL             the URL of the admin listener, without --url
  STOMP_GATEWAY_USER            the admin user, without --user
  STOMP_GATEWAY_PASSCODE_FILE   the file with the user's passcode, without --passcode-file
  STOMP_GATEWAY_ADMIN_PASSCODE  the passcode itself, if no file is named
"""

_SESSIONS = """\
List, show or close sessions of a running gateway, through its admin listener.

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

_SHOW = """\
Show a session in full, with its subscriptions and the destinations it sends to.
"""

_CLOSE = """\
Close a session. Its client gets an ERROR with the reason, and unacknowledged messages return to their queues. Most
clients connect again at once.
"""

_LINKS = """\
List the links of a running gateway (its AMQP connections to brokers), through its admin listener.

examples:
  stomp-gateway links
  stomp-gateway links --virtual-host orders --columns name,blocked,write_buffer_bytes
  stomp-gateway links --json
  stomp-gateway links fail-back --virtual-host orders

columns:
{columns}
"""

_FAIL_BACK = """\
Move the links back to their preferred broker, which is the first of upstream.urls. New channels go to new links there.
The links to other brokers are drained: they close when their channels have ended. No session ends. With
upstream.order: shuffle all links are replaced, so that they spread over the brokers again. If the preferred broker does
not answer, nothing changes.
"""

_RELOAD = """\
Make a running gateway read its configuration file and its certificates again, through its admin listener. Only clients
of a listener that you have removed are disconnected. If the file has mistakes, the command lists them like
`stomp-gateway check`, and the gateway keeps its old configuration. SIGHUP does the same and answers in the log.

examples:
  stomp-gateway check --offline --config gateway.yaml && stomp-gateway reload
  stomp-gateway reload --json | jq -r '.restart[].key'

exit codes:
  0    the new configuration is in use; what needs a restart is listed
  1    the gateway does not answer, or refuses the request
  2    the configuration has mistakes and is not used, or the command line is wrong
  130  interrupted (Ctrl-C)
"""

_CONFIG = """\
Print the configuration that a running gateway uses, as a complete file: every key, and for each virtual host also the
values from defaults. Passcodes and their hashes are ***. If there are admin users, this needs the role full or
read_only.

examples:
  stomp-gateway config
  stomp-gateway config --json | jq .virtual_hosts.orders.prefetch
"""

_TOP = """\
Watch a running gateway: its totals and rates, and its busiest sessions. The command redraws the screen after each
interval; q or Ctrl-C ends it. A rate is the mean over one interval.

examples:
  stomp-gateway top
  stomp-gateway top --interval 5 --virtual-host orders
  stomp-gateway top --once > now.txt         print once, for a file or a pipe, with the rates of one interval

  If there are more than 1000 sessions, it shows only those that have sent or received the most messages so far.
"""

# A copy of those in `gateway.server.process.logs`, so that commands need not load that module.
_LEVELS: Final = ("debug", "info", "warning", "error", "configured")

_TRACE = """\
Show the frames of a session, of a login or of an address as they pass, in both directions, through the admin listener
of a running gateway. Clients that connect meanwhile are shown from their first frame on, even if their login fails. Of
bodies only the sizes are shown. Passcodes, tokens and headers that look like secrets are ***.

The gateway does not wait for this command: beyond 200 frames per second, or if the reader is slower, frames are left
out and counted.

examples:
  stomp-gateway trace session-KIC3RnAs1YHvLMNVAcq4qA
  stomp-gateway trace --login billing --for 15m
  stomp-gateway trace --address 10.1.2.3                      a client that cannot connect
  stomp-gateway trace --address 10.1.2.0/24 --json | jq -c 'select(.command == "ERROR")'

what a line shows:
  the time (UTC), the session, >> for a frame from the client and << for one to it, the command, the headers, and the
  bytes of the body. Lines with -- are about other events: a client has connected or closed, with the reason as in the
  log; heart-beats have passed; bytes cannot be read; frames were left out. A frame that is incomplete when its
  connection closes, for example without its NUL, is marked.

  With --json each line is an object as the API has it.
""" + exit_codes(
    "the time is over, or the session has ended",
    "the gateway does not answer, refuses the request, or has no such session",
)

_LOG_LEVEL = """\
Change the level of a running gateway's log lines for a while, through its admin listener; without LEVEL, show it.
When the time is over, the level of the configuration applies again. The command changes the level of all workers. The
log has a line for each change, and says who asked. If a reload changes logging.level, the new value applies at once.

examples:
  stomp-gateway log-level
  stomp-gateway log-level debug --for 30m
  stomp-gateway log-level configured          back to logging.level, at once
""" + exit_codes("done", "the gateway does not answer, or refuses the request")


def add_admin(commands: Commands) -> None:
    """Add the commands to those of `stomp-gateway`."""
    _add_sessions(commands)
    _add_links(commands)
    reload = _add(commands, "reload", "reload", "make a running gateway read its configuration again", _RELOAD)
    _add_server_options(reload)
    reload.add_argument("--json", action="store_true", help="print a JSON object")
    config = _add(commands, "config", "show_config", "show the configuration that a running gateway uses", _CONFIG)
    _add_server_options(config)
    config.add_argument("--json", action="store_true", help="print a JSON object")
    _add_top(commands)
    _add_trace(commands)
    _add_log_level(commands)


def _add_sessions(commands: Commands) -> None:
    plugin_columns = textwrap.fill(", ".join(PLUGIN_COLUMNS), 100, initial_indent="  ", subsequent_indent="  ")
    text = _SESSIONS.format(columns=meanings(SESSIONS), plugin_columns=plugin_columns)
    sessions = _add(commands, "sessions", "list_sessions", "list, show and close a running gateway's sessions", text)
    _add_server_options(sessions)
    _add_list_options(sessions)
    sessions.add_argument("--hold", metavar="REASON", help="only those with this hold, like client-write")
    actions = sessions.add_subparsers(title="commands", metavar="COMMAND")
    show = _add(actions, "show", "show_session", "show a session in full", _SHOW)
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print a JSON object")
    close = _add(actions, "close", "close_session", "close a session", _CLOSE)
    close.add_argument("--reason", metavar="TEXT", help="text for the client and the log")
    for action in (show, close):
        action.add_argument("id", metavar="ID", help="id of the session, for example session-...")
        _add_server_options(action, default=argparse.SUPPRESS)


def _add_links(commands: Commands) -> None:
    text = _LINKS.format(columns=meanings(LINKS))
    links = _add(commands, "links", "list_links", "list a running gateway's AMQP connections", text)
    _add_server_options(links)
    _add_list_options(links)
    actions = links.add_subparsers(title="commands", metavar="COMMAND")
    back = _add(actions, "fail-back", "fail_back", "move the links back to the preferred broker", _FAIL_BACK)
    back.add_argument(
        "--virtual-host", default=argparse.SUPPRESS, metavar="NAME", help="only links of this virtual host"
    )
    _add_server_options(back, default=argparse.SUPPRESS)


def _add_top(commands: Commands) -> None:
    line = "watch a running gateway's totals and busiest sessions"
    top = _add(commands, "top", "top", line, _TOP, module="terminal_top")
    _add_server_options(top)
    top.add_argument("--virtual-host", metavar="NAME", help="only sessions of this virtual host")
    top.add_argument("--login", metavar="NAME", help="only sessions of this login")
    top.add_argument(
        "--interval", type=duration, default="2s", metavar="TIME", help="time between two updates (default: 2s)"
    )
    top.add_argument("--once", "--batch", action="store_true", help="print once and end (default without a terminal)")
    top.add_argument("--limit", type=int, metavar="N", help="sessions to show (default: all that fit; --once: 20)")


def _add_trace(commands: Commands) -> None:
    trace = _add(commands, "trace", "trace", "show the frames of a client as they pass", _TRACE)
    whom = trace.add_mutually_exclusive_group(required=True)
    whom.add_argument("session", nargs="?", metavar="SESSION", help="id of the session, for example session-...")
    whom.add_argument("--login", metavar="NAME", help="clients that have this login, or try to log in with it")
    whom.add_argument(
        "--address", metavar="ADDRESS", help="clients from this IP address, network like 10.1.2.0/24, or unix:uid=1000"
    )
    trace.add_argument(
        "--for", dest="duration", type=duration, default=300.0, metavar="TIME",
        help="how long, such as 30s, 10m or 1h, at most 1h (default: 5m)",
    )  # fmt: skip
    trace.add_argument("--json", action="store_true", help="print JSON, an object on each line")
    _add_server_options(trace)


def _add_log_level(commands: Commands) -> None:
    level = _add(
        commands, "log-level", "log_level", "change the level of a running gateway's log for a while", _LOG_LEVEL
    )
    _add_server_options(level)
    level.add_argument(
        "level", nargs="?", choices=_LEVELS, metavar="LEVEL",
        help="debug, info, warning or error: log this level and above; configured: the configuration's level",
    )  # fmt: skip
    level.add_argument(
        "--for", dest="duration", type=duration, default=600.0, metavar="TIME",
        help="how long, such as 30s, 10m or 2h, at most 24h (default: 10m)",
    )  # fmt: skip
    level.add_argument("--json", action="store_true", help="print a JSON object")


def _add(
    commands: Commands, name: str, function: str, line: str, text: str, *, module: str = "terminal_commands"
) -> argparse.ArgumentParser:
    """Add a command that runs a function of `gateway.admin`. The module is imported when the command runs.

    The usual exit codes are added to a text that has none.
    """
    codes = "" if "exit codes:" in text else _EXIT_CODES
    return add_command(commands, name, partial(_run, module, function), line, text + codes + _ENVIRONMENT)


def _run(module: str, function: str, options: argparse.Namespace) -> ExitCode:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Otherwise the command would fail on a login with characters that the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    getattr(import_module(f"gateway.admin.{module}"), function)(options)
    return ExitCode.OK


def _add_server_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that choose the gateway.

    ``default`` is SUPPRESS for a subcommand: it would otherwise overwrite options that stand before its name.
    """
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
