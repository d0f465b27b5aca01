"""What the commands share: parsers, types of options, passcodes, the event loop, and handling of SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from gateway.config.config_files import secret_in
from gateway.config.scalars import Count, Duration, Size, text_of
from gateway.errors import ExitCode, GatewayError, UsageError
from gateway.times import utc

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The result of `add_subparsers`."""

Run = Callable[[argparse.Namespace], ExitCode]
"""The function that runs a command with its options."""

T = TypeVar("T")

_BEFORE_HEADING: Final = re.compile(r"\n\n(?=[^\s.][^.\n]*:\n)")

NULL: Final = "null"
"""The value for no limit. In a configuration, `journal.retain_bytes` accepts it, too, but `journal.retain` does not."""


class CommandParser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its description and epilog, and accepts no abbreviated options.

    An abbreviation can reveal a secret: `--passcode SECRET` would mean `--passcode-file SECRET`, and the error message
    about the unreadable file would print the secret.

    Args:
        text: description and epilog, which begins with the first heading, a line like `examples:`.
        complete: completes the epilog when help is printed, if that needs modules that load slowly.
        **options: those of ArgumentParser.
    """

    def __init__(self, *, text: str = "", complete: Callable[[str], str] | None = None, **options: Any) -> None:  # noqa: ANN401
        description, *rest = _BEFORE_HEADING.split(text, maxsplit=1)
        defaults = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**{"description": description, "epilog": "".join(rest), **defaults, **options})
        self._complete = complete

    def format_help(self) -> str:
        """The text of `--help`."""
        if self._complete is not None:
            self.epilog, self._complete = self._complete(self.epilog or ""), None
        return super().format_help()


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    line: str,
    text: str,
    **options: Any,  # noqa: ANN401
) -> argparse.ArgumentParser:
    """Add a command. ``line`` is what the list of commands says of it; ``text`` and ``options``: see CommandParser."""
    parser = commands.add_parser(name, help=line, text=text, **options)
    parser.set_defaults(run=run)
    return parser


def exit_codes(done: str, failed: str, wrong: str = "the command line is wrong") -> str:
    """The end of an epilog, with the meanings of exit codes. Those of 0 and 1 depend on the command."""
    return f"\nexit codes:\n  0    {done}\n  1    {failed}\n  2    {wrong}\n  130  interrupted (Ctrl-C)\n"


def run_coroutine(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end, on uvloop if it is installed, otherwise on asyncio's own loop."""
    import asyncio  # noqa: PLC0415 - half of the commands do without

    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(coroutine)


def passcode_from(file: Path | str | None, variable: str, default: T) -> str | T:
    """The passcode in the file of --passcode-file, without its line end, or else in a variable of the environment.

    Raises UsageError if the file cannot be read.
    """
    if file is None:
        return os.environ.get(variable, default)
    try:
        return secret_in(Path(file))
    except ValueError as error:
        raise UsageError(f"--passcode-file {file}: {error}") from None


class TerminatedError(GatewayError):
    """SIGTERM ended the work, which has cleaned up."""


async def until_terminated(work: Awaitable[T]) -> T:
    """Await `work`, and let SIGTERM cancel it as Ctrl-C does; a second SIGTERM ends the process at once.

    Outside the main thread, which is the only one that gets signals, this only awaits. Raises TerminatedError when the
    work has ended after SIGTERM.
    """
    import asyncio  # noqa: PLC0415

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


def as_in_configuration(read: Callable[[str], T]) -> Callable[[str], T]:
    """A type of options from a reader of configuration values."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            # What the readers raise is a ValueError, so its class need not be loaded before there is a mistake.
            from pydantic_core import PydanticCustomError  # noqa: PLC0415

            if isinstance(error, PydanticCustomError):
                raise argparse.ArgumentTypeError(text_of(error)) from None
            raise

    return convert


duration: Final = as_in_configuration(Duration(zero=False).read)
"""The seconds of a duration above 0."""

count: Final = as_in_configuration(Count().read)
"""A whole number of at least 1."""

size: Final = as_in_configuration(Size().read)
"""The bytes of a size above 0."""


def duration_or_null(text: str) -> float:
    """Do the same as `duration`, or return infinity for null."""
    return math.inf if text == NULL else duration(text)


def size_or_null(text: str) -> int | None:
    """Do the same as `size`, or return None for null."""
    return None if text == NULL else size(text)


def moment(text: str) -> datetime:
    """A time such as 2026-11-21 or 2026-11-21T14:30, in UTC unless it has a time zone."""
    try:
        return utc(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 2026-11-21 or 2026-11-21T14:30") from error


def above_zero(text: str) -> float:
    """A number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found
