"""The output of a run and of a check, and the signals that end a run gracefully."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

from gateway.errors import ExitCode
from gateway.texts import counted, duration

if TYPE_CHECKING:
    from gateway.pipeline.batches import IngestedBatch

_CLOCKS_DIFFER: Final = 300.0
"""Seconds by which a line may be ahead without a word."""
_LONGEST_SLEEP: Final = 1.0
"""Seconds. Python continues a sleep after a signal."""
_MOST_NAMED: Final = 5


class Progress:
    """Prints the progress of an ingest, and warnings to `errors`; if `quiet`, only those."""

    def __init__(self, out: TextIO | None = None, *, quiet: bool = False, errors: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._errors = errors or sys.stderr
        self._quiet = quiet
        self._began = time.monotonic()
        self._segments = 0
        self._events = 0
        self._bad = 0
        self._batches = 0

    def start(self, journals: Sequence[str], lake: str, waiting: int) -> None:
        """Print the places, and how many segments are waiting."""
        what = f": {counted(waiting, 'segment') if waiting else 'no segments'} waiting"
        self.say(f"journal{'s'[: len(journals) != 1]} {first_few(journals)}, lake {lake}{what}")

    def batch(self, batch: IngestedBatch, *, seconds: float) -> None:
        """Print what a batch contained, how many seconds it took, and the age of its newest event."""
        self._batches += 1
        self._segments += batch.segments
        self._events += batch.events
        self._bad += batch.bad_lines
        rate = f"{batch.events / seconds:,.0f}/s" if seconds > 0 else "-"
        parts = [counted(batch.segments, "segment"), f"{counted(batch.events, 'event')} ({rate})"]
        if batch.bad_lines:
            parts.append(counted(batch.bad_lines, "bad line"))
        if batch.newest is not None:
            age = time.time() - batch.newest.timestamp()
            is_wrong = age < -_CLOCKS_DIFFER
            what = "ahead: the clock of its gateway is wrong" if is_wrong else "ago"
            parts.append(f"newest {duration(-age if is_wrong else max(age, 0))} {what}")
        self.say(f"batch {batch.number}: {', '.join(parts)}")

    def tables(self, days: int, seconds: float) -> None:
        """Print that the computed tables are up to date."""
        self.say(f"tables of {counted(days, 'day')} computed in {seconds:.1f} s")

    def end(self) -> None:
        """Print the sum of all batches."""
        if not self._batches:
            self.say("nothing new")
            return
        bad = f", {counted(self._bad, 'bad line')} (see the table bad_lines)" if self._bad else ""
        self.say(
            f"done: {counted(self._batches, 'batch')}, {counted(self._segments, 'segment')}, "
            f"{counted(self._events, 'event')}{bad}, {time.monotonic() - self._began:.1f} s"
        )

    def say(self, text: str) -> None:
        """Print a message, unless quiet."""
        if not self._quiet:
            print(text, file=self._out, flush=True)

    def warn(self, sentence: str) -> None:
        """Print a warning."""
        print(f"stomp-gateway: {sentence}", file=self._errors, flush=True)


class CheckOutput:
    """Prints what was found; if `quiet`, only what is wrong."""

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._wrong = 0

    def ok(self, text: str) -> None:
        """Something is as it should be."""
        if not self._quiet:
            print(f"ok       {text}", file=self._out)

    def note(self, text: str, advice: str) -> None:
        """Something is worth knowing, and does not make the lake incomplete."""
        if not self._quiet:
            print(f"note     {text}\n         {advice}", file=self._out)

    def wrong(self, text: str, advice: str) -> None:
        """Something makes the lake incomplete."""
        self._wrong += 1
        print(f"WRONG    {text}\n         {advice}", file=self._out)

    def verdict(self) -> bool:
        """Print the last line, and return whether the lake is complete."""
        things = "thing is" if self._wrong == 1 else "things are"
        if self._wrong:
            print(f"not complete: {self._wrong} {things} wrong", file=self._out)
        elif not self._quiet:
            print("complete", file=self._out)
        return not self._wrong


class EndingSignals:
    """SIGINT and SIGTERM, which end a run after the batch under way; a second Ctrl-C ends it at once.

    ``number`` is the signal that has come; None before.
    """

    def __init__(self, progress: Progress) -> None:
        self.number: int | None = None
        self._progress = progress

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note them while the block runs, if it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # No more than this: a lock that the main thread holds just now could not be taken here.
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        # Python refuses to print, with this error, if the signal has interrupted a print.
        with suppress(RuntimeError):
            self._progress.say("ending after the batch under way")

    def exit_code(self, otherwise: ExitCode, *, is_resident: bool) -> ExitCode:
        """How a run ends that one may have ended: SIGTERM is the usual end of one that is resident."""
        if self.number is None:
            return otherwise
        if self.number == signal.SIGINT:
            return ExitCode.INTERRUPTED
        return ExitCode.OK if is_resident else ExitCode.TERMINATED

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds, or until one comes."""
        until = time.monotonic() + seconds
        while self.number is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_SLEEP))


def first_few(texts: Sequence[str]) -> str:
    """The first of some texts, and how many more there are."""
    rest = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + rest
