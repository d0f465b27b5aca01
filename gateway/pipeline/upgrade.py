"""Takes over a lake of the releases before Delta: directories of Parquet files, of which manifests say which count.

The new lake is made beside the old one and takes its place at the end, so a killed upgrade is begun again. What was
recorded is copied with today's names. The next ingest computes the other tables; of days whose events were deleted it
cannot, so those tables' rows are copied, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import PipelineError
from gateway.journal.schema import EVENT_WORDS
from gateway.journal.segments import SegmentName
from gateway.pipeline.check_lines import count, sums_of_range, wrapped
from gateway.pipeline.lake import OLD_MANIFESTS, Lake
from gateway.pipeline.table_schemas import schema_of

Row = dict[str, Any]

_PARTITIONS: Final = {"events": "d=*/level=*", "rollup_10s": "d=*", "bad_lines": "d=*"}
_KEPT_OF_DELETED_DAYS: Final = ("boots", "sessions", "features_used", "durable_days")
_COMMIT_ROWS: Final = 1 << 20
"""About how many rows a commit copies; they are in memory at once."""


def upgrade(lake: Path, out: TextIO) -> None:
    """Put a lake of Delta tables in the place of an old one, which is kept beside it under another name.

    Raises PipelineError if there is no old lake, it cannot be read, or rows of it are missing.
    """
    new, before = (lake.with_name(f"{lake.name}.{what}") for what in ("new", "before-upgrade"))
    if not lake.exists() and before.exists() and new.exists():  # killed between the two renames
        new.rename(lake)
    elif not (lake / OLD_MANIFESTS).is_dir():
        raise PipelineError(f"there is no lake of an older release at {lake}.")
    elif (lake / "segments/_delta_log").exists():
        raise PipelineError(
            f"{lake} has tables of this release among those of an older one. Move the directories _delta_log and data "
            "of each table elsewhere, and run `pipeline upgrade` again."
        )
    else:
        if new.exists():
            shutil.rmtree(new)  # of an upgrade that was killed
        _Copy(_OldLake(lake), Lake(new), out).run()
        lake.rename(before)
        new.rename(lake)
    print(f"done. Run `pipeline ingest` and `pipeline check`; then {before} may be deleted.", file=out)


class _OldLake:
    """An old lake: its manifests, and the files that count."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = {path.stem: _read_json(path) for path in sorted((root / OLD_MANIFESTS).glob("*.json"))}
        self.manifests = {int(stem): content for stem, content in found.items() if stem.isdigit()}
        self._compactions = {stem: content["places"] for stem, content in found.items() if not stem.isdigit()}
        self.deleted = {path.stem: _read_json(path) for path in sorted((root / "_retired").glob("*.json"))}

    def files(self, table: str) -> Iterator[tuple[Path, dict[str, str]]]:
        """The files of a table that grew by batches, each with its partition."""
        for partition in sorted((self.root / table).glob(_PARTITIONS[table])):
            where = partition.relative_to(self.root).as_posix()
            names = dict(part.split("=", 1) for part in partition.relative_to(self.root / table).parts)
            for directory in sorted(partition.glob("batch=*")):
                if self._counts(where, directory.name.removeprefix("batch="), names):
                    yield from ((path, names) for path in sorted(directory.glob("[!._]*.parquet")))

    def _counts(self, where: str, batch: str, names: dict[str, str]) -> bool:
        """Whether a batch's directory belongs to the lake: by its manifest, and not replaced, nor deleted."""
        removed = self.deleted.get(names["d"], {}).get("removed", ())
        if where.startswith("events/") and f"level={names['level']}/batch={batch}" in removed:
            return False
        merged = {name: {*places[where]} for name, places in self._compactions.items() if where in places}
        if batch in merged:
            return not any(merged[batch] < others for others in merged.values())
        return (
            batch.isdigit() and int(batch) in self.manifests and not any(int(batch) in ids for ids in merged.values())
        )

    def rows(self, table: str) -> int:
        """How many rows of a table that grew by batches its manifests tell of."""
        added: int = sum(each["rollup_rows" if table == "rollup_10s" else table] for each in self.manifests.values())
        return added - (sum(each["rows"] for each in self.deleted.values()) if table == "events" else 0)

    def computed(self, table: str, day: str) -> pa.Table | None:
        """The rows of a computed table's day."""
        path = self.root / table / f"d={day}" / f"{table}.parquet"
        return pq.ParquetFile(path).read() if path.exists() else None


class _Copy:
    """One copy of an old lake."""

    def __init__(self, old: _OldLake, lake: Lake, out: TextIO) -> None:
        self._old = old
        self._lake = lake
        self._out = out

    def run(self) -> None:
        """Copy everything."""
        last = max(1, *(self._copy(table) for table in _PARTITIONS))
        segments = self._segments(last)
        self._write("segments", segments, last)
        self._write("deleted_lines", self._deleted_lines(segments), 0)
        for table in _KEPT_OF_DELETED_DAYS:
            found = ((day, self._old.computed(table, day)) for day in self._old.deleted)
            rows = [_renamed(table, rows, {"d": day}) for day, rows in found if rows is not None]
            if rows:
                self._lake.write_rows(table, pa.concat_tables(rows), 0)
        for table in _PARTITIONS:  # all have the same last batch then
            self._lake.commit_files(table, [], last)

    def _copy(self, table: str) -> int:
        """Copy a table, some files at a time; returns a number above those of its commits."""
        number, copied = 1, 0
        held: list[pa.Table] = []
        for path, partition in self._old.files(table):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 17):
                    held.append(_renamed(table, pa.Table.from_batches([batch]), partition))
                    copied += len(batch)
                    if sum(map(len, held)) >= _COMMIT_ROWS:
                        self._lake.write_rows(table, pa.concat_tables(held), number)
                        number, held = number + 1, []
        if held:
            self._lake.write_rows(table, pa.concat_tables(held), number)
        if copied != self._old.rows(table):
            raise PipelineError(
                f"the table {table} of the lake {self._old.root} has {copied:,} rows in place of "
                f"{self._old.rows(table):,}. Restore its files from a backup, and run `pipeline upgrade` again."
            )
        print(f"{table}: {copied:,} rows", file=self._out)
        return number + 1

    def _segments(self, batch: int) -> list[Row]:
        """The ingested segments. A segment begins with the number of lines that its boot has in earlier segments."""
        now = datetime.now(UTC)
        found: list[tuple[SegmentName, Row]] = []
        for manifest in self._old.manifests.values():
            for each in manifest["segments"]:
                day, _, file = each["path"].rpartition("/")
                if (name := SegmentName.read(file)) is not None:
                    row = {
                        "name": str(name), "impl": name.impl, "node": name.node, "boot": name.boot,
                        "lines": each["lines"], "bad": each.get("bad", 0), "days": manifest["days"],
                        "session_days": manifest["session_days"], "batch": batch, "directory": "", "ingested": now,
                        "d": day.removeprefix("d="),
                    }  # fmt: skip
                    found.append((name, row))
        next_line: dict[str, int] = {}
        for name, row in sorted(found, key=lambda pair: pair[0].number):
            row["first"] = next_line.get(name.boot, 0)
            next_line[name.boot] = row["first"] + row["lines"]
            row["last"] = next_line[name.boot] - 1
        return [row for _, row in found]

    def _deleted_lines(self, segments: list[Row]) -> list[Row]:
        """The lines of deleted days, which an old lake has by boot, by segment."""
        rows: list[Row] = []
        for day, content in self._old.deleted.items():
            for each in segments:
                ranges = content["boots"].get(each["boot"], ())
                parts = [(max(first, each["first"]), min(last, each["last"])) for first, last in ranges]
                parts = [(first, last) for first, last in parts if first <= last]
                if parts:
                    sums = [sum(values) for values in zip(*(sums_of_range(*part) for part in parts), strict=True)]
                    rows.append(
                        {
                            "file": each["name"], "boot": each["boot"], "d": day, "lines": count(parts),
                            "first": parts[0][0], "last": parts[-1][1],
                            **dict(zip(("sum1", "sum2", "sum3"), map(wrapped, sums), strict=True)),
                        }
                    )  # fmt: skip
        return rows

    def _write(self, table: str, rows: list[Row], batch: int) -> None:
        self._lake.write_rows(table, pa.Table.from_pylist(rows, schema_of(table)), batch)


def _renamed(table: str, rows: pa.Table, partition: dict[str, str]) -> pa.Table:
    """Old rows with the columns and words of today; a column that old rows lack is null."""
    columns = {{"user": "login"}.get(name, name): rows[name] for name in rows.column_names}
    if table in ("events", "rollup_10s"):
        columns["event"] = _words(columns["event"])
    for name, value in partition.items():
        columns[name] = pa.array([value] * len(rows), pa.string())
    schema = schema_of(table)
    return pa.table({each.name: columns.get(each.name, pa.nulls(len(rows), each.type)) for each in schema}, schema)


def _words(events: pa.ChunkedArray) -> pa.ChunkedArray:
    for short, word in EVENT_WORDS.items():
        events = pc.if_else(pc.equal(events, short), word, events)
    return events


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PipelineError(f"the manifest {path} cannot be read: {error}") from error
    return found
