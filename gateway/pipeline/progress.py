"""What the pipeline says on the terminal while it works: a line at the start, one to a batch, and a summary."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from gateway.pipeline.lake import Manifest


class Progress:
    """Says how an ingest goes.

    Args:
        out: takes what goes well.
        quiet: say only what goes wrong.
        errors: takes warnings.
    """

    def __init__(self, out: TextIO | None = None, *, quiet: bool = False, errors: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._errors = errors or sys.stderr
        self._quiet = quiet
        self._began = time.monotonic()
        self._segments = 0
        self._events = 0
        self._bad = 0
        self._batches = 0

    def start(self, journal: Path, lake: Path, waiting: int) -> None:
        """Say from where to where, and how many segments have not been read."""
        what = f"{_many(waiting, 'segment')} waiting" if waiting else "no segments waiting"
        self._say(f"journal {journal}, lake {lake}: {what}")

    def batch(self, manifest: Manifest, *, seconds: float, lag: float | None) -> None:
        """Say what a batch brought.

        Args:
            manifest: its own.
            seconds: that it took.
            lag: seconds from its newest event until now; None without events.
        """
        self._batches += 1
        self._segments += len(manifest.segments)
        self._events += manifest.events
        self._bad += manifest.bad_lines
        rate = f"{manifest.events / seconds:,.0f}/s" if seconds > 0 else "-"
        parts = [_many(len(manifest.segments), "segment"), f"{_many(manifest.events, 'event')} ({rate})"]
        if manifest.bad_lines:
            parts.append(_many(manifest.bad_lines, "bad line"))
        if lag is not None:
            parts.append(f"newest {_span(lag)} ago")
        self._say(f"batch {manifest.batch}: {', '.join(parts)}")

    def tables(self, days: int, seconds: float) -> None:
        """Say that the tables computed from events are up to date."""
        self._say(f"tables of {_many(days, 'day')} computed in {seconds:.1f} s")

    def end(self) -> None:
        """Say what all batches brought."""
        if not self._batches:
            self._say("nothing new")
            return
        bad = f", {_many(self._bad, 'bad line')} (see the table bad_lines)" if self._bad else ""
        self._say(
            f"done: {_many(self._batches, 'batch')}, {_many(self._segments, 'segment')}, "
            f"{_many(self._events, 'event')}{bad}, {time.monotonic() - self._began:.1f} s"
        )

    def say(self, sentence: str) -> None:
        """Say something else that goes well."""
        self._say(sentence)

    def warn(self, sentence: str) -> None:
        """Say what should not be overlooked."""
        print(f"stomp-gateway: {sentence}", file=self._errors, flush=True)

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._out, flush=True)


def _many(count: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{count:,} {what}{'' if count == 1 else plural}"


def _span(seconds: float) -> str:
    if seconds < 0:
        return f"-{_span(-seconds)}"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
