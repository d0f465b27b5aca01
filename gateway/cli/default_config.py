"""`serve` and `check` without a file, and the file with every key and its default."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import add_command
from gateway.config.loader import load, parse
from gateway.config.model import GatewayConfig
from gateway.errors import ExitCode

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_DESCRIPTION = """\
Print a configuration file with every key, its default and what it is for. An empty file means the same.
"""

_EPILOG = """\
examples:
  stomp-gateway example > gateway.yaml            then change what differs, and delete what does not
  stomp-gateway check --config gateway.yaml
  stomp-gateway serve --config gateway.yaml
"""

_HINT: Final = "stomp-gateway example > gateway.yaml writes these and all other defaults; serve --config gateway.yaml"

# Beside this package where it is installed, or in a checkout.
_PLACES: Final = tuple(Path(__file__).parents[up] / "config" / "gateway.yaml" for up in (1, 2))


def add_example(commands: Commands) -> None:
    """Add `example` to the commands of `stomp-gateway`."""
    add_command(
        commands, "example", _example, help="print a configuration with every key and its default",
        description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip


def _example(_: argparse.Namespace) -> ExitCode:
    print(next(place for place in _PLACES if place.is_file()).read_text("utf-8"), end="")
    return ExitCode.OK


def load_or_default(file: str | None) -> GatewayConfig:
    """The configuration in a file; without one, what an empty file means.

    Raises:
        ConfigError: the file cannot be read or used; it carries every mistake.
    """
    return parse("") if file is None else load(file)


def log_assumptions(config: GatewayConfig) -> None:
    """Log what counts because there is no file: the keys that most who begin change first."""
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
