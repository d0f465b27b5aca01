"""The command line of `stomp-gateway migrate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import ExitCode

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = """\
Make a gateway's configuration of RabbitMQ's own files, so that it behaves as the STOMP and Web-STOMP plugins do there.
Each line of it says where it came from. What cannot be carried over is listed at its end, and on standard error, with
the reason and what to do. RabbitMQ is not asked, and nothing of it is changed.
"""

_EPILOG = """\
examples:
  stomp-gateway migrate /etc/rabbitmq/rabbitmq.conf -o gateway.yaml
  stomp-gateway migrate rabbitmq.conf advanced.config --enabled-plugins enabled_plugins -o gateway.yaml
  stomp-gateway migrate rabbitmq.config                        print it; the classic file of Erlang terms
  stomp-gateway migrate rabbitmq.conf --port-offset 1000 -o beside.yaml
                                                               beside the plugin on the same machine: port 62613
  stomp-gateway migrate rabbitmq.conf --upstream amqp://rabbit-a:5672 --upstream amqp://rabbit-b:5672

  Files may stand in any order. As in the broker, advanced.config overrides rabbitmq.conf, key by key; of several files
  of the same form (conf.d/*.conf) the later ones override the earlier ones. The way as a whole: docs/migration.md

exit codes:
  0    written, and `stomp-gateway check --offline` passes
  1    written, and something has to be done first: a certificate or a variable is not here, a passcode is encrypted
  2    nothing is written: the command line or one of the files is wrong; every mistake is listed
"""


def add_migrate(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `migrate` to the commands of `stomp-gateway`."""
    migrate = commands.add_parser(
        "migrate",
        help="make a configuration of RabbitMQ's own files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    migrate.set_defaults(run=_migrate)
    migrate.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="rabbitmq.conf, advanced.config or rabbitmq.config"
    )
    migrate.add_argument(
        "--enabled-plugins",
        type=Path,
        metavar="FILE",
        help="the broker's enabled_plugins: which of the two plugins ran",
    )
    migrate.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="where to write (default: standard output)"
    )
    migrate.add_argument("--force", action="store_true", help="replace the output file if there is one")
    migrate.add_argument("--lenient", action="store_true", help="go on without keys of the plugins that are not known")
    choice = migrate.add_argument_group("what to write")
    choice.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="URL",
        help="the broker as the gateway sees it; repeatable (default: the listeners in the files, on 127.0.0.1)",
    )
    choice.add_argument(
        "--port-offset", type=int, default=0, metavar="N", help="add N to every port, to run beside the plugin"
    )
    choice.add_argument(
        "--passcode-variable",
        default="",
        metavar="NAME",
        help="write ${NAME} instead of the default user's passcode (default: write it; the file is then mode 0600)",
    )


def _migrate(arguments: argparse.Namespace) -> ExitCode:
    from gateway.migrate.migration import MigrateOptions, migrate  # noqa: PLC0415 - only this command loads it

    options = MigrateOptions(
        files=arguments.files,
        enabled_plugins=arguments.enabled_plugins,
        output=None if arguments.output == "-" else Path(arguments.output),
        force=arguments.force,
        lenient=arguments.lenient,
        upstream=arguments.upstream,
        port_offset=arguments.port_offset,
        passcode_variable=arguments.passcode_variable,
    )
    return migrate(options)
