"""The signals that end a run, whenever they come."""

from __future__ import annotations

import io
import os
import signal
from typing import cast

from gateway.errors import ExitCode
from gateway.pipeline.progress import EndingSignals, Progress


class Interrupted(io.RawIOBase):
    """A terminal, where the signal comes while something is printed."""

    def __init__(self) -> None:
        self.shown = b""
        self._is_interrupted = False

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self._is_interrupted:
            self._is_interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)
        self.shown += bytes(data)
        return len(data)


def test_a_signal_that_comes_during_a_print_ends_the_run_in_good_order() -> None:
    terminal = Interrupted()
    with io.TextIOWrapper(io.BufferedWriter(cast(io.RawIOBase, terminal))) as out:
        progress = Progress(out)
        signals = EndingSignals(progress)
        with signals.noted():
            progress.say("batch 7: 1 segment")
            signals.pause(60.0)
        progress.say("done: 1 batch")
        assert terminal.shown.startswith(b"batch 7: 1 segment\n")
        assert terminal.shown.endswith(b"done: 1 batch\n")
    assert signals.exit_code(ExitCode.OK, is_resident=False) is ExitCode.TERMINATED
