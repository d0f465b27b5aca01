"""The command line: its commands, and how errors become exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gateway import version_text
from gateway.cli.admin_commands import add_admin
from gateway.cli.commands import CommandParser, Commands, Run
from gateway.cli.journal_commands import add_journal
from gateway.cli.manual import add_manual
from gateway.cli.moving_commands import add_migrate, add_parity, add_tap
from gateway.cli.pipeline_commands import add_pipeline
from gateway.cli.serve_commands import add_serve
from gateway.errors import ConfigError, ExitCode, GatewayError, ListenError, UsageError

_TEXT = """\
A STOMP gateway in front of RabbitMQ. Clients speak STOMP 1.0, 1.1 or 1.2; the gateway speaks AMQP 0-9-1 to the broker.

examples:
  stomp-gateway check --config gateway.yaml       list every mistake; if there is none, try each broker
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
        print(end="", flush=True)  # so that a failed write raises here, and not at exit
    except ConfigError as error:
        return _failed(str(error), ExitCode.CONFIGURATION)
    except GatewayError as error:
        codes = {ListenError: ExitCode.LISTEN, UsageError: ExitCode.CONFIGURATION}
        return _failed(f"stomp-gateway: {error}", codes.get(type(error), ExitCode.FAILURE))
    except OSError as error:
        is_closed = isinstance(error, BrokenPipeError)  # the reader of a pipe has closed it, like `| head`
        if not is_closed and (error.filename is not None or _can_print()):
            raise
        # Otherwise the flush at exit would fail again.
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
    parser = CommandParser(prog="stomp-gateway", text=_TEXT)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print version and commit, and exit")
    commands: Commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    add_serve(commands)
    add_parity(commands)
    add_migrate(commands)
    add_admin(commands)
    add_journal(commands)
    add_pipeline(commands)
    add_tap(commands)
    add_manual(commands, parser)
    return parser


def _can_print() -> bool:
    """Whether standard output accepts another line. A flush is no test: after a failed write, the buffer is empty."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _failed(text: str, code: ExitCode) -> ExitCode:
    print(text, file=sys.stderr)
    return code
