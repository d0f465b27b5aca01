"""Ingest: every line of the journals becomes a row of the lake, once.

Segments wait if the journals list them and the lake's own table ``segments`` does not. So a run may be killed at any
moment, and several ingests may run at once: see `gateway.pipeline.batches`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gateway.errors import ExitCode, PipelineError
from gateway.journal.schema import VERSION
from gateway.pipeline import tables
from gateway.pipeline.batches import BatchOutcome, add_segments, commit_planned, waiting_segments
from gateway.pipeline.lake import Lake, closed_before, known_trouble, location
from gateway.pipeline.progress import EndingSignals, Progress, first_few
from gateway.pipeline.spark_session import JavaEndedError, SparkOptions, configured, first_line, spark_session
from gateway.pipeline.stored_segments import GONE, OddFile, StoredSegment, listed

_SHORT_RUN_BYTES: Final = 96 << 20
"""Waiting bytes below which a run ends before Java's second compiler pays off."""
_REFRESH_INTERVAL: Final = 300.0
"""Seconds between two computations of the tables by a resident ingest."""
_MOST_SEGMENTS: Final = 8192
"""The most segments of a batch: Spark lists each of them separately."""
BATCH_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class IngestOptions:
    """What to ingest, and how.

    ``every`` is the time in seconds between two looks for new segments; None: read the waiting ones, and end. A durable
    subscription is idle, or abandoned, after so many seconds without a connection. A batch reads at most
    ``batch_bytes``, unless one segment is larger. ``again``: also take in segments that were put aside and have not
    changed.
    """

    journals: Sequence[str]
    lake: str
    every: float | None = None
    spark: SparkOptions = field(default_factory=SparkOptions)
    idle_after: float = tables.IDLE_AFTER
    abandoned_after: float = tables.ABANDONED_AFTER
    batch_bytes: int = BATCH_BYTES
    again: bool = False


def ingest(options: IngestOptions, progress: Progress, spark: SparkSession | None = None) -> ExitCode:
    """Ingest the journals' waiting segments, with a Spark session of its own if none is given.

    Returns OK; FAILURE if segments were left unread, such as those of a later schema version, or put aside; INTERRUPTED
    after Ctrl-C; TERMINATED after SIGTERM unless ``every`` is set. Raises PipelineError if the ingest failed; the next
    run continues where this one ended.
    """
    run = _IngestRun(options, Lake(options.lake), progress)
    try:
        return run.run(spark)
    except (OSError, PySparkException, Py4JError) as error:
        raise PipelineError(run.explanation(error)) from error


class _IngestRun:
    """One run of the command."""

    def __init__(self, options: IngestOptions, lake: Lake, progress: Progress) -> None:
        self._options = options
        self._journals = sorted({location(journal) for journal in options.journals})
        self._lake = lake
        self._progress = progress
        self._signals = EndingSignals(progress)
        self._is_incomplete = False
        self._warned = set[str]()
        self._reading: list[StoredSegment] = []
        self._refreshed_at: float | None = None

    def run(self, spark: SparkSession | None) -> ExitCode:
        self._lake.must_not_be_old()
        self._lake.create("segments")
        waiting = self._waiting(again=self._options.again)
        self._progress.start(self._journals, str(self._lake), len(waiting))
        is_unfinished = bool(self._lake.unfinished()) or tables.lacks_batches(self._lake)
        if waiting or is_unfinished or self._options.every is not None:
            is_short = sum(each.size for each in waiting) < _SHORT_RUN_BYTES
            own = spark_session(self._options.spark, quick_start=is_short and self._options.every is None)
            with self._signals.noted(), own if spark is None else nullcontext(configured(spark)) as session:
                self._work(session, waiting)
        self._progress.end()
        outcome = ExitCode.FAILURE if self._is_incomplete else ExitCode.OK
        return self._signals.exit_code(outcome, is_resident=self._options.every is not None)

    def _waiting(self, *, again: bool = False) -> list[StoredSegment]:
        """The finished segments that the lake does not have, oldest first; warns of what is not read."""
        found = [each for journal in self._journals for each in listed(journal)]
        odd = [each for each in found if isinstance(each, OddFile)]
        segments = [each for each in found if isinstance(each, StoredSegment) and not each.is_open]
        advice = "Move them elsewhere, or rename them."
        self._warn_once([str(each) for each in odd], "in the journal are not read", advice, what="file")
        later = [each for each in segments if each.name.version > VERSION]
        self._warn_once(
            [str(each.name) for each in later], "of a later schema version left unread",
            "A newer stomp-gateway can read them.",
        )  # fmt: skip
        closed = closed_before(self._lake.table("segments"))
        too_late = [str(each.name) for each in segments if each.day < closed]
        self._warn_once(
            too_late, f"of days before {closed} left unread",
            "The lake has forgotten which of these it has (`gc --segments-days`). Move them elsewhere, or ingest them "
            "into another lake.",
        )  # fmt: skip
        self._is_incomplete |= bool(later or too_late) or any(each.is_refused for each in odd)
        return waiting_segments(self._lake, [each for each in segments if each.name.version == VERSION], again=again)

    def _warn_once(self, names: Sequence[str], said: str, advice: str, *, what: str = "segment") -> None:
        new = [name for name in names if name not in self._warned]
        self._warned.update(new)
        if new:
            self._progress.warn(f"{len(new)} {what}{'s'[: len(new) != 1]} {said}: {first_few(new)}. {advice}")

    def _work(self, spark: SparkSession, waiting: list[StoredSegment]) -> None:
        every = self._options.every
        try:
            commit_planned(self._lake)
            self._add(spark, waiting)
            while every is not None and self._signals.number is None:
                self._refresh_if_due(spark)
                self._signals.pause(every)
                self._add(spark, self._waiting())
            self._refresh(spark)
        except (PySparkException, Py4JError, ConnectionError) as error:
            if self._signals.number is None:
                raise
            self._progress.warn(
                "Spark has ended before the batch or the tables under way were finished, since its Java got the signal "
                f"too ({first_line(error)}). Nothing is lost: the next ingest does them. Send the signal to this "
                "process only; under systemd, KillMode=mixed does."
            )

    def _add(self, spark: SparkSession, waiting: Sequence[StoredSegment]) -> None:
        """Add segments, batch by batch, until a signal comes."""
        for batch in _in_batches(waiting, self._options.batch_bytes):
            if self._signals.number is not None:
                return
            began, self._reading = time.monotonic(), batch
            outcome = add_segments(spark, self._lake, batch)
            self._tell(outcome, time.monotonic() - began)
            if self._options.every is not None:
                self._refresh_if_due(spark)
        self._reading = []

    def _tell(self, outcome: BatchOutcome, seconds: float) -> None:
        if outcome.batch is not None:
            self._progress.batch(outcome.batch, seconds=seconds)
        self._warn_once(
            [f"{name} ({why})" for name, why in outcome.aside.items()], "put aside",
            "All others are read. Mend or restore it: the next ingest reads it once it has changed, and "
            "`ingest --again` in any case. The table segments_aside has the reasons.",
        )  # fmt: skip
        unreadable = [f"{name} ({why})" for name, why in outcome.unreadable.items() if why != GONE]
        self._warn_once(unreadable, "left unread", "All others are read; the next ingest tries again.")
        self._is_incomplete |= bool(outcome.aside or unreadable)

    def _refresh_if_due(self, spark: SparkSession) -> None:
        if self._refreshed_at is None or time.monotonic() - self._refreshed_at >= _REFRESH_INTERVAL:
            self._refresh(spark)

    def _refresh(self, spark: SparkSession) -> None:
        """Compute the tables again for what batches have changed that they do not have yet."""
        began = time.monotonic()
        days = tables.refresh(
            spark, self._lake, idle_after=self._options.idle_after, abandoned_after=self._options.abandoned_after
        )
        if days:
            self._progress.tables(days, time.monotonic() - began)
        self._refreshed_at = time.monotonic()

    def explanation(self, error: Exception) -> str:
        """What an OSError, or any error of Spark and Java, means, and what to do."""
        if isinstance(error, (Py4JNetworkError, ConnectionError)):
            largest = max(self._reading, key=lambda each: each.size, default=None)
            what = f"{len(self._reading):,} segments, of which {largest.url} is the largest" if largest else "the lake"
            log = f" What it printed is in {error.log}." if isinstance(error, JavaEndedError) else ""
            return (
                f"Java, in which Spark works, ended while it read {what}: it was killed, or had no memory left.{log} "
                "Run the same command again, with more memory (--conf spark.driver.memory=4g) or smaller batches "
                "(--batch-bytes 64MiB): it goes on where this one ended, and nothing is counted twice."
            )
        found = known_trouble(f"{error} {getattr(error, 'java_exception', '')}", f"the lake {self._lake}")
        if found is None and isinstance(error, OSError):
            return f"{error.strerror or error}: {error.filename or self._lake}."
        return found or f"Spark ended with: {first_line(error)}"


def _in_batches(segments: Iterable[StoredSegment], most_bytes: int) -> Iterator[list[StoredSegment]]:
    """The segments in lists of so many bytes, and of `_MOST_SEGMENTS`, or of one segment that is larger."""
    batch: list[StoredSegment] = []
    size = 0
    for segment in segments:
        if batch and (size + segment.size > most_bytes or len(batch) == _MOST_SEGMENTS):
            yield batch
            batch, size = [], 0
        batch.append(segment)
        size += segment.size
    if batch:
        yield batch
