"""The lake: a directory of Parquet tables that any engine can read, and how a batch becomes part of it.

Layout: ``<table>/d=<day, UTC>/...`` for every table; names that begin with an underscore are not tables.

* ``events``, ``rollup_10s`` and ``bad_lines`` grow by whole batches: ``<table>/d=<day>/.../batch=<id>/*.parquet``.
  A batch is written under ``_staging`` and renamed, so no reader sees half a file. When all its parts are in place its
  manifest ``_batches/<id>.json`` is written: a batch is part of the lake if and only if it has a manifest.
* All other tables are computed from these, one file per day, ``<table>/d=<day>/<table>.parquet``, replaced in one
  step; ``durable_subs``, which covers all days, is one file.
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
"""The version of the manifests' format."""

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
"""Tables with one file per day."""

WHOLE_TABLES: Final = ("durable_subs",)
"""Tables with one file."""


@dataclass(frozen=True, slots=True)
class IngestedSegment:
    """A segment in a manifest: ``path`` below the journal's directory, its lines, and the bad ones among them."""

    path: str
    lines: int
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a batch.

    ``days`` are those of its events, ``session_days`` those on which the sessions in it began. ``written`` is an ISO
    time.
    """

    batch: int
    segments: list[IngestedSegment]
    events: int
    bad_lines: int
    rollup_rows: int
    days: list[str]
    session_days: list[str]
    written: str
    version: int = MANIFEST_VERSION


class ParquetLake:
    """A lake's directory: its paths, lock and manifests."""

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
        """The file of a table with one file per day; ``day`` as 2026-11-21."""
        return self.root / name / f"d={day}" / f"{name}.parquet"

    def whole_file(self, name: str) -> Path:
        """The file of a table with one file."""
        return self.root / name / f"{name}.parquet"

    def manifest(self, batch: int) -> Path:
        """The manifest of a batch."""
        return self.batches / f"{batch:08d}.json"

    def create(self) -> None:
        """Create the lake's own directories, or raise PipelineError."""
        try:
            for directory in (self.root, self.staging, self.batches, self.checkpoint.parent, self.logs, self.retired):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(
                f"the lake {self.root} cannot be used: {error.strerror or error} ({error.filename}). "
                "Give a directory that may be written to."
            ) from error

    def must_exist(self) -> None:
        """Raise PipelineError if there is no lake, or it may not be read."""
        try:
            found = stat.S_ISDIR(self.batches.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            found = False
        except OSError as error:
            raise _not_listed(self.batches, error) from error
        if not found:
            raise PipelineError(f"there is no lake at {self.root}. Give the directory that `pipeline ingest` wrote.")

    def must_be_listable(self) -> None:
        """Raise PipelineError if there is no lake, or a directory of it cannot be listed and so would seem empty."""
        self.must_exist()
        listed(self.batches)
        listed(self.retired)
        for table in (*BATCH_TABLES, *DAY_TABLES, *WHOLE_TABLES):
            for _ in walked(self.table(table)):
                pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock, or raise PipelineError if another process holds it."""
        self.create()
        try:
            descriptor = os.open(self.root / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise PipelineError(f"the lake {self.root} cannot be locked: {error.strerror or error}.") from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            raise PipelineError(
                f"another command (process {holder or 'unknown'}) is writing into the lake {self.root}: wait for its "
                "end. (One with --every runs until it is stopped.)"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def manifests(self) -> list[Manifest]:
        """The manifests of all batches, in order; raises PipelineError if one cannot be read."""
        return [self.read_manifest(batch) for batch in self.batch_numbers()]

    def batch_numbers(self) -> list[int]:
        """The numbers of all batches that are part of the lake, in order."""
        paths = listed(self.batches)
        return sorted(int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdigit())

    def read_manifest(self, batch: int) -> Manifest:
        """The manifest of a batch; raises PipelineError if it does not exist or cannot be read."""
        path = self.manifest(batch)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise PipelineError(f"the manifest {path} cannot be read: {error}") from error

    def write_manifest(self, manifest: Manifest) -> None:
        """Make a batch part of the lake, or replace its manifest, in one step."""
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
        """Directories of batches without a manifest, which a killed ingest has left in the tables."""
        complete = set(self.batch_numbers())
        return [path for batch, path in self.batch_directories() if batch not in complete]

    def staged(self, batch: int) -> Path:
        """A new, empty directory in which a batch can be prepared."""
        directory = self.staging / f"{batch:08d}"
        remove(directory)
        directory.mkdir(parents=True)
        return directory

    def publish(self, staged: Path, batch: int) -> None:
        """Move a prepared batch into the tables. It is part of the lake once its manifest is written.

        ``staged`` contains ``<table>/d=<day>/...``, with Spark's files in the innermost directories.
        """
        parents: set[Path] = set()
        for directory in _with_files(staged):
            _keep_parquet_files(directory)
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
        """The last batch that the computed tables contain; -1 for none."""
        try:
            return int(json.loads(self._refreshed.read_bytes())["batch"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def set_refreshed(self, batch: int) -> None:
        """Note that the computed tables contain all batches up to this one."""
        write_whole(self._refreshed, json.dumps({"batch": batch}).encode())


def listed(directory: Path) -> list[Path]:
    """The paths in a directory, by name; none if it does not exist.

    Raises PipelineError if it cannot be listed. (`Path.glob` would silently find nothing.)
    """
    try:
        with os.scandir(directory) as entries:
            return sorted(directory / entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _not_listed(directory, error) from error


def walked(directory: Path) -> Iterator[Path]:
    """All files below a directory, without following links; none if it does not exist. Raises PipelineError."""
    for parent, _, names in os.walk(directory, onerror=_raise_not_listed):
        yield from (Path(parent, name) for name in sorted(names))


def _raise_not_listed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):  # removed meanwhile, or never created
        raise _not_listed(Path(error.filename), error) from error


def _not_listed(directory: Path, error: OSError) -> PipelineError:
    return PipelineError(
        f"cannot list {directory}: {error.strerror or error}. Run as a user who may read all of the lake; "
        "if its disk is damaged, restore it."
    )


def _with_files(root: Path) -> list[Path]:
    return sorted(
        Path(parent) for parent, _, files in os.walk(root) if any(name.endswith(".parquet") for name in files)
    )


def _keep_parquet_files(directory: Path) -> None:
    """Remove Spark's own files from a directory, and sync the Parquet files to disk."""
    for path in directory.iterdir():
        if path.suffix == ".parquet" and not path.name.startswith((".", "_")):
            _sync(path, os.O_RDONLY)
        elif path.is_file():
            path.unlink()
    sync_directory(directory)


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file in one step: after a power cut it is there as a whole or not at all."""
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
    """Sync a directory's entries to disk."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def remove(directory: Path) -> None:
    """Remove a directory and its content, if it exists."""
    if directory.exists():
        shutil.rmtree(directory)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
