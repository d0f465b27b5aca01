"""The number of workers. Apart from other scalars, since it depends on the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from gateway.config.scalars import Count


@dataclass(frozen=True)
class WorkerCount(Count):
    """A number of processes, or `auto`: as many as this process has cores."""

    TEXT: ClassVar[str] = "(auto|[0-9]{1,3})"

    most: int = 256

    def _read(self, value: object) -> int:
        return super()._read(min(cores(), self.most) if value == "auto" else value)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
