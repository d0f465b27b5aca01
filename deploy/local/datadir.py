"""The directory a private node keeps its data in: claimed by one process at a time, rid of what a crash left behind."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from deploy.local.child import end_all
from deploy.local.errors import LocalError

OWNER_VARIABLE = "STOMP_GATEWAY_NODE_DIRECTORY"
"""Environment variable that marks every process of a node with the node's data directory."""

_TEMPORARY_PREFIX = "node-"
_GRACE = 10.0


class DataDirectory:
    """A directory that this process alone uses until `release`. The claim is a lock which the kernel drops with us."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        """Claim a directory, creating it where needed, and end the processes an earlier, crashed owner left in it.

        Args:
            path: the directory.
            temporary: whether `release` deletes it.

        Raises:
            LocalError: another process uses it, or it cannot be written.
        """
        self.path = path.absolute()
        self._temporary = temporary
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LocalError(f"Cannot keep data in {self.path}: {error.strerror}; check who owns it.") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise LocalError(f"Another process runs a RabbitMQ node in {self.path}: stop that one first.") from error
        _end_leftovers(self.path)

    @classmethod
    def fresh(cls, parent: Path) -> "DataDirectory":
        """Create and claim an empty directory that `release` deletes; delete those that crashed runs left in `parent`.

        Args:
            parent: where it is created.

        Raises:
            LocalError: `parent` cannot be written.
        """
        try:
            parent.mkdir(parents=True, exist_ok=True)
            # Held from the sweep to the claim: else a sweep could take another run's directory before it is claimed.
            with locked(parent):
                for stale in parent.glob(_TEMPORARY_PREFIX + "*"):
                    with contextlib.suppress(LocalError):
                        cls(stale, temporary=True).release()
                return cls(Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=parent)), temporary=True)
        except OSError as error:
            raise LocalError(f"Cannot write in {parent.absolute()}: {error.strerror}; check who owns it.") from error

    def keep(self) -> None:
        """Have `release` leave the directory as it is. A later `fresh` in the same place deletes it."""
        self._temporary = False

    def release(self) -> None:
        """Give the directory up, and delete it if it is temporary. Repeating this does nothing."""
        if self._descriptor < 0:
            return
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
        self._descriptor = -1


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Wait until no other process has the directory locked, and lock it.

    Args:
        directory: which exists.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _end_leftovers(path: Path) -> None:
    """End the processes whose environment names this directory. Nobody owns them: we hold the claim."""
    leftovers = [process for process in psutil.process_iter() if _owner(process) == str(path)]
    for process in leftovers:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    end_all(leftovers, _GRACE)


def _owner(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(OWNER_VARIABLE)
    except (psutil.Error, OSError):  # somebody else's process, or one that is just ending
        return None
