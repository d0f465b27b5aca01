"""The command lines of `stomp-gateway serve`, `check`, `example` and `schema`, which are about a configuration."""

from __future__ import annotations

import argparse
import json
import sys
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import Commands, add_command, passcode_from, run_coroutine
from gateway.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gateway.config.broker_user import User
    from gateway.config.model import GatewayConfig

_EXAMPLE = """\
Print a configuration file with every key, its default and what it is for. An empty file means the same.

examples:
  stomp-gateway example > gateway.yaml            then change the keys that you need, and delete the others
  stomp-gateway check --config gateway.yaml
  stomp-gateway serve --config gateway.yaml
"""

_PASSCODE_VARIABLE: Final = "STOMP_GATEWAY_CHECK_PASSCODE"
_HINT: Final = "to change them: stomp-gateway example > gateway.yaml, and stomp-gateway serve --config gateway.yaml"

# The places of the file in an installed package, and in a checkout.
_PLACES: Final = tuple(Path(__file__).parents[up] / "config" / "gateway.yaml" for up in (1, 2))


def add_serve(commands: Commands) -> None:
    """Add `serve`, `check`, `example` and `schema`. For compatibility, options of the first two may be abbreviated."""
    text = "Run the gateway until SIGTERM or Ctrl-C, then drain it."
    serve = add_command(commands, "serve", _serve, "run the gateway", text, allow_abbrev=True)
    text = "List every mistake in a configuration. If there is none, list risky settings and try each broker."
    check = add_command(
        commands, "check", _check, "validate a configuration and try its brokers", text, allow_abbrev=True
    )
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
    add_command(commands, "example", _example, "print a configuration with every key and its default", _EXAMPLE)
    text = "Print the JSON Schema of the configuration. Editors use it to complete and check YAML."
    add_command(commands, "schema", _schema, "print the JSON Schema of the configuration, for editors", text)


def _serve(options: argparse.Namespace) -> ExitCode:
    config = load_or_default(options.config)
    # Imported here, so that other commands do not load the server, nor this one if the file has mistakes.
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
    from gateway.cli import check_report  # noqa: PLC0415
    from gateway.server.broker.probe import probe  # noqa: PLC0415
    from gateway.server.descriptors import unreachable_limits  # noqa: PLC0415
    from gateway.server.process.broker_services import try_archives  # noqa: PLC0415

    reports = run_coroutine(probe(config.resolved_virtual_hosts(), _login_to_try(options)))
    archives = run_coroutine(try_archives(config.resolved_virtual_hosts()))
    warnings = [
        *check_report.untried(reports),
        *check_report.first_broker_warnings(config.resolved_virtual_hosts(), reports),
        *check_report.alarm_warnings(reports),
        *(f"warning: {text}" for text in unreachable_limits(config)),
    ]
    tried = [line for archive in archives for line in archive if line]
    print("\n".join([*check_report.report_lines(reports), *([""] if tried else []), *tried, *warnings]))
    missing = check_report.unserved(reports)
    if missing:
        print(f"\nno usable upstream for: {', '.join(missing)}", file=sys.stderr)
        return ExitCode.FAILURE
    if undeclared := sum(bool(advice) for _, advice in archives):
        print(f"\n{undeclared} of {len(archives)} archives cannot be declared", file=sys.stderr)
        return ExitCode.FAILURE
    return ExitCode.OK


def _login_to_try(options: argparse.Namespace) -> User | None:
    """The user that --login names."""
    if options.login is None:
        if options.passcode_file is not None:
            raise UsageError("--passcode-file needs --login.")
        return None
    passcode = passcode_from(options.passcode_file, _PASSCODE_VARIABLE, "")
    if not passcode and options.passcode_file is None and sys.stdin.isatty():
        passcode = getpass(f"Passcode of {options.login}: ")
    if not options.login or not passcode:
        raise UsageError(f"--login needs a passcode: give --passcode-file, or {_PASSCODE_VARIABLE} in the environment.")
    from pydantic import SecretStr  # noqa: PLC0415

    from gateway.config.broker_user import User  # noqa: PLC0415

    return User(login=options.login, passcode=SecretStr(passcode))


def _warnings(config: GatewayConfig) -> str:
    if not config.warnings:
        return ""
    count = "1 warning" if len(config.warnings) == 1 else f"{len(config.warnings)} warnings"
    return "\n".join([f", {count}", *(f"  {warning}" for warning in config.warnings)])


def _contents(config: GatewayConfig) -> str:
    listeners, hosts = len(config.listeners), len(config.virtual_hosts)
    return f"{listeners} listener{'s'[: listeners != 1]}, {hosts} virtual host{'s'[: hosts != 1]}"


def _example(_: argparse.Namespace) -> ExitCode:
    print(next(place for place in _PLACES if place.is_file()).read_text("utf-8"), end="")
    return ExitCode.OK


def _schema(_: argparse.Namespace) -> ExitCode:
    from gateway.config.model import json_schema  # noqa: PLC0415

    print(json.dumps(json_schema(), indent=2))
    return ExitCode.OK


def load_or_default(file: str | None) -> GatewayConfig:
    """Load the configuration in a file; without one, all keys have their defaults.

    Raises:
        ConfigError: the file cannot be read or used. It has every mistake.
    """
    from gateway.config.loader import load, parse  # noqa: PLC0415 - the configuration loads slowly

    return parse("") if file is None else load(file)


def log_assumptions(config: GatewayConfig) -> None:
    """Log the defaults of the keys that most users change first, because there is no file."""
    import structlog  # noqa: PLC0415 - other commands log nothing

    user = config.defaults.default_user
    structlog.get_logger("gateway").info(
        "no configuration file",
        listeners=" ".join(str(listener.address) for listener in config.listeners),
        upstream=" ".join(map(str, config.upstream.urls)),
        virtual_hosts=" ".join(config.virtual_hosts),
        default_user=user and user.login,
        admin=str(config.admin.address),
        hint=_HINT,
    )
