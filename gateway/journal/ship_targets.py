"""Places for segments: a directory, or an object store. Each puts a segment whole, and only if it is not there."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import GatewayError
from gateway.journal.files import make_directory, sync_directory
from gateway.journal.shipper import SegmentDiffersError, ShipError, ShipTarget
from gateway.whole_files import written_beside

if TYPE_CHECKING:
    from obstore.store import ObjectStore

NOTE_NAME: Final = ".collected"

_FILE_MODE: Final = 0o640
# Seconds after which nobody writes a part any more.
_LEFT_AFTER: Final = 3600.0
_LONGEST_REASON: Final = 300
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")


class Store(ShipTarget, Protocol):
    """A place that also keeps a note: how far a stream was collected into it."""

    def note(self) -> bytes | None:
        """The note, if there is one. Raises `ShipError` if it cannot be read."""

    def set_note(self, data: bytes) -> None:
        """Replace the note. Raises `ShipError` if it cannot be written."""


def open_store(place: str) -> Store:
    """The target for a directory, or for the URL of an object store.

    Raises `GatewayError` if the URL cannot be used, or the extra is not installed.
    """
    return ObjectTarget(place) if "://" in place else DirectoryTarget(Path(place))


class DirectoryTarget:
    """A directory on this machine or on a network file system, which is made if it is not there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def _ship_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ShipError(f"{self._directory}: {error.strerror or error}") from error

    def put(self, name: str, data: bytes) -> None:
        """See `ShipTarget`."""
        path = self._directory / name
        with self._ship_errors():
            if path.exists():
                _expect_size(name, path.stat().st_size, len(data))
            else:
                make_directory(path.parent)
                self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        """A reader sees all of it or nothing."""
        with written_beside(path, data, _FILE_MODE) as part:
            # If another process puts this name at the same time, it puts the same bytes.
            part.rename(path)
        self._remove_left(path.parent)
        sync_directory(path.parent)

    def _remove_left(self, directory: Path) -> None:
        """Remove what processes left that were killed on the way; another one may be writing a new one now."""
        for left in directory.glob(".*.part"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _LEFT_AFTER:
                    left.unlink()

    def note(self) -> bytes | None:
        """See `Store`."""
        with self._ship_errors():
            try:
                return (self._directory / NOTE_NAME).read_bytes()
            except FileNotFoundError:
                return None

    def set_note(self, data: bytes) -> None:
        """See `Store`."""
        with self._ship_errors():
            make_directory(self._directory)
            self._write(self._directory / NOTE_NAME, data)

    def close(self) -> None:
        """See `ShipTarget`."""


class ObjectTarget:
    """An object store: S3, Google Cloud Storage, Azure Blob Storage, or one with the API of any of them.

    Credentials come from the environment, the role of the instance or pod, or files that the environment names.
    """

    def __init__(self, url: str) -> None:
        if importlib.util.find_spec("obstore") is None:
            raise GatewayError("an object store needs obstore, not installed here: pip install 'stomp-gateway[ship]'")
        from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415 - of an extra
        from obstore.store import from_url  # noqa: PLC0415

        self._already_exists, self._errors = AlreadyExistsError, (BaseError, OSError)
        try:
            # The shipper itself tries again, for days.
            store = from_url(url, retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=30)})
        except (BaseError, OSError, ValueError) as error:
            raise GatewayError(f"{url} cannot be used: {_reason(error)}") from error
        self._store: ObjectStore = store
        self._url = url

    @contextmanager
    def _ship_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise ShipError(f"{self._url}: {_reason(error)}") from error

    def put(self, name: str, data: bytes) -> None:
        """See `ShipTarget`."""
        with self._ship_errors():
            try:
                _ = self._store.put(name, data, mode="create", use_multipart=False)
            except self._already_exists:
                _expect_size(name, self._store.head(name)["size"], len(data))

    def note(self) -> bytes | None:
        """See `Store`."""
        with self._ship_errors():
            try:
                return self._store.get(NOTE_NAME).bytes().to_bytes()
            except FileNotFoundError:
                return None

    def set_note(self, data: bytes) -> None:
        """See `Store`."""
        with self._ship_errors():
            _ = self._store.put(NOTE_NAME, data, use_multipart=False)

    def close(self) -> None:
        """See `ShipTarget`."""


def _expect_size(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise SegmentDiffersError(f"{name} is there with {found} bytes, and has {wanted} here")


def _reason(error: Exception) -> str:
    """A store's error in one line, without what may hold a secret: queries of URLs, and the body of its answer."""
    text = (str(error).splitlines() or [""])[0]
    code = _CODE.search(str(error))
    text = re.sub(r"\?\S*", "", text.partition("<")[0]).strip(" :")[:_LONGEST_REASON]
    return f"{text} ({code[1]})" if code else text
