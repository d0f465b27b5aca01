"""The command lines of `stomp-gateway trace` and `log-level`: a closer look at a running gateway, for a while."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from gateway.cli.admin_commands import ENVIRONMENT, add_server_options, run_and_print
from gateway.cli.commands import add_command
from gateway.cli.option_types import duration

if TYPE_CHECKING:
    from gateway.cli.commands import Commands
    from gateway.errors import ExitCode

# As in `gateway.server.process.log_level`, which other commands do not load.
_LEVELS: Final = ("debug", "info", "warning", "error", "configured")

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

exit codes:
  0    done
  1    the gateway does not answer, or refuses the request
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""


def add_trace(commands: Commands) -> None:
    """Add `trace` and `log-level` to the commands of `stomp-gateway`."""
    level = add_command(
        commands, "log-level", _run_log_level, help="change the level of a running gateway's log for a while",
        description=_LOG_LEVEL_DESCRIPTION, epilog=_LOG_LEVEL_EPILOG + ENVIRONMENT,
    )  # fmt: skip
    add_server_options(level)
    level.add_argument(
        "level", nargs="?", choices=_LEVELS, metavar="LEVEL",
        help="debug, info, warning or error: the least level that is logged; configured: that of the configuration",
    )  # fmt: skip
    level.add_argument(
        "--for", dest="duration", type=duration, default=600.0, metavar="TIME",
        help="how long, such as 30s, 10m or 2h, at most 24h (default: 10m)",
    )  # fmt: skip
    level.add_argument("--json", action="store_true", help="print a JSON object")


def _run_log_level(options: argparse.Namespace) -> ExitCode:
    # Imported here, so that other commands do not load it.
    from gateway.admin.terminal_log_level import log_level  # noqa: PLC0415

    return run_and_print(log_level, options)
