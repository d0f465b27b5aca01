"""What the kernel says about processes and the machine: CPU seconds, memory, and who listens on a port. Linux only."""

import os
import platform
from collections.abc import Callable, Collection
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_LISTEN = "0A"


def sum_of(measure: Callable[[int], float], pids: Collection[int]) -> float | None:
    """Return the sum of what `measure` says of each process; None if there is none, or one cannot be seen any more."""
    try:
        return sum(map(measure, pids)) if pids else None
    except OSError:
        return None


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that process `pid` has used with all its threads.

    Raises:
        OSError: there is no such process.
    """
    # The second field is the program's name in parentheses and may contain spaces: count fields after it.
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def machine_seconds() -> float:
    """Return the CPU seconds that the whole machine has worked, including time stolen by the hypervisor."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICK


def processor() -> str:
    """Return the model of the first processor, as the kernel names it."""
    lines = (line.partition(":") for line in (_PROC / "cpuinfo").read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), platform.machine())


def memory_bytes(pid: int) -> int:
    """Return the proportional set size of process `pid` in bytes, or its resident set where that is not available.

    Raises:
        OSError: there is no such process.
    """
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, PermissionError):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def program(pid: int) -> str:
    """Return the name of the program that process `pid` runs, as the kernel keeps it (15 characters)."""
    return (_PROC / str(pid) / "comm").read_text().strip()


def listeners(port: int) -> tuple[int, ...]:
    """Return the processes that hold a listening socket of TCP `port` of this machine, as far as they are visible.

    These are a gateway's supervisor and all of its workers, where it has several.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return ()
    names = (process for process in _PROC.iterdir() if process.name.isdigit())
    return tuple(sorted(int(process.name) for process in names if _holds(process / "fd", inodes)))


def _listening_inodes(port: int) -> list[str]:
    suffix = f":{port:04X}"
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        path = _PROC / "net" / table
        if path.exists():
            rows = (line.split() for line in path.read_text().splitlines()[1:])
            found += [row[9] for row in rows if row[1].endswith(suffix) and row[3] == _LISTEN]
    return found


def _holds(descriptors: Path, targets: set[str]) -> bool:
    try:
        return any(_target(entry) in targets for entry in descriptors.iterdir())
    except OSError:  # it has ended, or belongs to another user
        return False


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except FileNotFoundError:  # closed meanwhile, as is the one that read the directory
        return ""
