"""The command lines of `stomp-gateway trace` and `log-level`: a closer look at a running gateway, for a while."""

from __future__ import annotations

import argparse
from typing import Final

from gateway.cli.admin_commands import ENVIRONMENT, add_server_options, run_and_print
from gateway.cli.commands import Commands, add_command, duration, exit_codes
from gateway.errors import ExitCode

# As in `gateway.server.process.logs`, which other commands do not load.
_LEVELS: Final = ("debug", "info", "warning", "error", "configured")

_TRACE_DESCRIPTION = """\
Show the frames of a session, of a login or of an address as they pass, in both directions, through the admin listener
of a running gateway. Clients that connect meanwhile are shown from their first frame on, even if their login fails. Of
bodies only the sizes are shown. Passcodes, tokens and headers that look like secrets are ***.

The gateway does not wait for this command: beyond 200 frames per second, or if the reader is slower, frames are left
out and counted.
"""

_TRACE_EPILOG = """\
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

_LOG_LEVEL_DESCRIPTION = """\
Change the level of a running gateway's log lines for a while, through its admin listener; without LEVEL, show it.
When the time is over, the level of the configuration holds again. With several workers it is changed in all of them.
The log has a line for each change, and says who asked. If the configuration is reloaded with another logging.level,
that level counts at once.
"""

_LOG_LEVEL_EPILOG = """\
examples:
  stomp-gateway log-level
  stomp-gateway log-level debug --for 30m
  stomp-gateway log-level configured          back to logging.level, at once
""" + exit_codes("done", "the gateway does not answer, or refuses the request")


def add_trace(commands: Commands) -> None:
    """Add `trace` and `log-level` to the commands of `stomp-gateway`."""
    trace = add_command(
        commands, "trace", _run_trace, help="show the frames of a client as they pass",
        description=_TRACE_DESCRIPTION, epilog=_TRACE_EPILOG + ENVIRONMENT,
    )  # fmt: skip
    whom = trace.add_mutually_exclusive_group(required=True)
    whom.add_argument("session", nargs="?", metavar="SESSION", help="id of the session, for example session-...")
    whom.add_argument("--login", metavar="NAME", help="clients with this login, or that ask for it")
    whom.add_argument(
        "--address", metavar="ADDRESS", help="clients from this IP address, network like 10.1.2.0/24, or unix:uid=1000"
    )
    trace.add_argument(
        "--for", dest="duration", type=duration, default=300.0, metavar="TIME",
        help="how long, such as 30s, 10m or 1h, at most 1h (default: 5m)",
    )  # fmt: skip
    trace.add_argument("--json", action="store_true", help="print JSON, an object on each line")
    add_server_options(trace)
    level = add_command(
        commands, "log-level", _run_log_level, help="change the level of a running gateway's log for a while",
        description=_LOG_LEVEL_DESCRIPTION, epilog=_LOG_LEVEL_EPILOG + ENVIRONMENT,
    )  # fmt: skip
    add_server_options(level)
    level.add_argument(
        "level", nargs="?", choices=_LEVELS, metavar="LEVEL",
        help="debug, info, warning or error: log this level and above; configured: as in the configuration",
    )  # fmt: skip
    level.add_argument(
        "--for", dest="duration", type=duration, default=600.0, metavar="TIME",
        help="how long, such as 30s, 10m or 2h, at most 24h (default: 10m)",
    )  # fmt: skip
    level.add_argument("--json", action="store_true", help="print a JSON object")


def _run_trace(options: argparse.Namespace) -> ExitCode:
    # Imported here and below, so that other commands do not load these modules.
    from gateway.admin.terminal_commands import trace  # noqa: PLC0415

    return run_and_print(trace, options)


def _run_log_level(options: argparse.Namespace) -> ExitCode:
    from gateway.admin.terminal_commands import log_level  # noqa: PLC0415

    return run_and_print(log_level, options)
