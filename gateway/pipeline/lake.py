"""The lake: a directory or URL with one Delta table for each name in `COLUMNS`.

Commits are Delta's: a reader sees a snapshot, and a commit that another one has made wrong fails and is tried again.
Every commit of a batch carries the batch's number as Delta's transaction identifier, so a table has a batch once. Delta
refuses one of two commits at once that carry an identifier of one application, and all of ours are one.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.table_schemas import BATCH_TABLES, COLUMNS, partitions_of, schema_of

OLD_MANIFESTS: Final = "_batches"
"""The directory by which a lake of the releases before Delta is known."""

T = TypeVar("T")

_APPLICATION: Final = "stomp-gateway"
_CLOSED: Final = "stomp-gateway closed"
"""Delta's identifier of how far the lake is closed, see `closed_before`."""
_REFUSED: Final = "[]%\\"
"""Characters that delta-rs does not take in a path."""

_LONGEST_BOUND: Final = 64
"""Characters of a text that is kept as the lowest or highest one of a file."""

_HOUR: Final = re.compile(r"/h=(\d\d)/")
"""The hour in the path of a file of `HOURLY_TABLES`."""

_WAITS: Final = "Nothing is lost or counted twice: what was done stays, and the rest waits."
_DISK_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_READ_ONLY: Final = "Read-only file system"
_NO_PERMISSION: Final = ("Permission denied", "Operation not permitted", "Mkdirs failed to create")

_ATTEMPTS: Final = 50
"""How often a commit is tried. Each failure means that another commit succeeded."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in a table's directory: its path there, size, time of modification in ms, rows and partition.

    ``statistics`` are those of Delta's log: the lowest and highest value and the number of nulls of columns.
    """

    path: str
    size: int
    modified: int
    rows: int
    partition: Mapping[str, str]
    statistics: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def as_action(self) -> AddAction:
        """The action of Delta's log that adds it to the table."""
        stats = json.dumps({"numRecords": self.rows, **self.statistics}, ensure_ascii=False)
        return AddAction(quote(self.path, safe="/="), self.size, self.partition, self.modified, True, stats)


def _files_of(table: DeltaTable) -> Iterator[tuple[str, str, str | None, int]]:
    """The path, day, hour and size of each file; the hour is None unless it has one hour of one of `HOURLY_TABLES`."""
    found = pa.table(table.get_add_actions(flatten=True))
    for path, day, size in zip(
        *(found[name].to_pylist() for name in ("path", "partition.d", "size_bytes")), strict=True
    ):
        hour = _HOUR.search(path)
        yield path, day, f"{day}T{hour[1]}" if hour else None, size


def _removed(table: DeltaTable, is_old: Callable[[str, str | None], bool]) -> Iterator[RemoveAction]:
    """The actions of Delta's log that remove a table's files of some days and hours."""
    now = time.time_ns() // 1_000_000
    for path, day, hour, size in _files_of(table):
        if is_old(day, hour):
            yield RemoveAction(path, True, now, size, {"d": day})


def _change(
    delta: DeltaTable, name: str, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties,
    days: Collection[str] | None = None,
) -> None:  # fmt: skip
    """Commit actions to a table; with ``days`` in place of its files of these days, see `Lake.commit_files`."""
    partitions = partitions_of(name)
    delta.create_write_transaction(
        [*actions], "append" if days is None else "overwrite", Schema.from_arrow(schema_of(name)), partitions,
        [("d", "in", sorted(days))] if days is not None and partitions else None, commit_properties=properties,
    )  # fmt: skip


def _statistics(file: pq.FileMetaData) -> dict[str, dict[str, object]]:
    """What a file's footer says of its columns, in the form of Delta's log: readers skip files by it.

    Columns without bounds in each row group, those of maps and lists, and long texts are left out.
    """
    lowest, highest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    columns = [file.row_group(0).column(place).path_in_schema for place in range(file.num_columns)]
    for place, name in enumerate(columns):
        found = [file.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
        if "." in name or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        some = [each for each in found if each.num_values]
        if some and all(each.has_min_max for each in some):
            bounds = _as_json(min(each.min for each in some)), _as_json(max(each.max for each in some))
            if None not in bounds:
                lowest[name], highest[name] = bounds
    return {"minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _data_file(table: str, file: fs.FileInfo, footer: pq.FileMetaData) -> DataFile:
    parts = dict(part.split("=", 1) for part in file.path.split("/")[2:-1])
    partition = {name: parts[name] for name in partitions_of(table)}
    return DataFile(file.path, file.size, file.mtime_ns // 1_000_000, footer.num_rows, partition, _statistics(footer))


def _as_json(bound: object) -> object:
    """A bound in the form of Delta's log; None if it is left out."""
    if isinstance(bound, datetime):
        return f"{bound:%Y-%m-%dT%H:%M:%S.%fZ}"
    is_kept = isinstance(bound, int) or (isinstance(bound, str) and len(bound) <= _LONGEST_BOUND)
    return bound if is_kept else None


def location(text: str) -> str:
    """A URL as it is, a directory of this machine as an absolute path.

    Raises UsageError for a ``file`` URL of another machine.
    """
    url = urlsplit(text)
    if url.scheme == "file":  # Hadoop's own spelling is file:/path
        if url.netloc:
            raise UsageError(f"{text}: a file URL has no machine; write file:///path, or only the path.")
        text = unquote(url.path)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


class Lake:
    """A lake: a directory, or a URL that delta-rs reaches, such as ``s3://bucket/lake``."""

    def __init__(self, url: str | Path) -> None:
        self.url = location(str(url))
        self.is_remote = "://" in self.url
        if any(character in self.url for character in _REFUSED):
            raise UsageError(f"--lake {self.url}: a lake's path cannot have square brackets, backslashes or %.")

    def __str__(self) -> str:
        return self.url

    def table_url(self, table: str) -> str:
        """Where a table is."""
        return f"{self.url}/{table}"

    def table(self, table: str) -> DeltaTable | None:
        """The newest snapshot of a table; None before its first commit."""
        with self.explained():
            try:
                return DeltaTable(self.table_url(table))
            except TableNotFoundError:
                return None

    def create(self, table: str) -> DeltaTable:
        """The newest snapshot of a table, which is created if it is not there."""
        found = self.table(table)
        if found is None:
            with self.explained(), suppress(CommitFailedError):  # another one has created it meanwhile
                return DeltaTable.create(
                    self.table_url(table),
                    Schema.from_arrow(schema_of(table)),
                    mode="ignore",
                    partition_by=partitions_of(table),
                )
            found = self.table(table)
        if found is None:
            raise PipelineError(f"the table {table} of {self} cannot be created.")
        return found

    def must_not_be_old(self) -> None:
        """Raise PipelineError if it is a lake of the releases before Delta."""
        if not self.is_remote and Path(self.url, OLD_MANIFESTS).is_dir():
            raise PipelineError(f"the lake {self} is of an older release: run `pipeline upgrade` first.")

    def must_exist(self) -> None:
        """Raise PipelineError if there is no lake, or one of an older release."""
        self.must_not_be_old()
        if self.table("segments") is None:
            raise PipelineError(f"there is no lake at {self}. Give the place that `pipeline ingest` wrote.")

    def files(self, table: str, days: Collection[str] | None = None, where: str = "") -> list[str]:
        """The paths or URLs of a table's data files; only of some ``days``, if they are given.

        With ``where``, a condition in SQL, only those which may have rows for which it holds, by Delta's statistics.
        """
        found = self.table(table)
        if found is None or (days is not None and not days):
            return []
        wanted = [] if days is None else [f"d in ({', '.join(map(repr, sorted(days)))})"]
        wanted += [where] if where else []
        with self.explained():
            uris = sorted(found.file_uris(file_pruning_predicate=" and ".join(wanted) or None))
        return uris if self.is_remote else [unquote(path) for path in uris]

    def days(self, table: str) -> list[str]:
        """The days of which a table has files."""
        found = self.table(table)
        return [] if found is None else sorted({partition["d"] for partition in found.partitions()})

    def snapshot(self, query: str | None = None) -> Snapshot:
        """All tables as they are now, in the order of `COLUMNS`: ``segments`` has all batches that others have.

        If it is for one query, tables that the query does not name are not looked for.
        """
        named = [table for table in COLUMNS if query is None or table in query.lower()]
        return Snapshot({table: self.table(table) for table in named})

    def sql(self, query: str) -> pa.Table:
        """The answer to an SQL query (DataFusion's dialect) over all tables. Raises PipelineError as `Snapshot.sql`."""
        return self.snapshot(query).sql(query)

    def written_files(self, table: str, directory: str) -> list[DataFile]:
        """The files below ``data/<directory>`` of a table that have rows, whether or not a commit names them.

        Their footers are read, so that no job has to count rows; a batch has a file for each task, day and level.
        """
        if not self.is_remote and not Path(self.table_url(table), "data", directory).is_dir():
            return []  # delta-rs would miss the table's directory, too
        with self.explained():
            storage = fs.PyFileSystem(DeltaStorageHandler(self.table_url(table)))
            below = storage.get_file_info(fs.FileSelector(f"data/{directory}", allow_not_found=True, recursive=True))
            files = (each for each in below if each.is_file and each.base_name.endswith(".parquet"))
            ordered = sorted(files, key=lambda file: file.path)
            footers = ((each, pq.read_metadata(each.path, filesystem=storage)) for each in ordered)
            return [_data_file(table, each, footer) for each, footer in footers if footer.num_rows]

    # ------------------------------------------------------------ batches

    def last_batch(self, table: str) -> int:
        """The number of the last batch that a table has, or was computed from; -1 for none."""
        return last_batch(self.table(table))

    def applied(self) -> int:
        """The number of the last batch that all of `BATCH_TABLES` have; -1 for none."""
        return min(map(self.last_batch, BATCH_TABLES))

    def unfinished(self) -> list[tuple[int, str]]:
        """The batches that are planned in ``segments`` and not in all of `BATCH_TABLES` yet, with their directories.

        Their files are there, and whoever finds them may commit them, in order.
        """
        applied = self.applied()
        if self.last_batch("segments") <= applied:
            return []
        query = f"select distinct batch, directory from segments where batch > {applied} order by batch"  # noqa: S608
        return [(row["batch"], row["directory"]) for row in self.sql(query).to_pylist()]

    def whole_days(self, table: str) -> set[str]:
        """The days of which one of `HOURLY_TABLES` has a file with all hours."""
        found = self.table(table)
        return set() if found is None else {day for _, day, hour, _ in _files_of(found) if hour is None}

    def commit_files(
        self,
        table: str,
        files: Sequence[DataFile],
        batch: int,
        *,
        days: Collection[str] | None = None,
        hours: Collection[str] | None = None,
    ) -> bool:
        """Add files to a table in one step, as a batch's; with ``days`` or ``hours`` in place of theirs.

        A table without days is replaced as a whole by ``days=()``. Hours are those of `HOURLY_TABLES`, such as
        2026-11-21T05; a file with all hours of a day is replaced with any of them. Returns whether it did; False if the
        table has this batch, or a later one, already.
        """
        added = [file.as_action() for file in files]
        old = {*(hours or ())}
        old |= {hour[:10] for hour in old}

        def commit(delta: DeltaTable, properties: CommitProperties) -> None:
            removed = _removed(delta, lambda day, hour: (hour or day) in old) if old else ()
            _change(delta, table, [*added, *removed], properties, days)

        return self._commit(table, batch, commit)

    def position(self, reader: str) -> int | None:
        """How far a reader of streams has come that writes into ``messages``; None if it never has."""
        found = self.table("messages")
        return None if found is None else found.transaction_version(reader)

    def commit_messages(self, files: Sequence[DataFile], reader: str, start: int | None, end: int) -> bool:
        """Add files to ``messages``, and the new `position` of their reader, in one step.

        Returns whether it did; False if the reader is not at ``start`` any more, since another one like it has written.
        """
        added = [file.as_action() for file in files]
        properties = CommitProperties(app_transactions=[Transaction(reader, end)])

        def attempt(delta: DeltaTable) -> bool:
            if delta.transaction_version(reader) != start:
                return False
            _change(delta, "messages", added, properties)
            return True

        return self.tried("messages", attempt)

    def close_days(self, day: str, batch: int) -> bool:
        """Refuse segments that were begun before a day from now on, and forget those from before its eve.

        A segment may lie in the directory of the day after, so entries of the eve are still needed. ``batch`` is a
        number of its own, which no plan can have. Otherwise as `commit_files`.
        """
        eve = f"{date.fromisoformat(day) - timedelta(days=1)}"
        closed = Transaction(_CLOSED, int(day.replace("-", "")))

        def commit(delta: DeltaTable, properties: CommitProperties) -> None:
            _change(delta, "segments", [*_removed(delta, lambda begun, _: begun < eve)], properties)

        return self._commit("segments", batch, commit, closed)

    def write_rows(self, table: str, rows: pa.Table, batch: int) -> bool:
        """Add rows, which have at least the table's columns in any order. Otherwise as `commit_files`."""
        rows = rows.select(schema_of(table).names).cast(schema_of(table))

        def commit(delta: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(delta, rows, mode="append", commit_properties=properties)

        return self._commit(table, batch, commit)

    def _commit(
        self, table: str, batch: int, commit: Callable[[DeltaTable, CommitProperties], None], *more: Transaction
    ) -> bool:
        properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, batch), *more])

        def attempt(delta: DeltaTable) -> bool:
            if last_batch(delta) >= batch:
                return False
            commit(delta, properties)
            return True

        return self.tried(table, attempt)

    def tried(self, table: str, attempt: Callable[[DeltaTable], T]) -> T:
        """Change a table, created if it is not there; anew from its newest snapshot after a commit of somebody else.

        Raises PipelineError if that does not end, or the lake cannot be read or written.
        """
        with self.explained():
            for _ in range(_ATTEMPTS):
                try:
                    found = self.create(table)
                    has = {column.name for column in found.schema().fields}
                    columns = Schema.from_arrow(schema_of(table)).fields
                    if lacking := [column for column in columns if column.name not in has]:
                        found.alter.add_columns(lacking)  # an earlier release has made it
                    return attempt(found)
                except CommitFailedError:
                    time.sleep(random.random() / 20)  # noqa: S311 - so that two do not collide again
        raise PipelineError(f"other commands write into the table {table} of {self} all the time. Try again later.")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of delta-rs into a PipelineError."""
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of this machine's files: the caller knows what to say about each number
            text = " ".join(str(error).split()) or type(error).__name__
            sentence = known_trouble(text, f"the lake {self}")
            raise PipelineError(sentence or f"the lake {self} cannot be read or written: {text[:500]}") from error


def known_trouble(text: str, place: object) -> str | None:
    """A sentence about an error at a place, if its text shows a common cause."""
    if any(words in text for words in _DISK_FULL):
        return f"no space is left for {place}. {_WAITS} Make room and run the same command again."
    if _READ_ONLY in text:
        return f"{place} is on a read-only file system. {_WAITS} Mount it for writing and run the same command again."
    if any(words in text for words in _NO_PERMISSION):
        return f"no permission to write or read {place}. {_WAITS} Run as another user, or give another directory."
    return None


def last_batch(table: DeltaTable | None) -> int:
    """The number of the last batch that a snapshot of a table has; -1 for none."""
    found = None if table is None else table.transaction_version(_APPLICATION)
    return -1 if found is None else found


def closed_before(segments: DeltaTable | None) -> str:
    """The first day of which a lake takes in segments, by a snapshot of ``segments``; empty if it takes in all."""
    found = None if segments is None else segments.transaction_version(_CLOSED)
    return "" if found is None else f"{date.fromisoformat(str(found))}"
