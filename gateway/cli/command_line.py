"""The command line: its commands, and how errors become exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from gateway import version_text
from gateway.cli.admin_commands import add_admin
from gateway.cli.commands import CommandParser, add_command, run_coroutine
from gateway.cli.default_config import add_example, load_or_default, log_assumptions
from gateway.cli.journal_commands import add_journal
from gateway.cli.manual import manual_page, runnable_commands
from gateway.cli.migrate_command import add_migrate
from gateway.cli.parity_command import add_parity
from gateway.cli.pipeline_commands import add_pipeline
from gateway.cli.tap_command import add_tap
from gateway.cli.trace_commands import add_trace
from gateway.config.broker_user import User
from gateway.config.model import GatewayConfig, json_schema
from gateway.errors import ConfigError, ExitCode, GatewayError, ListenError, UsageError

if TYPE_CHECKING:
    from gateway.cli.commands import Commands, Run

_PASSCODE_VARIABLE: Final = "STOMP_GATEWAY_CHECK_PASSCODE"

_DESCRIPTION = """\
A STOMP gateway in front of RabbitMQ. Clients speak STOMP 1.0, 1.1 or 1.2; the gateway speaks AMQP 0-9-1 to the broker.
"""

_EPILOG = """\
examples:
  stomp-gateway check --config gateway.yaml       list every mistake; without one, try each broker
  stomp-gateway serve --config gateway.yaml       run until SIGTERM or Ctrl-C
  stomp-gateway example > gateway.yaml            every key with its default
  stomp-gateway schema > gateway.schema.json      JSON Schema of the configuration, for editors
  stomp-gateway parity --plugin localhost:61613 --gateway localhost:61614
                                                  compare the gateway with RabbitMQ's STOMP plugin
  stomp-gateway migrate rabbitmq.conf -o gateway.yaml
                                                  convert RabbitMQ's configuration of its STOMP plugin
  stomp-gateway reload                            make a running gateway read its configuration again
  stomp-gateway top                               watch a running gateway; see also sessions, links
  stomp-gateway journal tail --follow DIR         show what clients do at this moment
  stomp-gateway tap --listen :61614 --upstream localhost:61613 --journal DIR
                                                  journal what the clients of any STOMP server do
  stomp-gateway pipeline --help                   make tables and a report from traffic journals

  Without --config, or with an empty file, the gateway listens on 127.0.0.1:61613, and RabbitMQ is at 127.0.0.1:5672.

exit codes:
  0    success: serve has drained after a signal; check found a usable upstream for every virtual host and its users
  1    failed while running; check: a virtual host or a user of it has no usable upstream; parity: a rule is DIFFERENT;
       pipeline check: the lake is not complete; pipeline report --fail-on: the rule found something; pipeline compare:
       a row is worse or different; migrate: it wrote the file, but something has to be done first
  2    the configuration or the command line is wrong; every mistake is listed
  3    the gateway cannot listen on a configured address
  130  interrupted (Ctrl-C)
  143  ended by SIGTERM: parity, after it cleaned up in the broker; pipeline ingest, after its batch

environment:
  The configuration can use any variable as ${NAME}. A variable that is not set is a mistake.
  A secret can also be in a file (passcode_file).
"""

_COMPLETION_DESCRIPTION = """\
Print the script by which a shell completes commands, options and file names.
"""

_COMPLETION_EPILOG = """\
examples:
  bash   stomp-gateway completion bash > /etc/bash_completion.d/stomp-gateway
         for one user: ~/.local/share/bash-completion/completions/stomp-gateway
  zsh    stomp-gateway completion zsh > /usr/local/share/zsh/site-functions/_stomp-gateway
  tcsh   stomp-gateway completion tcsh > ~/.stomp-gateway.tcsh, and source it in ~/.tcshrc

  Then start a new shell.
"""

_MANUAL_DESCRIPTION = """\
Print the manual page of all commands, in the format of man.
"""

_MANUAL_EPILOG = """\
examples:
  stomp-gateway manual | man -l -
  stomp-gateway manual > /usr/local/share/man/man1/stomp-gateway.1
"""

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Shells that `completion` supports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: without the program's name (default: those of this process).

    Returns:
        An `ExitCode`. (With a wrong command line, argparse raises SystemExit(2).)
    """
    options = build_parser().parse_args(arguments)
    run: Run = options.run
    try:
        code = run(options)
        print(end="", flush=True)  # what cannot be written is told here, not at exit
    except ConfigError as error:
        return _failed(str(error), ExitCode.CONFIGURATION)
    except GatewayError as error:
        codes = {ListenError: ExitCode.LISTEN, UsageError: ExitCode.CONFIGURATION}
        return _failed(f"stomp-gateway: {error}", codes.get(type(error), ExitCode.FAILURE))
    except OSError as error:
        is_closed = isinstance(error, BrokenPipeError)  # the reader of a pipe has closed it, like `| head`
        if not is_closed and (error.filename is not None or _can_print()):
            raise
        # The flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not is_closed:
            _failed(f"stomp-gateway: standard output cannot be written: {error.strerror}.", ExitCode.FAILURE)
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"stomp-gateway {version_text()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = CommandParser(prog="stomp-gateway", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print version and commit, and exit")
    commands: Commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    _add_configured(commands)
    add_example(commands)
    add_command(
        commands, "schema", _schema, help="print the JSON Schema of the configuration, for editors",
        description="Print the JSON Schema of the configuration. Editors use it to complete and check YAML.",
    )  # fmt: skip
    add_parity(commands)
    add_migrate(commands)
    add_admin(commands)
    add_trace(commands)
    add_journal(commands)
    add_pipeline(commands)
    add_tap(commands)
    completion = add_command(
        commands, "completion", _completion, help="print the completion script of a shell",
        description=_COMPLETION_DESCRIPTION, epilog=_COMPLETION_EPILOG,
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    add_command(
        commands, "manual", _manual, help="print the manual page",
        description=_MANUAL_DESCRIPTION, epilog=_MANUAL_EPILOG,
    )  # fmt: skip
    return parser


def _add_configured(commands: Commands) -> None:
    """Add the commands that read a configuration. Their options may be abbreviated, because they always could."""
    serve = add_command(
        commands, "serve", _serve, help="run the gateway",
        description="Run the gateway until SIGTERM or Ctrl-C, then drain it.", allow_abbrev=True,
    )  # fmt: skip
    check = add_command(
        commands, "check", _check, help="validate a configuration and try its brokers",
        description="List every mistake in a configuration. Without one, warn of what cannot work and try each broker.",
        allow_abbrev=True,
    )  # fmt: skip
    check.add_argument("--offline", action="store_true", help="validate only, do not try the brokers")
    check.add_argument(
        "--login", metavar="NAME",
        help="try this user of the broker, too, in every virtual host. The passcode comes from --passcode-file, from "
        f"{_PASSCODE_VARIABLE} in the environment, or is asked for",
    )  # fmt: skip
    check.add_argument("--passcode-file", metavar="FILE", help="the file with the passcode of --login")
    for command in (serve, check):
        command.add_argument(
            "--config", metavar="FILE", help="the configuration file (YAML); without it, every key has its default"
        )


def _serve(options: argparse.Namespace) -> ExitCode:
    config = load_or_default(options.config)
    # Imported here, so that other commands, and mistakes in the file, do not load the server.
    from gateway.admin.admin_listener import AdminListener  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs, log_warnings  # noqa: PLC0415
    from gateway.server.process.serving import serve  # noqa: PLC0415

    configure_logs(config.logging)
    if options.config is None:
        log_assumptions(config)
    log_warnings(config)
    if config.workers > 1:
        from gateway.admin.workers_view import WorkersView  # noqa: PLC0415
        from gateway.server.process.supervisor import supervise  # noqa: PLC0415

        run_coroutine(supervise(config, (AdminListener(config.admin, WorkersView),), options.config))
        return ExitCode.OK
    run_coroutine(serve(config, (AdminListener(config.admin),), options.config))
    return ExitCode.OK


def _check(options: argparse.Namespace) -> ExitCode:
    config = load_or_default(options.config)
    checked = options.config or "no configuration file, all defaults"
    print(f"{checked}: no mistakes ({_contents(config)}){_warnings(config)}")
    if options.offline:
        return ExitCode.OK
    from gateway.server.broker.probe import (  # noqa: PLC0415
        alarm_warnings,
        first_broker_warnings,
        probe,
        report_lines,
        unserved,
        untried,
    )
    from gateway.server.descriptors import unreachable_limits  # noqa: PLC0415
    from gateway.server.process.archive_streams import try_archives  # noqa: PLC0415

    reports = run_coroutine(probe(config.resolved_virtual_hosts(), _login_to_try(options)))
    archives = run_coroutine(try_archives(config.resolved_virtual_hosts()))
    warnings = [
        *untried(reports),
        *first_broker_warnings(config.resolved_virtual_hosts(), reports),
        *alarm_warnings(reports),
        *(f"warning: {text}" for text in unreachable_limits(config)),
    ]
    tried = [line for archive in archives for line in archive if line]
    print("\n".join([*report_lines(reports), *([""] if tried else []), *tried, *warnings]))
    missing = unserved(reports)
    if missing:
        return _failed(f"\nno usable upstream for: {', '.join(missing)}", ExitCode.FAILURE)
    if undeclared := sum(bool(advice) for _, advice in archives):
        return _failed(f"\n{undeclared} of {len(archives)} archives cannot be declared", ExitCode.FAILURE)
    return ExitCode.OK


def _login_to_try(options: argparse.Namespace) -> User | None:
    """The user that --login names."""
    if options.login is None:
        if options.passcode_file is not None:
            raise UsageError("--passcode-file needs --login.")
        return None
    passcode = os.environ.get(_PASSCODE_VARIABLE, "")
    if options.passcode_file is not None:
        try:
            passcode = Path(options.passcode_file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "this is no text"
            raise UsageError(f"--passcode-file {options.passcode_file}: {reason}.") from None
    elif not passcode and sys.stdin.isatty():
        passcode = getpass(f"Passcode of {options.login}: ")
    if not options.login or not passcode:
        raise UsageError(f"--login needs a passcode: give --passcode-file, or {_PASSCODE_VARIABLE} in the environment.")
    return User(login=options.login, passcode=SecretStr(passcode))


def _warnings(config: GatewayConfig) -> str:
    if not config.warnings:
        return ""
    count = "1 warning" if len(config.warnings) == 1 else f"{len(config.warnings)} warnings"
    return "\n".join([f", {count}", *(f"  {warning}" for warning in config.warnings)])


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
                action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # the way shtab expects it
    print(shtab.complete(parser, options.shell))
    return ExitCode.OK


def _manual(_: argparse.Namespace) -> ExitCode:
    print(manual_page(build_parser()), end="")
    return ExitCode.OK


def _can_print() -> bool:
    """Whether standard output takes one more line. What it refused before is lost, so a flush alone cannot tell."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _failed(text: str, code: ExitCode) -> ExitCode:
    print(text, file=sys.stderr)
    return code
