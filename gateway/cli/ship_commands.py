"""The command line of `stomp-gateway journal ship`."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic_core import PydanticCustomError

from gateway.cli.commands import add_command
from gateway.errors import ExitCode, GatewayError, UsageError

if TYPE_CHECKING:
    from gateway.cli.commands import Commands
    from gateway.journal.shipper import Shipper

# Seconds for the segment under way when the command is ended.
_END_WITHIN: Final = 5.0

_SHIP_DESCRIPTION = """\
Put every finished segment of a journal to one place, from where the pipeline reads it: a directory, or an object store.
A gateway does so itself with journal.ship; this command is for journals of gateways that do not, and for what is left
of one that is gone. A segment that was shipped is marked, and is not shipped again. Object stores need
pip install 'stomp-gateway[ship]', and take their credentials from the environment.
"""

_SHIP_EPILOG = """\
examples:
  stomp-gateway journal ship /var/lib/stomp-gateway/journal --to s3://bucket/journal
  stomp-gateway journal ship DIR --to /mnt/journals --follow
  stomp-gateway journal ship DIR --to gs://bucket/journal --again        the place has lost some

  A segment that is there already is left as it is, so the command can be repeated at any time.

exit codes:
  0    everything is shipped; with --follow: ended by SIGTERM
  1    something was not shipped, and the message says why
  2    the command line is wrong
  130  interrupted (Ctrl-C)
"""


def add_ship(actions: Commands) -> None:
    """Add `ship` to the commands of `stomp-gateway journal`."""
    ship = add_command(
        actions, "ship", _ship, help="put finished segments to an object store or a directory",
        description=_SHIP_DESCRIPTION, epilog=_SHIP_EPILOG,
    )  # fmt: skip
    ship.add_argument("directory", type=Path, metavar="DIR", help="the journal's directory")
    ship.add_argument(
        "--to", required=True, metavar="PLACE", help="a directory, or a URL: s3://bucket/prefix, gs://..., az://..."
    )
    mode = ship.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="ship what is finished now, then end (default)")
    mode.add_argument("--follow", action="store_true", help="and what comes, until SIGTERM or Ctrl-C")
    mode.add_argument("--again", action="store_true", help="once, and also what was shipped before")


def _ship(options: argparse.Namespace) -> ExitCode:
    from gateway.config.ship_settings import checked_place  # noqa: PLC0415 - only these commands need it
    from gateway.journal.ship_targets import open_store  # noqa: PLC0415
    from gateway.journal.shipper import Shipper  # noqa: PLC0415

    try:
        place = checked_place(options.to)
    except PydanticCustomError as error:
        raise UsageError(f"--to: {error.message()}") from error
    if not options.directory.is_dir():
        raise GatewayError(f"cannot read the journal {options.directory}: there is no such directory.")
    shipper = Shipper(options.directory, open_store(place))
    if options.follow:
        return _follow(shipper)
    try:
        shipper.ship_now(again=options.again)
    except OSError as error:
        raise GatewayError(f"{error.filename or options.directory}: {error.strerror or error}") from error
    finally:
        print(f"{shipper.stats.segments} segments shipped, {shipper.stats.bytes} bytes")
    return ExitCode.OK


def _follow(shipper: Shipper) -> ExitCode:
    from gateway.config.model import Logging  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415

    configure_logs(Logging())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    shipper.start()
    stop.wait()
    shipper.close(_END_WITHIN)
    return ExitCode.OK
