"""Merges the small batch directories of a day into one: fewer files, the same rows.

Each partition (see ``gateway.pipeline.snapshot``) is compacted separately, in these steps. A kill may come after any:

1. ``_compaction.json`` says what is about to be done.
2. The merged files are written under ``_staging/compact``, then renamed into the partition. They do not count yet.
3. The compaction's manifest is written. From now on the merged directory belongs to the lake, and its sources do not.
4. The sources are removed, and so is ``_compaction.json``.

`recover` finishes (after 3) or undoes (before 3) an interrupted compaction; every command that writes into a lake calls
it first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final, TextIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from gateway.errors import PipelineError
from gateway.pipeline.parquet_lake import BATCH_TABLES, ParquetLake, remove, sync_directory
from gateway.pipeline.snapshot import (
    Compaction,
    LakeSnapshot,
    exclusive_write,
    parquet_files,
    timestamp,
    total_size,
    write_json,
)

_ROWS_PER_GROUP: Final = 1 << 18
_ROWS_PER_FILE: Final = 1 << 23
_ROWS_BEFORE_SUMMING: Final = 1 << 21


class Intent(Struct):
    """A compaction that was begun: ``_compaction.json``."""

    table: str
    day: str
    place: str
    sources: list[str]
    target: str
    batches: list[int]


def compact(lake: ParquetLake, out: TextIO, *, quiet: bool = False) -> None:
    """Merge the batch directories of every partition that has more than one; print a line for each unless `quiet`.

    Raises PipelineError if another process writes into the lake, or if something in it cannot be read.
    """
    out = StringIO() if quiet else out
    with exclusive_write(lake):
        recover(lake, out)
        LakeSnapshot.read(lake).require_readable()
        done = 0
        for table in BATCH_TABLES:
            for partition in LakeSnapshot.read(lake).partitions(table):
                done += _compact_partition(lake, table, partition, out)
        print("nothing to compact" if not done else f"{done} partitions compacted", file=out)


def recover(lake: ParquetLake, out: TextIO) -> None:
    """Finish or undo an interrupted compaction, if there is one. The caller holds the lake's lock.

    Raises PipelineError if ``_compaction.json`` or a manifest cannot be read.
    """
    path = intent_path(lake)
    try:
        intent = msgspec.json.decode(path.read_bytes(), type=Intent)
    except FileNotFoundError:
        remove(_work_directory(lake))
        return
    except msgspec.DecodeError as error:
        raise PipelineError(f"cannot read {path}: {error}. Restore it, or ask whoever changed it.") from error
    snapshot = LakeSnapshot.read(lake)
    snapshot.require_readable()
    target = lake.root / intent.place / intent.target
    if snapshot.is_current(target):
        _remove_sources(lake, intent)
        print(f"finished the compaction of {intent.place} that was interrupted", file=out)
    else:
        remove(target)
        remove(_work_directory(lake))
        _remove_intent(lake)
        print(f"undid the compaction of {intent.place} that was interrupted", file=out)


def intent_path(lake: ParquetLake) -> Path:
    """The file that describes a compaction under way."""
    return lake.root / "_compaction.json"


def _work_directory(lake: ParquetLake) -> Path:
    return lake.staging / "compact"


def _compact_partition(lake: ParquetLake, table: str, partition: Path, out: TextIO) -> bool:
    snapshot = LakeSnapshot.read(lake)
    sources = snapshot.batches_in(partition)
    if len(sources) < 2:  # noqa: PLR2004 - nothing to merge
        return False
    batches = sorted({batch for source in sources for batch in snapshot.ids(source)})
    name = f"c{batches[0]:08d}-{batches[-1]:08d}"
    key = snapshot.key(partition)
    intent = Intent(table, snapshot.day_of(partition), key, [path.name for path in sources], f"batch={name}", batches)
    size = total_size(sources)
    write_json(intent_path(lake), intent)
    draft = _work_directory(lake) / intent.target
    rows = (_merge_rollup if table == "rollup_10s" else _merge)(sources, draft)
    target = partition / intent.target
    remove(target)  # an orphan: no directory of this name can belong to the lake yet
    os.rename(draft, target)
    sync_directory(partition)
    _publish(snapshot, intent, name)
    _remove_sources(lake, intent)
    change = f"{rows:,} rows, {size:,} to {total_size([target]):,} bytes"
    print(f"{intent.place}: {len(sources)} directories into one, {change}", file=out)
    return True


def _publish(snapshot: LakeSnapshot, intent: Intent, name: str) -> None:
    known = snapshot.compactions.get(name)
    places = (known.places if known else {}) | {intent.place: intent.batches}
    every = sorted({batch for batches in places.values() for batch in batches})
    write_json(snapshot.lake.batches / f"{name}.json", Compaction(every, places, 1, timestamp()))


def _remove_sources(lake: ParquetLake, intent: Intent) -> None:
    partition = lake.root / intent.place
    for source in intent.sources:
        _remove_in_one_step(partition / source, _work_directory(lake) / f"replaced-{source}")
    sync_directory(partition)
    remove(_work_directory(lake))
    _remove_intent(lake)


def _remove_in_one_step(directory: Path, aside: Path) -> None:
    """Rename a directory out of the lake before it is deleted, so that no reader meets half of it."""
    if directory.is_dir():
        aside.parent.mkdir(parents=True, exist_ok=True)
        remove(aside)
        os.rename(directory, aside)
        remove(aside)


def _remove_intent(lake: ParquetLake) -> None:
    os.unlink(intent_path(lake))
    sync_directory(lake.root)


def _merge(sources: list[Path], target: Path) -> int:
    """Write the rows of some directories into one, in their order, and return how many."""
    files = [path for source in sources for path in parquet_files(source)]
    schema = _common_schema(files)
    with _PartWriter(target, schema) as writer:
        for path in files:
            for batch in _batches(path):
                writer.write(_conformed(pa.Table.from_batches([batch]), schema))
    expected = sum(pq.read_metadata(path).num_rows for path in files)
    if writer.rows != expected:
        raise PipelineError(
            f"{target} has {writer.rows} rows, where its sources have {expected}. Nothing was replaced."
        )
    return writer.rows


def _merge_rollup(sources: list[Path], target: Path) -> int:
    """Write the sums of some directories of the roll-up into one, and return how many rows it has."""
    files = [path for source in sources for path in parquet_files(source)]
    schema = _common_schema(files)
    total = pa.Table.from_batches([], schema)
    pending: list[pa.Table] = []
    n_before = 0.0
    for path in files:
        for batch in _batches(path):
            pending.append(_conformed(pa.Table.from_batches([batch]), schema))
            n_before += pc.sum(batch.column("n")).as_py() or 0.0
            if sum(map(len, pending)) > max(_ROWS_BEFORE_SUMMING, len(total)):
                total, pending = _summed(pa.concat_tables([total, *pending])), []
    total = _summed(pa.concat_tables([total, *pending]))
    n_after = pc.sum(total["n"]).as_py() or 0.0
    if abs(n_after - n_before) > 1e-9 * max(n_before, 1.0):
        raise PipelineError(f"{target} sums up to {n_after}, where its sources do to {n_before}. Nothing was replaced.")
    with _PartWriter(target, schema) as writer:
        for batch in total.to_batches(max_chunksize=_ROWS_PER_GROUP):
            writer.write(pa.Table.from_batches([batch]))
    return writer.rows


def _summed(table: pa.Table) -> pa.Table:
    keys = [name for name in table.column_names if name not in ("n", "bytes")]
    summed = table.group_by(keys, use_threads=False).aggregate([("n", "sum"), ("bytes", "sum")])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select(table.column_names).cast(table.schema)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        yield from file.iter_batches(batch_size=_ROWS_PER_GROUP // 4)


def _common_schema(files: list[Path]) -> pa.Schema:
    """The columns of all files; every timestamp in microseconds, UTC."""
    schemas = []
    for path in files:
        try:
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                schemas.append(pa.schema(pa.field(each.name, _in_utc(each.type)) for each in file.schema_arrow))
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"cannot read {path}: {error}. `pipeline check` says what is wrong.") from error
    return pa.unify_schemas(schemas, promote_options="permissive")


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema; those that it lacks are null."""
    have = set(table.column_names)
    columns = [
        table[each.name].cast(each.type) if each.name in have else pa.nulls(len(table), each.type) for each in schema
    ]
    return pa.table(columns, schema=schema)


class _PartWriter:
    """Writes rows into ``part-*.parquet`` files of a new directory, and syncs each file to disk."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._directory = directory
        self._schema = schema
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._files: list[Path] = []
        self._rows_in_file = 0

    def __enter__(self) -> _PartWriter:
        remove(self._directory)
        self._directory.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._close()
        sync_directory(self._directory)

    def write(self, table: pa.Table) -> None:
        self._pending.append(table)
        self._pending_rows += len(table)
        if self._pending_rows >= _ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._files.append(self._directory / f"part-{len(self._files):05d}.parquet")
            self._writer = pq.ParquetWriter(self._files[-1], self._schema, compression="zstd")
        self._writer.write_table(pa.concat_tables(self._pending))
        self.rows += self._pending_rows
        self._rows_in_file += self._pending_rows
        self._pending, self._pending_rows = [], 0
        if self._rows_in_file >= _ROWS_PER_FILE:
            self._close()

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer, self._rows_in_file = None, 0
        with self._files[-1].open("rb") as file:
            os.fsync(file.fileno())
