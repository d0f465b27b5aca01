"""Shared by the commands: their parsers, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.errors import ExitCode, GatewayError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """The result of `add_subparsers`."""

_ResultT = TypeVar("_ResultT")

Run = Callable[[argparse.Namespace], "ExitCode"]
"""The function that runs a command with its options."""


class CommandParser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its description and epilog, and accepts no abbreviated options.

    An abbreviation can reveal a secret: `--passcode SECRET` would mean `--passcode-file SECRET`, and the error message
    about the unreadable file would print the secret.

    Args:
        make_epilog: makes the epilog when help is printed, if that needs modules that load slowly.
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
    """Add a command. ``help`` is its line in the list of commands; ``options`` go to the parser."""
    parser = commands.add_parser(name, help=help, description=description, **options)
    parser.set_defaults(run=run)
    return parser


def run_coroutine(coroutine: Coroutine[object, object, _ResultT]) -> _ResultT:
    """Run a coroutine to its end, on uvloop if it is installed, otherwise on asyncio's own loop."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(coroutine)


class TerminatedError(GatewayError):
    """SIGTERM ended the work, after it had cleaned up."""


async def until_terminated(work: Awaitable[_ResultT]) -> _ResultT:
    """Await `work`, and let SIGTERM cancel it as Ctrl-C does; a second SIGTERM ends the process at once.

    Outside the main thread, which is the only one that gets signals, this only awaits. Raises TerminatedError when the
    work has ended after SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return await work
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        loop.remove_signal_handler(signal.SIGTERM)
        if task:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if terminated:
            raise TerminatedError("ended by SIGTERM") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
