"""The lake: a directory of Parquet tables that any engine can read, and how something becomes part of it.

Layout. ``<table>/d=<day, UTC>/...`` for every table; what begins with an underscore is no table.

* ``events``, ``rollup_10s`` and ``bad_lines`` grow by whole batches: ``<table>/d=<day>/.../batch=<id>/*.parquet``.
  A batch is written under ``_staging`` and renamed, so no reader meets half a file. When all its parts are in place its
  manifest is written, ``_batches/<id>.json``: a batch is part of the lake if and only if it has a manifest.
* All other tables are computed from those, one file to a day, ``<table>/d=<day>/<table>.parquet``, replaced in one
  step; ``durable_subs``, which spans all days, is one file.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import PipelineError

MANIFEST_VERSION: Final = 1
"""The version of what manifests say."""

BATCH_TABLES: Final = ("events", "rollup_10s", "bad_lines")
"""Tables that grow by batches."""

DAY_TABLES: Final = (
    "boots",
    "sessions",
    "traffic_10s",
    "dest_hour",
    "latency_hour",
    "errors_hour",
    "redeliveries_hour",
    "unacked_hotspots",
    "features_used",
    "durable_days",
)
"""Tables with one file to a day."""

WHOLE_TABLES: Final = ("durable_subs",)
"""Tables with one file."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in a manifest: ``path`` below the journal's directory, its lines, and the bad ones among them."""

    path: str
    lines: int
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a batch brought into the lake.

    ``days``: of its events. ``session_days``: on which the sessions that it touched began. ``written``: ISO time.
    """

    batch: int
    segments: list[Segment]
    events: int
    bad_lines: int
    rollup_rows: int
    days: list[str]
    session_days: list[str]
    written: str
    version: int = MANIFEST_VERSION


class Lake:
    """Where everything in a lake is.

    Args:
        root: its directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / "_staging"
        self.batches = root / "_batches"
        self.checkpoint = root / "_checkpoint" / "v1"
        self.logs = root / "_logs"
        self.retired = root / "_retired"

    def table(self, name: str) -> Path:
        """The directory of a table."""
        return self.root / name

    def day_file(self, name: str, day: str) -> Path:
        """The file of a table with one file to a day; ``day`` as 2026-11-21."""
        return self.root / name / f"d={day}" / f"{name}.parquet"

    def whole_file(self, name: str) -> Path:
        """The file of a table with one file."""
        return self.root / name / f"{name}.parquet"

    def manifest(self, batch: int) -> Path:
        """The manifest of a batch."""
        return self.batches / f"{batch:08d}.json"

    def create(self) -> None:
        """Make the lake's own directories, where they are not there yet.

        Raises:
            PipelineError: they cannot be made.
        """
        try:
            for directory in (self.root, self.staging, self.batches, self.checkpoint.parent, self.logs, self.retired):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(
                f"the lake {self.root} cannot be used: {error.strerror or error} ({error.filename}). "
                "Give a directory that may be written to."
            ) from error

    def must_exist(self) -> None:
        """See whether there is a lake, and one that may be read.

        Raises:
            PipelineError: there is none, or it may not be looked into.
        """
        try:
            found = stat.S_ISDIR(self.batches.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            found = False
        except OSError as error:
            raise _not_listed(self.batches, error) from error
        if not found:
            raise PipelineError(f"there is no lake at {self.root}. Give the directory that `pipeline ingest` wrote.")

    def must_be_listable(self) -> None:
        """See whether every directory of the lake's tables can be listed: what cannot be would pass for empty.

        Raises:
            PipelineError: there is no lake, or a directory cannot be listed; it is named.
        """
        self.must_exist()
        listed(self.batches)
        listed(self.retired)
        for table in (*BATCH_TABLES, *DAY_TABLES, *WHOLE_TABLES):
            for _ in walked(self.table(table)):
                pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one that writes into the lake.

        Raises:
            PipelineError: somebody else is writing.
        """
        self.create()
        try:
            descriptor = os.open(self.root / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise PipelineError(f"the lake {self.root} cannot be locked: {error.strerror or error}.") from error
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            raise PipelineError(
                f"another command (process {who or 'unknown'}) is writing into the lake {self.root}: wait for its end. "
                "(One that was started with --every stays until it is stopped.)"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def manifests(self) -> list[Manifest]:
        """The manifests of all batches, in their order.

        Raises:
            PipelineError: one cannot be read.
        """
        return [self.read_manifest(batch) for batch in self.batch_numbers()]

    def batch_numbers(self) -> list[int]:
        """The numbers of all batches that are part of the lake, in their order.

        Raises:
            PipelineError: they cannot be listed.
        """
        paths = listed(self.batches)
        return sorted(int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdigit())

    def read_manifest(self, batch: int) -> Manifest:
        """The manifest of a batch.

        Raises:
            PipelineError: it is not there, or it cannot be read.
        """
        path = self.manifest(batch)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise PipelineError(f"the manifest {path} cannot be read: {error}") from error

    def write_manifest(self, manifest: Manifest) -> None:
        """Make a batch part of the lake, or replace what is said of it, in one step."""
        write_whole(self.manifest(manifest.batch), json.dumps(msgspec.to_builtins(manifest), indent=1).encode())

    def batch_directories(self) -> Iterator[tuple[int, Path]]:
        """Every directory ``batch=<id>`` of a table with its number, whether it has a manifest or not."""
        patterns = {"events": "d=*/level=*/batch=*", "rollup_10s": "d=*/batch=*", "bad_lines": "d=*/batch=*"}
        for table, pattern in patterns.items():
            for path in sorted(self.table(table).glob(pattern)):
                number = path.name.removeprefix("batch=")
                if number.isdigit():
                    yield int(number), path

    def orphans(self) -> list[Path]:
        """What a killed ingest left in the tables: directories of batches without a manifest."""
        complete = set(self.batch_numbers())
        return [path for batch, path in self.batch_directories() if batch not in complete]

    def staged(self, batch: int) -> Path:
        """An empty place in which a batch can be prepared; what was there is gone."""
        place = self.staging / f"{batch:08d}"
        remove(place)
        place.mkdir(parents=True)
        return place

    def publish(self, staged: Path, batch: int) -> None:
        """Put what was prepared in its place. It is part of the lake once its manifest is written.

        Args:
            staged: holds ``<table>/d=<day>/...``, with Spark's files in the last directories.
            batch: its number.
        """
        parents: set[Path] = set()
        for directory in _with_files(staged):
            tidy(directory)
            target = self.root / directory.relative_to(staged) / f"batch={batch:08d}"
            target.parent.mkdir(parents=True, exist_ok=True)
            directory.rename(target)
            parents.update(self._up_to_root(target.parent))
        for parent in parents:
            sync_directory(parent)
        remove(staged)

    def _up_to_root(self, directory: Path) -> Iterator[Path]:
        while directory != self.root:
            yield directory
            directory = directory.parent
        yield self.root

    @property
    def _refreshed(self) -> Path:
        return self.root / "_refreshed.json"

    def refreshed(self) -> int:
        """The last batch whose days are in the tables computed from events; -1 where none is."""
        try:
            return int(json.loads(self._refreshed.read_bytes())["batch"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def set_refreshed(self, batch: int) -> None:
        """Note that the tables computed from events hold all up to a batch."""
        write_whole(self._refreshed, json.dumps({"batch": batch}).encode())


def listed(directory: Path) -> list[Path]:
    """What is in a directory, by name; nothing where there is none.

    Raises:
        PipelineError: it cannot be listed. (A pattern, as of `Path.glob`, would find nothing in it, and say nothing.)
    """
    try:
        with os.scandir(directory) as entries:
            return sorted(directory / entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _not_listed(directory, error) from error


def walked(directory: Path) -> Iterator[Path]:
    """All files below a directory, those of linked directories left out; nothing where there is none.

    Raises:
        PipelineError: a directory cannot be listed.
    """
    for place, _, names in os.walk(directory, onerror=_refuse):
        yield from (Path(place, name) for name in sorted(names))


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):  # removed meanwhile, or never there
        raise _not_listed(Path(error.filename), error) from error


def _not_listed(directory: Path, error: OSError) -> PipelineError:
    return PipelineError(
        f"cannot list {directory}: {error.strerror or error}. Run as a user who may read all of the lake; "
        "if its disk is damaged, restore it."
    )


def _with_files(root: Path) -> list[Path]:
    return sorted(Path(place) for place, _, files in os.walk(root) if any(name.endswith(".parquet") for name in files))


def tidy(directory: Path) -> None:
    """Remove Spark's own files from a directory of Parquet files, and see to it that the rest is on the disk."""
    for path in directory.iterdir():
        if path.suffix == ".parquet" and not path.name.startswith((".", "_")):
            _sync(path, os.O_RDONLY)
        elif path.is_file():
            path.unlink()
    sync_directory(directory)


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file in one step, so that it is there as a whole or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """See to it that a directory's entries are on the disk."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def remove(directory: Path) -> None:
    """Remove a directory with all that is in it, if it is there."""
    if directory.exists():
        shutil.rmtree(directory)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
