"""Ingest: every line of the journal becomes a row of the lake, once.

Spark's file source says which segments make up a batch, and its checkpoint remembers that: the same batch has the same
segments in every try. A batch is prepared under ``_staging``, renamed into its place, and part of the lake when its
manifest is written; a batch that has one is passed over when Spark offers it again. So it does not matter when a run is
killed. Nothing is kept between batches, and nothing waits for late events.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import ExitCode, PipelineError
from gateway.journal.segments import PATTERN
from gateway.pipeline import staged
from gateway.pipeline.compact import recover
from gateway.pipeline.lake import Lake, Manifest, Segment, remove
from gateway.pipeline.lines import DISTINCT, EVENTS_SCHEMA, PARTITIONS, bad_lines_of, events_of, quick, thorough
from gateway.pipeline.plan import behind, planned, require_fitting
from gateway.pipeline.progress import Progress
from gateway.pipeline.rollup import roll_up
from gateway.pipeline.session import Spark, Wishes, no_root_logging
from gateway.pipeline.source import is_segment, later_versions, misplaced, require_readable
from gateway.pipeline.source import waiting as waiting_segments
from gateway.pipeline.trouble import explained

_SOURCE: Final = "path string, modificationTime timestamp, length bigint, content binary"
_BRIEF_BELOW: Final = 48_000_000
"""Octets of waiting segments below which a run is over before Java's second compiler pays."""
_BETWEEN_REFRESHES: Final = 300.0
_GLANCE: Final = 1
"""Seconds between two looks at what the stream and the signals do."""


@dataclass(frozen=True)
class Order:
    """What to ingest.

    Args:
        journal: the directory of the segments.
        lake: the directory of the lake.
        every: seconds between two looks for new segments; None: read what is there, and end.
        wishes: how Spark is to run.
        skip_missing: go on where a segment that was to be read has been deleted.
        idle_after: seconds after which a durable subscription counts as idle.
        abandoned_after: seconds after which it counts as abandoned.
        batch_octets: about how much a batch may read.
    """

    journal: Path
    lake: Path
    every: float | None = None
    wishes: Wishes = field(default_factory=Wishes)
    skip_missing: bool = False
    idle_after: float = 86_400.0
    abandoned_after: float = 7 * 86_400.0
    batch_octets: int = 256 << 20


class _StoppedError(Exception):
    """A batch was not begun, since the run is about to end."""


def ingest(order: Order, progress: Progress, spark: SparkSession | None = None) -> ExitCode:
    """Bring into the lake what the journal has.

    Args:
        order: from where to where, and how.
        progress: says how it goes.
        spark: a session to use; one is started and stopped where there is none.

    Returns:
        OK; FAILURE if segments were left unread, such as those of a later schema version; INTERRUPTED after Ctrl-C;
        TERMINATED after SIGTERM where the run was to end by itself.

    Raises:
        PipelineError: it could not be done, or not to the end. The next run goes on from there.
    """
    require_readable(order.journal)
    lake = Lake(order.lake.absolute())
    with lake.locked(), explained(lake):
        return _Run(order, lake, progress).run(spark)


class _Run:
    """One run of the command.

    Batches come in a thread of Spark's, tables are computed in the main thread, and ``_busy`` keeps them apart.
    """

    def __init__(self, order: Order, lake: Lake, progress: Progress) -> None:
        self._order = order
        self._journal = order.journal.absolute()
        self._lake = lake
        self._progress = progress
        self._known: dict[str, str] = {}
        self._busy = threading.Lock()
        self._signal: int | None = None
        self._trouble: BaseException | None = None
        self._refreshed_at: float | None = None

    def run(self, spark: SparkSession | None) -> ExitCode:
        self._clear_leftovers()
        waiting = self._waiting()
        self._progress.start(self._journal, self._lake.root, len(waiting))
        if waiting or self._order.every is not None or self._unfinished():
            with self._signals():
                if spark is None:
                    self._with_own_spark(waiting)
                else:
                    self._work(spark)
        self._progress.end()
        return self._outcome(waiting)

    def _outcome(self, waiting: list[Path]) -> ExitCode:
        later = later_versions(self._journal)
        if later:
            self._progress.warn(
                f"{later} segment{'s'[: later != 1]} of a later schema version left unread in {self._journal}: "
                "a newer stomp-gateway can read them."
            )
        if self._signal == signal.SIGINT:
            return ExitCode.INTERRUPTED
        if self._signal is not None:
            return ExitCode.TERMINATED if self._order.every is None else ExitCode.OK
        return ExitCode.FAILURE if self._still_waiting(waiting) or later else ExitCode.OK

    def _still_waiting(self, waiting: list[Path]) -> bool:
        """Whether a segment was not read although it was there all the time. It says so."""
        left = [path for path in waiting if path.name not in self._known and path.exists()]
        if left:
            self._progress.warn(
                f"{len(left)} segment{'s'[: len(left) != 1]} in {self._journal} waited and were not read, "
                f"{left[0].name} the first of them: the checkpoint {self._lake.checkpoint} seems to know them from "
                "before. If it is a copy, restore the one that belongs to this lake, or ingest into a new lake."
            )
        return bool(left)

    # ------------------------------------------------------------ before

    def _clear_leftovers(self) -> None:
        """See whether the checkpoint fits to the lake, and remove what a killed run left."""
        require_fitting(self._lake)
        said = StringIO()
        recover(self._lake, said)
        for sentence in said.getvalue().splitlines():
            self._progress.say(sentence)
        read = (segment.path for manifest in self._lake.manifests() for segment in manifest.segments)
        self._known = {Path(path).name: path for path in read}
        for orphan in self._lake.orphans():
            remove(orphan)
        remove(self._lake.staging)
        self._lake.staging.mkdir()

    def _waiting(self) -> list[Path]:
        for path in misplaced(self._journal, self._known):
            self._progress.warn(
                f"{path} is left out: a segment of this name has been read as {self._known[path.name]}."
            )
        return waiting_segments(self._journal, self._known)

    def _unfinished(self) -> bool:
        """Whether a batch has been begun and not ended, or its days are not in the tables yet."""
        planned = (path.name for path in (self._lake.checkpoint / "offsets").glob("[0-9]*"))
        begun = max((int(name) for name in planned if name.isdigit()), default=-1)
        return (begun >= 0 and not self._lake.manifest(begun).exists()) or bool(self._pending())

    # ------------------------------------------------------------ the stream

    def _with_own_spark(self, waiting: list[Path]) -> None:
        octets = sum(path.stat().st_size for path in waiting)
        wishes = self._order.wishes
        brief = self._order.every is None and octets < _BRIEF_BELOW
        wishes = Wishes(wishes.master, wishes.driver_memory, brief=brief)
        with no_root_logging(), Spark(wishes, self._lake.logs / "spark.log") as session:
            self._work(session)

    def _work(self, spark: SparkSession) -> None:
        if self._signal is not None:
            return  # Spark was being started
        query = self._start(spark)
        try:
            self._attend(query, spark)
        finally:
            with suppress(Py4JError, PySparkException):
                query.stop()
        if self._trouble is not None and not isinstance(self._trouble, _StoppedError):
            raise self._trouble
        self._refresh(spark)

    def _start(self, spark: SparkSession) -> StreamingQuery:
        # Nobody looks at the rows of this stream. It says what is to be read next, and remembers it; how the segments
        # of a batch are read is up to the batch, which can do so twice.
        segments = (
            spark.readStream.format("binaryFile")
            .schema(_SOURCE)
            .option("maxFileAge", "36500d")
            .option("maxBytesPerTrigger", str(self._order.batch_octets))
            .load(f"{_as_glob(self._journal)}/d=*/{PATTERN}")
            .select("path")
        )
        writer = (
            segments.writeStream.queryName("ingest")
            .foreachBatch(lambda _frame, batch: self._take(spark, batch))
            .option("checkpointLocation", f"file://{self._lake.checkpoint}")
        )
        every = self._order.every
        if every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds").start()

    def _attend(self, query: StreamingQuery, spark: SparkSession) -> None:
        """Wait for the end of the stream, or for a signal; compute tables meanwhile."""
        try:
            while not query.awaitTermination(_GLANCE):
                if self._signal is not None:
                    with self._busy:  # the batch that is under way comes to its end; the next one is not begun
                        pass
                    return
                if self._order.every is not None and self._refresh_is_due():
                    self._refresh(spark)
        except PySparkException:
            if self._trouble is None:
                raise

    def _take(self, spark: SparkSession, batch: int) -> None:
        with self._busy:
            try:
                if self._signal is not None:
                    raise _StoppedError
                if self._lake.manifest(batch).exists():
                    self._recognize(batch)
                else:
                    self._bring_in(spark, batch)
            except BaseException as error:
                self._trouble = error
                raise

    def _recognize(self, batch: int) -> None:
        """A batch of this number is part of the lake already: see whether it is the same one."""
        if any(path.name not in self._known for path in self._there(planned(self._lake.checkpoint, batch))):
            raise behind(self._lake, batch)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            if self._signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt  # asked twice: at once, then
            self._signal = number
            self._progress.say("ending as soon as nothing is half done")

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ------------------------------------------------------------ a batch

    def _bring_in(self, spark: SparkSession, batch: int) -> None:
        began = time.monotonic()
        segments = self._present(planned(self._lake.checkpoint, batch))
        place = self._lake.staged(batch)
        looks = {path: staged.look(path) for path in segments}
        lines = {path: look.lines for path, look in looks.items()}
        found = self._stage(spark, lines, place, odd=any(look.odd for look in looks.values()))
        manifest = Manifest(
            batch=batch,
            segments=[
                Segment(f"{path.parent.name}/{path.name}", count, found.bad.get(path.name, 0))
                for path, count in lines.items()
            ],
            events=sum(found.events.values()),
            bad_lines=sum(found.bad.values()),
            rollup_rows=staged.rows(place / "rollup_10s"),
            days=staged.days(place / "events"),
            session_days=staged.session_days(place / "events"),
            written=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        newest = staged.newest(place / "events")
        self._lake.publish(place, batch)
        self._lake.write_manifest(manifest)
        self._known.update((Path(segment.path).name, segment.path) for segment in manifest.segments)
        lag = None if newest is None else time.time() - newest
        self._progress.batch(manifest, seconds=time.monotonic() - began, lag=lag)

    def _present(self, paths: list[Path]) -> list[Path]:
        """The segments of a batch that are to be read."""
        chosen = [path for path in self._places(paths) if path.name not in self._known]
        for path in chosen:
            if not is_segment(path):
                self._progress.warn(f"{path} has not the name of a segment and is left out.")
            elif not path.exists():
                if not self._order.skip_missing:
                    raise _missing(path)
                self._progress.warn(f"the segment {path} has been deleted before it was read; its lines are missing.")
        return self._there(chosen)

    def _places(self, paths: list[Path]) -> list[Path]:
        return [self._journal / path.parent.name / path.name for path in paths]  # the journal may have been moved

    def _there(self, paths: list[Path]) -> list[Path]:
        return [path for path in self._places(paths) if is_segment(path) and path.exists()]

    def _stage(self, spark: SparkSession, lines: dict[Path, int], place: Path, *, odd: bool) -> staged.Counts:
        """Write the rows of a batch's segments; ``odd``: the quick way may overlook something in them."""
        if not lines:
            return staged.Counts({}, {})
        paths = [f"file://{_as_glob(path)}" for path in lines]
        wanted: dict[str, int] = {}
        for path, count in lines.items():
            wanted[path.name] = wanted.get(path.name, 0) + count
        bad = odd or stage_events(spark, paths, place)
        found = staged.Counts({} if odd else staged.per_file(place / "events"), {})
        if bad or found.events != {name: count for name, count in wanted.items() if count}:
            found = self._stage_thoroughly(spark, paths, place)
        if found.lines() != sum(wanted.values()):
            raise PipelineError(
                f"the rows of a batch are not as many as its lines ({found.lines()}, {sum(wanted.values())}); nothing "
                "of it was kept. Was a finished segment written to? The journal's files must not be changed."
            )
        if found.events:
            stage_rollup(spark, place)
        return found

    def _stage_thoroughly(self, spark: SparkSession, paths: list[str], place: Path) -> staged.Counts:
        remove(place / "events")
        read = thorough(spark, paths)
        _write_events(events_of(read), place)
        seen = F.lit(datetime.now(UTC))
        _write(bad_lines_of(read).withColumn("seen", seen).coalesce(1), place / "bad_lines", "d")
        return staged.Counts(staged.per_file(place / "events"), staged.per_file(place / "bad_lines"))

    # ------------------------------------------------------------ the other tables

    def _pending(self) -> list[Manifest]:
        done = self._lake.refreshed()
        return [self._lake.read_manifest(number) for number in self._lake.batch_numbers() if number > done]

    def _refresh_is_due(self) -> bool:
        last = self._refreshed_at
        if last is not None and time.monotonic() - last < _BETWEEN_REFRESHES:
            return False
        return any(number > self._lake.refreshed() for number in self._lake.batch_numbers())

    def _refresh(self, spark: SparkSession) -> None:
        """Compute again what follows from events, for the days of batches that are not in it yet."""
        from gateway.pipeline.tables import refresh  # noqa: PLC0415 - the benchmark measures a run without

        with self._busy:
            pending = self._pending()
            if not pending:
                return
            began = time.monotonic()
            days = {day for manifest in pending for day in manifest.days}
            session_days = {day for manifest in pending for day in manifest.session_days}
            if days or session_days:
                refresh(
                    spark,
                    self._lake,
                    sorted(days),
                    sorted(session_days),
                    idle_after=self._order.idle_after,
                    abandoned_after=self._order.abandoned_after,
                )
                self._progress.tables(len(days), time.monotonic() - began)
            self._lake.set_refreshed(pending[-1].batch)
            self._refreshed_at = time.monotonic()


def stage_events(spark: SparkSession, paths: list[str], place: Path) -> int:
    """Write what is good of segments as rows of ``events``, in a hurry.

    Args:
        spark: where.
        paths: of the segments, as Spark takes them.
        place: of the batch.

    Returns:
        How many lines were seen to be bad. Blank ones, and arrays, are not among them.
    """
    watched = Observation()
    _write_events(events_of(quick(spark, paths).observe(watched, F.count("reason").alias("bad"))), place)
    return int(watched.get["bad"])


def stage_rollup(spark: SparkSession, place: Path) -> None:
    """Write the roll-up of the events that have been staged.

    Args:
        spark: where.
        place: of the batch.
    """
    rows = spark.read.schema(f"{EVENTS_SCHEMA}, d string, level string").parquet(f"file://{_as_glob(place)}/events")
    _write(roll_up(rows), place / "rollup_10s", "d")


def _missing(path: Path) -> PipelineError:
    return PipelineError(
        f"the segment {path} was to be read and has been deleted. Put it back, or go on without it: --skip-missing."
    )


def _as_glob(path: Path) -> str:
    """A path as Spark's globs take it: nothing in it is a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path))


def _write_events(events: DataFrame, place: Path) -> None:
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in DISTINCT}
    _write(events, place / "events", *PARTITIONS, options=plain)


def _write(rows: DataFrame, place: Path, *partitions: str, options: dict[str, str] | None = None) -> None:
    writer = rows.write.mode("overwrite").option("compression", "zstd").options(**(options or {}))
    writer.partitionBy(*partitions).parquet(f"file://{place}")
