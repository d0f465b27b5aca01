"""The segments that a journal has: a directory of this machine, or a URL of a storage that pyarrow reaches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName, mark_of
from gateway.pipeline.lake import location

GONE: Final = "it is gone"

_CHUNK: Final = 1 << 20
_PATH: Final = attrgetter("path")


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment that is not empty, finished or not: its path, its bytes, and when it was last written (Unix time).

    ``url`` is the same path for Spark: a directory, or a URL, of this machine or of an object store.
    """

    name: SegmentName
    is_open: bool
    path: str
    url: str
    size: int
    written: float
    _files: fs.FileSystem

    @property
    def day(self) -> str:
        """The day of its directory, such as 2026-11-21."""
        return self.path.rsplit("/", 2)[-2].partition("=")[2]

    def count_lines(self) -> int:
        """Its lines; the last one counts even if it does not end with LF. Raises FileNotFoundError if it is gone."""
        lines, last = 0, b"\n"
        with self._opened() as file:
            while chunk := file.read(_CHUNK):
                lines += chunk.count(b"\n")
                last = chunk[-1:]
        return lines + (last != b"\n")

    def trouble(self) -> str | None:
        """Why it cannot be read, `GONE` if it is not there; None if it can."""
        try:
            with self._opened() as file:
                file.read(1)
        except FileNotFoundError:
            return GONE
        except PipelineError as error:
            return str(error)
        return None

    @contextmanager
    def _opened(self) -> Iterator[pa.NativeFile]:
        with (
            _explained(f"the segment {self.path} cannot be read", FileNotFoundError),
            self._files.open_input_stream(self.path, compression=None) as file,
        ):
            yield file

    def delete(self) -> None:
        """Delete it, and the mark that it was shipped. Raises FileNotFoundError if it is gone."""
        with _explained(f"the segment {self.path} cannot be deleted", FileNotFoundError):
            self._files.delete_file(self.path)
            with suppress(FileNotFoundError):
                self._files.delete_file(str(mark_of(Path(self.path))))


@dataclass(frozen=True, slots=True)
class OddFile:
    """A file or directory among the segments that is not read. ``is_refused``: it may hide lines that are missing."""

    path: str
    why: str
    is_refused: bool

    def __str__(self) -> str:
        return f"{self.path} ({self.why})"


def stored_segments(journal: Path | str) -> Iterator[StoredSegment]:
    """The segments of a journal, by day and name. Raises PipelineError if it cannot be listed: that is not empty."""
    return (each for each in listed(journal) if isinstance(each, StoredSegment))


def listed(journal: Path | str) -> Iterator[StoredSegment | OddFile]:
    """The same, and what is not read: links, other special files, and files with names that no gateway gives.

    A link could let whoever writes a journal read any file with the rights of the ingest.
    """
    place = _place(journal)
    for storage, day, files in _days(journal):
        is_local = isinstance(storage, fs.LocalFileSystem)
        if is_local and os.path.islink(day.path):
            yield OddFile(day.path, "a link", is_refused=True)
            continue
        for file in files:
            name = SegmentName.read(file.base_name)
            if name is None or file.base_name not in (str(name), name.while_open):
                if not file.base_name.startswith("."):  # such as the marks of shipped segments
                    yield OddFile(file.path, "not a segment's name", is_refused=False)
            elif is_local and (why := _why_irregular(file.path)):
                yield OddFile(file.path, why, is_refused=True)
            elif file.size:
                is_open = file.base_name == name.while_open
                url = f"{place}/{day.base_name}/{file.base_name}"
                yield StoredSegment(name, is_open, file.path, url, file.size, file.mtime_ns / 1e9, storage)


def _why_irregular(path: str) -> str | None:
    with suppress(FileNotFoundError):  # somebody has deleted it meanwhile
        mode = os.lstat(path).st_mode
        return "a link" if stat.S_ISLNK(mode) else None if stat.S_ISREG(mode) else "no regular file"
    return None


def remove_empty_days(journal: Path | str) -> None:
    """Remove the directories of days without files. Raises PipelineError if the journal cannot be listed.

    S3 has none; but whenever pyarrow deletes an object there, it puts an empty one in the place of the directory.
    Removing the directory removes that, and puts one at the top of the journal: one, whatever the number of days.
    """
    # A gateway creates the directory of a day before the first file in it: leave those of yesterday and today alone.
    # In an object store pyarrow would also delete a segment that comes in the moment of the removal.
    last = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    for storage, day, files in _days(journal):
        if day.base_name.partition("=")[2] < last and not files:
            with suppress(OSError, pa.ArrowException):  # a file has come, or somebody has deleted it
                if isinstance(storage, fs.LocalFileSystem):
                    os.rmdir(day.path)
                else:
                    storage.delete_dir(day.path)


def _place(journal: Path | str) -> str:
    return location(str(journal)).replace("s3a://", "s3://", 1)


def _days(journal: Path | str) -> Iterator[tuple[fs.FileSystem, fs.FileInfo, list[fs.FileInfo]]]:
    """The directories of a journal's days, each with the storage and with what is in it."""
    place = _place(journal)
    with _explained(f"the journal {place} cannot be read"):
        storage, base = fs.FileSystem.from_uri(place)
        for day in sorted(storage.get_file_info(fs.FileSelector(base)), key=_PATH):
            if day.type is fs.FileType.Directory and day.base_name.startswith(("day=", "d=")):
                inside = fs.FileSelector(day.path, allow_not_found=True)  # somebody may delete it meanwhile
                yield storage, day, sorted(storage.get_file_info(inside), key=_PATH)


@contextmanager
def _explained(what: str, *passed_on: type[OSError]) -> Iterator[None]:
    """Turn an error of a storage into a PipelineError that says what could not be done."""
    try:
        yield
    except passed_on:
        raise
    except (OSError, pa.ArrowException) as error:
        number = error.errno if isinstance(error, OSError) else None
        raise PipelineError(
            f"{what}: {os.strerror(number) if number else error}. Give the directory or URL that gateways write or "
            "ship to, and run as a user who may use all of it."
        ) from error
