"""The command line of `stomp-gateway migrate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import add_command
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_DESCRIPTION = """\
Convert RabbitMQ's configuration files to one for the gateway, so that it behaves like RabbitMQ's STOMP and Web-STOMP
plugins. Each line says where it came from. The end of the file, and standard error, list what cannot be converted, with
the reason and what to do. The command does not connect to RabbitMQ and does not change its files.
"""

_EPILOG = """\
examples:
  stomp-gateway migrate /etc/rabbitmq/rabbitmq.conf -o gateway.yaml
  stomp-gateway migrate rabbitmq.conf advanced.config --enabled-plugins enabled_plugins -o gateway.yaml
  stomp-gateway migrate rabbitmq.config                        the classic format (Erlang terms); print the result
  stomp-gateway migrate rabbitmq.conf --port-offset 1000 -o beside.yaml
                                                               for port 62613, next to the plugin on this machine
  stomp-gateway migrate rabbitmq.conf --upstream amqp://rabbit-a:5672 --upstream amqp://rabbit-b:5672

  Give the files in any order. As in the broker, advanced.config overrides rabbitmq.conf key by key. Of several files in
  the same format (conf.d/*.conf), later ones override earlier ones. Files that rabbitmq.conf includes are read, too. A
  container's environment is one more file: docker exec BROKER env > broker.env. docs/migration.md explains the whole
  migration.

exit codes:
  0    it wrote the file, and `stomp-gateway check --offline` passes
  1    it wrote the file, but something has to be done first: it lists what, such as a certificate or variable that is
       missing, or a cipher that the gateway cannot offer
  2    it wrote nothing: the command line or a file is wrong; every mistake is listed
"""


def add_migrate(commands: Commands) -> None:
    """Add `migrate` to the commands of `stomp-gateway`."""
    migrate = add_command(
        commands, "migrate", _migrate, help="convert RabbitMQ's configuration of its STOMP plugin",
        description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    migrate.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="rabbitmq.conf, advanced.config, rabbitmq.config, or the broker's environment",
    )
    migrate.add_argument(
        "--enabled-plugins",
        type=Path,
        metavar="FILE",
        help="the broker's enabled_plugins: which of the two plugins run",
    )
    migrate.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="the file to write (default: standard output)"
    )
    migrate.add_argument("--force", action="store_true", help="replace an existing output file")
    migrate.add_argument("--lenient", action="store_true", help="leave out unknown keys of the plugins")
    choice = migrate.add_argument_group("what to write")
    choice.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="URL",
        help="the broker's URL for the gateway; repeatable (default: the listeners in the files, on 127.0.0.1)",
    )
    choice.add_argument(
        "--port-offset", type=int, default=0, metavar="N", help="add N to every port, to run next to the plugin"
    )
    choice.add_argument(
        "--passcode-variable",
        default="",
        metavar="NAME",
        help="write ${NAME} instead of the default user's passcode (default: write the passcode, with file mode 0600)",
    )


def _migrate(arguments: argparse.Namespace) -> ExitCode:
    from gateway.migrate.migration import MigrateOptions, migrate  # noqa: PLC0415 - only this command needs it

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
