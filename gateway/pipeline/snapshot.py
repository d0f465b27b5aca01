"""Which batch directories belong to the lake. There is one rule, and every reader of a batch table follows it.

A *partition* is a directory that holds batches: ``events/d=<day>/level=<level>``, ``rollup_10s/d=<day>``,
``bad_lines/d=<day>``. A directory in a partition belongs to the lake if and only if one of these is true:

* It is called ``batch=<id>``, there is a manifest ``_batches/<id>.json``, and no compaction lists that id for the
  partition.
* It is called ``batch=c<first>-<last>``, there is a manifest ``_batches/c<first>-<last>.json`` of a compaction that
  lists the partition, and no other compaction lists the partition with all of the same ids and more.

And ``_retired/<day>.json`` does not list it as removed. Anything else was left behind by a command that was killed, and
the next run of that command removes or replaces it.

So one rename, of the compaction's manifest, makes the compacted directory valid and its sources invalid. This manifest
is ``{"version": 1, "compacted": [all ids], "places": {partition: [ids in it]}, "written": "<ISO time>"}``. Manifests of
single batches are never deleted: they say which segments were ingested.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gateway.errors import PipelineError
from gateway.pipeline.parquet_lake import Manifest, ParquetLake, listed, write_whole

_BATCH: Final = re.compile(r"[0-9]{8,}")
_COMPACTED: Final = re.compile(r"c[0-9]{8,}-[0-9]{8,}")
_PREFIX: Final = "batch="
_ContentT = TypeVar("_ContentT")


class Compaction(Struct):
    """The manifest of a compaction: the batches in it, and those of each partition (``places``)."""

    compacted: list[int]
    places: dict[str, list[int]]
    version: int = 1
    written: str = ""


class RetiredDay(Struct):
    """The events of a day that were deleted: ``_retired/<day>.json``."""

    day: str
    boots: dict[str, list[tuple[int, int]]]
    """Ranges of line numbers by boot, both ends included."""
    rows: int = 0
    removed: list[str] = []
    """Directories, relative to the day's."""
    written: str = ""

    def merged(self, other: RetiredDay) -> RetiredDay:
        """Both together."""
        boots = {
            boot: sorted([*self.boots.get(boot, []), *other.boots.get(boot, [])])
            for boot in {**self.boots, **other.boots}
        }
        removed = sorted({*self.removed, *other.removed})
        return RetiredDay(self.day, boots, self.rows + other.rows, removed, other.written)


@dataclass
class LakeSnapshot:
    """The manifests of a lake at one moment, and so which batch directories belong to it."""

    lake: ParquetLake
    manifests: dict[int, Manifest] = field(default_factory=dict)
    compactions: dict[str, Compaction] = field(default_factory=dict)
    retired: dict[str, RetiredDay] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Manifests that cannot be read, and why."""

    @classmethod
    def read(cls, lake: ParquetLake) -> LakeSnapshot:
        """Read all manifests of a lake. Raises PipelineError if a directory cannot be listed."""
        found = cls(lake)
        for path in _json_files(lake.batches):
            if _BATCH.fullmatch(path.stem):
                manifest = found._decode(path, Manifest)
                if manifest:
                    found.manifests[int(path.stem)] = manifest
            elif _COMPACTED.fullmatch(path.stem):
                compaction = found._decode(path, Compaction)
                if compaction:
                    found.compactions[path.stem] = compaction
        for path in _json_files(lake.retired):
            retired = found._decode(path, RetiredDay)
            if retired:
                found.retired[path.stem] = retired
        return found

    def _decode(self, path: Path, kind: type[_ContentT]) -> _ContentT | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, OSError) as error:
            self.unreadable[path] = str(error)
            return None

    def require_readable(self) -> None:
        """Raise PipelineError if a manifest cannot be read: without it, nobody knows what may be deleted."""
        for path, reason in self.unreadable.items():
            raise PipelineError(f"cannot read {path}: {reason}. Restore it, or see what `pipeline check` says.")

    def partitions(self, table: str) -> list[Path]:
        """All partitions of a table, the earliest day first."""
        days = _directories(self.lake.table(table), "d=")
        return [level for day in days for level in _directories(day, "level=")] if table == "events" else days

    def batches_in(self, partition: Path) -> list[Path]:
        """The directories of a partition that belong to the lake, the earliest batch first."""
        found = [path for path in _directories(partition, _PREFIX) if self.is_current(path)]
        return sorted(found, key=lambda path: (self.ids(path)[0], path.name))

    def is_current(self, path: Path) -> bool:
        """Whether a batch directory belongs to the lake."""
        ids = self.ids(path)
        return bool(ids) and not self.is_superseded(path) and not self.is_retired(path)

    def ids(self, path: Path) -> list[int]:
        """The batches whose rows are in a directory; empty if it has no manifest."""
        name = path.name.removeprefix(_PREFIX)
        if _BATCH.fullmatch(name):
            return [int(name)] if int(name) in self.manifests else []
        compaction = self.compactions.get(name)
        return sorted(compaction.places.get(self.key(path.parent), [])) if compaction else []

    def is_superseded(self, path: Path) -> bool:
        """Whether a larger compacted directory has the rows of this one too."""
        name, partition, ids = path.name.removeprefix(_PREFIX), self.key(path.parent), set(self.ids(path))
        return any(
            other != name and (ids < set(listed_ids) or (bool(_BATCH.fullmatch(name)) and ids <= set(listed_ids)))
            for other, compaction in self.compactions.items()
            if (listed_ids := compaction.places.get(partition))
        )

    def is_retired(self, path: Path) -> bool:
        """Whether a directory is listed as removed because its day is too old; it may still exist."""
        day = self.day_of(path)
        retired = self.retired.get(day)
        if retired is None or path.relative_to(self.lake.root).parts[0] != "events":
            return False
        return str(path.relative_to(self.lake.table("events") / f"d={day}")) in retired.removed

    def day_of(self, path: Path) -> str:
        """The day of a partition, or of a directory in one."""
        # Relative to the lake, which may itself lie below a directory called ``d=...``.
        return next(part[2:] for part in path.relative_to(self.lake.root).parts if part.startswith("d="))

    def key(self, partition: Path) -> str:
        """The name of a partition in manifests."""
        return partition.relative_to(self.lake.root).as_posix()


def parquet_files(directory: Path) -> list[Path]:
    """The files of a batch directory, in the order in which they were written."""
    return [path for path in listed(directory) if path.suffix == ".parquet" and not path.name.startswith(("_", "."))]


def total_size(directories: list[Path]) -> int:
    """The size of the Parquet files of some batch directories, in bytes."""
    return sum(path.stat().st_size for directory in directories for path in parquet_files(directory))


def _json_files(directory: Path) -> list[Path]:
    return [path for path in listed(directory) if path.suffix == ".json"]


def _directories(directory: Path, prefix: str) -> list[Path]:
    return [path for path in listed(directory) if path.name.startswith(prefix) and path.is_dir()]


def write_json(path: Path, content: Struct) -> None:
    """Write a JSON file in one step; see `write_whole`."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content)))


def timestamp() -> str:
    """The current time for a manifest, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def exclusive_write(lake: ParquetLake) -> Iterator[None]:
    """Hold the write lock of an existing lake.

    Raises PipelineError if another process holds it, there is no lake, or a directory of it cannot be listed.
    """
    lake.must_exist()
    with lake.locked():
        lake.must_be_listable()
        yield


def is_being_written(lake: ParquetLake) -> bool:
    """Whether another process holds the lake's write lock."""
    try:
        with (lake.root / "_lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file yet, or it cannot be read
        return False
    return False
