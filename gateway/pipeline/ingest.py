"""Ingest: every line of the journal becomes a row of the lake, once.

Spark's file source decides which segments make up a batch, and its checkpoint remembers it, so a batch has the same
segments in every attempt. A batch is prepared under ``_staging``, renamed into place, and is part of the lake when its
manifest is written. If Spark offers a batch that has a manifest, it is skipped. So a run may be killed at any moment.
Nothing is kept in memory between batches, and nothing waits for late events.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import ExitCode, PipelineError
from gateway.journal.segments import PATTERN
from gateway.pipeline import source, staging, tables
from gateway.pipeline.compact import recover
from gateway.pipeline.parquet_lake import IngestedSegment, Manifest, ParquetLake, remove
from gateway.pipeline.progress import Progress
from gateway.pipeline.spark_session import Spark, SparkOptions, explained, no_root_logging

_SOURCE: Final = "path string, modificationTime timestamp, length bigint, content binary"
_SHORT_RUN_BELOW: Final = 48_000_000
"""Bytes of waiting segments below which a run ends before Java's second compiler pays off."""
_REFRESH_INTERVAL: Final = 300.0
_POLL_INTERVAL: Final = 1
"""Seconds between two looks at the stream and at signals."""


@dataclass(frozen=True)
class IngestOptions:
    """What to ingest, and how.

    Args:
        journal: the directory of the segments.
        lake: the directory of the lake.
        every: seconds between two looks for new segments; None: read the waiting ones, and end.
        spark: how to run Spark.
        skip_missing: go on if a segment was deleted before it was read.
        idle_after: seconds after which a durable subscription counts as idle.
        abandoned_after: seconds after which it counts as abandoned.
        batch_bytes: about how much a batch may read.
    """

    journal: Path
    lake: Path
    every: float | None = None
    spark: SparkOptions = field(default_factory=SparkOptions)
    skip_missing: bool = False
    idle_after: float = tables.IDLE_AFTER
    abandoned_after: float = tables.ABANDONED_AFTER
    batch_bytes: int = 256 << 20


class _StoppedError(Exception):
    """A batch was not started, because the run is about to end."""


def ingest(options: IngestOptions, progress: Progress, spark: SparkSession | None = None) -> ExitCode:
    """Ingest the journal's waiting segments, with a Spark session of its own if none is given.

    Returns OK; FAILURE if segments were left unread, such as those of a later schema version; INTERRUPTED after Ctrl-C;
    TERMINATED after SIGTERM unless ``every`` is set. Raises PipelineError if the ingest failed; the next run continues
    where this one ended.
    """
    source.require_readable(options.journal)
    lake = ParquetLake(options.lake.absolute())
    with lake.locked(), explained(lake):
        return _IngestRun(options, lake, progress).run(spark)


class _IngestRun:
    """One run of the command.

    Spark calls `_on_batch` in a separate thread, and tables are computed in the main thread. ``_busy`` lets only one of
    them work at a time.
    """

    def __init__(self, options: IngestOptions, lake: ParquetLake, progress: Progress) -> None:
        self._options = options
        self._journal = options.journal.absolute()
        self._lake = lake
        self._progress = progress
        self._ingested: dict[str, str] = {}
        """The paths below the journal of ingested segments, by name."""
        self._busy = threading.Lock()
        self._signal: int | None = None
        self._error: BaseException | None = None
        self._refreshed_at: float | None = None

    def run(self, spark: SparkSession | None) -> ExitCode:
        self._clear_leftovers()
        waiting = self._waiting()
        self._progress.start(self._journal, self._lake.root, len(waiting))
        if waiting or self._options.every is not None or self._is_unfinished():
            with self._signals():
                if spark is None:
                    self._work_with_own_spark(waiting)
                else:
                    self._work(spark)
        self._progress.end()
        return self._outcome(waiting)

    def _outcome(self, waiting: list[Path]) -> ExitCode:
        later = source.later_versions(self._journal)
        if later:
            self._progress.warn(
                f"{later} segment{'s'[: later != 1]} of a later schema version left unread in {self._journal}: "
                "a newer stomp-gateway can read them."
            )
        if self._signal == signal.SIGINT:
            return ExitCode.INTERRUPTED
        if self._signal is not None:
            return ExitCode.TERMINATED if self._options.every is None else ExitCode.OK
        return ExitCode.FAILURE if self._left_unread(waiting) or later else ExitCode.OK

    def _left_unread(self, waiting: list[Path]) -> bool:
        """Whether segments were not read although they were there from the start; warns if so."""
        left = [path for path in waiting if path.name not in self._ingested and path.exists()]
        if left:
            self._progress.warn(
                f"{len(left)} segment{'s'[: len(left) != 1]} in {self._journal} waited and were not read, "
                f"{left[0].name} the first of them: the checkpoint {self._lake.checkpoint} seems to know them from "
                "before. If it is a copy, restore the one that belongs to this lake, or ingest into a new lake."
            )
        return bool(left)

    # ------------------------------------------------------------ before

    def _clear_leftovers(self) -> None:
        """Check that the checkpoint belongs to the lake, and remove what a killed run left behind."""
        source.require_consistent(self._lake)
        messages = StringIO()
        recover(self._lake, messages)
        for sentence in messages.getvalue().splitlines():
            self._progress.say(sentence)
        paths = (segment.path for manifest in self._lake.manifests() for segment in manifest.segments)
        self._ingested = {Path(path).name: path for path in paths}
        for orphan in self._lake.orphans():
            remove(orphan)
        remove(self._lake.staging)
        self._lake.staging.mkdir()

    def _waiting(self) -> list[Path]:
        for path in source.misplaced(self._journal, self._ingested):
            self._progress.warn(
                f"{path} is left out: a segment of this name has been read as {self._ingested[path.name]}."
            )
        return source.waiting(self._journal, self._ingested)

    def _is_unfinished(self) -> bool:
        """Whether a batch was begun and not finished, or is not in the computed tables yet."""
        planned = source.planned_batches(self._lake.checkpoint)
        return bool(planned and not self._lake.manifest(planned[-1]).exists()) or bool(self._pending())

    # ------------------------------------------------------------ the stream

    def _work_with_own_spark(self, waiting: list[Path]) -> None:
        size = sum(path.stat().st_size for path in waiting)
        short_run = self._options.every is None and size < _SHORT_RUN_BELOW
        options = replace(self._options.spark, short_run=short_run)
        with no_root_logging(), Spark(options, self._lake.logs / "spark.log") as session:
            self._work(session)

    def _work(self, spark: SparkSession) -> None:
        if self._signal is not None:
            return  # it came while Spark was being started
        query = self._start(spark)
        try:
            self._wait(query, spark)
        finally:
            with suppress(Py4JError, PySparkException):
                query.stop()
        if self._error is not None and not isinstance(self._error, _StoppedError):
            raise self._error
        self._refresh(spark)

    def _start(self, spark: SparkSession) -> StreamingQuery:
        # The rows of this stream are never read. Spark uses it to choose the segments of each batch and to remember
        # them; the batch itself reads the segments, if necessary twice.
        segments = (
            spark.readStream.format("binaryFile")
            .schema(_SOURCE)
            .option("maxFileAge", "36500d")
            .option("maxBytesPerTrigger", str(self._options.batch_bytes))
            .load(f"{staging.glob_escaped(self._journal)}/d=*/{PATTERN}")
            .select("path")
        )
        writer = (
            segments.writeStream.queryName("ingest")
            .foreachBatch(lambda _frame, batch: self._on_batch(spark, batch))
            .option("checkpointLocation", f"file://{self._lake.checkpoint}")
        )
        every = self._options.every
        if every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds").start()

    def _wait(self, query: StreamingQuery, spark: SparkSession) -> None:
        """Wait for the end of the stream, or for a signal; compute tables meanwhile."""
        try:
            while not query.awaitTermination(_POLL_INTERVAL):
                if self._signal is not None:
                    with self._busy:  # let the running batch finish, and start no other
                        pass
                    return
                if self._options.every is not None and self._refresh_is_due():
                    self._refresh(spark)
        except PySparkException:
            if self._error is None:
                raise

    def _on_batch(self, spark: SparkSession, batch: int) -> None:
        with self._busy:
            try:
                if self._signal is not None:
                    raise _StoppedError
                if self._lake.manifest(batch).exists():
                    self._require_same_segments(batch)
                else:
                    self._ingest_batch(spark, batch)
            except BaseException as error:
                self._error = error
                raise

    def _require_same_segments(self, batch: int) -> None:
        """Raise PipelineError if the lake's batch of this number does not have the segments that Spark offers now."""
        segments = self._existing(source.planned_segments(self._lake.checkpoint, batch))
        if any(path.name not in self._ingested for path in segments):
            raise source.outdated(self._lake, batch)

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

    # ------------------------------------------------------------ a batch

    def _ingest_batch(self, spark: SparkSession, batch: int) -> None:
        began = time.monotonic()
        segments = self._segments_to_read(source.planned_segments(self._lake.checkpoint, batch))
        staged = self._lake.staged(batch)
        scans = {path: source.scan_segment(path) for path in segments}
        lines = {path: scan.lines for path, scan in scans.items()}
        suspicious = any(scan.suspicious for scan in scans.values())
        rows = staging.stage(spark, lines, staged, strictly=suspicious)
        manifest = Manifest(
            batch=batch,
            segments=[
                IngestedSegment(f"{path.parent.name}/{path.name}", count, rows.bad.get(path.name, 0))
                for path, count in lines.items()
            ],
            events=sum(rows.events.values()),
            bad_lines=sum(rows.bad.values()),
            rollup_rows=staging.row_count(staged / "rollup_10s"),
            days=staging.days(staged / "events"),
            session_days=staging.session_days(staged / "events"),
            written=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        newest = staging.newest_event(staged / "events")
        self._lake.publish(staged, batch)
        self._lake.write_manifest(manifest)
        self._ingested.update((Path(segment.path).name, segment.path) for segment in manifest.segments)
        lag = None if newest is None else time.time() - newest
        self._progress.batch(manifest, seconds=time.monotonic() - began, lag=lag)

    def _segments_to_read(self, planned: list[Path]) -> list[Path]:
        chosen = [path for path in self._in_journal(planned) if path.name not in self._ingested]
        for path in chosen:
            if not source.is_segment(path):
                self._progress.warn(f"{path} does not have the name of a segment and is left out.")
            elif not path.exists():
                if not self._options.skip_missing:
                    raise PipelineError(
                        f"the segment {path} was to be read and has been deleted. Put it back, or go on without it: "
                        "--skip-missing."
                    )
                self._progress.warn(f"the segment {path} has been deleted before it was read; its lines are missing.")
        return self._existing(chosen)

    def _in_journal(self, paths: list[Path]) -> list[Path]:
        return [self._journal / path.parent.name / path.name for path in paths]  # the journal may have been moved

    def _existing(self, paths: list[Path]) -> list[Path]:
        return [path for path in self._in_journal(paths) if source.is_segment(path) and path.exists()]

    # ------------------------------------------------------------ the computed tables

    def _pending(self) -> list[Manifest]:
        done = self._lake.refreshed()
        return [self._lake.read_manifest(number) for number in self._lake.batch_numbers() if number > done]

    def _refresh_is_due(self) -> bool:
        last = self._refreshed_at
        if last is not None and time.monotonic() - last < _REFRESH_INTERVAL:
            return False
        return any(number > self._lake.refreshed() for number in self._lake.batch_numbers())

    def _refresh(self, spark: SparkSession) -> None:
        """Compute the tables again for the days of batches that they do not have yet."""
        with self._busy:
            pending = self._pending()
            if not pending:
                return
            began = time.monotonic()
            days = {day for manifest in pending for day in manifest.days}
            session_days = {day for manifest in pending for day in manifest.session_days}
            if days or session_days:
                tables.refresh(
                    spark,
                    self._lake,
                    sorted(days),
                    sorted(session_days),
                    idle_after=self._options.idle_after,
                    abandoned_after=self._options.abandoned_after,
                )
                self._progress.tables(len(days), time.monotonic() - began)
            self._lake.set_refreshed(pending[-1].batch)
            self._refreshed_at = time.monotonic()
