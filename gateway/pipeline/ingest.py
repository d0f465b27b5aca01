"""Ingest: every line of the journals becomes a row of the lake, once.

Spark's file source offers the lines of new segments, batch by batch, and its checkpoint remembers which it has offered.
What is in the lake stands in the lake's own table ``segments``, so a run may be killed at any moment, the checkpoint
may be lost, and several ingests may run at once: see `gateway.pipeline.batches`.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import ExitCode, PipelineError
from gateway.pipeline import tables
from gateway.pipeline.batches import add_lines, commit_planned, known
from gateway.pipeline.journal_segments import absolute, later_versions_in, sizes_in, stream_of_lines
from gateway.pipeline.lake import Lake, known_trouble
from gateway.pipeline.progress import Progress
from gateway.pipeline.spark_session import SparkOptions, configured, first_line, spark_session
from gateway.pipeline.spark_tables import hadoop_path

_SHORT_RUN_BYTES: Final = 96 << 20
"""Waiting bytes below which a run ends before Java's second compiler pays off."""
_REFRESH_INTERVAL: Final = 300.0
_POLL_INTERVAL: Final = 1
"""Seconds between two looks at the stream and at signals."""

_OTHER_INGEST: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming jobs detected",
    "Multiple streaming queries are concurrently using",
)
"""What Spark says if two streams use one checkpoint."""
_HALF_MADE_CHECKPOINT: Final = "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
"""A run was killed at its very beginning, and Spark does not use what it has left. Another checkpoint does as well."""
_MOST_CHECKPOINTS: Final = 20


@dataclass(frozen=True)
class IngestOptions:
    """What to ingest, and how.

    Args:
        journals: directories or URLs of segments.
        lake: the directory or URL of the lake.
        every: seconds between two looks for new segments; None: read the waiting ones, and end.
        spark: how to run Spark.
        idle_after: seconds after which a durable subscription counts as idle.
        abandoned_after: seconds after which it counts as abandoned.
        batch_bytes: about how much a batch may read of each journal.
    """

    journals: Sequence[str]
    lake: str
    every: float | None = None
    spark: SparkOptions = field(default_factory=SparkOptions)
    idle_after: float = tables.IDLE_AFTER
    abandoned_after: float = tables.ABANDONED_AFTER
    batch_bytes: int = 256 << 20


class _StoppedError(Exception):
    """A batch was not started, because the run is about to end."""


def ingest(options: IngestOptions, progress: Progress, spark: SparkSession | None = None) -> ExitCode:
    """Ingest the journals' waiting segments, with a Spark session of its own if none is given.

    Returns OK; FAILURE if segments were left unread, such as those of a later schema version; INTERRUPTED after Ctrl-C;
    TERMINATED after SIGTERM unless ``every`` is set. Raises PipelineError if the ingest failed; the next run continues
    where this one ended.
    """
    lake = Lake(options.lake)
    with _explained(lake):
        return _IngestRun(options, lake, progress).run(spark)


class _IngestRun:
    """One run of the command.

    Spark calls `_on_batch` in a separate thread, and tables are computed in the main thread. ``_busy`` lets only one of
    them work at a time.
    """

    def __init__(self, options: IngestOptions, lake: Lake, progress: Progress) -> None:
        self._options = options
        self._journals = sorted({absolute(journal) for journal in options.journals})
        self._lake = lake
        self._progress = progress
        self._busy = threading.Lock()
        self._checkpoint_number = 0
        self._signal: int | None = None
        self._error: BaseException | None = None
        self._refreshed_at: float | None = None

    def run(self, spark: SparkSession | None) -> ExitCode:
        self._lake.must_not_be_old()
        self._lake.create("segments")
        waiting = self._waiting()
        self._progress.start(self._journals, str(self._lake), None if waiting is None else len(waiting))
        if waiting or waiting is None or self._options.every is not None or self._is_unfinished():
            is_short = waiting is not None and sum(waiting.values()) < _SHORT_RUN_BYTES
            own = spark_session(self._options.spark, quick_start=is_short and self._options.every is None)
            with self._signals(), own if spark is None else nullcontext(configured(spark)) as session:
                self._work(session)
        self._progress.end()
        return self._outcome(waiting)

    def _waiting(self) -> dict[str, int] | None:
        """The sizes of local segments that are not in the lake, by name; None if not all journals are local."""
        sizes = sizes_in(self._journals)
        if sizes is None:
            return None
        here = known(self._lake, sizes)
        return {name: size for name, size in sizes.items() if name not in here}

    def _is_unfinished(self) -> bool:
        """Whether a batch is planned and not in all tables yet."""
        return bool(self._lake.unfinished()) or tables.lacks_batches(self._lake)

    def _outcome(self, waiting: Mapping[str, int] | None) -> ExitCode:
        later = later_versions_in(self._journals)
        if later:
            self._progress.warn(
                f"{later} segment{'s'[: later != 1]} of a later schema version left unread: a newer stomp-gateway can "
                "read them."
            )
        if self._signal == signal.SIGINT:
            return ExitCode.INTERRUPTED
        if self._signal is not None:
            return ExitCode.TERMINATED if self._options.every is None else ExitCode.OK
        return ExitCode.FAILURE if self._left_unread(waiting) or later else ExitCode.OK

    def _left_unread(self, waiting: Mapping[str, int] | None) -> bool:
        """Whether segments were not read although they were there from the start; warns if so."""
        left = sorted((waiting or {}).keys() & (self._waiting() or {}).keys())
        if left:
            self._progress.warn(
                f"{len(left)} segment{'s'[: len(left) != 1]} waited and were not read, {left[0]} the first of them: "
                f"Spark's checkpoint {self._checkpoint} knows them from another lake. Delete it and start again."
            )
        return bool(left)

    # ------------------------------------------------------------ the stream

    @property
    def _checkpoint(self) -> str:
        """One for each set of journals, since Spark remembers the sources of a stream by their order."""
        which = hashlib.sha256("\n".join(self._journals).encode()).hexdigest()[:16]
        return hadoop_path(f"{self._lake.url}/_checkpoint/{which}-{self._checkpoint_number}")

    def _work(self, spark: SparkSession) -> None:
        try:
            commit_planned(spark, self._lake)
            while self._signal is None and not self._stream(spark):
                pass  # with what another ingest, or another checkpoint, leaves
            self._refresh(spark)
        except (PySparkException, Py4JError, ConnectionError) as error:
            if self._signal is None:
                raise
            self._progress.warn(
                "Spark has ended before the batch or the tables under way were finished, since its Java got the signal "
                f"too ({first_line(error)}). Nothing is lost: the next ingest does them. Send the signal to this "
                "process only; under systemd, KillMode=mixed does."
            )

    def _stream(self, spark: SparkSession) -> bool:
        """Run the stream to its end; False if it has to be started again."""
        query = None
        try:
            query = self._start(spark)
            self._wait(query, spark)
        except (PySparkException, Py4JError) as error:
            if self._error is None:
                if not self._can_go_on(f"{error} {getattr(error, 'java_exception', '')}"):
                    raise
                return False
        finally:
            if query is not None:
                with suppress(Py4JError, PySparkException, OSError):
                    query.stop()
        if self._error is not None and not isinstance(self._error, _StoppedError):
            raise self._error
        return True

    def _can_go_on(self, error: str) -> bool:
        """Whether an error of the stream is about its checkpoint, and the stream can be started again."""
        if any(words in error for words in _OTHER_INGEST):
            self._progress.say("another ingest reads the same journals: looking for what it leaves")
            return True
        if _HALF_MADE_CHECKPOINT in error and self._checkpoint_number < _MOST_CHECKPOINTS:
            self._checkpoint_number += 1
            return True
        return False

    def _start(self, spark: SparkSession) -> StreamingQuery:
        lines = stream_of_lines(spark, self._journals, self._options.batch_bytes)
        writer = (
            lines.writeStream.queryName("ingest")
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", self._checkpoint)
        )
        every = self._options.every
        if every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds").start()

    def _wait(self, query: StreamingQuery, spark: SparkSession) -> None:
        """Wait for the end of the stream, or for a signal; compute tables meanwhile."""
        while not query.awaitTermination(_POLL_INTERVAL):
            if self._signal is not None:
                with self._busy:  # let the running batch finish, and start no other
                    pass
                return
            if self._options.every is not None and self._refresh_is_due():
                self._refresh(spark)

    def _on_batch(self, lines: DataFrame, _number: int) -> None:
        with self._busy:
            try:
                if self._signal is not None:
                    raise _StoppedError
                began = time.monotonic()
                batch = add_lines(self._lake, lines)
                if batch is not None:
                    self._progress.batch(batch, seconds=time.monotonic() - began)
            except BaseException as error:
                self._error = error
                raise

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            if self._signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt  # the second Ctrl-C ends the run at once
            self._signal = number
            self._progress.say("ending after the batch under way")

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ------------------------------------------------------------ the computed tables

    def _refresh_is_due(self) -> bool:
        last = self._refreshed_at
        if last is not None and time.monotonic() - last < _REFRESH_INTERVAL:
            return False
        return tables.lacks_batches(self._lake)

    def _refresh(self, spark: SparkSession) -> None:
        """Compute the tables again for the days of batches that they do not have yet."""
        with self._busy:
            began = time.monotonic()
            days = tables.refresh(
                spark,
                self._lake,
                idle_after=self._options.idle_after,
                abandoned_after=self._options.abandoned_after,
            )
            if days:
                self._progress.tables(days, time.monotonic() - began)
            self._refreshed_at = time.monotonic()


@contextmanager
def _explained(lake: Lake) -> Iterator[None]:
    """Turn an OSError, or any error of Spark and Java, into a PipelineError that says what to do."""
    try:
        yield
    except (OSError, PySparkException, Py4JError) as error:
        raise PipelineError(_sentence(error, lake)) from error


def _sentence(error: Exception, lake: Lake) -> str:
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return (
            "Java, in which Spark works, has ended: it was killed, or had no memory left. Run the same command again: "
            "it goes on where this one ended, and nothing is counted twice."
        )
    found = known_trouble(f"{error} {getattr(error, 'java_exception', '')}", f"the lake {lake}")
    if found is None and isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or lake}."
    return found or f"Spark ended with: {first_line(error)}"
