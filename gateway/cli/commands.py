"""What the commands share: their parsers, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gateway.errors import ExitCode

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """What `add_subparsers` returns: commands are added to it."""

_ResultT = TypeVar("_ResultT")

Run = Callable[[argparse.Namespace], "ExitCode"]
"""What a command does with its options."""


class CommandParser(argparse.ArgumentParser):
    """A parser that prints its description and epilog as they are written, and takes no abbreviated options.

    An abbreviation can reveal a secret: with one, `--passcode SECRET` means `--passcode-file SECRET`, and the secret is
    printed as the name of a file that cannot be read.

    Args:
        make_epilog: makes the epilog when help is printed, if that takes modules that load slowly.
        **options: those of ArgumentParser.
    """

    def __init__(self, *, make_epilog: Callable[[], str] | None = None, **options: Any) -> None:  # noqa: ANN401
        defaults = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**{**defaults, **options})
        self._make_epilog = make_epilog

    def format_help(self) -> str:
        """The text of `--help`."""
        if self._make_epilog is not None:
            self.epilog = self._make_epilog()
        return super().format_help()


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    *,
    help: str,
    description: str,
    **options: Any,  # noqa: ANN401
) -> argparse.ArgumentParser:
    """Add a command that can be run; ``help`` is its line in the list of commands, ``options`` go to the parser."""
    parser = commands.add_parser(name, help=help, description=description, **options)
    parser.set_defaults(run=run)
    return parser


def run_coroutine(coroutine: Coroutine[object, object, _ResultT]) -> _ResultT:
    """Run a coroutine to its end, on uvloop where it is installed, else on asyncio's own loop."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(coroutine)
