"""A limit on the CPU time of a process: a control group of its own, of version 1 or 2. Needs root, and Linux."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 25_000
"""Microseconds. Short, so that work is spread evenly over the time; less than a millisecond of them is not granted."""


class NoLimitError(Exception):
    """This system, or this user, cannot limit a process."""


@contextlib.contextmanager
def limited(pid: int, cores: float) -> Iterator[None]:
    """Let a process have so many cores at most.

    Raises:
        NoLimitError: it cannot be limited.
    """
    base = _ROOT / "cpu"
    if (_ROOT / "cgroup.controllers").exists():
        base, files = _ROOT, {"cpu.max": f"{int(cores * _PERIOD)} {_PERIOD}"}
    else:
        files = {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(int(cores * _PERIOD))}
    group = base / f"stomp-bench-{pid}"
    home = base / "cgroup.procs"
    try:
        group.mkdir()
    except OSError as error:
        raise NoLimitError(f"{base}: {error.strerror}") from error
    try:
        for name, value in files.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        group.rmdir()
        raise NoLimitError(f"{group}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            home.write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()
