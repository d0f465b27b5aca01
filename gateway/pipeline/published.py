"""Which batch directories belong to the lake. There is one rule, and every reader of a batch table keeps to it.

A *place* is a directory that holds batches: ``events/d=<day>/level=<level>``, ``rollup_10s/d=<day>``,
``bad_lines/d=<day>``. A directory in a place belongs to the lake if and only if one of these is true:

* It is called ``batch=<id>``, there is a manifest ``_batches/<id>.json``, and no compaction names the place with that
  id.
* It is called ``batch=c<first>-<last>``, there is a manifest ``_batches/c<first>-<last>.json`` of a compaction that
  names the place, and no other compaction names the place with all of the same ids and more.

And it is not among those that ``_retired/<day>.json`` says were removed. Whatever else lies there was left by something
that was killed, and is removed or replaced by the next run of what left it.

So one rename of one manifest makes a compaction valid and its sources invalid, in one step. The manifest of a
compaction is ``{"version": 1, "compacted": [all ids], "places": {place: [ids in it]}, "written": "<ISO time>"}``.
Manifests of single batches stay for ever: they say which segments were ingested.
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
from gateway.pipeline.lake import BATCH_TABLES, Lake, Manifest, listed, write_whole

COMPACTION: Final = re.compile(r"c[0-9]{8,}-[0-9]{8,}")
"""What follows ``batch=`` in the name of a compacted directory."""

_BATCH: Final = re.compile(r"[0-9]{8,}")
_PREFIX: Final = "batch="
_ContentT = TypeVar("_ContentT")


class Compaction(Struct):
    """What a compacted directory is made of, place by place."""

    compacted: list[int]
    places: dict[str, list[int]]
    version: int = 1
    written: str = ""


class Retired(Struct):
    """The events of a day that were deleted."""

    day: str
    boots: dict[str, list[tuple[int, int]]]
    """Numbers by boot, from and to."""
    rows: int = 0
    removed: list[str] = []
    """Directories, relative to the day's."""
    written: str = ""

    def merged(self, other: Retired) -> Retired:
        """Both together."""
        boots = {
            boot: sorted([*self.boots.get(boot, []), *other.boots.get(boot, [])])
            for boot in {**self.boots, **other.boots}
        }
        removed = sorted({*self.removed, *other.removed})
        return Retired(self.day, boots, self.rows + other.rows, removed, other.written)


@dataclass
class Published:
    """What belongs to a lake at one moment."""

    lake: Lake
    manifests: dict[int, Manifest] = field(default_factory=dict)
    compactions: dict[str, Compaction] = field(default_factory=dict)
    retired: dict[str, Retired] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Manifests that say nothing, and why."""

    @classmethod
    def of(cls, lake: Lake) -> Published:
        """Read all manifests of a lake.

        Raises:
            PipelineError: a directory cannot be listed; what is in it would pass for not there.
        """
        found = cls(lake)
        for path in _json_files(lake.batches):
            if _BATCH.fullmatch(path.stem):
                manifest = found._read(path, Manifest)
                if manifest:
                    found.manifests[int(path.stem)] = manifest
            elif COMPACTION.fullmatch(path.stem):
                compaction = found._read(path, Compaction)
                if compaction:
                    found.compactions[path.stem] = compaction
        for path in _json_files(lake.retired):
            retired = found._read(path, Retired)
            if retired:
                found.retired[path.stem] = retired
        return found

    def _read(self, path: Path, kind: type[_ContentT]) -> _ContentT | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, OSError) as error:
            self.unreadable[path] = str(error)
            return None

    def require_readable(self) -> None:
        """Raise PipelineError if a manifest cannot be read: without it, nobody knows what may be deleted."""
        for path, reason in self.unreadable.items():
            raise PipelineError(f"cannot read {path}: {reason}. Restore it, or see what `pipeline check` says.")

    def places(self, table: str) -> list[Path]:
        """All places of a table, the earliest day first."""
        days = _directories(self.lake.table(table), "d=")
        return [level for day in days for level in _directories(day, "level=")] if table == "events" else days

    def in_place(self, place: Path) -> list[Path]:
        """The directories of a place that belong to the lake, the earliest batch first."""
        found = [path for path in _directories(place, _PREFIX) if self.belongs(path)]
        return sorted(found, key=lambda path: (self.ids(path)[0], path.name))

    def belongs(self, path: Path) -> bool:
        """Whether a batch directory belongs to the lake."""
        ids = self.ids(path)
        return bool(ids) and not self.superseded(path) and not self.is_retired(path)

    def ids(self, path: Path) -> list[int]:
        """The batches whose rows are in a directory; none when it has no manifest."""
        name = path.name.removeprefix(_PREFIX)
        if _BATCH.fullmatch(name):
            return [int(name)] if int(name) in self.manifests else []
        compaction = self.compactions.get(name)
        return sorted(compaction.places.get(self.key(path.parent), [])) if compaction else []

    def superseded(self, path: Path) -> bool:
        """Whether what is in a directory is also in a larger compacted one."""
        name, place, ids = path.name.removeprefix(_PREFIX), self.key(path.parent), set(self.ids(path))
        return any(
            other != name and (ids < set(named) or (bool(_BATCH.fullmatch(name)) and ids <= set(named)))
            for other, compaction in self.compactions.items()
            if (named := compaction.places.get(place))
        )

    def is_retired(self, path: Path) -> bool:
        """Whether a directory was removed, or ought to have been, because its day is too old."""
        day = self.day_of(path)
        retired = self.retired.get(day)
        if retired is None or path.relative_to(self.lake.root).parts[0] != "events":
            return False
        return str(path.relative_to(self.lake.table("events") / f"d={day}")) in retired.removed

    def day_of(self, path: Path) -> str:
        """The day of a place, or of a directory in one; the lake itself may lie below a ``d=...`` of somebody else."""
        return next(part[2:] for part in path.relative_to(self.lake.root).parts if part.startswith("d="))

    def key(self, place: Path) -> str:
        """What a manifest calls a place."""
        return place.relative_to(self.lake.root).as_posix()


def published(lake: Lake, table: str, day: str) -> list[Path]:
    """The directories of a batch table's day that belong to the lake.

    Args:
        lake: which.
        table: one of `BATCH_TABLES`.
        day: as 2026-11-21.

    Returns:
        Directories with Parquet files, by batch; for events, those of both levels.
    """
    if table not in BATCH_TABLES:
        raise ValueError(table)
    now = Published.of(lake)
    return [path for place in now.places(table) if now.day_of(place) == day for path in now.in_place(place)]


def parquet_files(directory: Path) -> list[Path]:
    """The files of a batch directory, in the order in which they were written."""
    return [path for path in listed(directory) if path.suffix == ".parquet" and not path.name.startswith(("_", "."))]


def _json_files(directory: Path) -> list[Path]:
    return [path for path in listed(directory) if path.suffix == ".json"]


def _directories(directory: Path, prefix: str) -> list[Path]:
    return [path for path in listed(directory) if path.name.startswith(prefix) and path.is_dir()]


def write_json(path: Path, content: Struct) -> None:
    """Write a file that is there whole or not at all, whatever happens."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content)))


def now_in_words() -> str:
    """The time for a manifest."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def writing(lake: Lake) -> Iterator[None]:
    """Be the only one that writes into a lake that is there.

    Raises:
        PipelineError: another process writes, there is no lake, or a directory of it cannot be listed.
    """
    lake.must_exist()
    with lake.locked():
        lake.must_be_listable()
        yield


def is_being_written(lake: Lake) -> bool:
    """Whether a process writes into a lake just now."""
    try:
        with (lake.root / "_lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock yet, or not to be read
        return False
    return False
