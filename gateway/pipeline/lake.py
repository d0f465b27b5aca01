"""The lake: a directory or URL with one Delta table for each name in `COLUMNS`.

Commits are Delta's: a reader sees a snapshot, and a commit that another one has made wrong fails and is tried again.
Every commit of a batch carries the batch's number as Delta's transaction identifier, so a table has a batch once. Delta
refuses one of two commits at once that carry an identifier of one application, and all of ours are one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.table_schemas import BATCH_TABLES, COLUMNS, partitions_of, schema_of

OLD_MANIFESTS: Final = "_batches"
"""The directory by which a lake of the releases before Delta is known."""

T = TypeVar("T")

_APPLICATION: Final = "stomp-gateway"
_REFUSED: Final = "[]%\\"
"""Characters that delta-rs does not take in a path."""

_DISK_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_NO_PERMISSION: Final = ("Permission denied", "Operation not permitted", "Read-only file system")

_ATTEMPTS: Final = 50
"""How often a commit is tried. Each failure means that another commit succeeded."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in a table's directory: its path there, size, time of modification in ms, rows and partition."""

    path: str
    size: int
    modified: int
    rows: int
    partition: Mapping[str, str]

    def as_action(self) -> AddAction:
        """What adds it to the table."""
        stats = json.dumps({"numRecords": self.rows})
        return AddAction(quote(self.path, safe="/="), self.size, self.partition, self.modified, True, stats)


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
    """A lake.

    Args:
        url: a directory, or a URL that delta-rs reaches, such as ``s3://bucket/lake``.
        storage_options: for delta-rs; None: the usual variables of the environment.
    """

    def __init__(self, url: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
        self.url = location(str(url))
        self.is_remote = "://" in self.url
        if any(character in self.url for character in _REFUSED):
            raise UsageError(f"--lake {self.url}: a lake's path cannot have square brackets, backslashes or %.")
        self._storage_options = dict(storage_options) if storage_options is not None else None

    def __str__(self) -> str:
        return self.url

    def table_url(self, table: str) -> str:
        """Where a table is."""
        return f"{self.url}/{table}"

    def table(self, table: str) -> DeltaTable | None:
        """The newest snapshot of a table; None before its first commit."""
        with self.explained():
            try:
                return DeltaTable(self.table_url(table), storage_options=self._storage_options)
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
                    storage_options=self._storage_options,
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

    def files(self, table: str, days: Collection[str] | None = None, level: str | None = None) -> list[str]:
        """The paths or URLs of a table's data files.

        Args:
            table: its name.
            days: only of these days.
            level: only of this level, for ``events``.
        """
        found = self.table(table)
        if found is None or (days is not None and not days):
            return []
        wanted = [] if days is None else [f"d in ({', '.join(map(repr, sorted(days)))})"]
        wanted += [] if level is None else [f"level = '{level}'"]
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
        """The answer to an SQL query (DataFusion's dialect) over all tables; one that is not there yet is empty.

        Raises PipelineError if the query is wrong or the lake cannot be read.
        """
        return self.snapshot(query).sql(query)

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
        rows = self.sql(query)
        return [(row["batch"], row["directory"]) for row in rows.to_pylist()]

    def commit_files(
        self, table: str, files: Sequence[DataFile], batch: int, *, days: Collection[str] | None = None
    ) -> bool:
        """Add files to a table in one step, as a batch's; with ``days`` in place of those days' files.

        A table without days is replaced as a whole by ``days=()``. Returns whether it did; False if the table has this
        batch, or a later one, already.
        """
        schema, partitions = Schema.from_arrow(schema_of(table)), partitions_of(table)
        actions: list[AddAction | RemoveAction] = [file.as_action() for file in files]
        mode: Literal["append", "overwrite"] = "append" if days is None else "overwrite"
        replaced = [("d", "in", sorted(days))] if days is not None and partitions else None

        def commit(delta: DeltaTable, properties: CommitProperties) -> None:
            delta.create_write_transaction(actions, mode, schema, partitions, replaced, commit_properties=properties)

        return self._commit(table, batch, commit)

    def position(self, table: str, reader: str) -> int | None:
        """How far a reader of another log has come that writes into a table; None if it never has."""
        found = self.table(table)
        return None if found is None else found.transaction_version(reader)

    def commit_from(self, table: str, files: Sequence[DataFile], reader: str, start: int | None, end: int) -> bool:
        """Add files to a table, and the new `position` of their reader, in one step.

        Returns whether it did; False if the reader is not at ``start`` any more, since another one like it has written.
        """
        schema, partitions = Schema.from_arrow(schema_of(table)), partitions_of(table)
        actions: list[AddAction | RemoveAction] = [file.as_action() for file in files]
        properties = CommitProperties(app_transactions=[Transaction(reader, end)])

        def attempt(delta: DeltaTable) -> bool:
            if delta.transaction_version(reader) != start:
                return False
            delta.create_write_transaction(actions, "append", schema, partitions, commit_properties=properties)
            return True

        return self.tried(table, attempt)

    def write_rows(self, table: str, rows: pa.Table, batch: int) -> bool:
        """Add rows, which have at least the table's columns in any order. Otherwise as `commit_files`.

        Columns that the table lacks, since an earlier release has made it, are added.
        """
        rows = rows.select(schema_of(table).names).cast(schema_of(table))

        def commit(delta: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(delta, rows, mode="append", schema_mode="merge", commit_properties=properties)

        return self._commit(table, batch, commit)

    def _commit(self, table: str, batch: int, commit: Callable[[DeltaTable, CommitProperties], None]) -> bool:
        properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, batch)])

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
                    return attempt(self.create(table))
                except CommitFailedError:
                    time.sleep(random.random() / 20)  # noqa: S311 - so that two do not meet again and again
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
    """What to say about the text of an error that has a common cause, in a place."""
    if any(words in text for words in _DISK_FULL):
        return (
            f"no space is left for {place}. Make room and run the same command again: it goes on where this one ended, "
            "and nothing is counted twice."
        )
    if any(words in text for words in _NO_PERMISSION):
        return f"no permission to write or read {place}. Run as a user with permission, or give another directory."
    return None


def last_batch(table: DeltaTable | None) -> int:
    """The number of the last batch that a snapshot of a table has; -1 for none."""
    found = None if table is None else table.transaction_version(_APPLICATION)
    return -1 if found is None else found
