"""Which workers hang: their event loops do not turn."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.server.shared_memory import SharedMemory


class SignsOfLife:
    """Looks for the signs that workers put into their memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        # By process: its last sign, and how often it was still the last.
        self._seen: dict[int, tuple[float, int]] = {}

    def missing(self, workers: Mapping[int, int], patience: float) -> list[int]:
        """The processes that gave no sign for so many seconds. ``workers`` are their numbers. Call it once a second.

        Looks are counted, and not seconds: if the whole machine stood still, nobody hangs.
        """
        seen = {}
        for process, number in workers.items():
            sign = self._memory.alive[number]
            last, looks = self._seen.get(process, (None, 0))
            seen[process] = (sign, looks + 1 if sign == last else 0)
        self._seen = seen
        missing = [process for process, (_, looks) in seen.items() if looks >= patience]
        holder = self._memory.lock.holder if missing else None
        if holder not in workers:
            return missing
        if holder not in missing:
            # Its last sign is a little younger than those of who wait for it. Perhaps it is missing at the next look.
            return []
        # The others only wait for what this one holds.
        self._seen = {process: (sign, 0) for process, (sign, _) in seen.items()}
        return [holder]
