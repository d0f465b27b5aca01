"""Many small batch directories of a day into one: fewer files, the same rows.

Each place (see ``gateway.pipeline.published``) is compacted by itself, in steps that can stop anywhere:

1. ``_compaction.json``: what is about to be done.
2. The merged files, under ``_staging/compact``; then renamed to the place, where nobody believes in them yet.
3. The compaction's manifest. From this moment on the merged directory belongs to the lake, and its sources do not.
4. The sources are removed, and so is ``_compaction.json``.

`recover` finishes (after 3) or undoes (before 3) what was left off; everything that writes into a lake begins with it.
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
from gateway.pipeline.lake import BATCH_TABLES, Lake, remove, sync_directory
from gateway.pipeline.published import (
    Compaction,
    Published,
    now_in_words,
    parquet_files,
    write_json,
    writing,
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


def compact(lake: Lake, out: TextIO, *, quiet: bool = False) -> None:
    """Merge the batch directories of each day of each table that has more than one.

    Args:
        lake: in which.
        out: where to say what was done.
        quiet: do not say it.

    Raises:
        PipelineError: another process writes into the lake, or something in it cannot be read.
    """
    out = StringIO() if quiet else out
    with writing(lake):
        recover(lake, out)
        Published.of(lake).require_readable()
        done = 0
        for table in BATCH_TABLES:
            for place in Published.of(lake).places(table):
                done += _compact_place(lake, table, place, out)
        print("nothing to compact" if not done else f"{done} places compacted", file=out)


def recover(lake: Lake, out: TextIO) -> None:
    """Finish or undo a compaction that was left off; does nothing when there is none. Call it with the lake's lock.

    Raises:
        PipelineError: what was left cannot be read.
    """
    path = intent_path(lake)
    try:
        intent = msgspec.json.decode(path.read_bytes(), type=Intent)
    except FileNotFoundError:
        remove(_workshop(lake))
        return
    except msgspec.DecodeError as error:
        raise PipelineError(f"cannot read {path}: {error}. Restore it, or ask whoever changed it.") from error
    now = Published.of(lake)
    now.require_readable()
    target = lake.root / intent.place / intent.target
    if now.belongs(target):
        _finish(lake, intent)
        print(f"finished the compaction of {intent.place} that was left off", file=out)
    else:
        remove(target)
        remove(_workshop(lake))
        _forget(lake)
        print(f"undid the compaction of {intent.place} that was left off", file=out)


def intent_path(lake: Lake) -> Path:
    """Where a compaction says what it is about."""
    return lake.root / "_compaction.json"


def _workshop(lake: Lake) -> Path:
    return lake.staging / "compact"


def _compact_place(lake: Lake, table: str, place: Path, out: TextIO) -> bool:
    now = Published.of(lake)
    sources = now.in_place(place)
    if len(sources) < 2:  # noqa: PLR2004 - nothing to merge
        return False
    batches = sorted({batch for source in sources for batch in now.ids(source)})
    name = f"c{batches[0]:08d}-{batches[-1]:08d}"
    intent = Intent(table, now.day_of(place), now.key(place), [path.name for path in sources], f"batch={name}", batches)
    octets = _octets(sources)
    write_json(intent_path(lake), intent)
    draft = _workshop(lake) / intent.target
    rows = (_merge_rollup if table == "rollup_10s" else _merge)(sources, draft)
    target = place / intent.target
    remove(target)  # an orphan of the same name; what belongs to the lake is never called so
    os.rename(draft, target)
    sync_directory(place)
    _publish(now, intent, name)
    _finish(lake, intent)
    change = f"{rows:,} rows, {octets:,} to {_octets([target]):,} octets"
    print(f"{intent.place}: {len(sources)} directories into one, {change}", file=out)
    return True


def _publish(now: Published, intent: Intent, name: str) -> None:
    known = now.compactions.get(name)
    places = (known.places if known else {}) | {intent.place: intent.batches}
    every = sorted({batch for batches in places.values() for batch in batches})
    write_json(now.lake.batches / f"{name}.json", Compaction(every, places, 1, now_in_words()))


def _finish(lake: Lake, intent: Intent) -> None:
    """Remove what a published compaction replaced."""
    place = lake.root / intent.place
    for source in intent.sources:
        _withdraw(place / source, _workshop(lake) / f"replaced-{source}")
    sync_directory(place)
    remove(_workshop(lake))
    _forget(lake)


def _withdraw(directory: Path, aside: Path) -> None:
    """Take a directory out of the lake in one step, so that no reader meets half of it."""
    if directory.is_dir():
        aside.parent.mkdir(parents=True, exist_ok=True)
        remove(aside)
        os.rename(directory, aside)
        remove(aside)


def _forget(lake: Lake) -> None:
    os.unlink(intent_path(lake))
    sync_directory(lake.root)


def _octets(directories: list[Path]) -> int:
    return sum(path.stat().st_size for directory in directories for path in parquet_files(directory))


def _merge(sources: list[Path], target: Path) -> int:
    """Write the rows of some directories into one, in their order.

    Returns:
        How many.
    """
    files = [path for source in sources for path in parquet_files(source)]
    schema = _common_schema(files)
    with _Writer(target, schema) as writer:
        for path in files:
            for batch in _batches(path):
                writer.write(_fitted(pa.Table.from_batches([batch]), schema))
    expected = sum(pq.read_metadata(path).num_rows for path in files)
    if writer.rows != expected:
        raise PipelineError(
            f"{target} has {writer.rows} rows, where its sources have {expected}. Nothing was replaced."
        )
    return writer.rows


def _merge_rollup(sources: list[Path], target: Path) -> int:
    """Write the sums of some directories of the roll-up into one.

    Returns:
        How many rows there are now.
    """
    files = [path for source in sources for path in parquet_files(source)]
    schema = _common_schema(files)
    total = pa.Table.from_batches([], schema)
    held: list[pa.Table] = []
    n_before = 0.0
    for path in files:
        for batch in _batches(path):
            held.append(_fitted(pa.Table.from_batches([batch]), schema))
            n_before += pc.sum(batch.column("n")).as_py() or 0.0
            if sum(map(len, held)) > max(_ROWS_BEFORE_SUMMING, len(total)):
                total, held = _summed(pa.concat_tables([total, *held])), []
    total = _summed(pa.concat_tables([total, *held]))
    n_after = pc.sum(total["n"]).as_py() or 0.0
    if abs(n_after - n_before) > 1e-9 * max(n_before, 1.0):
        raise PipelineError(f"{target} sums up to {n_after}, where its sources do to {n_before}. Nothing was replaced.")
    with _Writer(target, schema) as writer:
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
    """The columns of all files. Times are instants, in whatever way a file has them."""
    schemas = []
    for path in files:
        try:
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                schemas.append(pa.schema(pa.field(each.name, _instant(each.type)) for each in file.schema_arrow))
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"cannot read {path}: {error}. `pipeline check` says what is wrong.") from error
    return pa.unify_schemas(schemas, promote_options="permissive")


def _instant(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema; one that it lacks is null."""
    have = set(table.column_names)
    columns = [
        table[each.name].cast(each.type) if each.name in have else pa.nulls(len(table), each.type) for each in schema
    ]
    return pa.table(columns, schema=schema)


class _Writer:
    """Writes rows into the files of a new directory, each of which is on the disk when it is closed.

    Args:
        directory: is made; what was there is removed.
        schema: of the rows.
    """

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._directory = directory
        self._schema = schema
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._files: list[Path] = []
        self._in_file = 0

    def __enter__(self) -> _Writer:
        remove(self._directory)
        self._directory.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._close()
        sync_directory(self._directory)

    def write(self, table: pa.Table) -> None:
        """Write some rows."""
        self._held.append(table)
        self._held_rows += len(table)
        if self._held_rows >= _ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._files.append(self._directory / f"part-{len(self._files):05d}.parquet")
            self._writer = pq.ParquetWriter(self._files[-1], self._schema, compression="zstd")
        self._writer.write_table(pa.concat_tables(self._held))
        self.rows += self._held_rows
        self._in_file += self._held_rows
        self._held, self._held_rows = [], 0
        if self._in_file >= _ROWS_PER_FILE:
            self._close()

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer, self._in_file = None, 0
        with self._files[-1].open("rb") as file:
            os.fsync(file.fileno())
