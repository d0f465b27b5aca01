"""The number of workers. Apart from other scalars, since it depends on the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from gateway.config.scalars import Count

_ROOT: Final = Path("/")
_UNLIMITED: Final = ("max", "-1")


@dataclass(frozen=True)
class WorkerCount(Count):
    """A number of processes, or `auto`: as many as this process has cores."""

    TEXT: ClassVar[str] = "(auto|[0-9]{1,3})"

    most: int = 256

    def read(self, value: object) -> int:
        """See `Quantity`."""
        return super().read(min(cores(), self.most) if value == "auto" else value)


def cores() -> int:
    """The cores that this process may use. Under a CPU limit, as many as can use it up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """How many cores the control groups of this process let it use, as in a container with a CPU limit; None: all."""
    quotas = [quota for path in _groups(root) for quota in (_quota_2(path), _quota_1(path)) if quota is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups that this process is in, each with those around it, whose limits hold, too.

    A container may see its own group where others have the root of all, so those that are not there are no mistake.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0":
            mount = mounts
        elif "cpu" in controllers.split(","):
            mount = mounts / "cpu"
        else:
            continue
        inner = PurePosixPath(group.lstrip("/"))
        yield from (mount / each for each in (inner, *inner.parents))


def _quota_2(group: Path) -> float | None:
    return _share(*(_text(group / "cpu.max").split() or ["max", ""]))


def _quota_1(group: Path) -> float | None:
    quota, period = (_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return _share(quota or "-1", period)


def _share(quota: str, period: str) -> float | None:
    """Cores, from the microseconds of CPU time in a period of microseconds."""
    return None if quota in _UNLIMITED else int(quota) / int(period)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
