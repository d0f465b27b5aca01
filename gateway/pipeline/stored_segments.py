"""The segments that a journal has: a directory of this machine, or a URL of a storage that pyarrow reaches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName, mark_of
from gateway.pipeline.lake import location

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment that is not empty, finished or not: its path, its bytes, and when it was last written (Unix time)."""

    name: SegmentName
    is_open: bool
    path: str
    size: int
    written: float
    _files: fs.FileSystem

    def count_lines(self) -> int:
        """Its lines; the last one counts even if it does not end with LF. Raises FileNotFoundError if it is gone."""
        lines, last = 0, b"\n"
        with (
            _explained(f"the segment {self.path} cannot be read", FileNotFoundError),
            self._files.open_input_stream(self.path, compression=None) as file,
        ):
            while chunk := file.read(_CHUNK):
                lines += chunk.count(b"\n")
                last = chunk[-1:]
        return lines + (last != b"\n")

    def delete(self) -> None:
        """Delete it, and the mark that it was shipped. Raises FileNotFoundError if it is gone."""
        with _explained(f"the segment {self.path} cannot be deleted", FileNotFoundError):
            self._files.delete_file(self.path)
            with suppress(FileNotFoundError):
                self._files.delete_file(str(mark_of(Path(self.path))))


def stored_segments(journal: Path | str) -> Iterator[StoredSegment]:
    """The segments of a journal, by day and name. Raises PipelineError if it cannot be listed: that is not empty."""
    place = location(str(journal)).replace("s3a://", "s3://", 1)
    with _explained(f"the journal {place} cannot be read"):
        files, base = fs.FileSystem.from_uri(place)
        for day in _listed(files, fs.FileSelector(base)):
            if day.type is fs.FileType.Directory and day.base_name.startswith("d="):
                # The day's directory may be deleted meanwhile.
                for file in _listed(files, fs.FileSelector(day.path, allow_not_found=True)):
                    name = SegmentName.read(file.base_name)
                    if file.size and name is not None and file.base_name in (str(name), name.while_open):
                        is_open = file.base_name == name.while_open
                        yield StoredSegment(name, is_open, file.path, file.size, file.mtime_ns / 1e9, files)


def _listed(files: fs.FileSystem, selector: fs.FileSelector) -> list[fs.FileInfo]:
    return sorted(files.get_file_info(selector), key=lambda each: each.path)


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
