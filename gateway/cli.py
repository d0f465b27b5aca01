"""The `stomp-gateway` command: arguments, printing and exit codes; no logic."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from gateway import __version__, completion, manual
from gateway.admin.terminal import add_terminal
from gateway.config import GatewayConfig, json_schema, load
from gateway.errors import ConfigError, ExitCode, GatewayError, ListenError, UsageError
from gateway.journal.command import add_journal
from gateway.migrate.command import add_migrate
from gateway.pipeline.command import add_pipeline

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

_PARITY_DESCRIPTION = """\
Play the same conversations on RabbitMQ's STOMP plugin and on a gateway in front of the same broker, at the same time,
and compare every answer. One line per rule: equal, departure (the gateway does otherwise on purpose), DIFFERENT with
both exchanges, or skipped. Nothing that others use is touched, and what is made in the broker is removed again.
"""

_PARITY_EPILOG = """\
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

_ResultT = TypeVar("_ResultT")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: without the program's name; the process's own unless given.

    Returns:
        An `ExitCode`. (A wrong command line exits with 2 through argparse's SystemExit.)
    """
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], ExitCode] = options.run
    try:
        return run(options)
    except ConfigError as error:
        return _failed(str(error), ExitCode.CONFIGURATION)
    except GatewayError as error:
        codes = {ListenError: ExitCode.LISTEN, UsageError: ExitCode.CONFIGURATION}
        return _failed(f"stomp-gateway: {error}", codes.get(type(error), ExitCode.FAILURE))
    except BrokenPipeError:  # as of `| head`: nobody reads any more, and nobody needs to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in there goes nowhere
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stomp-gateway",
        allow_abbrev=False,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stomp-gateway {__version__}")
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser
    )

    serve = commands.add_parser("serve", help="run the gateway", description="Run until SIGTERM or Ctrl-C, then drain.")
    serve.set_defaults(run=_serve)
    check = commands.add_parser(
        "check",
        help="validate a configuration and try its brokers",
        description="List every mistake in the configuration; without one, try each broker with the default_user.",
    )
    check.set_defaults(run=_check)
    check.add_argument("--offline", action="store_true", help="validate only; connect to nothing")
    for command in (serve, check):
        command.add_argument("--config", required=True, metavar="FILE", help="the configuration (YAML)")

    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of the configuration, for editors",
        description="Print the JSON Schema of the configuration, by which editors complete and check YAML.",
    )
    schema.set_defaults(run=_schema)

    parity = commands.add_parser(
        "parity",
        help="compare the gateway with RabbitMQ's STOMP plugin",
        description=_PARITY_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A passcode after --passcode would be taken for the file of --passcode-file, and repeated as not readable.
        allow_abbrev=False,
    )
    parity.set_defaults(run=_parity)
    _add_parity_options(parity)
    add_migrate(commands)
    add_terminal(commands)
    add_journal(commands)
    add_pipeline(commands)

    shell = commands.add_parser(
        "completion",
        help="print what a shell needs to complete this command",
        description=completion.DESCRIPTION,
        epilog=completion.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shell.set_defaults(run=_completion)
    shell.add_argument("shell", choices=completion.SHELLS, help="for which shell")
    page = commands.add_parser(
        "manual",
        help="print the manual page",
        description=manual.DESCRIPTION,
        epilog=manual.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    page.set_defaults(run=_manual)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """A command's own options."""

    def format_help(self) -> str:
        """Add what only help needs: the setups are known to a package that takes a while to load."""
        if self.prog.endswith(" parity"):
            from gateway.parity.transcript import SETUPS  # noqa: PLC0415

            setups = (
                textwrap.fill(text, 100, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20)
                for name, text in SETUPS.items()
            )
            self.epilog = _PARITY_EPILOG.format(setups="\n".join(setups))
        return super().format_help()


def _add_parity_options(parity: argparse.ArgumentParser) -> None:
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
    user.add_argument("--passcode", help=argparse.SUPPRESS)  # refused, without repeating it
    user.add_argument("--passcode-file", metavar="FILE", help="the passcode of --login (default: $STOMP_PASSCODE)")
    user.add_argument("--host", default="/", metavar="VHOST", help="the virtual host, by RabbitMQ's name (default: /)")
    choice = parity.add_argument_group("conversations")
    choice.add_argument("--setup", action="append", metavar="NAME", help="what both servers are set up for; repeatable")
    choice.add_argument("--only", metavar="PATTERN", help="those whose name matches, like connect/* or nack")
    choice.add_argument("--jobs", type=int, default=8, metavar="N", help="how many at the same time (default: 8)")
    choice.add_argument("--list", action="store_true", help="only list the conversations; asks nobody")
    choice.add_argument("--verbose", action="store_true", help="show every rule in full, and every exchange")


def _serve(options: argparse.Namespace) -> ExitCode:
    config = load(options.config)
    # Imported here: `check --offline`, `schema` and a mistake in the file answer without loading the server.
    from gateway.admin.site import AdminSite  # noqa: PLC0415
    from gateway.server.process.gateway import serve  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415

    configure_logs(config.logging)
    _run(serve(config, (AdminSite(config.admin),)))
    return ExitCode.OK


def _check(options: argparse.Namespace) -> ExitCode:
    config = load(options.config)
    print(f"{options.config}: no mistakes ({_contents(config)})")
    if options.offline:
        return ExitCode.OK
    from gateway.server.broker.probe import probe  # noqa: PLC0415
    from gateway.server.broker.probe_report import report_lines, unserved  # noqa: PLC0415

    reports = _run(probe(config.resolved_virtual_hosts()))
    print("\n".join(report_lines(reports)))
    missing = unserved(reports)
    if missing:
        return _failed(f"\nno usable upstream for: {', '.join(missing)}", ExitCode.FAILURE)
    return ExitCode.OK


def _contents(config: GatewayConfig) -> str:
    listeners, hosts = len(config.listeners), len(config.virtual_hosts)
    return f"{listeners} listener{'s'[: listeners != 1]}, {hosts} virtual host{'s'[: hosts != 1]}"


def _schema(options: argparse.Namespace) -> ExitCode:
    print(json.dumps(json_schema(), indent=2))
    return ExitCode.OK


def _completion(options: argparse.Namespace) -> ExitCode:
    print(completion.completion(_parser(), options.shell))
    return ExitCode.OK


def _manual(_options: argparse.Namespace) -> ExitCode:
    print(manual.manual(_parser()), end="")
    return ExitCode.OK


def _parity(options: argparse.Namespace) -> ExitCode:
    from gateway.parity.command import compare, list_transcripts  # noqa: PLC0415
    from gateway.parity.shutdown import TerminatedError  # noqa: PLC0415

    if options.list:
        list_transcripts(options.only)
        return ExitCode.OK
    try:
        return ExitCode.OK if _run(compare(options)) else ExitCode.FAILURE
    except TerminatedError:
        return ExitCode.TERMINATED


def _run(main_coroutine: Coroutine[object, object, _ResultT]) -> _ResultT:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main_coroutine)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster uvloop where it installs; asyncio's own loop everywhere else."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop


def _failed(text: str, code: ExitCode) -> ExitCode:
    print(text, file=sys.stderr)
    return code
