"""The command line as a whole: its commands, and its exit codes. What the commands do is elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway import __version__
from gateway.cli.admin_commands import add_admin
from gateway.cli.commands import CommandParser, add_command, run_coroutine
from gateway.cli.journal_commands import add_journal
from gateway.cli.manual import manual_page, runnable_commands
from gateway.cli.migrate_command import add_migrate
from gateway.cli.parity_command import add_parity
from gateway.cli.pipeline_commands import add_pipeline
from gateway.config import GatewayConfig, json_schema, load
from gateway.errors import ConfigError, ExitCode, GatewayError, ListenError, UsageError

if TYPE_CHECKING:
    from gateway.cli.commands import Commands, Run

_DESCRIPTION = """\
A STOMP gateway in front of RabbitMQ: clients speak STOMP 1.0, 1.1 or 1.2 to it, and it speaks AMQP 0-9-1 to the broker.
"""

_EPILOG = """\
examples:
  stomp-gateway check --config gateway.yaml       is the file right, and do its brokers answer?
  stomp-gateway serve --config gateway.yaml       run until SIGTERM or Ctrl-C
  stomp-gateway schema > gateway.schema.json      for an editor that completes and checks YAML
  stomp-gateway parity --plugin localhost:61613 --gateway localhost:61614
                                                  does the gateway do what RabbitMQ's STOMP plugin does?
  stomp-gateway migrate rabbitmq.conf -o gateway.yaml
                                                  a configuration that behaves as the STOMP plugin does there
  stomp-gateway top                               figures and sessions of a running gateway, see also sessions, links
  stomp-gateway journal tail --follow DIR         what do clients do at this moment?
  stomp-gateway pipeline --help                   from traffic journals to tables and a report

  The smallest configuration is an empty file: listen on 127.0.0.1:61613, RabbitMQ at 127.0.0.1:5672.

exit codes:
  0    done: drained after SIGTERM; every virtual host has a usable upstream
  1    failed while running; check: a virtual host has no usable upstream; parity: a difference;
       pipeline check: something is missing; migrate: written, and something has to be done first
  2    the configuration or the command line is wrong; every mistake is listed
  3    cannot listen on a configured address
  130  interrupted (Ctrl-C)
  143  parity: ended by SIGTERM; what it made in the broker is removed. pipeline ingest: the same, after its batch

environment:
  Any variable can be used in the configuration as ${NAME}; one that is not set is a mistake.
  Secrets can also be read from files (passcode_file).
"""

_COMPLETION_DESCRIPTION = """\
Print what a shell needs to complete commands, options and file names.
"""

_COMPLETION_EPILOG = """\
examples:
  bash   stomp-gateway completion bash > /etc/bash_completion.d/stomp-gateway
         or, for one user: ~/.local/share/bash-completion/completions/stomp-gateway
  zsh    stomp-gateway completion zsh > /usr/local/share/zsh/site-functions/_stomp-gateway
  tcsh   stomp-gateway completion tcsh > ~/.stomp-gateway.tcsh, and source it in ~/.tcshrc

  A shell that is started afterwards completes.
"""

_MANUAL_DESCRIPTION = """\
Print the manual page of all commands, in the form that man reads.
"""

_MANUAL_EPILOG = """\
examples:
  stomp-gateway manual | man -l -
  stomp-gateway manual > /usr/local/share/man/man1/stomp-gateway.1
"""

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Shells that `completion` writes for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: without the program's name; by default those that this program was started with.

    Returns:
        An `ExitCode`. (A wrong command line exits with 2 through argparse's SystemExit.)
    """
    options = build_parser().parse_args(arguments)
    run: Run = options.run
    try:
        return run(options)
    except ConfigError as error:
        return _failed(str(error), ExitCode.CONFIGURATION)
    except GatewayError as error:
        codes = {ListenError: ExitCode.LISTEN, UsageError: ExitCode.CONFIGURATION}
        return _failed(f"stomp-gateway: {error}", codes.get(type(error), ExitCode.FAILURE))
    except BrokenPipeError:
        # The reader of a pipe has gone, as with `| head`. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = CommandParser(prog="stomp-gateway", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"stomp-gateway {__version__}")
    commands: Commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    _add_configured(commands)
    add_command(
        commands, "schema", _schema, help="print the JSON Schema of the configuration, for editors",
        description="Print the JSON Schema of the configuration, by which editors complete and check YAML.",
    )  # fmt: skip
    add_parity(commands)
    add_migrate(commands)
    add_admin(commands)
    add_journal(commands)
    add_pipeline(commands)
    completion = add_command(
        commands, "completion", _completion, help="print what a shell needs to complete this command",
        description=_COMPLETION_DESCRIPTION, epilog=_COMPLETION_EPILOG,
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS, help="for which shell")
    add_command(
        commands, "manual", _manual, help="print the manual page",
        description=_MANUAL_DESCRIPTION, epilog=_MANUAL_EPILOG,
    )  # fmt: skip
    return parser


def _add_configured(commands: Commands) -> None:
    """The commands that read a configuration. Their options could always be abbreviated, and still can."""
    serve = add_command(
        commands, "serve", _serve, help="run the gateway",
        description="Run until SIGTERM or Ctrl-C, then drain.", allow_abbrev=True,
    )  # fmt: skip
    check = add_command(
        commands, "check", _check, help="validate a configuration and try its brokers",
        description="List every mistake in the configuration; without one, try each broker with the default_user.",
        allow_abbrev=True,
    )  # fmt: skip
    check.add_argument("--offline", action="store_true", help="validate only; connect to nothing")
    for command in (serve, check):
        command.add_argument("--config", required=True, metavar="FILE", help="the configuration (YAML)")


def _serve(options: argparse.Namespace) -> ExitCode:
    config = load(options.config)
    # Imported here: `check --offline`, `schema` and a mistake in the file answer without loading the server.
    from gateway.admin.admin_listener import AdminListener  # noqa: PLC0415
    from gateway.server.process.gateway import serve  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415

    configure_logs(config.logging)
    run_coroutine(serve(config, (AdminListener(config.admin),)))
    return ExitCode.OK


def _check(options: argparse.Namespace) -> ExitCode:
    config = load(options.config)
    print(f"{options.config}: no mistakes ({_contents(config)})")
    if options.offline:
        return ExitCode.OK
    from gateway.server.broker.probe import probe, report_lines, unserved  # noqa: PLC0415

    reports = run_coroutine(probe(config.resolved_virtual_hosts()))
    print("\n".join(report_lines(reports)))
    missing = unserved(reports)
    if missing:
        return _failed(f"\nno usable upstream for: {', '.join(missing)}", ExitCode.FAILURE)
    return ExitCode.OK


def _contents(config: GatewayConfig) -> str:
    listeners, hosts = len(config.listeners), len(config.virtual_hosts)
    return f"{listeners} listener{'s'[: listeners != 1]}, {hosts} virtual host{'s'[: hosts != 1]}"


def _schema(_: argparse.Namespace) -> ExitCode:
    print(json.dumps(json_schema(), indent=2))
    return ExitCode.OK


def _completion(options: argparse.Namespace) -> ExitCode:
    import shtab  # noqa: PLC0415

    parser = build_parser()
    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for command in runnable_commands(parser):
        for action in command._actions:
            if action.metavar in kinds:
                action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # how shtab wants to be told
    print(shtab.complete(parser, options.shell))
    return ExitCode.OK


def _manual(_: argparse.Namespace) -> ExitCode:
    print(manual_page(build_parser()), end="")
    return ExitCode.OK


def _failed(text: str, code: ExitCode) -> ExitCode:
    print(text, file=sys.stderr)
    return code
